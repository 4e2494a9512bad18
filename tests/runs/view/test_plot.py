"""Reading runs, aggregating seeds, and plotting learning curves."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.runs.config_file import save_config
from jaxtrpo.runs.directory import CONFIG_FILE, METRICS_FILE
from jaxtrpo.runs.metrics import Metrics
from jaxtrpo.runs.reader import ALL, LoggedRun, find_runs, in_groups, read_run
from jaxtrpo.runs.view.curves import curve_of, interquartile_mean
from jaxtrpo.runs.view.plot import _figure, curves_of


def make_run(place: Path, env: str = "Some-v1", updates: int = 5, slope: float = 1.0, **settings) -> Path:
    """Writes a run whose return grows linearly with its steps and is blank in the first row."""
    place.mkdir(parents=True)
    save_config(place, env, Config(**settings))
    metrics = Metrics(place / METRICS_FILE)
    for i in range(1, updates + 1):
        value = np.nan if i == 1 else slope * 100 * i
        metrics.add({"update": i, "env_steps": 100 * i, "wall_seconds": 0.5 * i, "return_100": value, "kl": 0.01})
    return place


def test_run_is_read_as_written(tmp_path):
    run = read_run(make_run(tmp_path / "run", seed=3, max_kl=0.02))
    assert run.env == "Some-v1" and run.settings["seed"] == 3 and run.settings["max_kl"] == 0.02
    np.testing.assert_array_equal(run.columns["env_steps"], [100, 200, 300, 400, 500])
    np.testing.assert_array_equal(run.columns["return_100"], [np.nan, 200, 300, 400, 500])


@given(cut=st.integers(1, 60))
def test_incomplete_last_line_is_ignored(tmp_path_factory, cut):
    place = make_run(tmp_path_factory.mktemp("runs") / "run")
    whole = (place / METRICS_FILE).read_text()
    (place / METRICS_FILE).write_text(whole[:-cut])
    columns = read_run(place).columns
    assert len(columns["update"]) == whole[:-cut].count("\n") - 1
    np.testing.assert_array_equal(columns["kl"], 0.01)


@pytest.mark.parametrize("text", ["", "update,env_steps", "update,env_steps,wall_seconds\n"])
def test_run_without_updates_has_no_rows(tmp_path, text):
    (tmp_path / METRICS_FILE).write_text(text)
    run = read_run(tmp_path)
    assert all(len(column) == 0 for column in run.columns.values()) and run.env == tmp_path.name


def test_foreign_files_are_rejected_in_one_sentence(tmp_path):
    place = make_run(tmp_path / "run")
    (place / METRICS_FILE).write_text("update,env_steps,wall_seconds,kl\n1,2,3,many\n")
    with pytest.raises(ValueError, match=r"metrics\.csv is not a metrics\.csv written by `train`: .*many"):
        read_run(place)
    (place / CONFIG_FILE).write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not a config\.json written by"):
        read_run(place)


def test_runs_in_directories_are_found_once(tmp_path):
    one, two = make_run(tmp_path / "a" / "one"), make_run(tmp_path / "a" / "b" / "two")
    assert find_runs([tmp_path, one, two]) == [two, one]
    (tmp_path / "link").symlink_to(one)
    assert find_runs([one, tmp_path / "a" / ".." / "a" / "one", tmp_path / "link"]) == [one]
    (tmp_path / "empty").mkdir()
    for path, told in ((tmp_path / "empty", "no metrics.csv in"), (tmp_path / "none", "no such directory")):
        with pytest.raises(FileNotFoundError, match=told):
            find_runs([path])
    with pytest.raises(NotADirectoryError, match="is not a directory"):
        find_runs([one / METRICS_FILE])


def logged_run(env: str = "X", **settings) -> LoggedRun:
    return LoggedRun(Path("run"), env, settings, {})


def test_group_labels_name_as_few_settings_as_possible():
    runs = [
        logged_run(seed=seed, algorithm=algorithm, critic=critic, max_kl=max_kl, machine=seed)
        for seed in (0, 1)
        for algorithm, critic, max_kl in (("ppo", "mlp", None), ("trpo", "linear", 0.01), ("trpo", "linear", 0.02))
    ]
    labels = ["algorithm=ppo, max_kl=None", "algorithm=trpo, max_kl=0.01", "algorithm=trpo, max_kl=0.02"]
    groups = in_groups([*runs, logged_run("Y", seed=0), logged_run("Y", seed=1)])
    assert list(groups["X"]) == labels and all(len(of) == 2 for of in groups["X"].values())
    assert list(groups["Y"]) == ["algorithm=None, max_kl=None"]  # the same settings in all environments
    groups = in_groups([logged_run("X", seed=0), logged_run("Y", seed=0), logged_run("Y", seed=1)])
    assert {env: {label: len(of) for label, of in found.items()} for env, found in groups.items()} == {
        "X": {ALL: 1}, "Y": {ALL: 2},
    }  # fmt: skip


def test_every_line_of_several_environments_is_in_the_legend_with_its_colour(tmp_path):
    place = [make_run(tmp_path / "1", "A-v1", max_kl=0.01), make_run(tmp_path / "2", "A-v1", max_kl=0.02)]
    place.append(make_run(tmp_path / "3", "B-v1", max_kl=0.02))
    figure = _figure(
        curves_of([read_run(each) for each in place], "env_steps", "return_100"), "env_steps", "return_100"
    )
    (legend,) = figure.legends
    named = {
        text.get_text(): line.get_color() for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    assert list(named) == ["max_kl=0.01", "max_kl=0.02"]
    drawn = {axes.get_title(): [line.get_color() for line in axes.get_lines()] for axes in figure.axes}
    assert drawn == {
        "A-v1, 1 seed": [named["max_kl=0.01"], named["max_kl=0.02"]], "B-v1, 1 seed": [named["max_kl=0.02"]]
    }  # fmt: skip


def test_interquartile_mean_is_the_mean_of_the_middle_half_and_inside_its_interval():
    values = np.random.default_rng(0).normal(size=(8, 5))
    mean, low, high = interquartile_mean(values)
    np.testing.assert_allclose(mean, np.sort(values, axis=0)[2:6].mean(axis=0))
    assert np.all(low < mean) and np.all(mean < high)
    mean, low, high = interquartile_mean(values[:1])
    np.testing.assert_array_equal(mean, values[0])
    assert np.isnan(low).all() and np.isnan(high).all()


def test_bootstrap_intervals_have_about_nominal_coverage():
    rng, inside = np.random.default_rng(1), []
    for _ in range(200):
        _, low, high = interquartile_mean(rng.normal(size=(10, 1)))
        inside.append(low[0] <= 0 <= high[0])
    assert 0.85 < np.mean(inside) < 0.99  # bootstrap intervals of ten samples are slightly too narrow


def test_curve_covers_the_range_in_which_all_runs_have_values(tmp_path):
    runs = [read_run(make_run(tmp_path / str(n), updates=n, slope=s)) for n, s in ((4, 1.0), (9, 3.0))]
    curve = curve_of(runs, "env_steps", "return_100")
    assert (curve.x[0], curve.x[-1], curve.seeds) == (200, 400, 2)
    np.testing.assert_allclose(curve.mean, 2 * curve.x)
    assert curve_of([runs[0]], "update", "kl").x[0] == 1


def test_run_without_a_value_before_the_others_end_is_left_out(tmp_path):
    early = read_run(make_run(tmp_path / "early", updates=4))
    late = early._replace(columns={**early.columns, "return_100": np.array([np.nan, np.nan, 7.0, 8.0])})
    late.columns["env_steps"] = 3 * early.columns["env_steps"]
    curve = curve_of([early, late], "env_steps", "return_100")
    assert (curve.x[0], curve.x[-1], curve.seeds) == (200, 400, 1)
    np.testing.assert_allclose(curve.mean, curve.x)


def test_lines_can_be_told_apart_and_labels_are_no_formulas(tmp_path):
    runs = [logged_run(max_kl=float(number), start_from=f"/$x_{number}{{$") for number in range(12)]
    columns = {"env_steps": np.array([100.0]), "return_100": np.array([1.0])}
    figure = _figure(
        curves_of([run._replace(columns=columns) for run in runs], "env_steps", "return_100"), "update", "y"
    )
    lines = figure.axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 12
    assert {line.get_marker() for line in lines} == {"o"}  # of one value each
    figure.savefig(tmp_path / "figure.png")  # raises where a label is an incomplete formula


@pytest.mark.parametrize(
    ("command", "name"), [("plot", "metrics"), ("report", "metrics.csv"), ("report", "config.json")]
)
def test_files_of_a_run_are_never_replaced(tmp_path, capsys, command, name):
    run = make_run(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.iterdir()}
    assert cli.main([command, str(run), "--out", str(run / name)]) == cli.INPUT_ERROR
    assert "files of runs are named" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_plot_writes_figures_and_their_data(tmp_path, capsys):
    for seed in range(3):
        for max_kl in (0.01, 0.02):
            make_run(tmp_path / f"runs/{seed}-{max_kl}", "Hopper-v5", seed=seed, max_kl=max_kl, slope=max_kl)
        make_run(tmp_path / f"runs/{seed}", "Ant-v4", seed=seed)
    stem = tmp_path / "picture"
    assert cli.main(["plot", str(tmp_path / "runs"), "--out", str(stem), "--x", "wall_seconds"]) == 0
    files = [stem.with_suffix(f".{kind}") for kind in ("png", "svg", "csv")]
    assert capsys.readouterr().out.split() == list(map(str, files))
    assert files[0].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    words = " ".join("".join(node.itertext()) for node in ElementTree.parse(files[1]).iter())
    for told in ("Hopper-v5, 3 seeds", "Ant-v4, 3 seeds", "max_kl=0.02", "seconds", "return_100"):
        assert told in words
    with files[2].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["env"], row["settings"]) for row in rows} == {
        ("Hopper-v5", "max_kl=0.01"), ("Hopper-v5", "max_kl=0.02"), ("Ant-v4", "max_kl=None")
    }  # fmt: skip
    last = next(row for row in reversed(rows) if row["settings"] == "max_kl=0.02")
    assert float(last["interquartile_mean"]) == 10 and float(last["wall_seconds"]) == 2.5
    assert cli.main(["plot", str(tmp_path / "runs"), "--out", str(tmp_path / "again"), "--x", "wall_seconds"]) == 0
    assert (tmp_path / "again.svg").read_bytes() == files[1].read_bytes()


def test_settings_missing_from_an_old_run_are_tolerated(tmp_path):
    place = make_run(tmp_path / "run")
    content = json.loads((place / CONFIG_FILE).read_text())
    del content["versions"], content["critic"]
    (place / CONFIG_FILE).write_text(json.dumps(content))
    assert list(in_groups([read_run(place)])) == ["Some-v1"]
