"""Runs that stop before their end, because a criterion is met or the caller asks for it."""

import re
import time
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from counting_env import generous
from hypothesis import given
from hypothesis import strategies as st
from test_selection import CURRICULUM, BonusEnvironment
from test_train_many import Program

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.envs.registry import make_env
from jaxtrpo.training import record
from jaxtrpo.training.prepare import prepare
from jaxtrpo.training.stopping import Forecast, Stopping

PENDULUM = "InvertedPendulum-v5"
TINY = {
    "policy": "mlp(hidden=(8,))", "critic": "mlp(hidden=(8,), epochs=1)", "segment_length": 4, "num_envs": 4,
    "steps_per_update": 32, "total_steps": 320,
}  # fmt: skip


def columns(evaluations=(), returns=(), episodes=(), seconds=()):
    number = max(len(evaluations), len(returns), len(seconds))
    return {
        "wall_seconds": np.array(seconds or [1e3] * number),
        "episodes": np.array(episodes or [50] * number),
        "return_100": np.array(returns or [np.nan] * number),
        "eval_return": np.array(evaluations or [np.nan] * number),
    }


def updates_until_stop(config, metrics):
    """The number of the first update after which a run is to stop, or None, by row and as a resumed run counts."""
    stopping, number = Stopping(config, {}), len(metrics["episodes"])
    for update in range(number):
        stopping.add([{name: column[update] for name, column in metrics.items()}])
        before = Stopping(config, {name: column[: update + 1] for name, column in metrics.items()})
        assert before.reason() == stopping.reason()
        if stopping.reason():
            return update + 1
    return None


def test_return_counts_once_a_hundred_episodes_have_finished():
    config = Config(stop_at_return=10)
    assert updates_until_stop(config, columns(returns=[20.0, 20.0, 20.0])) == 2
    assert updates_until_stop(config, columns(returns=[20.0, 9.9, 10.0, 20.0])) == 3
    assert updates_until_stop(config, columns(returns=[20.0] * 3, episodes=[33, 33, 33])) is None


def test_evaluations_count_instead_where_there_are_any():
    config = Config(stop_at_return=-5, eval_every=100)
    assert updates_until_stop(config, columns([np.nan, -6.0, np.nan, -5.0, -4.0], [20.0] * 5)) == 4
    assert updates_until_stop(Config(stop_at_return=-5), columns([0.0] * 3, [-6.0] * 3)) is None


@given(st.lists(st.sampled_from([np.nan, 0.0, 1.0, 2.0, 3.0]), min_size=1), st.integers(1, 4))
def test_patience_matches_plain_loop(evaluations, patience):
    wanted, known = None, []
    for update, value in enumerate(evaluations, 1):
        known += [] if np.isnan(value) else [value]
        if wanted is None and known and len(known) - 1 - known.index(max(known)) >= patience:
            wanted = update
    config = Config(stop_after_evaluations=patience, eval_every=100)
    assert updates_until_stop(config, columns(evaluations)) == wanted


def test_evaluations_without_a_return_are_no_better():
    """Of a policy that breaks the simulation; of two updates in one program, the second has the evaluation."""
    config = Config(stop_after_evaluations=2, eval_every=100)
    stopping = Stopping(config, {})
    blank = {"episodes": 0, "return_100": None, "wall_seconds": 1.0}

    def reason(*rows):
        stopping.add([{**blank, "env_steps": steps, "eval_return": value} for steps, value in rows])
        return stopping.reason()

    nan = float("nan")
    assert reason((90, nan)) is None and reason((101, nan), (150, 3.0)) is None
    assert reason((201, nan)) is None and reason((250, nan)) is None
    assert reason((301, None)) == "stopped: none of the last 2 evaluations was better than 3.0"
    broken = {"env_steps": np.array([100, 200]), **columns([nan, nan])}
    assert Stopping(config, broken).reason() == "stopped: none of the last 2 evaluations had a return"


@pytest.mark.parametrize("returned", [True, False])
def test_returns_from_before_a_change_of_the_environment_do_not_count(returned):
    """The hundred episodes after which a run may stop are those since then."""
    env = BonusEnvironment() if returned else make_env(generous, processes=0)
    steps = []

    def change(row, state):
        steps.append(row["env_steps"])
        changed = jaxtrpo.set_env(state, bonus=3.0) if len(steps) == 10 else None
        return changed if returned else None

    settings = {**CURRICULUM, "total_steps": 40_000, "stop_at_return": -1e9}
    found = jaxtrpo.train(env, on_update=change, **settings)
    if not returned:
        env.close()
    before, episodes = np.cumsum(found.metrics["episodes"]), np.sum(found.metrics["episodes"])
    assert len(steps) > 10 and 0 < before[9] < 100 <= episodes - before[9]


@pytest.mark.parametrize(
    ("patience", "said"), [(1, "the last evaluation was not"), (2, "none of the last 2 evaluations was")]
)
def test_reason_counts_the_evaluations_in_words(patience, said):
    stopping = Stopping(Config(stop_after_evaluations=patience, eval_every=100), columns([3.0] + patience * [2.0]))
    assert stopping.reason() == f"stopped: {said} better than 3.0"


