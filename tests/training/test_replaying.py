"""Actors that never wait for who learns from the replay buffer."""

from __future__ import annotations

import contextlib
import queue
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_algorithms import ActingProbe, tiny
from test_asynchronous import Trouble, no_thread_is_left  # noqa: F401  (a fixture of every test)

import jaxtrpo
import jaxtrpo.rollout.replay
import jaxtrpo.training.drivers.replay
import jaxtrpo.training.run
from jaxtrpo.training.train import prepare

WORDS = "naf(hidden=(8,), replay=512, minibatch_size=16, asynchronous=True, learning_rate=0.005)"


pytestmark = pytest.mark.shared_programs


def run(out=None, **settings):
    return prepare(ActingProbe(), out=out, **{**tiny("naf"), "algorithm": WORDS, "total_steps": 608, **settings})


@pytest.mark.parametrize("actors", [1, 2])
def test_every_batch_is_a_row_and_the_run_ends_where_it_shall(actors):
    running = run(actors=actors)
    result = running.run(progress=False)
    metrics, learner = result.metrics, jax.device_get(result.state.learner)
    np.testing.assert_array_equal(metrics["update"], np.arange(1, len(metrics["update"]) + 1))
    # Batches are single segments until the learner has told actors how large observations are.
    sizes = metrics["steps_per_update"]
    assert set(sizes) == {16 // actors, 32 // actors} and sizes[0] == 16 // actors and sizes[-1] == 32 // actors
    np.testing.assert_array_equal(metrics["env_steps"], np.cumsum(sizes))
    assert metrics["env_steps"][-2] < 608 <= metrics["env_steps"][-1]
    assert np.all(np.diff(metrics["wall_seconds"]) >= 0) and np.all(np.isfinite(metrics["bellman_error"]))
    # At most half a gradient step for each step.
    assert np.all(metrics["gradient_steps"] <= 16) and np.all(metrics["gradient_steps"] >= 8 // actors)
    assert np.all(learner.obs_moments.count == metrics["env_steps"][-1]) and np.all(learner.replay.filled == 512)
    before, after = (jax.device_get(state.actors.noise_key) for state in (running.state, result.state))
    assert before.shape[0] == actors and np.all(np.any(before != after, axis=-1))
    for leaf in jax.tree.leaves(learner):
        np.testing.assert_array_equal(leaf[0], leaf[-1])


def test_it_learns_and_evaluation_sees_the_newest_policy():
    evaluated = {"eval_every": 20_000, "eval_episodes": 2}
    result = run(total_steps=20_000, num_envs=16, steps_per_update=64, actors=2, **evaluated).run(progress=False)
    actions = result.policy(np.float32([[1, 0], [-1, 0]]))[:, 0]
    np.testing.assert_allclose(actions, [0.5, -0.5], atol=0.1)
    assert result.metrics["eval_return"][-1] > -(0.1**2)  # -0.25 at first


def test_batches_that_are_less_than_asked_count_as_what_they_are():
    metrics = run(steps_per_update=47).run(progress=False).metrics
    assert set(metrics["steps_per_update"]) == {8, 16}
    assert np.all(metrics["gradient_steps"] <= 16)  # half of two batches' steps


def test_batches_may_change_their_size():
    metrics = run(total_steps=3_000, adapt="linear(steps_per_update=96)").run(progress=False).metrics
    assert len(set(metrics["steps_per_update"])) > 1
    assert metrics["env_steps"][-1] - metrics["steps_per_update"][-1] < 3_000 <= metrics["env_steps"][-1]


def test_state_is_assembled_once_however_often_it_is_asked_for(monkeypatch):
    made, assemble = [], jaxtrpo.training.drivers.replay._state_of_run
    monkeypatch.setattr(
        jaxtrpo.training.drivers.replay, "_state_of_run", lambda *args: made.append(args) or assemble(*args)
    )
    with contextlib.closing(run()._updates()) as updates:
        moment, _ = next(updates)
        assert moment.state() is moment.state() and len(made) == 1


def test_it_goes_on_from_a_checkpoint_with_another_number_of_actors(tmp_path):
    first = run(tmp_path).run(progress=False)
    again = run(tmp_path, total_steps=1216, resume=True, actors=1).run(progress=False)
    number = len(first.metrics["update"])
    np.testing.assert_array_equal(again.metrics["bellman_error"][:number], first.metrics["bellman_error"])
    assert 1216 <= again.metrics["env_steps"][-1] < 1216 + 32
    assert np.all(np.asarray(again.state.learner.obs_moments.count) == again.metrics["env_steps"][-1])


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), SystemExit("out of luck")])
def test_error_in_a_thread_reaches_the_caller_and_what_was_learned_is_saved(error, tmp_path, monkeypatch):
    running = run(tmp_path)
    monkeypatch.setattr(
        jaxtrpo.training.drivers.replay, "move", Trouble(jaxtrpo.training.drivers.replay.move, 12, error)
    )
    with pytest.raises(type(error), match="out of luck"):
        running.run(progress=False)
    monkeypatch.undo()
    if isinstance(error, Exception):
        assert run(tmp_path, resume=True).run(progress=False).metrics["env_steps"][-1] >= 608


