"""Brax environments, which run on the accelerator together with everything else."""

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

from jaxtrpo.envs import base
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs._support.quiet import no_output

RENDERED_AT_ONCE = 100  # pictures
BACKENDS = ("generalized", "positional", "spring", "mjx")


def make_brax_env(name: str, backend: str = "generalized", episode_length: int = 1000) -> BraxEnvironment:
    """Makes an environment of Brax, or one that was registered with `brax.envs.register_environment`.

    Args:
      name: such as "ant". Brax 0.14's "swimmer" does not step with JAX 0.10 and later, which no longer have the form of
        `jnp.clip` that it calls.
      backend: the physics. "generalized" is Brax's own default and the nearest to MuJoCo of Brax's three; "spring" and
        "positional" are faster and softer; "mjx" is MuJoCo itself in JAX and compiles longest.
      episode_length: time limit in steps.

    Raises:
      ValueError: no such environment or backend; the message lists near names.
    """
    with _quiet(), no_output():
        from brax import envs
    if name not in envs._envs:
        raise ValueError(unknown_name(name, envs._envs, prefix="brax:"))
    if backend not in BACKENDS:
        raise ValueError(unknown_name(backend, BACKENDS, kind="Brax backend"))
    if episode_length < 1:
        raise ValueError("episode_length must be at least 1")
    with _quiet(), _no_mujoco_log():
        return BraxEnvironment(f"brax:{name}/{backend}", envs.get_environment(name, backend=backend), episode_length)


class BraxEnvironment:
    """A `brax.envs.Env` without Brax's wrappers (see `jaxtrpo.envs.base.Environment`).

    `EnvState.physics` is the Brax `State` of every environment.
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
        """A picture [height, width, 3] of each `physics` of one environment, on the host."""
        with _quiet(), no_output():
            from brax.io import image
        camera = "track" if "track" in _cameras(self.env.sys.mj_model) else None
        states = iter(physics)
        while some := list(itertools.islice(states, RENDERED_AT_ONCE)):  # each call makes a renderer
            positions = [state.pipeline_state for state in some]
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
    """Which environments can still be simulated, by generalised positions, velocities and observations."""
    engine = [getattr(state.pipeline_state, name) for name in ("q", "qd") if hasattr(state.pipeline_state, name)]
    return jnp.all(jnp.abs(jnp.concatenate([state.obs, *engine], axis=-1)) <= base.LARGEST_OBSERVATION, axis=-1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Brax warns that it is no longer developed and uses what others have deprecated; users can change neither."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Brax System", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(brax|jaxopt|mujoco)\b")
        yield


@contextlib.contextmanager
def _no_mujoco_log() -> Iterator[None]:
    """Keeps MuJoCo's compiler from printing warnings and from writing them to a file in the working directory."""
    before, quiet = mujoco.MjLogConfig.get(), mujoco.MjLogConfig.get()
    quiet.logto_console = quiet.logto_file = False
    quiet.set()
    try:
        yield
    finally:
        before.set()
