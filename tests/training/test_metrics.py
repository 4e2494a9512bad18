"""The memory of the last hundred returns against a plain deque."""

from __future__ import annotations

import collections
import functools

import jax
import numpy as np
import pytest
from support import actors, counted_compilations, deal_batch, first, random_batch, spread

from jaxtrpo.training.metrics import no_episodes, remember
from jaxtrpo.training.selection import EPISODES


@functools.cache
def mapped(count):
    return actors(count).map(remember)


def plain_lengths(batch) -> list[int]:
    """Returns the lengths of the episodes that finished, in steps."""
    steps, number = batch.steps, batch.num_segments
    whole = (steps.terminated | steps.truncated)[:number] & ~steps.invalid[:number]
    return [int(before) + 1 for before in steps.elapsed[:number][whole]]


def plain_returns(batch) -> list[float]:
    """Returns of the episodes that finished, in order of time, then of environment."""
    steps = batch.steps
    found = []
    for segment in range(int(batch.num_segments)):
        for t in range(steps.reward.shape[1]):
            for env in range(steps.reward.shape[2]):
                done = steps.terminated[segment, t, env] or steps.truncated[segment, t, env]
                if done and not steps.invalid[segment, t, env]:
                    found.append(float(steps.episode_return[segment, t, env]))
    return found


@pytest.mark.parametrize("count", [1, 2])
def test_memory_is_that_of_a_deque_of_the_last_hundred(count):
    """Over batches with no episode, a few, and more than the memory holds; the padding holds garbage."""
    episodes = spread(no_episodes(), count)
    last, total = collections.deque(maxlen=EPISODES), 0
    rng = np.random.default_rng(0)
    for seed in range(30):
        batch = random_batch(
            seed,
            segments=4,
            length=10,
            envs=6,
            num_segments=int(rng.integers(1, 5)),
            end=float(rng.choice([0.0, 0.01, 0.1, 0.9])),
            padding=3.0,
        )
        new = plain_returns(batch)
        last.extend(new)
        total += len(new)
        episodes, info, _ = mapped(count)(episodes, deal_batch(batch, count))
        for leaf in jax.tree.leaves((episodes, info)):
            np.testing.assert_array_equal(leaf[0], leaf[-1])
        now = first(info)
        assert now.episodes == len(new)
        np.testing.assert_allclose(now.mean_return, np.mean(new) if new else np.nan, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(now.return_100, np.mean(last) if last else np.nan, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(now.mean_length, np.mean(plain_lengths(batch)) if new else np.nan, rtol=1e-5)
        assert now.invalid_steps == np.sum(batch.steps.invalid[: batch.num_segments])
        blank = [np.nan] * (EPISODES - len(last))
        np.testing.assert_array_equal(first(episodes).returns, np.float32([*blank, *last]))
    assert total > 3 * EPISODES


def test_an_episode_that_ends_with_the_very_last_step_counts_once():
    batch = random_batch(0, end=0.0, broken=0.0)
    batch.steps.episode_return[-1, -1, -1] = 7.0
    episodes, info, _ = map(first, mapped(1)(spread(no_episodes(), 1), deal_batch(batch, 1)))
    np.testing.assert_array_equal(episodes.returns, np.float32([*[np.nan] * (EPISODES - 1), 7.0]))
    assert info.episodes == 1 and info.mean_return == info.return_100 == 7


def test_no_episode_means_blank():
    batch = random_batch(0, end=0.0, broken=0.3, padding=1.0, num_segments=2)
    episodes, info, _ = mapped(1)(spread(no_episodes(), 1), deal_batch(batch, 1))
    info = first(info)
    assert info.episodes == 0
    assert np.all(np.isnan(first(episodes).returns))
    assert np.isnan(info.mean_return) and np.isnan(info.mean_length)
    assert np.isnan(info.return_100)
    assert info.invalid_steps == batch.steps.invalid[:2].sum() > 0


def test_blank_batch_leaves_the_hundred_as_they_are():
    before, *_ = mapped(1)(spread(no_episodes(), 1), deal_batch(random_batch(1, end=0.5), 1))
    expected = first(before)
    after, info, _ = mapped(1)(before, deal_batch(random_batch(2, end=0.0, broken=0.0), 1))
    jax.tree.map(np.testing.assert_array_equal, first(after), expected)
    assert np.isnan(first(info).mean_return)
    assert np.isfinite(first(info).return_100)


def test_number_of_segments_is_data():
    arguments = [(spread(no_episodes(), 1), deal_batch(random_batch(n, num_segments=n), 1)) for n in (4, 3, 2, 1)]
    mapped(1)(*arguments[0])
    with counted_compilations() as compiled:
        for other in arguments[1:]:
            mapped(1)(*other)
    assert not compiled
