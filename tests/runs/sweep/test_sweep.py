"""Sweeps: search spaces, scores of trials, resuming, and sharing a study."""

from __future__ import annotations

import csv
import json
import math
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState

from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.config.specs import parse
from jaxtrpo.runs.directory import hold
from jaxtrpo.runs.progress import Progress
from jaxtrpo.runs.reader import read_run
from jaxtrpo.runs.sweep.plot import draw_sweep
from jaxtrpo.runs.sweep.scheduler import _Scheduler
from jaxtrpo.runs.sweep.space import (
    Interval,
    Values,
    combinations,
    parse_grid,
    parse_random,
    require_different,
    with_settings,
)
from jaxtrpo.runs.sweep.study import SEEDS, Sweep, open_study, require_same_sweep, unfinished
from jaxtrpo.runs.view.curves import interquartile_mean

SMALL = [
    "sweep", "InvertedPendulum-v5", "--total-steps", "512", "--steps-per-update", "128", "--num-envs", "4",
    "--algorithm", "pg", "--policy", "mlp(hidden=(8,))", "--critic", "none",
]  # fmt: skip
GRID = ["--grid", "algorithm_learning_rate=0.01,0.02", "--seeds", "2"]

# ---- search space


def scheduler_of(directory, dimensions, database=None, **more) -> _Scheduler:
    """The scheduler of a sweep in a database of its own, or one that others share."""
    study = open_study(directory, "X", database)
    sampled = "trials" in more
    settings = {
        "combinations": () if sampled else tuple(combinations(dimensions)),
        "trials": 0,
        "seeds": 1,
        "shared": database is not None,
        **more,
    }
    return _Scheduler(Sweep("X", directory, dimensions, flags=lambda chosen: [], study=study, **settings), print)


def sharing(tmp_path, name, dimensions, **more) -> _Scheduler:
    (tmp_path / name).mkdir(exist_ok=True)
    return scheduler_of(tmp_path / name, dimensions, f"sqlite:///{tmp_path}/shared.sqlite", **more)


def taken(scheduler: _Scheduler, most: int | None = None) -> list[dict]:
    """The settings of the trials that a scheduler begins."""
    found = []
    while len(found) != most and (job := scheduler._next()) is not None:
        found.append(job[0].trial.params)
    return found


def taken_in_turns(here: _Scheduler, there: _Scheduler) -> list[dict]:
    """The settings of the trials that two schedulers begin, the second one each time before the first adds a trial."""
    found, add = [], here.sweep.study.add_trial

    def interleaved(trial):
        found.extend(taken(there, 1))
        add(trial)

    here.sweep.study.add_trial = interleaved
    found += taken(here)
    return found


def test_parse_grid():
    assert parse_grid(["max_kl=0.005,0.01", "policy=mlp,mlp(hidden=(8, 8))", "normalize_observations=True,False"]) == [
        Values("max_kl", (0.005, 0.01)),
        Values("policy", ("mlp", "mlp(hidden=(8, 8))")),
        Values("normalize_observations", (True, False)),
    ]


@given(st.floats(1e-6, 1.0), st.floats(1.1, 100.0))
def test_parse_random(low, factor):
    high = low * factor
    found = parse_random([f"log(a, {low!r}, {high!r})", f"uniform(b, {-high!r}, {low!r})", "integer(c, 2, 9)"])
    assert found == [Interval("a", low, high, log=True), Interval("b", -high, low), Interval("c", 2, 9, whole=True)]
    assert parse_random(["choice(algorithm, ppo, trpo)"]) == [Values("algorithm", ("ppo", "trpo"))]


