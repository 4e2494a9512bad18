"""MuJoCo Playground environments, which run on MJX."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.config.checks import require_whole
from jaxtrpo.envs import base
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs._support.quiet import no_output

POLICY_OBS = "state"  # the entry of dictionary observations that Playground intends for policies


def make_playground_env(name: str, **options: Any) -> PlaygroundEnvironment:
    """Creates an environment that is built into MuJoCo Playground or registered with it.

    Args:
      name: name of the environment, such as "CheetahRun" or "Go1JoystickFlatTerrain". Playground downloads robot models
        on first use.
      **options: entries of its configuration that replace the defaults, such as `episode_length` or `ctrl_dt`. `impl`
        is "jax" and cannot be "warp": MuJoCo Warp stores the contacts of all environments together, but here each
        environment is reset on its own.

    Raises:
      ValueError: the package is not installed; there is no such environment, in which case the message suggests similar
        names; it has no such option; or its observations are not supported.
    """
    registry = _registry(name)
    if name not in registry.ALL_ENVS:
        raise ValueError(unknown_name(name, registry.ALL_ENVS, prefix="playground:"))
    config = registry.get_default_config(name)
    unknown = [option for option in options if option not in config]
    if unknown:
        raise ValueError(f"playground:{name} has no option {unknown[0]}; it has {', '.join(sorted(config))}")
    overrides = {"impl": "jax"} | options if "impl" in config else options
    if overrides.get("impl", "jax") != "jax":
        raise ValueError(f"playground:{name} supports impl='jax' only, not {overrides['impl']!r}")
    length = options.get("episode_length", config.get("episode_length", 1000))
    require_whole(1, episode_length=length)
    try:
        with _quiet():
            env = registry.load(name, config_overrides=overrides)
    except subprocess.CalledProcessError:
        raise ValueError(
            f"playground:{name} needs the robot models of mujoco_menagerie; Playground failed to download them with git"
        ) from None
    return PlaygroundEnvironment(f"playground:{name}", env, length)


class PlaygroundEnvironment:
    """A `mujoco_playground.MjxEnv` without its wrappers (see `jaxtrpo.envs.base.Environment`).

    `EnvState.physics` is Playground's batched `State`. If observations are a dictionary, the policy observes its entry
    "state".
    """

    is_program = True

    def __init__(self, name: str, env: Any, episode_length: int):
        self.name, self.env, self.episode_length = name, env, episode_length
        first = jax.eval_shape(self._reset, jax.ShapeDtypeStruct((1, 2), jnp.uint32))
        obs = _policy_obs(first.obs)
        if len(getattr(obs, "shape", ())) != 2:
            raise ValueError(
                f"{name}: observations must be flat arrays or a dictionary with a flat array {POLICY_OBS!r}"
            )
        self.observation_size, self.action_size = obs.shape[-1], int(env.action_size)
        self.action_low = np.full(self.action_size, -1, np.float32)
        self.action_high = np.full(self.action_size, 1, np.float32)

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, base.blank(self._reset, num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action between -1 and 1 to each environment."""
        after = base.of_same_types(jax.vmap(self.env.step)(state.physics, action), state.physics)
        moved = base.Transition(
            physics=after,
            obs=_policy_obs(after.obs).astype(jnp.float32),
            reward=after.reward.astype(jnp.float32),
            # Some environments also set `done` at their time limit, which is a truncation.
            terminated=(after.done > 0) & (state.elapsed + 1 < self.episode_length),
            finite=_finite(after),
        )
        return base.advance(state, moved, self._reset_rows, self.episode_length)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time between two actions."""
        return float(self.env.dt)

    def render(self, physics: Iterable[Any], width: int, height: int) -> Iterator[np.ndarray]:
        """Renders a frame [height, width, 3] for each `physics` of one environment, on the host."""
        model = self.env.mj_model
        data = mujoco.MjData(model)
        camera = 0 if model.ncam else -1
        with mujoco.Renderer(model, height, width) as renderer:
            for state in physics:
                for name in ("qpos", "qvel", "mocap_pos", "mocap_quat"):
                    getattr(data, name)[...] = getattr(state.data, name)
                mujoco.mj_forward(model, data)
                renderer.update_scene(data, camera)
                yield renderer.render().copy()

    def _reset(self, keys: UInt32[Array, "env 2"]) -> Any:
        return jax.vmap(self.env.reset)(keys)

    def _reset_rows(self, keys: UInt32[Array, "env 2"], mask: Bool[Array, " env"], now: Any) -> tuple[Any, Array]:
        first = self._reset(keys)
        return base.choose_rows(mask, first, now), _policy_obs(first.obs).astype(jnp.float32)


def _policy_obs(obs: Any) -> Any:
    return obs.get(POLICY_OBS) if isinstance(obs, Mapping) else obs


def _finite(state: Any) -> Bool[Array, " env"]:
    """Returns which environments can be simulated further: positions, velocities and observations are within bounds."""
    numbers = jnp.concatenate([_policy_obs(state.obs), state.data.qpos, state.data.qvel], axis=-1)
    return jnp.all(jnp.abs(numbers) <= base.LARGEST_OBSERVATION, axis=-1)


def _registry(name: str) -> Any:
    try:
        with _quiet():
            return importlib.import_module("mujoco_playground").registry
    except ModuleNotFoundError as error:
        if error.name != "mujoco_playground":
            raise
        message = f"playground:{name} needs the package playground: pip install playground"
        raise ValueError(message) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides prints and deprecation warnings of Playground and its dependencies."""
    with warnings.catch_warnings(), no_output():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
