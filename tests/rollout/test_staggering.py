"""Time limits against a plain loop, and what they are for: beginnings spread evenly, returns a fair sample."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.rollout.staggering import TimeLimits, first_time_limits, next_time_limits

LENGTH = 60


@functools.partial(jax.jit, static_argnames="episode_length")
def after(limits, survived, failed, episode_length=LENGTH):
    return next_time_limits(limits, survived, failed, episode_length)


class Simulation:
    """Environments that fail when they are told to, and otherwise live until their time limit."""

    def __init__(self, num_envs: int):
        self.limits: TimeLimits = jax.device_get(first_time_limits(num_envs, LENGTH))
        self.elapsed, self.failed = np.zeros(num_envs, int), np.zeros(num_envs, bool)

    def step(self, fails):
        """Lengths of the episodes that failed or survived with this step (0: none), and whether each was whole."""
        self.elapsed += 1
        survived = (self.elapsed >= self.limits.limit) & ~fails
        whole, ended = self.limits.limit == LENGTH, survived | fails
        lengths = np.where(ended, self.elapsed, 0)
        self.elapsed[ended] = 0
        self.limits, self.failed = jax.device_get(after(self.limits, survived, fails)), fails
        return lengths, whole


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 7), st.integers(1, 40), st.lists(st.sampled_from("esf"), max_size=20))
def test_limits_are_those_of_a_plain_loop(num_envs, episode_length, events):
    """e: the episodes go on; s: they survive; f: they fail."""
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


def test_environments_decide_for_themselves():
    limits = first_time_limits(4, LENGTH)
    limits = after(limits, np.zeros(4, bool), np.bool_([True, True, False, False]))
    limits = after(limits, np.bool_([True, False, True, False]), np.zeros(4, bool))
    np.testing.assert_array_equal(limits.limit, [15, LENGTH, LENGTH, LENGTH])
    np.testing.assert_array_equal(limits.spread, [True, False, True, True])


def test_environments_that_learn_to_survive_together_begin_evenly_spread():
    envs = 6
    simulation = Simulation(envs)
    for t in range(1, 51):  # episodes of five steps, all at once
        simulation.step(np.full(envs, t % 5 == 0))
    for _ in range(2 * LENGTH):  # the first whole episodes, and the shares
        simulation.step(np.zeros(envs, bool))
    for _ in range(5):
        lengths = np.array([simulation.step(np.zeros(envs, bool))[0] for _ in range(LENGTH)])
        assert np.all(np.max(lengths, axis=0) == LENGTH)  # each ended once, and was whole
        beginnings = np.sort(np.nonzero(lengths)[0])
        assert len(beginnings) == envs
        assert np.all(np.diff(beginnings) == LENGTH // envs)


def test_whole_episodes_are_a_fair_sample():
    """Half of the episodes fail, at an age that is uniform: of the whole ones, half fail as well.

    Counting those that fail before a short limit too would make it more, as such a limit hides survivors only.
    """
    rng, envs = np.random.default_rng(0), 2000
    simulation = Simulation(envs)

    def fate():
        return np.where(rng.random(envs) < 0.5, rng.integers(1, LENGTH, envs), LENGTH + 1)

    fails_at, counted, everything = fate(), [], []
    for t in range(40 * LENGTH):
        lengths, whole = simulation.step(simulation.elapsed + 1 == fails_at)
        ended = lengths > 0
        fails_at = np.where(ended, fate(), fails_at)
        if t > 10 * LENGTH:  # later than the common beginning shows
            counted.extend(lengths[ended & whole] < LENGTH)
            everything.extend(lengths[ended & (whole | simulation.failed)] < LENGTH)
    assert abs(np.mean(counted) - 0.5) < 0.01
    assert np.mean(everything) > 0.52
