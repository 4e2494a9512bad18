"""What an environment may be able to do beyond `Environment`: a protocol for each ability.

An environment has an ability by having its members (see `has`); nothing is to be declared or inherited.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from jaxtrpo.envs.observation_space import ObservationSpace, flat_space
from jaxtrpo.envs.observations import Observations

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # of the standard library from Python 3.13 on


class Discrete(Protocol):
    """Actions are choices: whole numbers from 0, one per coordinate."""

    action_counts: tuple[int, ...]  # choices of each coordinate; empty where actions are real numbers


class Masking(Protocol):
    """Says which choices the next action may take, in `EnvState.mask`."""

    masks_actions: bool  # True where there are masks


class ShapedActions(Protocol):
    """A trained policy returns actions that are not flat."""

    action_shape: tuple[int, ...]


class StructuredObservations(Protocol):
    """A trained policy takes observations that are not flat."""

    observations: Observations


class JaxProgram(Protocol):
    """`reset` and `step` are JAX programs without callbacks: they run on accelerators, and under `vmap`."""

    is_program: bool  # True for such a program


class Solving(Protocol):
    """Says whether a JAX program solves linear equations by LAPACK; without this attribute it may.

    LAPACK needs more threads than there are cores before JAX 0.11.2, which slow down everything else.
    """

    solves_equations: bool  # False for a program that never does


class Terminating(Protocol):
    """Says whether episodes may terminate; without this attribute they may."""

    may_terminate: bool  # False where every episode lasts to its time limit, whatever the policy does


class Resumable(Protocol):
    """Says whether its states can be saved; without this attribute they can."""

    saves_state: bool  # False where a state is a handle to simulators elsewhere, of which there is one set


class Copyable(Protocol):
    """Has one set of simulators, and can make another."""

    def copy(self) -> Any:
        """Returns the same environment with simulators of its own."""
        ...


class Grouped(Protocol):
    """Deals its simulators out to actors."""

    def for_groups(self, groups: int) -> Any:
        """Returns the same environment for that many actors."""
        ...


class Closeable(Protocol):
    """Has simulators to shut down."""

    def close(self) -> None:
        """Shuts them down; a reset starts new ones."""
        ...


class Abandonable(Protocol):
    """Has simulators that compiled code may still be stepping when they are shut down."""

    def abandon(self) -> None:
        """Shuts them down for good."""
        ...


class Fallible(Protocol):
    """Has simulators that can fail inside compiled code, which cannot raise an exception."""

    @property
    def failure(self) -> Exception | None:
        """The error of the first simulator that failed."""
        ...


class Changeable(Protocol):
    """Has simulators that `set_env` changes in place."""

    times_changed: int


class Wasteful(Protocol):
    """Has steps that only reset, and are marked `invalid`."""

    wastes_steps: bool


class Renderable(Protocol):
    """Draws states that were stepped elsewhere."""

    @property
    def seconds_per_step(self) -> float:
        """Simulated seconds of a step."""
        ...

    def render(self, physics: Any, width: int, height: int) -> Iterator[np.ndarray]:
        """Yields a picture [height, width, 3] for each `EnvState.physics` of a single environment."""
        ...


class Informative(Protocol):
    """Reports entries of its simulators' `info`."""

    info_columns: tuple[str, ...]  # names under which they are logged

    def with_info(self, names: tuple[str, ...], *, success: bool) -> Any:
        """Returns the same environment that reports these entries; and success, if it has it and that is wanted."""
        ...

    def info(self, state: Any) -> dict[str, Any]:
        """Returns the entries by column [env], which hold those of the last episode that ended."""
        ...


class Bundled(Protocol):
    """Has simulators that step several environments each."""

    envs_per_simulator: int


class Watchable(Protocol):
    """Draws only episodes of a simulator that is made to be drawn."""

    def watched(
        self, act: Callable[[np.ndarray], Any], seed: int, width: int, height: int
    ) -> tuple[float, Iterator[tuple[np.ndarray, float]]]:
        """Plays an episode.

        Args:
          act: flat observations [1, obs] -> flat actions [1, action].
          seed: of the first state.
          width: pixels, if it can choose.
          height: pixels, if it can choose.

        Returns:
          Simulated seconds of a step; and pictures, each with the return up to it.
        """
        ...


Ability = TypeVar("Ability")


