"""Brax's own PPO with the settings that are published for a task."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Of the notebook "Training in Brax", for every backend.
PUBLISHED: dict[str, dict[str, Any]] = {
    "ant": {
        "num_timesteps": 50_000_000,
        "num_evals": 10,
        "reward_scaling": 10,
        "episode_length": 1_000,
        "normalize_observations": True,
        "action_repeat": 1,
        "unroll_length": 5,
        "num_minibatches": 32,
        "num_updates_per_batch": 4,
        "discounting": 0.97,
        "learning_rate": 3e-4,
        "entropy_cost": 1e-2,
        "num_envs": 4_096,
        "batch_size": 2_048,
    },
    "humanoid": {
        "num_timesteps": 50_000_000,
        "num_evals": 10,
        "reward_scaling": 0.1,
        "episode_length": 1_000,
        "normalize_observations": True,
        "action_repeat": 1,
        "unroll_length": 10,
        "num_minibatches": 32,
        "num_updates_per_batch": 8,
        "discounting": 0.97,
        "learning_rate": 3e-4,
        "entropy_cost": 1e-3,
        "num_envs": 2_048,
        "batch_size": 1_024,
    },
}
PUBLISHED["inverted_pendulum"] = {
    **PUBLISHED["ant"],
    "num_timesteps": 2_000_000,
    "num_envs": 2_048,
    "batch_size": 1_024,
}
NAMES = ("training/walltime", "eval/episode_reward", "training/sps")  # of Brax's metrics that are reported
SMALL = {"num_envs": 64, "batch_size": 64, "num_minibatches": 4}  # of a quick try


class Evaluation(NamedTuple):
    """What Brax's PPO reports after each part of a training."""

    env_steps: int
    seconds: float  # since the call, everything counted
    training_seconds: float  # without compiling the first part, nor evaluating
    mean_return: float  # NaN without evaluations
    steps_per_second: float  # of training alone


def settings_of(task: str) -> dict[str, Any]:
    """The published settings of a task such as brax:ant or playground:CartpoleBalance."""
    kind, _, name = task.partition(":")
    if kind == "brax":
        return dict(PUBLISHED[name.split("/")[0]])
    from mujoco_playground import registry
    from mujoco_playground.config import dm_control_suite_params, locomotion_params

    suite = name in registry.dm_control_suite.ALL_ENVS
    found = dict((dm_control_suite_params if suite else locomotion_params).brax_ppo_config(name))
    return {name: value for name, value in found.items() if value is not None}


def train(
    task: str, report: Callable[[Evaluation], object], *, seed: int = 0, quick: bool = False, **changes: Any
) -> None:
    """Trains Brax's PPO.

    Args:
      task: as for `jaxtrpo.train`.
      report: called with each evaluation as soon as it is made.
      seed: seed of the training.
      quick: with few environments and small batches.
      **changes: settings of `brax.training.agents.ppo.train.train` that replace the published ones.
    """
    if not hasattr(jax, "device_put_replicated"):  # removed in JAX 0.10; Brax 0.14 calls it
        jax.device_put_replicated = _device_put_replicated
    from brax import envs
    from brax.training.agents.ppo import networks
    from brax.training.agents.ppo import train as ppo

    settings = {**settings_of(task), **(SMALL if quick else {}), **changes}
    kind, _, name = task.partition(":")
    if kind == "brax":
        env_name, _, backend = name.partition("/")
        env = envs.get_environment(env_name, backend=backend or "generalized")
    else:
        from mujoco_playground import registry, wrapper

        env = registry.load(name, config_overrides={"impl": "jax"})
        settings["wrap_env_fn"] = wrapper.wrap_for_brax_training
        sizes = dict(settings.pop("network_factory", {}))
        settings["network_factory"] = functools.partial(networks.make_ppo_networks, **sizes)
    begin = time.perf_counter()

    def progress(steps: int, metrics: dict[str, Any]) -> None:
        reported = {name: float(metrics.get(name, "nan")) for name in NAMES}
        report(Evaluation(int(steps), time.perf_counter() - begin, *reported.values()))

    ppo.train(env, seed=seed, progress_fn=progress, **settings)


def _device_put_replicated(tree: Any, devices: Sequence[Any]) -> Any:
    """Copies arrays to every device, with a leading axis of devices."""
    sharding = NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec("device"))
    return jax.tree.map(lambda leaf: jax.device_put(jnp.stack([leaf] * len(devices)), sharding), tree)