def test_run_stops_with_the_first_update_that_ends_after_the_limit():
    config = Config(stop_after_seconds=5)
    assert updates_until_stop(config, columns(seconds=[1.0, 4.99, 5.0, 6.0])) == 3
    assert updates_until_stop(config, columns(seconds=[9.0])) == 1
    assert updates_until_stop(Config(), columns(seconds=[1e9])) is None
    assert Stopping(config, columns(seconds=[5.5])).reason() == "stopped: stop_after_seconds=5 have passed"


@given(st.integers(1, 10**6), st.floats(0.1, 100), st.floats(0.01, 0.99))
def test_forecast_is_exact_at_constant_speed(rate, compiling, share):
    """`rate` steps a second after the first update, however long that took, and 100 seconds in all."""
    forecast = Forecast(Config(total_steps=10**12, stop_after_seconds=compiling + 100))
    assert forecast.total_steps == 10**12
    forecast.add(7, compiling)
    assert forecast.total_steps == 10**12  # one update has no speed
    for part in (share / 2, share):
        forecast.add(7 + rate * 100 * part, compiling + 100 * part)
        assert abs(forecast.total_steps - (7 + rate * 100)) <= 1


def test_forecast_stays_between_what_is_done_and_what_was_asked_for():
    forecast = Forecast(Config(total_steps=1_000, stop_after_seconds=10))
    for steps, seconds, wanted in ((10, 1, 1_000), (20, 2, 100), (900, 3, 1_000), (901, 9, 1_000), (950, 20, 951)):
        forecast.add(steps, seconds)
        assert forecast.total_steps == wanted
    unlimited = Forecast(Config(total_steps=1_000))
    for steps, seconds in ((10, 1), (20, 2)):
        unlimited.add(steps, seconds)
    assert unlimited.total_steps == 1_000


def test_forecast_of_a_resumed_run_begins_with_its_speed_so_far():
    forecast = Forecast(Config(total_steps=10**9, stop_after_seconds=100), 500, 25.0)
    assert forecast.total_steps == 2_000
    forecast.add(600, 50.0)  # the first update after resuming compiles
    assert forecast.total_steps == 2_000
    forecast.add(1_600, 60.0)
    assert forecast.total_steps == 1_600 + 4_000
    assert Forecast(Config(total_steps=900, stop_after_seconds=100), 500, 25.0).total_steps == 900
    assert Forecast(Config(total_steps=900), 500, 25.0).total_steps == 900


def test_schedule_of_a_resumed_run_goes_on_where_the_time_is(tmp_path):
    settings = {
        **TINY, "algorithm": "ppo(minibatch_size=16)", "adapt": "linear(learning_rate=1e-9)", "total_steps": 1e9,
        "stop_after_seconds": 60, "out": tmp_path, "actors": 1, "progress": False,
    }  # fmt: skip

    def slow(row, state):
        time.sleep(1)
        return row["update"] < 4

    before = jaxtrpo.train(PENDULUM, on_update=slow, **settings).metrics
    speed = before["env_steps"][-1] / before["wall_seconds"][-1]
    after = jaxtrpo.train(PENDULUM, resume=True, on_update=lambda row, state: row["update"] < 6, **settings).metrics
    # That of the fifth update was chosen before, and that of the sixth after the fifth.
    share = after["learning_rate"][5] / after["learning_rate"][0]
    end = 16 * -(-round(60 * speed) // 16)  # in whole segments
    np.testing.assert_allclose(share, 1 - after["env_steps"][4] / end, rtol=1e-6)
    assert share < 0.95


@pytest.mark.parametrize("algorithm", ["a2c", "ppo(minibatch_size=16)"])
def test_schedules_end_when_the_time_is_over(algorithm):
    settings = {**TINY, "algorithm": algorithm, "adapt": "linear(learning_rate=1e-9)", "total_steps": 1e9}
    jaxtrpo.train(PENDULUM, progress=False, **{**settings, "total_steps": 320})  # compiles
    result = jaxtrpo.train(PENDULUM, progress=False, stop_after_seconds=4, **settings)
    rate, seconds = result.metrics["learning_rate"], result.metrics["wall_seconds"]
    assert seconds[-1] > 3.9 and np.sum(seconds >= 4) <= 16  # updates of one program
    assert rate[-1] < 0.1 * rate[0]
    np.testing.assert_allclose(np.interp(3, seconds, rate) / rate[0], 0.25, atol=0.15)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"algorithm": "a3c"}, "actors of a2c.asynchronous=True. do not wait for each other, and so do not foresee"),
        ({"algorithm": "naf(asynchronous=True)", "critic": "none"}, "actors of naf.asynchronous=True. do not wait"),
    ],
)
def test_seconds_are_refused_where_the_end_is_not_foreseen(settings, why):
    with pytest.raises(ValueError, match=f"^stop_after_seconds=9: {why}.*; use total_steps$"):
        prepare(PENDULUM, stop_after_seconds=9, **{**TINY, **settings})