def has(env: object, ability: type[Ability]) -> TypeIs[Ability]:
    """Whether an environment has all members of a protocol.

    Those that a wrapper forwards by `__getattr__` count; from Python 3.12 on, `isinstance` does not see them.
    """
    return all(hasattr(env, member) for member in _members(ability))


@functools.cache
def _members(protocol: type) -> tuple[str, ...]:
    return tuple(name for name in {**inspect.get_annotations(protocol), **vars(protocol)} if not name.startswith("_"))


def is_jax_program(env: object) -> bool:
    """Whether the functions of an environment are JAX programs and nothing else."""
    return has(env, JaxProgram) and env.is_program


def solves_equations(env: object) -> bool:
    """Whether an environment may call LAPACK inside of JAX programs."""
    return is_jax_program(env) and not (has(env, Solving) and not env.solves_equations)


def may_terminate(env: object) -> bool:
    """Whether episodes may end before their time limit."""
    return not has(env, Terminating) or env.may_terminate is not False


def saves_state(env: object) -> bool:
    """Whether states can be saved and resumed from."""
    return not has(env, Resumable) or env.saves_state


def wastes_steps(env: object) -> bool:
    """Whether some steps only reset."""
    return has(env, Wasteful) and env.wastes_steps


def times_changed(env: object) -> int:
    """Returns how often simulators were changed in place; 0 for an environment without simulators."""
    return env.times_changed if has(env, Changeable) else 0


def masks_actions(env: object) -> bool:
    """Whether only some choices are legal in a step."""
    return has(env, Masking) and env.masks_actions


MADE_WITH = "made_with"  # attribute of environments that `jaxtrpo.make_env` has made: with which settings


def made_with(env: object) -> Any:
    """Returns with which settings an environment was made; None for others, also for the user's wrapper of one."""
    return getattr(env, "__dict__", {}).get(MADE_WITH)


def _made_alike(env: object, changed: Any) -> Any:
    """Returns a changed environment, made with the settings of one that it was made of."""
    if changed is not env and (settings := made_with(env)) is not None:
        setattr(changed, MADE_WITH, settings)
    return changed


def copy_of(env: Any) -> Any:
    """Returns an environment with simulators of its own; the same one if it has none."""
    return _made_alike(env, env.copy()) if has(env, Copyable) else env


def for_groups(env: Any, groups: int) -> Any:
    """Returns an environment for that many actors; the same one if that makes no difference."""
    return _made_alike(env, env.for_groups(groups)) if has(env, Grouped) else env


def envs_per_simulator(env: object) -> int:
    """Returns the number that numbers of environments must be multiples of: how many a simulator steps; mostly 1."""
    return env.envs_per_simulator if has(env, Bundled) else 1


def info_of(env: object, state: Any) -> dict[str, Any]:
    """Returns the entries of `info` that an environment reports, by column [env]; none for most environments."""
    return env.info(state) if has(env, Informative) and env.info_columns else {}


def with_info(env: Any, names: tuple[str, ...], *, success: bool) -> Any:
    """Returns an environment that reports entries of `info` by name.

    Raises:
      ValueError: names are given, but the environment reports none.
    """
    if has(env, Informative):
        return _made_alike(env, env.with_info(names, success=success))
    if names:
        raise ValueError(
            f"log_info={','.join(names)!r}: {env.name} has no info; only environments that Gymnasium steps do, such as "
            "gymnasium:Hopper-v5"
        )
    return env


def close(env: object) -> None:
    """Shuts down the simulators of an environment, if it has any."""
    if has(env, Closeable):
        env.close()


def abandon(env: object) -> None:
    """Shuts down the simulators of an environment for good, if it has any."""
    if has(env, Abandonable):
        env.abandon()


def require_working(env: object) -> None:
    """Raises the error of a simulator that failed inside compiled code."""
    if has(env, Fallible) and env.failure is not None:
        raise env.failure


def actions_of(env: object) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Choices of each action coordinate, and the shape of actions if they are not flat."""
    counts = tuple(env.action_counts) if has(env, Discrete) else ()
    return counts, env.action_shape if has(env, ShapedActions) else None


def observations_of(env: object) -> Observations | None:
    """How a trained policy's observations are flattened; None if they are flat."""
    return env.observations if has(env, StructuredObservations) else None


def observation_space(env: Any) -> ObservationSpace:
    """The arrays of an observation: the environment's `observation_space`, if it has one of this type, or flat."""
    space = getattr(env, "observation_space", None)  # of another type in environments of other packages
    return space if isinstance(space, ObservationSpace) else flat_space(env.observation_size)