@pytest.mark.parametrize(
    ("read", "words", "told"),
    [
        (parse_grid, "max_kl", "must have the form NAME=VALUE,VALUE"),
        (parse_grid, "max_kl=", "must have the form NAME=VALUE,VALUE"),
        (parse_grid, "max kl=1", "must have the form NAME=VALUE,VALUE"),
        (parse_grid, "max_kl=1,,2", "cannot be parsed"),
        (parse_grid, "max_kl=1]+[2", "cannot be parsed"),
        (parse_random, "max_kl", "must be one of log"),
        (parse_random, "log()", "must be one of log"),
        (parse_random, "log(max_kl, 1)", "must be one of log"),
        (parse_random, "normal(max_kl, 0, 1)", "must be one of log"),
        (parse_random, "log(max_kl, low=1, high=2)", "must be one of log"),
        (parse_random, "log(max_kl, 0, 1)", "0 and 1 are not valid bounds of log"),
        (parse_random, "uniform(max_kl, 2, 1)", "2 and 1 are not valid bounds of uniform"),
        (parse_random, "integer(actors, 1, 2.5)", "1 and 2.5 are not valid bounds of integer"),
    ],
)
def test_malformed_search_space_is_rejected_in_one_sentence(read, words, told):
    with pytest.raises(ValueError, match=told) as error:
        read([words])
    assert repr(words) in str(error.value) and "\n" not in str(error.value)


def test_collections_reach_the_settings_through_the_database(tmp_path):
    """A database would give a tuple back as a list, which is no combination of the grid: the sweep would never end."""
    scheduler = scheduler_of(tmp_path, parse_grid(["policy_hidden=(8,),[4, 4]"]))
    settings = {"policy": "mlp", "algorithm": "pg", "critic": None}
    found = [with_settings(settings, chosen, str)["policy"] for chosen in taken(scheduler)]
    assert found == ["mlp(hidden=(8,))", "mlp(hidden=[4, 4])"]
    same = {**settings, "policy": "mlp(hidden=[4,4])"}
    assert with_settings(same, {"policy_hidden": "[4, 4]"}, str)["policy"] == "mlp(hidden=[4, 4])"


def test_combinations_are_all_and_unique():
    found = list(combinations([Values("a", (1, 2)), Values("b", (3, 4, 5))]))
    assert len(found) == 6 == len({tuple(each.items()) for each in found})


def test_duplicate_settings_and_the_seed_are_rejected():
    for dimensions, told in (
        ([], "at least one"),
        ([Values("a", (1,)), Interval("a", 0, 1)], "a is swept twice"),
        ([Values("seed", (1,))], "seed cannot be swept; use --seeds 5"),
    ):
        with pytest.raises(ValueError, match=told):
            require_different(dimensions)


def test_swept_settings_are_merged_into_spec_strings():
    config = {"algorithm": "ppo(kl_stop=0.1)", "critic": None, "max_kl": None}
    chosen = {"critic_learning_rate": 1e-4, "algorithm_clip": 0.3, "algorithm_epochs": 4, "max_kl": 0.02}
    found = with_settings(config, chosen, lambda part: "mlp(hidden=(32, 32))")
    assert found == {
        "algorithm": "ppo(kl_stop=0.1, clip=0.3, epochs=4)",
        "critic": "mlp(hidden=(32, 32), learning_rate=0.0001)",
        "max_kl": 0.02,
    }
    assert parse("critic", found["critic"]).spec_string == found["critic"]
    with pytest.raises(ValueError, match="unknown setting 'max_kll'"):
        with_settings(config, {"max_kll": 1}, lambda part: "mlp")


# ---- the command


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def scores(out: Path) -> dict[str, str]:
    return {row["algorithm_learning_rate"]: row["interquartile_mean"] for row in rows(out)}


