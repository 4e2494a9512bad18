"""Staggered time limits match a plain loop, spread the starts of episodes evenly and give unbiased returns."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.envs.base import NO_TIME_LIMIT
from jaxtrpo.rollout.staggering import TimeLimits, first_time_limits, next_time_limits

LENGTH = 60


@functools.partial(jax.jit, static_argnames="episode_length")
def next_limits(limits, survived, failed, episode_length=LENGTH):
    return next_time_limits(limits, survived, failed, episode_length)


class Simulation:
    """Environments that fail when told to, and otherwise survive until their time limit."""

    def __init__(self, num_envs: int):
        self.limits: TimeLimits = jax.device_get(first_time_limits(num_envs, LENGTH))
        self.elapsed, self.failed = np.zeros(num_envs, int), np.zeros(num_envs, bool)

    def step(self, fails):
        """Returns lengths of the episodes that ended with this step (0: none), and whether each had the full limit."""
        self.elapsed += 1
        survived = (self.elapsed >= self.limits.limit) & ~fails
        full, ended = self.limits.limit == LENGTH, survived | fails
        lengths = np.where(ended, self.elapsed, 0)
        self.elapsed[ended] = 0
        self.limits, self.failed = jax.device_get(next_limits(self.limits, survived, fails)), fails
        return lengths, full


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 7), st.integers(1, 40), st.lists(st.sampled_from("esf"), max_size=20))
def test_limits_match_plain_loop(num_envs, episode_length, events):
    """e: episodes continue; s: they survive; f: they fail."""
    limits = first_time_limits(num_envs, episode_length)
    share = [max((i + 1) * episode_length // num_envs, 1) for i in range(num_envs)]
    expected, short_one_was = list(share), True
    for event in events:
        survived, failed = (jnp.full(num_envs, event == kind) for kind in "sf")
        limits = next_time_limits(limits, survived, failed, episode_length)
        if event == "s":
            expected = [episode_length] * num_envs if short_one_was else list(share)
            short_one_was = True
        if event == "f":
            expected, short_one_was = [episode_length] * num_envs, False
        np.testing.assert_array_equal(limits.limit, expected)


def test_no_episode_is_shortened_without_a_time_limit():
    """Of environments that truncate their episodes themselves, all count."""
    limits = first_time_limits(4, NO_TIME_LIMIT)
    for survived, failed in ((False, True), (True, False), (True, False), (False, False)):
        assert limits.limit.tolist() == [NO_TIME_LIMIT] * 4
        limits = next_time_limits(limits, jnp.full(4, survived), jnp.full(4, failed), NO_TIME_LIMIT)


def test_limits_of_environments_are_independent():
    limits = first_time_limits(4, LENGTH)
    limits = next_limits(limits, np.zeros(4, bool), np.bool_([True, True, False, False]))
    limits = next_limits(limits, np.bool_([True, False, True, False]), np.zeros(4, bool))
    np.testing.assert_array_equal(limits.limit, [15, LENGTH, LENGTH, LENGTH])
    np.testing.assert_array_equal(limits.spread, [True, False, True, True])


def test_starts_are_evenly_spread_after_simultaneous_survival():
    envs = 6
    simulation = Simulation(envs)
    for t in range(1, 51):  # simultaneous episodes of five steps
        simulation.step(np.full(envs, t % 5 == 0))
    for _ in range(2 * LENGTH):  # the first full episodes and the short ones
        simulation.step(np.zeros(envs, bool))
    for _ in range(5):
        lengths = np.array([simulation.step(np.zeros(envs, bool))[0] for _ in range(LENGTH)])
        assert np.all(np.max(lengths, axis=0) == LENGTH)  # each environment ends one full episode
        ends = np.sort(np.nonzero(lengths)[0])
        assert len(ends) == envs
        assert np.all(np.diff(ends) == LENGTH // envs)


def test_full_episodes_are_an_unbiased_sample():
    """If half of all episodes fail, at a uniform age, then half of the episodes with the full limit fail.

    Including failures before a short limit would bias the sample, because short limits hide only survivors.
    """
    rng, envs = np.random.default_rng(0), 2000
    simulation = Simulation(envs)

    def draw_failures():
        return np.where(rng.random(envs) < 0.5, rng.integers(1, LENGTH, envs), LENGTH + 1)

    fails_at, counted, biased = draw_failures(), [], []
    for t in range(40 * LENGTH):
        lengths, full = simulation.step(simulation.elapsed + 1 == fails_at)
        ended = lengths > 0
        fails_at = np.where(ended, draw_failures(), fails_at)
        if t > 10 * LENGTH:  # after the effect of the common start
            counted.extend(lengths[ended & full] < LENGTH)
            biased.extend(lengths[ended & (full | simulation.failed)] < LENGTH)
    assert abs(np.mean(counted) - 0.5) < 0.01
    assert np.mean(biased) > 0.52
