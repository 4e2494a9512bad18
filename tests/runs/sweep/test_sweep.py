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
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.config.specs import parse
from jaxtrpo.runs.reader import read_run
from jaxtrpo.runs.sweep.space import (
    Interval,
    Values,
    combinations,
    parse_grid,
    parse_random,
    require_different,
    with_settings,
)
from jaxtrpo.runs.sweep.study import Sweep, _Scheduler, open_study, require_same_values
from jaxtrpo.runs.view.curves import interquartile_mean

SMALL = [
    "sweep", "InvertedPendulum-v5", "--total-steps", "512", "--steps-per-update", "128", "--num-envs", "4",
    "--algorithm", "pg", "--policy", "mlp(hidden=(8,))", "--critic", "none",
]  # fmt: skip
GRID = ["--grid", "algorithm_learning_rate=0.01,0.02", "--seeds", "2"]

# ---- search space


def sharing(tmp_path, values, name):
    """A scheduler of a sweep of `values` in a database that others share."""
    study = open_study(tmp_path, "both", f"sqlite:///{tmp_path}/shared.sqlite", tpe=False, seed=0)
    grid = tuple(combinations([values]))
    return _Scheduler(Sweep("", tmp_path / name, [values], grid, 0, 1, lambda chosen: [], study), print)


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
    (values,) = parse_grid(["policy_hidden=(8,),[4, 4]"])
    scheduler, found = sharing(tmp_path, values, "here"), []
    while (trial := scheduler._another()) is not None:
        settings = with_settings({"policy": "mlp", "algorithm": "pg", "critic": None}, trial.params, str)
        found.append(settings["policy"])
    assert found == ["mlp(hidden=(8,))", "mlp(hidden=[4, 4])"]


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
    values = Values("max_kl", (0.01, 0.02, 0.03))
    here, there = (sharing(tmp_path, values, name) for name in ("here", "there"))
    found = []

    def take(which):
        trial = which._another()
        if trial is not None:
            found.append(values.suggest(trial))

    mine, add = here.sweep.study, here.sweep.study.add_trial

    def interleaved(trial):
        take(there)
        add(trial)

    mine.add_trial = interleaved
    for _ in range(3):
        take(here)
    assert sorted(found) == [0.01, 0.02, 0.03]


def test_sweeps_that_race_share_the_combinations(tmp_path):
    """Both take trials as fast as they can; SQLite locks no rows, so neither may start what the other can see."""
    values = Values("max_kl", tuple(range(25)))
    both = [sharing(tmp_path, values, name) for name in ("here", "there")]
    ready = threading.Barrier(2)

    def every(scheduler):
        ready.wait()
        return [values.suggest(trial) for trial in iter(scheduler._another, None)]

    with ThreadPoolExecutor() as pool:
        here, there = pool.map(every, both)
    assert sorted(here + there) == list(values.values)


def test_second_sweep_in_a_directory_is_rejected(tmp_path, capsys):
    out = tmp_path / "sweep"
    with started(*GRID, "--out", str(out), "--cores", "1") as process:
        wait_for(lambda: list(out.glob("trial-*/seed-*")))
        assert cli.main([*SMALL, *GRID, "--out", str(out)]) == cli.INPUT_ERROR
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert "is being written to by another run" in capsys.readouterr().err


def test_directory_of_another_environment_is_refused_in_one_sentence(tmp_path, capsys):
    open_study(tmp_path, "Hopper-v5", None, tpe=False, seed=0)
    assert cli.main([*SMALL, *GRID, "--out", str(tmp_path)]) == cli.INPUT_ERROR
    told = (
        f"out={str(tmp_path)!r} holds a sweep of Hopper-v5, not InvertedPendulum-v5; choose another directory (--out)"
    )
    assert capsys.readouterr().err == f"jaxtrpo: error: {told}\n"
    open_study(tmp_path, "Hopper-v5", None, tpe=False, seed=0)


def test_values_cannot_change_within_a_study(tmp_path):
    database = f"sqlite:///{tmp_path}/shared.sqlite"
    study = open_study(tmp_path, "X", database, tpe=False, seed=0)
    dimensions = parse_grid(["max_kl=0.01,0.02"]) + parse_random(["integer(epochs, 1, 4)", "uniform(clip, 0.1, 0.2)"])
    require_same_values(study, dimensions)
    trial = study.ask()
    for dimension in dimensions:
        dimension.suggest(trial)
    require_same_values(study, dimensions)
    require_same_values(study, parse_grid(["discount=0.9,0.99"]))
    require_same_values(study, parse_random(["integer(epochs, 2, 9)", "uniform(clip, 0.1, 0.3)"]))  # Optuna allows it
    for changed, told in (
        (parse_grid(["max_kl=0.01,0.02,0.03"]), "max_kl was swept over 0.01, 0.02 before, not 0.01, 0.02, 0.03;"),
        (
            parse_random(["uniform(max_kl, 0, 1)"]),
            r"max_kl was swept over 0.01, 0.02 before, not numbers from 0.0 to 1.0;",
        ),
        (parse_random(["uniform(epochs, 1, 4)"]), "whole numbers from 1 to 4 before, not numbers from 1.0 to 4.0;"),
        (parse_random(["log(clip, 0.1, 0.2)"]), "numbers from 0.1 to 0.2 before, not numbers from 0.1 to 0.2 on a log"),
    ):
        with pytest.raises(ValueError, match=told):
            require_same_values(study, changed)


def test_failed_trial_is_reported(tmp_path, capfd):
    words = ["sweep", "gymnasium:Nothing-v0", "--grid", "max_kl=0.01", "--seeds", "1", "--out", str(tmp_path / "sweep")]
    assert cli.main(words) == cli.FAILED
    error = capfd.readouterr().err
    assert "trial 0, seed 0 failed: jaxtrpo: error:" in error and "no trial was completed" in error


def test_sweep_accepts_the_flags_of_train():
    command = cli.parse(["sweep", "X", "--grid", "max_kl=1,2", "--grid", "discount=0.9", "--total-steps", "7"])
    assert command.config == Config(total_steps=7) and command.grid == ("max_kl=1,2", "discount=0.9")