def started(*words) -> subprocess.Popen:
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from jaxtrpo.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *SMALL, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(there, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory and the output of an uninterrupted sweep."""
    out = tmp_path_factory.mktemp("sweep") / "whole"
    with started(*GRID, "--out", str(out)) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return out, said


def test_score_of_a_trial_is_the_interquartile_mean_of_its_seeds(whole):
    out, said = whole
    assert {row["algorithm_learning_rate"] for row in rows(out)} == {"0.01", "0.02"}
    for row in rows(out):
        runs = [read_run(out / f"trial-{int(row['trial']):04d}" / f"seed-{seed}") for seed in range(2)]
        ends = [run.columns["return_100"][-1] for run in runs]
        np.testing.assert_allclose(json.loads(row["seeds"]), ends, atol=1e-3)
        score = interquartile_mean(np.array(ends)[:, None])[0][0]
        assert math.isclose(float(row["interquartile_mean"]), score, rel_tol=1e-4)
        assert {run.settings["algorithm"] for run in runs} == {f"pg(learning_rate={row['algorithm_learning_rate']})"}
        assert [run.settings["seed"] for run in runs] == [0, 1]
    assert float(rows(out)[0]["interquartile_mean"]) >= float(rows(out)[1]["interquartile_mean"])
    assert (out / "sweep.png").read_bytes()[:4] == b"\x89PNG" and str(out / "sweep.csv") in said


def test_printed_command_reruns_the_best_trial(whole):
    out, said = whole
    words = shlex.split(said.strip().splitlines()[-1].partition(": ")[2])
    best = cli.parse(words[1:])
    rate = rows(out)[0]["algorithm_learning_rate"]
    assert best.env == "InvertedPendulum-v5" and best.config.algorithm == f"pg(learning_rate={rate})"
    assert (best.config.total_steps, best.config.policy) == (512, "mlp(hidden=(8,))")
    assert best.config.actors == 1  # as in the sweep


def test_finished_sweep_trains_nothing(whole):
    out, _ = whole
    before = {path: path.stat().st_mtime_ns for path in out.glob("trial-*/*/*")}
    assert cli.main([*SMALL, *GRID, "--out", str(out)]) == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("trial-*/*/*")} == before


def test_resumed_sweep_gives_the_same_result(whole, tmp_path):
    """It is interrupted in its second training, resumed, and killed in its third."""
    out = tmp_path / "sweep"
    for how, code, trainings in ((signal.SIGINT, cli.INTERRUPTED, 2), (signal.SIGKILL, -signal.SIGKILL, 3)):
        with started(*GRID, "--out", str(out), "--cores", "1") as process:
            wait_for(lambda number=trainings: len(list(out.glob("trial-*/seed-*/metrics.csv"))) >= number)
            process.send_signal(how)
            process.communicate(timeout=60)
        assert process.returncode == code
    with started(*GRID, "--out", str(out)) as process:
        said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert scores(out) == scores(whole[0])


def test_two_sweeps_share_a_study(whole, tmp_path):
    storage = ["--storage", f"sqlite:///{tmp_path}/shared.sqlite"]
    outs = [tmp_path / name for name in ("here", "there")]
    grid = [*GRID[:-1], "1"]  # seed
    both = [started(*grid, *storage, "--cores", "1", "--out", str(out)) for out in outs]
    said = []
    for process in both:
        with process:
            said.append(process.communicate(timeout=300))
    assert [process.returncode for process in both] == [0, 0], said
    # The sweep that ends last has all results.
    wanted, *found = ({row["algorithm_learning_rate"]: json.loads(row["seeds"])[:1] for row in rows(out)}
                      for out in (whole[0], *outs))  # fmt: skip
    assert wanted in found
    assert len([place for out in outs for place in out.glob("trial-*")]) == 2


def test_concurrent_sweeps_never_run_the_same_combination(tmp_path):
    """Another sweep takes a trial before this one adds its own."""
    values = [Values("max_kl", (0.01, 0.02, 0.03))]
    here, there = (sharing(tmp_path, name, values) for name in ("here", "there"))
    found = taken_in_turns(here, there)
    assert sorted(chosen["max_kl"] for chosen in found) == [0.01, 0.02, 0.03]


def test_sweeps_that_race_share_the_combinations(tmp_path):
    """Both take trials as fast as they can; SQLite locks no rows, so neither may start what the other can see."""
    values = Values("max_kl", tuple(range(25)))
    both = [sharing(tmp_path, name, [values]) for name in ("here", "there")]
    ready = threading.Barrier(2)

    def every(scheduler):
        ready.wait()
        return taken(scheduler)

    with ThreadPoolExecutor() as pool:
        here, there = pool.map(every, both)
    assert sorted(chosen["max_kl"] for chosen in here + there) == list(values.values)


def test_sweeps_that_share_sampled_trials_run_no_more_than_asked_for(tmp_path):
    drawn = parse_random(["uniform(max_kl, 0, 1)"])
    here, there = (sharing(tmp_path, name, drawn, trials=3) for name in ("here", "there"))
    found = taken_in_turns(here, there)
    assert len(found) == 3 == len({chosen["max_kl"] for chosen in found})


def test_sampled_settings_that_failed_are_tried_again_by_the_next_sweep(tmp_path):
    drawn = parse_random(["uniform(max_kl, 0, 1)"])
    first = scheduler_of(tmp_path, drawn, trials=3)
    begun = taken(first)
    for running, value in zip(list(first.open), (1.0, None, None), strict=True):
        first._done(running, 0, value)
    assert taken(first) == []  # not at once
    for failed in (begun[1:], begun[2:], []):
        later = scheduler_of(tmp_path, drawn, trials=3)
        assert taken(later) == failed
        for running, value in zip(list(later.open), (1.0, None), strict=False):
            later._done(running, 0, value if len(failed) == 2 else 1.0)
    done = [trial.params for trial in later._states(TrialState.COMPLETE)]
    assert sorted(done, key=begun.index) == begun


def test_settings_that_failed_are_left_where_the_range_is_narrower_now(tmp_path):
    first = scheduler_of(tmp_path, parse_random(["uniform(max_kl, 0, 1)"]), trials=2)
    begun = taken(first)
    for running in list(first.open):
        first._done(running, 0, None)
    between = sum(each["max_kl"] for each in begun) / 2
    later = scheduler_of(tmp_path, parse_random([f"uniform(max_kl, 0, {between})"]), trials=2)
    again = taken(later)
    assert again[0] == min(begun, key=lambda each: each["max_kl"]) and again[1]["max_kl"] < between


def test_sweeps_that_share_a_study_try_again_once(tmp_path):
    drawn = parse_random(["uniform(max_kl, 0, 1)"])
    first = sharing(tmp_path, "here", drawn, trials=2)
    begun = taken(first)
    for running, value in zip(list(first.open), (None, 1.0), strict=True):
        first._done(running, 0, value)
    here, there = (sharing(tmp_path, name, drawn, trials=2) for name in ("here", "there"))
    assert taken_in_turns(here, there) == begun[:1]


def test_trial_whose_values_contradict_each_other_fails_alone(tmp_path, capsys):
    def contradict(chosen):
        raise ValueError("max_kl contradicts itself")

    scheduler = scheduler_of(tmp_path, [Values("max_kl", (0.01, 0.02))])
    scheduler.sweep = scheduler.sweep._replace(flags=contradict)
    running, seed = scheduler._next()
    scheduler._done(running, seed, scheduler._train(running.trial, seed))
    assert "trial 0 failed: max_kl contradicts itself" in capsys.readouterr().out
    assert taken(scheduler) == [{"max_kl": 0.02}]


@pytest.mark.parametrize("tpe", [False, True])
def test_resumed_sweep_draws_what_one_that_never_stopped_draws(tmp_path, tpe):
    space = parse_random(["uniform(max_kl, 0, 1)", "integer(epochs, 1, 1000000)"])

    def sweep(name, **more):
        (tmp_path / name).mkdir(exist_ok=True)
        return scheduler_of(tmp_path / name, space, tpe=tpe, **more)

    whole = taken(sweep("whole", trials=5))
    first = sweep("parts", trials=3)
    parts = taken(first)
    for running in first.open:
        first.sweep.study.tell(running.trial, 1.0)
    parts += taken(sweep("parts", trials=5))
    assert parts == whole
    assert len({tuple(chosen.values()) for chosen in whole}) == 5
    assert taken(sweep("other", trials=1, seed=1)) != whole[:1]


def test_unfinished_trials_are_resumed_wherever_the_directory_is(tmp_path):
    """As after a move, or on a machine with another name; in a shared database, those of others are left alone."""
    values = [Values("max_kl", (0.01, 0.02))]
    (tmp_path / "own").mkdir()
    begun = taken(scheduler_of(tmp_path / "own", values), 1) + taken(sharing(tmp_path, "shared", values), 1)
    assert begun == 2 * [{"max_kl": 0.01}]
    for name in ("own", "shared"):
        (tmp_path / name).rename(tmp_path / f"{name}-moved")
    assert taken(scheduler_of(tmp_path / "own-moved", values)) == [{"max_kl": 0.01}, {"max_kl": 0.02}]
    assert taken(sharing(tmp_path, "another", values)) == [{"max_kl": 0.02}]
    assert taken(sharing(tmp_path, "shared-moved", values)) == [{"max_kl": 0.01}]


def test_duplicate_of_a_sweep_that_was_killed_before_it_dropped_it_is_not_run(tmp_path):
    values = [Values("max_kl", (0.01,))]
    here, there = (sharing(tmp_path, name, values) for name in ("here", "there"))
    there._add({"max_kl": 0.01})
    here._add({"max_kl": 0.01})  # and is killed
    assert taken(sharing(tmp_path, "here", values)) == []
    assert taken(sharing(tmp_path, "there", values)) == [{"max_kl": 0.01}]


@pytest.mark.parametrize("name", ["q?b", "p%41", "a{b}", "with space", "ü#1"])
def test_directory_may_have_any_name(tmp_path, name):
    (tmp_path / name).mkdir()
    assert taken(scheduler_of(tmp_path / name, [Values("max_kl", (0.01,))]))
    assert {path.name for path in (tmp_path / name).iterdir()} == {"study.sqlite"}
    with pytest.raises(ValueError, match="holds a sweep of X, not Y"):
        open_study(tmp_path / name, "Y", None)


def test_termination_ends_the_runs_too(tmp_path):
    out = tmp_path / "sweep"
    with started(*GRID, "--out", str(out), "--cores", "1") as process:
        wait_for(lambda: list(out.glob("trial-*/seed-*")))
        process.terminate()
        errors = process.communicate(timeout=100)[1]
    assert process.returncode == 143 and "the same command resumes the sweep" in errors
    with hold(next(out.glob("trial-*/seed-*"))):  # nobody writes to it
        pass


def test_sweep_with_a_failed_trial_says_so_and_ends_with_an_error(tmp_path, capsys):
    words = [*SMALL, "--max-steps-per-update", "128", "--grid", "segment_length=32,64", "--seeds", "1"]
    assert cli.main([*words, "--out", str(tmp_path)]) == cli.FAILED
    said = capsys.readouterr()
    assert "trial 1, seed 0 failed" in said.err and "\n1 trial failed; the same command tries again" in said.err
    assert [row["trial"] for row in rows(tmp_path)] == ["0"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--grid", "max_steps_per_update=256,64", "--grid", "num_envs=4,8"],
            "max_steps_per_update=64 is below steps_per_update=128",
        ),
        ([*GRID, "--trials", "3"], "trials=3: the grid has only 2 combinations"),
    ],
)
def test_grid_that_cannot_be_run_is_refused_before_training(words, told, tmp_path, capsys):
    assert cli.main([*SMALL, *words, "--out", str(tmp_path / "new")]) == cli.INPUT_ERROR
    assert told in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_second_sweep_in_a_directory_is_rejected(tmp_path, capsys):
    out = tmp_path / "sweep"
    with started(*GRID, "--out", str(out), "--cores", "1") as process:
        wait_for(lambda: list(out.glob("trial-*/seed-*")))
        assert cli.main([*SMALL, *GRID, "--out", str(out)]) == cli.INPUT_ERROR
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert "is being written to by another run" in capsys.readouterr().err


def test_directory_of_another_environment_is_refused_in_one_sentence(tmp_path, capsys):
    open_study(tmp_path, "Hopper-v5", None)
    assert cli.main([*SMALL, *GRID, "--out", str(tmp_path)]) == cli.INPUT_ERROR
    told = (
        f"out={str(tmp_path)!r} holds a sweep of Hopper-v5, not InvertedPendulum-v5; choose another directory (--out)"
    )
    assert capsys.readouterr().err == f"jaxtrpo: error: {told}\n"
    open_study(tmp_path, "Hopper-v5", None)


def test_trials_of_a_study_have_the_same_settings(tmp_path):
    study = open_study(tmp_path, "X", None)
    dimensions = parse_grid(["max_kl=0.01,0.02"]) + parse_random(["integer(epochs, 1, 4)", "uniform(clip, 0.1, 0.2)"])
    require_same_sweep(study, dimensions, "--discount 0.5", 2)
    require_same_sweep(study, dimensions[:1], "", 5)  # nothing has been trained
    require_same_sweep(study, dimensions, "", 5)
    trial = study.ask()
    for number, dimension in enumerate(dimensions):
        require_same_sweep(study, dimensions, "", 5)  # killed after some settings of a trial
        if number:
            with pytest.raises(ValueError, match="the sweep was over max_kl"):
                require_same_sweep(study, parse_grid(["discount=0.9,0.99"]), "", 5)
        dimension.suggest(trial)
    study.tell(trial, 1.0)
    wider = parse_random(["integer(epochs, 2, 9)", "uniform(clip, 0.1, 0.3)"])  # Optuna allows it
    require_same_sweep(study, [dimensions[0], *wider], "", 5)
    grid, whole, number = dimensions
    for changed, told in (
        ([grid, whole], "the sweep was over max_kl, epochs, clip before, not max_kl, epochs;"),
        (
            [*dimensions, Values("a", (1,))],
            "the sweep was over max_kl, epochs, clip before, not max_kl, epochs, clip, a;",
        ),
        ([*parse_grid(["max_kl=0.01,0.02,0.03"]), whole, number], "over 0.01, 0.02 before, not 0.01, 0.02, 0.03;"),
        ([*parse_random(["uniform(max_kl, 0, 1)"]), whole, number], "0.01, 0.02 before, not numbers from 0.0 to 1.0;"),
        (
            [grid, *parse_random(["uniform(epochs, 1, 4)"]), number],
            "whole numbers from 1 to 4 before, not numbers from 1",
        ),
        (
            [grid, whole, *parse_random(["log(clip, 0.1, 0.2)"])],
            "0.1 to 0.2 before, not numbers from 0.1 to 0.2 on a log",
        ),
    ):
        with pytest.raises(ValueError, match=told):
            require_same_sweep(study, changed, "", 5)
    with pytest.raises(ValueError, match="have the default settings, not `--discount 0.5`; choose another directory"):
        require_same_sweep(study, dimensions, "--discount 0.5", 5)
    with pytest.raises(ValueError, match="seeds=2: the trials of this sweep have 5 each; choose another directory"):
        require_same_sweep(study, dimensions, "", 2)


def test_another_fixed_setting_is_refused_by_the_command(whole, capsys):
    out, _ = whole
    before = (out / "sweep.csv").read_bytes()
    assert cli.main([*SMALL, *GRID, "--discount", "0.5", "--out", str(out)]) == cli.INPUT_ERROR
    assert "--discount 0.5" in capsys.readouterr().err
    assert (out / "sweep.csv").read_bytes() == before


def test_failed_trial_is_reported_and_tried_again(tmp_path, capfd):
    words = ["sweep", "gymnasium:Nothing-v0", "--grid", "max_kl=0.01", "--seeds", "1", "--out", str(tmp_path / "sweep")]
    for trial in (0, 1):
        assert cli.main(words) == cli.FAILED
        error = capfd.readouterr().err
        assert f"trial {trial}, seed 0 failed: jaxtrpo: error:" in error and "no trial was completed" in error
        assert "\n1 trial failed; the same command tries again" in error


def test_trial_without_an_episode_says_so(tmp_path, capfd):
    words = ["sweep", "Pendulum-v1", *SMALL[2:], "--grid", "discount=0.9", "--seeds", "1", "--out", str(tmp_path / "a")]
    assert cli.main(words) == cli.FAILED
    assert "trial 0, seed 0 has no return: no episode has ended; raise --total-steps" in capfd.readouterr().err


def test_error_of_one_worker_ends_a_sweep_at_once(tmp_path, monkeypatch):
    scheduler, calls = scheduler_of(tmp_path, parse_grid(["max_kl=0.01,0.02,0.03,0.04"])), []

    def train(trial, seed):
        calls.append(trial.params["max_kl"])
        if len(calls) == 1:
            raise RuntimeError("the database is gone")
        time.sleep(1.0)
        return 1.0

    monkeypatch.setattr(scheduler, "_train", train)
    with pytest.raises(RuntimeError, match="the database is gone"):
        scheduler.run(2, Progress(4, enabled=False))
    assert len(calls) <= 2


def test_critic_of_a_trial_is_the_one_that_the_policy_has_by_default():
    words = ["sweep", "CartPole-v1", "--policy", "gru(hidden=16)", "--grid", "critic_learning_rate=0.001"]
    flags = cli.parse(words)._flags({"critic_learning_rate": 0.001})
    critic = parse("critic", flags[flags.index("--critic") + 1]).spec_string
    assert critic.startswith("gru(") and "hidden=16" in critic
    hidden = cli.parse([*words[:2], *words[4:]])._flags(
        {"policy": "gru", "policy_hidden": 8, "critic_learning_rate": 0.001}
    )
    assert "hidden=8" in parse("critic", hidden[hidden.index("--critic") + 1]).spec_string


def test_flags_of_a_trial():
    command = cli.parse(["sweep", "CartPole-v1", "--grid", "algorithm=ppo", "--grid", "critic_learning_rate=0.001"])
    flags = command._flags({"algorithm": "ppo", "critic_learning_rate": 0.001})
    critic = parse("critic", flags[flags.index("--critic") + 1])
    assert critic.spec_string == "mlp(minibatch_size=64)"  # that of ppo, with mlp's own learning rate
    assert command._flags({"max_steps_per_update": 1e3}) == ["--algorithm", "trpo", "--max-steps-per-update", "1000"]


def test_fractions_of_whole_settings_are_refused(tmp_path, capsys):
    words = ["sweep", "CartPole-v1", "--random", "uniform(max_steps_per_update, 1000, 2000)", "--out", str(tmp_path)]
    assert cli.main(words) == cli.INPUT_ERROR
    assert "max_steps_per_update=1270.27" in capsys.readouterr().err


def test_picture_shows_values_in_the_order_of_the_grid(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    scheduler = scheduler_of(tmp_path, [Values("max_kl", (0.3, 0.1, 0.2))])
    taken(scheduler)
    for running, score in zip(scheduler.open, (1.0, 3.0, 2.0), strict=True):
        running.trial.set_user_attr(SEEDS, [score])
        scheduler.sweep.study.tell(running.trial, score)
    done = sorted(scheduler.sweep.study.trials, key=lambda trial: -trial.value)
    draw_sweep(done, scheduler.sweep.dimensions, tmp_path)
    (place,) = figures[0].axes
    assert [label.get_text() for label in place.get_xticklabels()] == ["0.3", "0.1", "0.2"]
    points = {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in place.lines}
    assert points == {(0, 1), (1, 3), (2, 2)}


def test_sweep_accepts_the_flags_of_train():
    command = cli.parse(["sweep", "X", "--grid", "max_kl=1,2", "--grid", "discount=0.9", "--total-steps", "7"])
    assert command.config == Config(total_steps=7) and command.grid == ("max_kl=1,2", "discount=0.9")


def test_message_about_a_database_has_no_password(tmp_path):
    url = "postgresql+nosuchdriver://me:topsecret@localhost/x"
    with pytest.raises(
        ValueError, match=r"^storage='postgresql\+nosuchdriver://me:\*\*\*@localhost/x' cannot"
    ) as error:
        open_study(tmp_path, "CartPole-v1", url)
    assert "topsecret" not in str(error.value)
    with pytest.raises(ValueError, match="^storage='nonsense' cannot be used"):
        open_study(tmp_path, "CartPole-v1", "nonsense")


def test_trials_that_run_elsewhere_are_known():
    study = optuna.create_study()
    assert unfinished(study) == 0
    study.tell(study.ask(), 1.0)
    study.ask()
    assert unfinished(study) == 1