def test_what_was_collected_before_an_error_is_learned_from():
    made = queue.Queue()
    for thing in (1, 2, RuntimeError("out of luck"), 3):
        made.put(thing)
    assert jaxtrpo.training.drivers.replay._take_all(made) == [1, 2]
    with pytest.raises(RuntimeError, match="out of luck"):
        jaxtrpo.training.drivers.replay._take_all(made)


def test_a_run_that_failed_before_its_first_update_goes_on_from_its_start(tmp_path, monkeypatch):
    monkeypatch.setattr(
        jaxtrpo.training.drivers.replay,
        "move",
        Trouble(jaxtrpo.training.drivers.replay.move, 0, RuntimeError("out of luck")),
    )
    with pytest.raises(RuntimeError, match="out of luck"):
        run(tmp_path).run(progress=False)
    monkeypatch.undo()
    assert run(tmp_path, resume=True).run(progress=False).metrics["env_steps"][-1] >= 608


def test_actors_go_on_while_nobody_learns_until_the_buffer_could_not_hold_it():
    with contextlib.closing(run(total_steps=10**6)._updates()) as updates:
        next(updates)
        time.sleep(2)
        _, rows = next(updates)
    # As many batches of 16 steps as the buffer of 512 has room for, and one that each actor has in hand.
    assert 32 <= len(rows) <= 34


def test_rules_change_its_settings():
    metrics = run(adapt="linear(learning_rate=0)").run(progress=False).metrics
    assert np.all(np.diff(metrics["learning_rate"]) < 0)


@pytest.mark.parametrize("waiting", [False, True])
def test_callbacks_see_no_buffer_which_is_not_copied_for_them(waiting, monkeypatch):
    copies, seen, copied = [], [], jaxtrpo.rollout.replay.copied
    monkeypatch.setattr(jaxtrpo.rollout.replay, "copied", lambda rows: copies.append(rows.shape) or copied(rows))
    words = WORDS.replace("asynchronous=True, ", "") if waiting else WORDS
    look = lambda row, state: seen.append(state.learner.replay)  # noqa: E731
    learner = run(algorithm=words, on_update=look, eval_every=100, eval_episodes=1).run(progress=False).state.learner
    assert len(seen) > 18 and set(seen) == {None} and len(copies) == 1
    assert np.all(np.isfinite(learner.replay.rows)) and np.all(np.asarray(learner.replay.filled) == 512)


def test_environments_that_a_callback_changes_belong_to_the_whole_state(tmp_path):
    words = WORDS.replace("asynchronous=True, ", "")

    def same(row, state):
        return state._replace(actors=jax.tree.map(jnp.copy, state.actors))

    found = run(tmp_path / "same", algorithm=words, on_update=same, checkpoint_seconds=0).run(progress=False)
    wanted = run(algorithm=words).run(progress=False)
    jax.tree.map(
        np.testing.assert_array_equal, jax.device_get(found.state.learner), jax.device_get(wanted.state.learner)
    )
