"""What a run must fulfil once its parts are built, before anything is compiled, and its first observations."""

from __future__ import annotations

import math

import jax
import numpy as np
from jaxtyping import PyTree

from jaxtrpo.config import Config
from jaxtrpo.config.environment import VECTOR
from jaxtrpo.config.specs import setting_of
from jaxtrpo.envs.abilities import observation_space
from jaxtrpo.envs.base import Environment
from jaxtrpo.parallel.actors import Actors
from jaxtrpo.rollout.replay import without_replay
from jaxtrpo.training.parts import Parts
from jaxtrpo.training.run import Plan
from jaxtrpo.training.update import Update

SMALL_PIXELS = 16  # pixels that are smaller by this factor than what they are divided by are hardly seen


def require_one_clock(config: Config, update: Update, actors: Actors) -> None:
    """Raises ValueError if a run cannot foresee its end although it is to stop after some seconds."""
    if config.stop_after_seconds is None:
        return
    why = None
    if not actors.in_one_process:
        why = "several processes measure different times"
    elif not update.learner.waits:
        why = f"actors of {config.algorithm} do not wait for each other, and so do not foresee the end of the run"
    elif update.in_one_program:
        why = "trainings in one program do not foresee the end of the run"
    if why is not None:
        raise ValueError(f"stop_after_seconds={config.stop_after_seconds:g}: {why}; use total_steps")


def require_memory(config: Config, update: Update, memory: float) -> None:
    """Raises ValueError if networks or batches cannot fit into memory, by a lower bound of what they need."""
    key, env = jax.ShapeDtypeStruct((2,), np.uint32), update.env
    learner = jax.eval_shape(update.learner.init, key, key)
    leaves = jax.tree.leaves(learner if update.learner.replay is None else without_replay(learner))
    networks = sum(math.prod(leaf.shape) for leaf in leaves)
    space = observation_space(env)
    images = sum(leaf.nbytes for leaf in space.images)
    # What is collected, and what is made of it; of images there is one copy.
    columns = 2 * (2 * space.vector_size + env.action_size + 8) + images / 4
    # Of a run with several processes, each holds its share.
    rows = update.sizes.segment_steps * update.sizes.max_segments * len(update.actors.own) / update.actors.count
    for setting, numbers in (
        (f"policy={config.policy}, critic={config.critic}", networks),
        (f"num_envs={config.num_envs}, max_steps_per_update={config.max_steps_per_update}", rows * columns),
    ):
        if 4 * numbers > memory:
            need, has = (f"{size / 2**30:,.0f} GiB" for size in (4 * numbers, memory))
            raise ValueError(f"{setting} need at least {need} of memory, but only {has} is available")


def require_fixed_batches(parts: Parts) -> None:
    """Raises ValueError if a rule changes the size of batches that are whole episodes."""
    if parts.algorithm.episodes is not None and "steps_per_update" in parts.rule.changes:
        raise ValueError(
            f"adapt={parts.rule.spec_string} changes steps_per_update, but an update of "
            f"algorithm={parts.algorithm.spec_string} is always one episode of each environment"
        )


def note_small_pixels(plan: Plan, obs: PyTree) -> str | None:
    """Returns a note for the user if the first pixels are small integers, which vanish when they are divided by 255."""
    scale = setting_of("policy", plan.maker.spec_string, "pixel_scale")
    images = [leaf.name for leaf in observation_space(plan.env).images if leaf.dtype == "uint8"]
    if scale is None or not images:
        return None
    for name in images:
        largest = int(np.max(obs[name]))
        if 0 < largest * SMALL_PIXELS <= scale:
            return (
                f"{plan.env.name}: the largest pixel of the first {name} is {largest}, but networks see pixels divided "
                f'by {scale:g}; if all are that small, set pixel_scale, as in --policy "cnn(pixel_scale={largest})"; '
                "encode categories one-hot"
            )
    return None


def require_finite_start(env: Environment, obs: PyTree) -> None:
    """Raises ValueError if a first observation is not finite."""
    rows = obs.get(VECTOR, np.zeros((1, 1))) if isinstance(obs, dict) else obs
    finite = np.isfinite(rows).reshape(-1, rows.shape[-1]).all(axis=0)
    if not finite.all():
        raise ValueError(f"env={env.name}: the first observation is not finite (entries {np.flatnonzero(~finite)[:5]})")