def test_trainings_side_by_side_foresee_their_end(capsys):
    settings = {**TINY, "algorithm": "ppo(minibatch_size=16)", "total_steps": None, "actors": 2}
    jaxtrpo.train_many("Pendulum-v1", seeds=(0, 1), **{**settings, "total_steps": 320}, progress=False)  # compiles
    found = jaxtrpo.train_many("Pendulum-v1", seeds=(0, 1, 2, 3), stop_after_seconds=3, **settings)
    seconds = [result.metrics["wall_seconds"] for result in found]
    # Another update would have ended later. On a busy machine, there may be only the first, which compiles.
    assert min(each[-1] + np.diff(each, prepend=0)[-1] for each in seconds) > 3
    lines = capsys.readouterr().err.splitlines()
    shares = [int(share) for line in lines for share in re.findall(r"\((\d+)%\)", line)]
    assert 0 < shares[0] <= shares[-1] == 100


def test_seconds_are_refused_by_trainings_in_one_program():
    with pytest.raises(ValueError, match="^stop_after_seconds=9: trainings in one program .*; use total_steps$"):
        jaxtrpo.train_many(Program(), seeds=(0, 1), stop_after_seconds=9, progress=False, **TINY)


def test_patience_needs_evaluations():
    with pytest.raises(ValueError, match="stop_after_evaluations=3 needs eval_every"):
        prepare(PENDULUM, stop_after_evaluations=3)


@pytest.mark.parametrize("answer", [False, np.False_, np.array(False), jnp.array(False)])
def test_on_update_stops_a_run_which_may_be_resumed(answer, tmp_path):
    whole = jaxtrpo.train(PENDULUM, progress=False, **TINY)
    kept = jaxtrpo.train(PENDULUM, progress=False, on_update=lambda row, state: None, **TINY)
    stopped = jaxtrpo.train(
        PENDULUM, out=tmp_path, progress=False, on_update=lambda row, state: answer if row["update"] == 3 else 0, **TINY
    )
    assert list(stopped.metrics["update"]) == [1, 2, 3] and len(kept.metrics["update"]) > 3
    resumed = jaxtrpo.train(PENDULUM, out=tmp_path, resume=True, progress=False, **TINY)
    np.testing.assert_array_equal(resumed.metrics["improvement"], whole.metrics["improvement"])


def test_on_update_may_change_its_row():
    def change(row, state):
        row["env_steps"] = 0
        row.pop("episodes")

    whole, changed = (jaxtrpo.train(PENDULUM, progress=False, on_update=each, **TINY) for each in (None, change))
    np.testing.assert_array_equal(changed.metrics["env_steps"], whole.metrics["env_steps"])


def test_met_criterion_ends_a_run_and_the_same_command_at_once(tmp_path, capsys):
    words = ["train", PENDULUM, "--out", str(tmp_path), "--eval-every", "32", "--eval-episodes", "1"]
    words += [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    for _ in range(2):
        assert cli.main([*words, "--stop-at-return", "0", "--resume"]) == 0
        shown = capsys.readouterr()
        assert ", 48 environment steps" in shown.out
        assert "has reached stop_at_return=0" in shown.err
    assert cli.main([*words, "--resume"]) == 0
    assert "336 environment steps" in capsys.readouterr().out


def test_each_of_many_runs_stops_on_its_own():
    settings = {**TINY, "total_steps": 192}
    for env in (PENDULUM, Program()):
        calls = []

        def stop_one(row, state, calls=calls):
            calls.append(row["update"])
            return not (row["update"] == 2 and calls.count(2) == 1)

        found = jaxtrpo.train_many(env, seeds=(0, 1), on_update=stop_one, progress=False, **settings)
        lengths = sorted(len(each.metrics["update"]) for each in found)
        assert lengths[0] == 2 and lengths[1] > 2
        for each in found:
            assert int(np.max(each.state.segments)) * 16 == each.metrics["env_steps"][-1]


def test_seconds_after_an_update_count(monkeypatch):
    """Such as those of an evaluation or a callback."""
    late = []
    monkeypatch.setattr(record, "time", SimpleNamespace(perf_counter=lambda: time.perf_counter() + sum(late)))
    look = lambda row, state: late.append(3_600 * (row["update"] == 2))  # noqa: E731
    found = jaxtrpo.train(PENDULUM, actors=1, progress=False, on_update=look, stop_after_seconds=1_800, **TINY)
    assert found.metrics["update"].tolist() == [1, 2]


def test_segments_may_be_short_where_only_time_ends_a_run():
    small = {"actors": 1, "num_envs": 1, "steps_per_update": 1, "segment_length": 1}
    run = prepare(PENDULUM, algorithm="pg", critic="none", stop_after_seconds=60, **small)
    assert int(run.state.total_segments[0]) == 2**31 - 1
    with pytest.raises(ValueError, match="total_steps=2147483648 makes 2147483648 segments of 1 steps"):
        prepare(PENDULUM, algorithm="pg", critic="none", total_steps=2**31, **small)
