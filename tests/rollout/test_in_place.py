"""In-place updates of the replay buffer do not affect states that were returned."""

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

pytestmark = pytest.mark.shared_programs
CAPACITY = 60  # overflows more than once with nine batches of 12 to 36 steps


class Learned(NamedTuple):
    replay: Ring


def begin(batch, count: int) -> tuple[ReplayInPlace, Learned]:
    """Returns a buffer on `count` actors, for batches like `batch`, and the initial state."""
    learner = Learned(actors(count).map(lambda ring: ring)(spread(replay(CAPACITY).empty(), count)))
    insert = compile_insert(replay(CAPACITY), actors(count).map, learner.replay, deal_batch(batch, count))
    return ReplayInPlace(insert, learner), learner


def batches(number: int) -> list:
    return [random_batch(seed, num_segments=1 + seed % 3, padding=0.0) for seed in range(number)]


@pytest.mark.parametrize("count", [1, 2])
def test_in_place_buffer_matches_copies(count):
    buffer, learner = begin(batches(1)[0], count)
    for number, batch in enumerate(batches(9), 1):
        learner = buffer.insert(learner, deal_batch(batch, count))
        if number % 2:
            found = jax.device_get(buffer.whole(learner).replay)
            for leaf, wanted in zip(found, filled(CAPACITY, batches(number), count), strict=True):
                np.testing.assert_array_equal(leaf, np.broadcast_to(wanted, leaf.shape))


@pytest.mark.parametrize("count", [1, 2])
def test_memory_is_reused_except_that_of_returned_states(count):
    def addresses(learner: Learned) -> list[int]:
        return [shard.data.unsafe_buffer_pointer() for shard in learner.replay.rows.addressable_shards]

    given = [deal_batch(batch, count) for batch in batches(5)]
    buffer, first = begin(batches(1)[0], count)
    one = buffer.insert(first, given[0])
    address = addresses(one)
    two = buffer.insert(one, given[1])
    assert addresses(two) == address != addresses(first) and not np.any(first.replay.rows)
    kept = buffer.whole(two)
    before = np.array(kept.replay.rows)
    three = buffer.insert(two, given[2])
    address = addresses(three)
    assert address != addresses(kept)
    np.testing.assert_array_equal(kept.replay.rows, before)
    four = buffer.insert(three, given[3])
    assert addresses(four) == address
    np.testing.assert_array_equal(kept.replay.rows, before)


def test_states_that_are_kept_stay_valid():
    """Such as those of checkpoints; callbacks get none with a buffer."""
    states, rows = list[TrainState](), list[np.ndarray]()
    run = prepare(ActingProbe(), **{**tiny("trpo_replay"), "total_steps": 640})
    initial = np.array(run.state.learner.replay.rows)
    for moment, _ in run._updates():
        states.append(moment.state())
        rows.append(np.array(states[-1].learner.replay.rows))
    assert len(states) > 10 and not np.any(initial)
    np.testing.assert_array_equal(run.state.learner.replay.rows, initial)
    for state, held in zip(states, rows, strict=True):
        np.testing.assert_array_equal(state.learner.replay.rows, held)


def fail_in_update(run: Run, number: int, error: BaseException) -> Run:
    """Returns the run, in which learning raises an error in that update, after the batch was inserted."""

    def lower(state):
        lowered = run.update.lower(state)

        def compile_learn():
            return Trouble(lowered.compile_learn(), number - 1, error)

        return lowered._replace(compile_learn=compile_learn)

    return dataclasses.replace(run, update=with_method(run.update, lower=lower))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of luck")])
@pytest.mark.parametrize("algorithm", ["trpo_replay", "naf"])
def test_run_that_fails_between_insertion_and_learning_resumes_exactly(algorithm, error, tmp_path):
    """The buffer is full by then, so the batch has replaced older steps."""
    settings = {**tiny(algorithm), "total_steps": 960}
    whole = prepare(ActingProbe(), **settings).run(progress=False)
    assert whole.state.learner.replay.filled[0] == whole.state.learner.replay.rows.shape[1] < 600
    failing = fail_in_update(prepare(ActingProbe(), **settings, out=tmp_path / "run"), 20, error)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt) as interrupt:
            failing.run(progress=False)
        assert len(interrupt.value.result.metrics["update"]) == 19
    else:
        with pytest.raises(RuntimeError, match="out of luck"):
            failing.run(progress=False)
    resumed = prepare(ActingProbe(), **settings, out=tmp_path / "run", resume=True).run(progress=False)
    assert len(resumed.metrics["update"]) == len(whole.metrics["update"]) == 31
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))
