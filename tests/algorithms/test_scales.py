"""Learning does not depend on the units of rewards and observations."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.envs.base import EnvState, Transition, advance, start
from jaxtrpo.training.prepare import Run, prepare

UPDATES = 4
pytestmark = pytest.mark.shared_programs  # compiled for all units at once
SIZES = {"actors": 1, "num_envs": 8, "segment_length": 8, "total_steps": UPDATES * 64, "steps_per_update": 64}
ALGORITHMS = {
    "trpo": {"algorithm": "trpo(cg_iterations=5)"},
    "trpo, linear critic": {"algorithm": "trpo(cg_iterations=5)", "critic": "linear"},
    "trpo, no critic": {"algorithm": "trpo(cg_iterations=5)", "critic": "none"},
    "npg": {"algorithm": "npg(cg_iterations=5)"},
    "trpo_penalty": {"algorithm": "trpo_penalty(cg_iterations=5)"},
    "trpo_replay": {
        "algorithm": "trpo_replay(cg_iterations=5, replay=512, minibatch_size=16, hidden=(8,), value_hidden=(8,))"
    },
    "ppo": {"algorithm": "ppo(epochs=2, minibatch_size=16)", "adapt": "linear(learning_rate=0)"},
    "ppo, shared": {
        "algorithm": "ppo(epochs=2, minibatch_size=16, value_clip=0.2)",
        "policy": "mlp(hidden=(8,), shared=True)",
    },
    "a2c, shared": {"algorithm": "a2c", "policy": "mlp(hidden=(8,), shared=True)"},
    "pg": {"algorithm": "pg"},
    "a2c": {"algorithm": "a2c"},
    "a3c": {"algorithm": "a3c"},
    "naf": {"algorithm": "naf(replay=512, minibatch_size=16, hidden=(8,))"},
    "sac": {"algorithm": "sac(replay=512, minibatch_size=16, hidden=(8,))", "policy": "squashed(hidden=(8,))"},
    "gps": {
        "algorithm": "gps(conditions=2, samples=4, imitation_steps=20)",
        **{"segment_length": None, "steps_per_update": None, "total_steps": UPDATES * 128},
    },
}


class Physics(NamedTuple):
    place: jax.Array
    speed: jax.Array
    late: jax.Array  # steps until the first reward of a run
    observation: jax.Array  # unit of observations
    reward_unit: jax.Array


class PointMass:
    """A point mass to be pushed to 0. Units and `late` are part of its state, so all runs share one compiled program.

    Observations are position, speed, a constant 0 and a constant 9.81.
    """

    name = "point mass"
    observation_size, action_size = 4, 1
    action_low, action_high = np.float32([-1.0]), np.float32([1.0])
    episode_length = 16
    is_program = True

    def reset(self, key, num_envs: int) -> EnvState:
        blank, ones = jnp.zeros(num_envs), jnp.ones(num_envs)
        return start(key, num_envs, self._reset_rows, Physics(blank, blank, blank, ones, ones))

    def step(self, state: EnvState, action) -> EnvState:
        place, speed, late, observation, unit = state.physics
        speed = 0.5 * speed + 0.25 * action[:, 0]
        physics = Physics(place + speed, speed, jnp.maximum(late - 1, 0.0), observation, unit)
        reward = -unit * jnp.where(late > 0, 0.0, jnp.abs(physics.place))
        no = jnp.zeros(len(place), bool)
        moved = Transition(physics, self._observed(physics), reward, no, ~no)
        return advance(state, moved, self._reset_rows, self.episode_length)

    def _reset_rows(self, keys, mask, physics):
        place = jax.vmap(lambda key: jax.random.uniform(key, minval=-1.0, maxval=1.0))(keys)
        physics = physics._replace(
            place=jnp.where(mask, place, physics.place), speed=jnp.where(mask, 0.0, physics.speed)
        )
        return physics, self._observed(physics)

    def _observed(self, physics: Physics):
        constant = jnp.full_like(physics.place, 9.81)
        observed = jnp.stack([physics.place, physics.speed, jnp.zeros_like(constant), constant], axis=-1)
        return physics.observation[:, None] * observed


class Contact(PointMass):
    """A point mass that also observes how it moves, in numbers between -1 and 1, but only far out, and else 0."""

    observation_size = 5

    def _observed(self, physics: Physics):
        far = jnp.abs(physics.place)
        contact = jnp.where(far > 0.9, jnp.sign(physics.speed) * (1.4 - far / 2), 0.0)
        return jnp.concatenate([super()._observed(physics), contact[:, None]], axis=-1)


def learned(name: str, observation: float = 1.0, reward: float = 1.0, late: int = 0, **settings) -> list[np.ndarray]:
    """Returns the parameters after a few updates in the given units."""
    run = prepared(name, PointMass(), **settings)
    factors = dict.fromkeys(("obs", "final_obs", "first_obs", "observation"), observation) | {"reward_unit": reward}

    def change(path, leaf):
        name = path[-1].name
        if name == "late":
            return leaf + np.float32(late)
        return leaf * np.float32(factors[name]) if name in factors else leaf

    env = jax.tree_util.tree_map_with_path(change, run.state.actors.env)
    run = dataclasses.replace(run, state=run.state._replace(actors=run.state.actors._replace(env=env)))
    return jax.tree.leaves(jax.device_get(run.run(progress=False).policy.params))


def prepared(name: str, env: PointMass, **settings) -> Run:
    return prepare(env, seed=3, **{"policy": "mlp(hidden=(8,))", **SIZES, **ALGORITHMS[name], **settings})


CASES = [*((name, 0) for name in ALGORITHMS), *((name, 9) for name in ("trpo", "trpo_replay", "naf"))]


@pytest.mark.parametrize(("name", "late"), CASES)
def test_learned_parameters_do_not_depend_on_units(name, late):
    """Bit-identical: a factor of 2^20 changes only exponents, unless some constant depends on a unit.

    Also if the first batch, of 8 steps, has no rewards, so that their scale is unknown until the second.
    """
    usual = learned(name, late=late)
    for observation, reward in ((2.0**20, 2.0**-20), (2.0**-20, 2.0**20)):
        for other, expected in zip(learned(name, observation, reward, late), usual, strict=True):
            # gps uses eigenvalues from LAPACK, whose rounding may depend on the scale of a matrix.
            np.testing.assert_allclose(other, expected, rtol=1e-4 if name == "gps" else 0, atol=0)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize("name", ["trpo", "trpo_replay", "ppo", "naf"])
def test_first_updates_do_not_depend_on_units_up_to_rounding(name, factor):
    usual, other = (learned(name, by, by, total_steps=2 * 64) for by in (1.0, factor))
    for here, there in zip(other, usual, strict=True):
        np.testing.assert_allclose(here, there, rtol=0, atol=1e-2 * np.abs(there).max() + 1e-3)


@pytest.mark.parametrize("name", ["trpo", "a2c", "naf", "gps"])
def test_observations_of_rare_events_are_normalised_to_small_numbers(name):
    """Their variance cannot be above 1, so more than that is what `observation_moments` adds."""
    moments = prepared(name, Contact()).run(progress=False).state.learner.obs_moments
    contact = np.asarray(moments.variance).reshape(-1, 5)[:, 4]
    assert np.all(contact > 1.5) and np.all(contact < 10)
