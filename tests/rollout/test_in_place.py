"""Batches are written into the replay buffer in place, and nobody who has a state sees that."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
import pytest
from support import actors, deal_batch, random_batch, spread, with_method
from test_algorithms import ActingProbe, tiny
from test_asynchronous import Trouble
from test_replay import filled, replay

from jaxtrpo.rollout.replay import ReplayInPlace, Ring, compile_insert
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.training.run import Run
from jaxtrpo.training.train import prepare

CAPACITY = 60  # that nine batches of twelve to thirty-six steps fill more than once


class Learned(NamedTuple):
    replay: Ring


def begin(batch, count: int) -> tuple[ReplayInPlace, Learned]:
    """A buffer on so many actors, for batches like this one, and the first state."""
    learner = Learned(actors(count).map(lambda ring: ring)(spread(replay(CAPACITY).empty(), count)))
    insert = compile_insert(replay(CAPACITY), actors(count).map, learner.replay, deal_batch(batch, count))
    return ReplayInPlace(insert, learner), learner


def batches(number: int) -> list:
    return [random_batch(seed, num_segments=1 + seed % 3, padding=0.0) for seed in range(number)]


@pytest.mark.parametrize("count", [1, 2])
def test_it_holds_what_copies_would(count):
    buffer, learner = begin(batches(1)[0], count)
    for number, batch in enumerate(batches(9), 1):
        learner = buffer.take_in(learner, deal_batch(batch, count))
        if number % 2:
            found = jax.device_get(buffer.whole(learner).replay)
            for leaf, wanted in zip(found, filled(CAPACITY, batches(number), count), strict=True):
                np.testing.assert_array_equal(leaf, np.broadcast_to(wanted, leaf.shape))


@pytest.mark.parametrize("count", [1, 2])
def test_memory_is_taken_over_but_not_from_who_has_the_state(count):
    def place(learner: Learned) -> list[int]:
        return [shard.data.unsafe_buffer_pointer() for shard in learner.replay.rows.addressable_shards]

    given = [deal_batch(batch, count) for batch in batches(5)]
    buffer, first = begin(batches(1)[0], count)
    one = buffer.take_in(first, given[0])
    where = place(one)
    two = buffer.take_in(one, given[1])
    assert place(two) == where != place(first) and not np.any(first.replay.rows)
    kept = buffer.whole(two)
    before = np.array(kept.replay.rows)
    three = buffer.take_in(two, given[2])
    where = place(three)
    assert where != place(kept)
    np.testing.assert_array_equal(kept.replay.rows, before)
    four = buffer.take_in(three, given[3])
    assert place(four) == where
    np.testing.assert_array_equal(kept.replay.rows, before)


def test_states_that_a_person_keeps_stay_what_they_are():
    states, rows = list[TrainState](), list[np.ndarray]()

    def keep(_, state):
        states.append(state)
        rows.append(np.array(state.learner.replay.rows))

    run = prepare(ActingProbe(), **{**tiny("trpo_replay"), "total_steps": 640}, on_update=keep)
    begun = np.array(run.state.learner.replay.rows)
    run.run(progress=False)
    assert len(states) > 10 and not np.any(begun)
    np.testing.assert_array_equal(run.state.learner.replay.rows, begun)
    for state, held in zip(states, rows, strict=True):
        np.testing.assert_array_equal(state.learner.replay.rows, held)


def fail_in_update(run: Run, number: int, error: BaseException) -> Run:
    """The same run, but that learning raises an error there, after the batch was taken in."""

    def lower(state):
        lowered = run.update.lower(state)

        def compile_learn():
            return Trouble(lowered.compile_learn(), number - 1, error)

        return lowered._replace(compile_learn=compile_learn)

    return dataclasses.replace(run, update=with_method(run.update, lower=lower))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of luck")])
@pytest.mark.parametrize("algorithm", ["trpo_replay", "naf"])
def test_a_run_that_ends_between_a_batch_and_its_learning_goes_on_exactly(algorithm, error, tmp_path):
    """The buffer is full by then, so that the batch lies where older steps were."""
    settings = {**tiny(algorithm), "total_steps": 960}
    whole = prepare(ActingProbe(), **settings).run(progress=False)
    assert whole.state.learner.replay.filled[0] == whole.state.learner.replay.rows.shape[1] < 600
    ending = fail_in_update(prepare(ActingProbe(), **settings, out=tmp_path / "run"), 20, error)
    if isinstance(error, KeyboardInterrupt):
        assert len(ending.run(progress=False).metrics["update"]) == 19
    else:
        with pytest.raises(RuntimeError, match="out of luck"):
            ending.run(progress=False)
    resumed = prepare(ActingProbe(), **settings, out=tmp_path / "run", resume=True).run(progress=False)
    assert len(resumed.metrics["update"]) == len(whole.metrics["update"]) == 31
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))
