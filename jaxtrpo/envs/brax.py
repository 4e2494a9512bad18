"""Brax environments, which run on the accelerator together with the rest of the training program."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.config.checks import require_whole
from jaxtrpo.envs import base
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs._support.parameters import takes
from jaxtrpo.envs._support.quiet import no_output

FRAMES_PER_RENDERER = 100
BACKENDS = ("generalized", "positional", "spring", "mjx")


def make_brax_env(name: str, backend: str = BACKENDS[0], episode_length: int = 1000) -> BraxEnvironment:
    """Creates an environment that is built into Brax or registered with `brax.envs.register_environment`.

    Args:
      name: name of the environment, such as "ant". Brax 0.14's "swimmer" cannot be stepped with JAX 0.10 and later,
        which removed the signature of `jnp.clip` that it uses.
      backend: physics engine. "generalized" is Brax's default and the closest to MuJoCo of Brax's own three; "spring"
        and "positional" are faster and softer; "mjx" is MuJoCo in JAX and takes longest to compile.
      episode_length: time limit in steps.

    Raises:
      ValueError: there is no such environment or backend; the message suggests similar names.
    """
    with _quiet(), no_output():
        from brax import envs
    if name not in envs._envs:
        raise ValueError(unknown_name(name, envs._envs, prefix="brax:"))
    if backend not in BACKENDS:
        raise ValueError(unknown_name(str(backend), BACKENDS, kind="Brax backend"))
    require_whole(1, episode_length=episode_length)
    has_backends = takes(envs._envs[name], "backend", any_name=True)
    if not has_backends and backend != BACKENDS[0]:
        raise ValueError(f"brax:{name} has no setting backend, such as {backend!r}")
    with _quiet(), _no_mujoco_log():
        made = envs.get_environment(name, **({"backend": backend} if has_backends else {}))
        return BraxEnvironment(f"brax:{name}/{backend}" if has_backends else f"brax:{name}", made, episode_length)


def is_class_of(name: str, env: Any) -> bool:
    """Returns whether a name is registered for the class of an environment, and not for other arguments of it."""
    from brax import envs

    return envs._envs.get(name) is type(env)


class BraxEnvironment:
    """A `brax.envs.Env` without Brax's wrappers (see `jaxtrpo.envs.base.Environment`).

    `EnvState.physics` is the batched Brax `State`.
    """

    is_program = True

    def __init__(self, name: str, env: Any, episode_length: int):
        self.name, self.env, self.episode_length = name, env, episode_length
        first = jax.eval_shape(self._reset, jax.ShapeDtypeStruct((1, 2), jnp.uint32))
        if not hasattr(first.obs, "shape") or len(first.obs.shape) != 2:
            raise ValueError(f"{name}: observations must be flat arrays")
        self.observation_size, self.action_size = first.obs.shape[-1], int(env.action_size)
        self.action_low = np.full(self.action_size, -1, np.float32)
        self.action_high = np.full(self.action_size, 1, np.float32)

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, base.blank(self._reset, num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action between -1 and 1 to each environment."""
        with _quiet():
            brax_state = jax.vmap(self.env.step)(state.physics, action)
        brax_state = base.of_same_types(brax_state, state.physics)
        moved = base.Transition(
            physics=brax_state,
            obs=brax_state.obs.astype(jnp.float32),
            reward=brax_state.reward.astype(jnp.float32),
            terminated=brax_state.done > 0,
            finite=_finite(brax_state),
        )
        return base.advance(state, moved, self._reset_rows, self.episode_length)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time between two actions."""
        return float(self.env.dt)

    def render(self, physics: Iterable[Any], width: int, height: int) -> Iterator[np.ndarray]:
        """Renders a frame [height, width, 3] for each `physics` of one environment, on the host."""
        with _quiet(), no_output():
            from brax.io import image
        camera = "track" if "track" in _cameras(self.env.sys.mj_model) else None
        states = iter(physics)
        while chunk := list(
            itertools.islice(states, FRAMES_PER_RENDERER)
        ):  # `render_array` creates a renderer per call
            positions = [state.pipeline_state for state in chunk]
            yield from image.render_array(self.env.sys, positions, height=height, width=width, camera=camera)

    def _reset(self, keys: UInt32[Array, "env 2"]) -> Any:
        with _quiet():
            return jax.vmap(self.env.reset)(keys)

    def _reset_rows(self, keys: UInt32[Array, "env 2"], mask: Bool[Array, " env"], now: Any) -> tuple[Any, Array]:
        first = self._reset(keys)
        return base.choose_rows(mask, first, now), first.obs.astype(jnp.float32)


def _cameras(model: mujoco.MjModel) -> list[str]:
    return [model.camera(i).name for i in range(model.ncam)]


def _finite(state: Any) -> Bool[Array, " env"]:
    """Returns which environments can be simulated further: positions, velocities and observations are within bounds."""
    engine = [getattr(state.pipeline_state, name) for name in ("q", "qd") if hasattr(state.pipeline_state, name)]
    return jnp.all(jnp.abs(jnp.concatenate([state.obs, *engine], axis=-1)) <= base.LARGEST_OBSERVATION, axis=-1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides Brax's warning that it is no longer developed, and the deprecation warnings that it triggers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Brax System", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(brax|jaxopt|mujoco)\b")
        yield


@contextlib.contextmanager
def _no_mujoco_log() -> Iterator[None]:
    """Stops MuJoCo's compiler from printing warnings and from logging them to a file in the working directory."""
    before, quiet = mujoco.MjLogConfig.get(), mujoco.MjLogConfig.get()
    quiet.logto_console = quiet.logto_file = False
    quiet.set()
    try:
        yield
    finally:
        before.set()
