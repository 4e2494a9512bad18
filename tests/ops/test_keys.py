"""No PRNG key is used twice in a run."""

from __future__ import annotations

import binascii
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from test_algorithms import TINY, ActingProbe

from jaxtrpo.algorithms.algorithm import Algorithm, Learner
from jaxtrpo.ops.keys import key_for, numbered_key
from jaxtrpo.ops.moments import Moments, no_moments
from jaxtrpo.rollout.evaluation import evaluation_key
from jaxtrpo.training.prepare import prepare

UPDATES, NUMBERED = 12, 500


class KeyLog(NamedTuple):
    policy: PyTree
    obs_moments: Moments
    keys: Array
    updates: Array


def key_logger() -> Algorithm:
    def make(spec) -> Learner:
        def init(for_policy, for_critic):
            nothing = jnp.zeros((UPDATES, 2), jnp.uint32)
            return KeyLog(spec.policy.init(for_policy), no_moments((spec.observation_size,)), nothing, jnp.int32(0))

        def learn(learner, batch, hyperparameters, key):
            keys = learner.keys.at[learner.updates].set(key)
            return learner._replace(keys=keys, updates=learner.updates + 1), {}

        return Learner(init, learn)

    return Algorithm("key_logger", {"steps_per_update": 32}, make)


def test_numbered_keys_of_different_updates_never_collide():
    """If updates had consecutive keys, minibatch 3 of update 5 would get the key of minibatch 2 of update 6."""
    settings = {**TINY, "algorithm": key_logger(), "critic": "none", "total_steps": 32 * UPDATES}
    result = prepare(ActingProbe(), actors=1, **settings).run(progress=False)
    keys = jnp.asarray(result.state.learner.keys[0])
    number = jnp.arange(NUMBERED)
    drawn = jax.vmap(lambda key: jax.vmap(lambda index: numbered_key(key, index))(number))(keys)
    assert len(np.unique(np.asarray(drawn).reshape(-1, 2), axis=0)) == UPDATES * NUMBERED


def test_numbering_changes_only_the_second_word():
    key = jnp.array([7, 2**32 - 2], jnp.uint32)
    np.testing.assert_array_equal(numbered_key(key, jnp.int32(5)), [7, 3])


def test_evaluation_keys_differ_from_training_keys():
    """In JAX, splitting a key gives the same keys as folding 0, 1, 2, ... into it."""
    begun = jax.random.PRNGKey(4)
    of_training = [*jax.random.split(begun, 4), *(jax.random.fold_in(begun, index) for index in range(200))]
    of_evaluation = [evaluation_key(4), *(jax.random.fold_in(evaluation_key(4), index) for index in range(200))]
    taken = {tuple(np.asarray(key).tolist()) for key in of_training}
    assert not taken & {tuple(np.asarray(key).tolist()) for key in of_evaluation}
    assert np.any(np.asarray(key_for("one", begun)) != np.asarray(key_for("another", begun)))
    above = binascii.crc32(b"one") % 2**31 + 2**31  # beyond any counter
    np.testing.assert_array_equal(key_for("one", begun), jax.random.fold_in(begun, above))
