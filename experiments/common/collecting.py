"""Collecting, and the physics it holds by itself: what every figure of speed is held against."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import mujoco.batch
import numpy as np

from jaxtrpo.envs.registry import make_env
from jaxtrpo.ops.moments import no_moments
from jaxtrpo.parallel.actors import Actors
from jaxtrpo.policies.action_units import stretch
from jaxtrpo.policies.networks import gaussian_policy
from jaxtrpo.rollout.collect import make_collect, start_actors
from jaxtrpo.rollout.types import LearnerState

SEGMENT_LENGTH = 16


class Collecting:
    """A first policy that collects on some actors, with what it takes to repeat its physics outside of JAX."""

    def __init__(self, name: str, actors: Actors, envs_per_actor: int, segments: int):
        self.env, self.actors, self.segments = make_env(name), actors, segments
        self.num_envs = envs_per_actor * actors.count
        self.steps = segments * SEGMENT_LENGTH * self.num_envs
        policy = gaussian_policy(self.env.observation_size, self.env.action_size)
        key = jax.random.PRNGKey(0)
        learner = LearnerState(policy.init(key), (), no_moments((self.env.observation_size,)), ())
        self.learner = actors.replicate(learner)
        self.num_segments = actors.replicate(jnp.int32(segments))
        collect = make_collect(self.env, policy, segment_length=SEGMENT_LENGTH, max_segments=segments)
        self.collect = actors.map(collect)
        self.state = actors.split_envs(jax.jit(start_actors, static_argnums=(0, 2))(self.env, key, self.num_envs))
        self.run()  # compiles

    @classmethod
    def lasting(cls, name: str, actors: Actors, envs_per_actor: int, *, seconds: float) -> Collecting:
        """One whose `run` takes about so long."""
        short = cls(name, actors, envs_per_actor, 2)
        return cls(name, actors, envs_per_actor, min(max(2, round(2 * seconds / short.run())), 200))

    def run(self) -> float:
        """Collects once; seconds."""
        self.before = self.state
        start = time.perf_counter()
        self.state, self.batch = jax.block_until_ready(self.collect(self.state, self.learner, self.num_segments))
        return time.perf_counter() - start

    def simulations(self) -> mujoco.batch.Batch:
        """What `raw` steps: as many simulations, on as many threads as there are actors."""
        return mujoco.batch.Batch(self.env.model, self.num_envs, self.actors.count)

    def controls(self) -> np.ndarray:
        """The actions of the last run in the simulator's units [step, env of all actors, action]."""
        action = self._by_time(self.batch.steps.action)
        return np.asarray(stretch(action, self.env.action_low, self.env.action_high), np.float64)

    def raw(self, simulations: mujoco.batch.Batch) -> float:
        """The same number of simulations through the actions of the last run, from the same states; seconds."""
        env, layout, steps = self.env, self.env.engine.layout, self.batch.steps
        controls = self.controls()
        done = self._by_time(steps.terminated | steps.truncated)
        rows = np.asarray(self.before.env.physics).reshape(self.num_envs, -1).view(np.float64)
        start = 0
        for part in layout.carried:
            simulations.state[:, part] = rows[:, start : start + part.stop - part.start]
            start += part.stop - part.start
        first = simulations.state.copy()
        begin = time.perf_counter()
        for control, over in zip(controls, done, strict=True):
            simulations.state[:, layout.control] = control
            simulations.step(nstep=env.task.frame_skip)
            if over.any():  # where our episode ended, this one starts again as well
                simulations.state[over] = first[over]
        return time.perf_counter() - begin

    def _by_time(self, leaf: jax.Array) -> np.ndarray:
        """[actor, segment, time, env, ...] -> [step, env of all actors, ...]."""
        array = np.moveaxis(np.asarray(leaf), 0, 2)
        return array.reshape(self.segments * SEGMENT_LENGTH, self.num_envs, *array.shape[4:])
