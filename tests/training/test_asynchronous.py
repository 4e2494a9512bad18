"""Actors that do not wait for each other: threads that come, go and fail."""

from __future__ import annotations

import contextlib
import queue
import threading
import time

import jax
import numpy as np
import pytest
from test_algorithms import TINY, ActingProbe

import jaxtrpo.training.drivers.asynchronous
import jaxtrpo.training.run
from jaxtrpo.parallel.background import ACTOR
from jaxtrpo.training.train import prepare

pytestmark = pytest.mark.shared_programs


def run(out=None, **settings):
    settings = {**TINY, "total_steps": 600, **settings}
    return prepare(ActingProbe(), algorithm="a3c(learning_rate=0.005)", out=out, **settings)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]


@pytest.mark.parametrize("actors", [1, 2])
def test_rows_are_whole_and_in_order_and_staleness_counts_the_updates_of_others(actors):
    metrics = run(actors=actors).run(progress=False).metrics
    assert metrics["staleness"].dtype == np.int64 and np.all(metrics["staleness"] >= 0)
    assert np.all(metrics["staleness"] < metrics["update"])
    if actors == 1:
        assert not metrics["staleness"].any()
    np.testing.assert_array_equal(metrics["update"], np.arange(1, len(metrics["update"]) + 1))
    # An actor's part is an update, and its first one segment, which shows how large observations are.
    sizes = metrics["steps_per_update"]
    assert sizes[0] == 16 // actors and np.sum(sizes == 16 // actors) <= actors
    assert set(sizes) == {16 // actors, 32 // actors}
    np.testing.assert_array_equal(metrics["env_steps"], np.cumsum(sizes))
    assert metrics["env_steps"][-2] < 600 <= metrics["env_steps"][-1]
    assert np.all(np.isfinite(metrics["gradient_norm"]))


def test_both_actors_take_part_and_the_state_holds_what_each_has_reached():
    running = run(total_steps=2000)
    ended = running.run(progress=False)
    before, after = (jax.device_get(state.actors.noise_key) for state in (running.state, ended.state))
    assert np.all(np.any(before != after, axis=-1))
    assert before.shape[0] == 2


def test_every_gradient_is_applied_once():
    """The number of samples that the moments of the observations have seen is that of all batches."""
    result = run().run(progress=False)
    state = jax.device_get(result.state)
    assert np.all(state.learner.obs_moments.count == result.metrics["env_steps"][-1])
    assert np.all(state.segments == 2 * result.metrics["env_steps"][-1] // 16)
    for leaf in jax.tree.leaves(state._replace(actors=None)):
        np.testing.assert_array_equal(leaf[0], leaf[1])


def test_single_steps_are_refused():
    with pytest.raises(ValueError, match="steps_per_update=2 must be at least 4, two for each of the 2 asynchronous"):
        run(actors=2, num_envs=2, segment_length=1, steps_per_update=2)
    run(actors=2, num_envs=2, segment_length=1, steps_per_update=4)


def test_it_learns_and_evaluation_sees_the_newest_policy():
    sizes = {"num_envs": 16, "steps_per_update": 128, "actors": 2}
    result = run(total_steps=32_000, eval_every=32_000, eval_episodes=2, **sizes).run(progress=False)
    actions = result.policy(np.float32([[1, 0], [-1, 0]]))[:, 0]
    np.testing.assert_allclose(actions, [0.5, -0.5], atol=0.15)
    assert result.metrics["eval_return"][-1] > -(0.15**2)  # -0.25 at first


def test_it_goes_on_from_a_checkpoint_with_another_number_of_actors(tmp_path):
    first = run(tmp_path).run(progress=False)
    again = run(tmp_path, total_steps=1200, resume=True, actors=1).run(progress=False)
    number = len(first.metrics["update"])
    for name in ("improvement", "entropy", "staleness"):
        if name in first.metrics:
            np.testing.assert_array_equal(again.metrics[name][:number], first.metrics[name])
    assert again.metrics["env_steps"][-1] >= 1200
    assert np.all(again.state.segments == again.metrics["env_steps"][-1] // 16)  # which progress is counted by


def test_evaluations_come_as_often_as_asked():
    metrics = run(eval_every=200, eval_episodes=2).run(progress=False).metrics
    assert np.sum(np.isfinite(metrics["eval_return"])) == 3


class Trouble:
    """Fails from the n-th call on."""

    def __init__(self, function, calls: int, error: BaseException):
        self.function, self.left, self.error = function, calls, error

    def __call__(self, *arguments, **keywords):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.function(*arguments, **keywords)


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), SystemExit("out of luck")])
def test_error_in_a_thread_reaches_the_caller_and_what_was_learned_is_saved(error, tmp_path, monkeypatch):
    running = run(tmp_path)
    monkeypatch.setattr(
        jaxtrpo.training.drivers.asynchronous, "move", Trouble(jaxtrpo.training.drivers.asynchronous.move, 9, error)
    )
    with pytest.raises(type(error), match="out of luck"):
        running.run(progress=False)
    monkeypatch.undo()
    if isinstance(error, Exception):
        again = run(tmp_path, resume=True)
        assert len(again.metrics["update"]) >= 1
        assert again.run(progress=False).metrics["env_steps"][-1] >= 600


