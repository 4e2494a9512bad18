"""Probe environments: each is exactly solvable and detects one kind of bug."""

from __future__ import annotations

import numpy as np
import pytest
from probe import (
    ACTION,
    BOTH,
    CONSTANT,
    CRITICS,
    DELAYED,
    DISCOUNT,
    DISCOUNTED,
    OBSERVATION,
    TRUNCATED,
    Learned,
)

TRPO = "trpo(max_kl=0.05, gae_lambda=0.9, cg_iterations=10)"
ACCURACY = {"linear": 2e-3, "mlp": 0.05}
both_critics = pytest.mark.parametrize("critic", CRITICS)


@both_critics
def test_value_of_constant_reward_is_the_reward(critic):
    """Fails if the critic does not learn at all, or looks beyond a termination."""
    learned = Learned(CONSTANT, TRPO, critic, updates=15)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), 1.0, atol=ACCURACY[critic])


@both_critics
def test_value_of_reward_in_next_step_is_discounted_once(critic):
    """Fails if the discount is forgotten, or rewards and values are a step apart."""
    learned = Learned(DISCOUNTED, TRPO, critic, updates=15)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), DISCOUNT, atol=ACCURACY[critic])
        np.testing.assert_allclose(learned.value(sign, 1), 1.0, atol=ACCURACY[critic])


@both_critics
def test_value_ignores_time_limit(critic):
    """The reward is the sign, which every reset redraws. Fails if a truncated episode is treated as terminated, or
    bootstraps from the state after the reset.
    """
    learned = Learned(TRUNCATED, TRPO, critic, updates=20)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), sign / (1 - DISCOUNT), atol=2 * ACCURACY[critic])


@both_critics
def test_value_depends_on_observation(critic):
    """Fails if observations and returns of different steps or environments are mixed up."""
    learned = Learned(OBSERVATION, TRPO, critic, updates=15)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), sign, atol=ACCURACY[critic])


def test_policy_finds_best_action():
    """Fails if the policy does not learn, or if advantages have the wrong sign."""
    learned = Learned(ACTION, TRPO, "mlp", updates=40)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.mean_action(sign, 0), 0.5, atol=0.05)


def test_policy_finds_best_action_for_each_observation():
    """Fails if observations, actions and advantages are not of the same step and environment."""
    learned = Learned(BOTH, TRPO, "mlp", updates=40)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.mean_action(sign, 0), 0.5 * sign, atol=0.05)


def test_policy_finds_best_action_with_delayed_reward():
    """Fails if advantages do not reach back in time; the observation does not reveal the reward."""
    learned = Learned(DELAYED, TRPO, "mlp", updates=60)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.mean_action(sign, 0), 0.5, atol=0.1)


# Algorithms with step sizes suited to the probes (a few hundred samples, two dimensions), and numbers of updates.
ALGORITHMS = {
    "npg(max_kl=0.05, gae_lambda=0.9, cg_iterations=10)": 40,
    "trpo_penalty(target_kl=0.05, gae_lambda=0.9, cg_iterations=10)": 40,
    "trpo_replay(max_kl=0.05, gae_lambda=0.9, cg_iterations=10, replay=4096, replay_ratio=0.1)": 40,
    "ppo(epochs=4, learning_rate=0.005, gae_lambda=0.9)": 40,
    "pg(learning_rate=0.02, gae_lambda=0.9)": 120,
    "a2c(learning_rate=0.005, gae_lambda=0.9)": 120,
}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda words: words.partition("(")[0])


@every_algorithm
def test_every_algorithm_finds_best_action_for_each_observation(algorithm):
    learned = Learned(BOTH, algorithm, "mlp", ALGORITHMS[algorithm])
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.mean_action(sign, 0), 0.5 * sign, atol=0.05)


@every_algorithm
def test_every_algorithm_finds_best_action_with_delayed_reward(algorithm):
    learned = Learned(DELAYED, algorithm, "mlp", int(1.5 * ALGORITHMS[algorithm]))
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.mean_action(sign, 0), 0.5, atol=0.1)


@every_algorithm
def test_critic_of_every_algorithm_discounts_reward_in_next_step_once(algorithm):
    learned = Learned(DISCOUNTED, algorithm, "mlp", ALGORITHMS[algorithm])
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), DISCOUNT, atol=ACCURACY["mlp"])
        np.testing.assert_allclose(learned.value(sign, 1), 1.0, atol=ACCURACY["mlp"])