def test_a_run_that_failed_before_its_first_update_goes_on_from_its_start(tmp_path, monkeypatch):
    monkeypatch.setattr(
        jaxtrpo.training.drivers.asynchronous,
        "move",
        Trouble(jaxtrpo.training.drivers.asynchronous.move, 0, RuntimeError("bad luck")),
    )
    with pytest.raises(RuntimeError, match="bad luck"):
        run(tmp_path).run(progress=False)
    monkeypatch.undo()
    assert run(tmp_path, resume=True).run(progress=False).metrics["env_steps"][-1] >= 600


def test_interrupt_keeps_what_was_learned(tmp_path, monkeypatch):
    bar = jaxtrpo.training.run.Progress
    trouble = Trouble(bar.update, 3, KeyboardInterrupt())
    monkeypatch.setattr(bar, "update", lambda *arguments: trouble(*arguments))
    with pytest.raises(KeyboardInterrupt) as interrupt:
        run(tmp_path).run(progress=False)
    result = interrupt.value.result
    assert list(result.metrics["update"]) == [1, 2, 3, 4]
    assert np.all(np.asarray(result.state.learner.obs_moments.count) == result.metrics["env_steps"][-1])
    np.testing.assert_array_equal(jaxtrpo.load_policy(tmp_path)(np.ones(2)), result.policy(np.ones(2)))


def test_actors_wait_until_their_updates_are_read(monkeypatch):
    """Otherwise a slow reader would be left ever further behind."""
    calls = []
    move = jaxtrpo.training.drivers.asynchronous.move
    monkeypatch.setattr(
        jaxtrpo.training.drivers.asynchronous, "move", lambda *arguments: (calls.append(1), move(*arguments))[1]
    )
    most = 2 * (
        1 + jaxtrpo.training.drivers.asynchronous.WAITING_UPDATES + 2
    )  # read, waiting, and one that each actor has in hand
    with contextlib.closing(run(total_steps=10**9)._updates()) as updates:
        next(updates)
        made = -1
        while made != len(calls) <= most:
            made = len(calls)
            time.sleep(0.5)
        made = len(calls)
    assert most / 2 < made <= most


def test_a_thread_that_hangs_is_left_behind(monkeypatch):
    asynchronous = jaxtrpo.training.drivers.asynchronous
    monkeypatch.setattr(asynchronous, "STOP_SECONDS", 0.1)
    hanging, begin = threading.Event(), time.monotonic()
    with asynchronous.actor_threads(lambda number: hanging.wait(60), 2, queue.Queue(), threading.Event()):
        pass
    assert time.monotonic() - begin < 10
    hanging.set()
    for thread in threading.enumerate():
        if thread.name == ACTOR:
            thread.join(10)
