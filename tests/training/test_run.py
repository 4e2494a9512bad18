"""What a run shows, and the directory that it writes to."""

import csv
import io
import json
import os
import stat
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtrpo
from jaxtrpo.adapt import Rule
from jaxtrpo.config import Config
from jaxtrpo.runs import directory, progress, symptoms
from jaxtrpo.runs.config_file import save_config
from jaxtrpo.runs.metrics import Metrics

# ---- metrics

NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=True, allow_infinity=True),
)
WHOLE, BLANK_OR_FLOAT = st.integers(-(2**62), 2**62), st.one_of(st.none(), st.floats())
TABLES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def csv_file(tmp_path_factory):
    return tmp_path_factory.mktemp("metrics") / "metrics.csv"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@settings(deadline=None)  # a disk may take its time
@given(TABLES)
def test_csv_holds_what_was_added(csv_file, table):
    metrics = Metrics(csv_file)
    for b, a in table:
        metrics.add({"b": b, "a": a})
    rows = read(csv_file)
    assert list(rows[0]) == ["b", "a"]
    for values, row in zip(table, rows, strict=True):
        for value, cell in zip(values, row.values(), strict=True):
            if value is None or value != value:
                assert cell == ""
            elif isinstance(value, int):
                assert int(cell) == value
            else:
                np.testing.assert_allclose(float(cell), value, rtol=1e-5)


@settings(deadline=None)  # a disk may take its time
@given(TABLES)
def test_columns_are_exact_and_blanks_are_nan(table):
    metrics = Metrics()
    for a, b in table:
        metrics.add({"a": a, "b": b})
    for column, values in zip(metrics.columns().values(), zip(*table, strict=True), strict=True):
        whole = all(isinstance(value, int) for value in values)
        assert column.dtype == (np.int64 if whole else np.float64)
        expected = [np.nan if value is None else value for value in values]
        np.testing.assert_array_equal(column, np.array(expected, column.dtype))


def test_a_number_takes_its_eight_bytes():
    row, metrics = {str(column): 0.5 for column in range(20)} | {"update": 1}, Metrics()
    metrics.add(row)
    tracemalloc.start()
    try:
        for _ in range(2_000):
            metrics.add(row)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2_000 * 21 * 8 < taken < 2_000 * 21 * 12 and len(metrics) == 2_001


def test_rows_are_on_disk_at_once_and_replace_an_older_file(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("old\n1\n2\n3\n")
    metrics = Metrics(path)
    assert path.read_text().startswith("old")
    for i in range(3):
        metrics.add({"env_steps": 123_456_789 + i, "kl": np.float32(0.1), "array": jax.numpy.float32(2.5)})
        assert [row["env_steps"] for row in read(path)] == [str(123_456_789 + j) for j in range(i + 1)]
    assert read(path)[0] == {"env_steps": "123456789", "kl": "0.1", "array": "2.5"}


@pytest.mark.parametrize("row", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}])
def test_rows_of_other_columns_are_refused(tmp_path, row):
    metrics = Metrics(tmp_path / "m.csv")
    metrics.add({"a": 1, "b": 2})
    before = (tmp_path / "m.csv").read_bytes()
    with pytest.raises(ValueError, match="columns"):
        metrics.add(row)
    assert (tmp_path / "m.csv").read_bytes() == before
    assert len(metrics.columns()["a"]) == 1


def test_order_of_keys_does_not_matter(tmp_path):
    metrics = Metrics(tmp_path / "m.csv")
    metrics.add({"a": 1, "b": 2})
    metrics.add({"b": 4, "a": 3})
    assert read(tmp_path / "m.csv")[1] == {"a": "3", "b": "4"}


def test_no_rows_no_columns_no_file(tmp_path):
    assert Metrics(tmp_path / "m.csv").columns() == {}
    assert not list(tmp_path.iterdir())


@settings(deadline=None)  # a disk may take its time
@given(st.lists(st.tuples(WHOLE, BLANK_OR_FLOAT), min_size=1, max_size=5), st.integers(0, 5))
def test_table_that_begins_with_columns_of_another_goes_on_alike(csv_file, table, number):
    metrics = Metrics(csv_file)
    for a, b in table:
        metrics.add({"a": a, "b": b})
    whole = csv_file.read_bytes()
    again = Metrics(csv_file, metrics.columns(number))
    assert csv_file.read_bytes() == (b"".join(whole.splitlines(keepends=True)[: number + 1]) if number else whole)
    for a, b in table[number:]:
        again.add({"a": a, "b": b})
    assert csv_file.read_bytes() == whole
    for one, other in zip(metrics.columns().values(), again.columns().values(), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


# ---- progress


def row(update, return_100=1.0, **more):
    steps = 1000 * update
    return {
        **{"update": update, "env_steps": steps, "wall_seconds": 0.5 * update, "steps_per_update": 1000},
        **{"mean_return": float("nan"), "return_100": return_100, "kl": 0.01, **more},
    }


def test_many_invalid_steps_are_told_once_and_few_or_early_ones_never():
    def told(*invalid, steps=500):
        watch = symptoms.InvalidSteps()
        rows = [{"steps_per_update": steps, "invalid_steps": number} for number in invalid]
        return [watch.note([row]) for row in rows]

    found = told(0, 0, 500, 500, 500)
    assert found[:2] == [None, None] and found[3:] == [None, None]
    assert found[2].startswith("33% of the steps") and "invalid_steps" in found[2] and len(found[2]) < 200
    assert told(5, 5, 5, 5) == [None] * 4  # one in a hundred
    assert told(5, 5, 6) != [None] * 3
    assert told(500, 500) == [None] * 2 and told(100, 100, 100, steps=100) == [None] * 3  # too few to judge
    assert symptoms.InvalidSteps().note([progress.NOTHING_DONE] * 9) is None


def test_rewards_that_32_bits_do_not_hold_are_told_once():
    def told(*spreads, mean_return=3.0):
        watch = symptoms.RewardsOutOfRange()
        return [watch.note([{"advantage_std": spread, "mean_return": mean_return}]) for spread in spreads]

    inf, nan = float("inf"), float("nan")
    found = told(1.0, inf, inf, nan, inf)
    assert found[:3] == [None] * 3 and found[4] is None
    assert found[3] is not None and "advantage_std is nan" in found[3] and len(found[3]) < 200
    assert told(0.0, 0.0, 0.0, mean_return=-1e-20)[2] is not None
    assert told(0.0, 0.0, 0.0) == [None] * 3  # all rewards are the same
    assert told(0.0, 0.0, 0.0, mean_return=0.0) == [None] * 3
    assert told(0.0, 0.0, 0.0, mean_return=nan) == told(inf, inf, 1.0, inf)[:3] == [None] * 3
    assert symptoms.RewardsOutOfRange().note([progress.NOTHING_DONE] * 9) is None


def test_gradient_that_is_not_finite_is_told_once():
    def told(*norms, spread=1.0):
        watch = symptoms.NoGradient()
        return [watch.note([{"gradient_norm": norm, "advantage_std": spread}]) for norm in norms]

    inf, nan = float("inf"), float("nan")
    found = told(1.0, nan, inf, nan, nan)
    assert found[:3] == [None] * 3 and found[4] is None
    assert found[3] is not None and "gradient_norm is nan" in found[3] and "surrogate" in found[3]
    assert told(nan, nan, 0.0, nan, nan) == [None] * 5
    assert told(nan, nan, nan, spread=nan) == [None] * 3  # rewards out of range are told instead
    assert symptoms.NoGradient().note([progress.NOTHING_DONE] * 9) is None


def test_steps_that_are_never_accepted_are_told_once():
    def told(*accepted, **others):
        watch = symptoms.NothingAccepted()
        return [watch.note([{"accepted": each, "advantage_std": 1.0, **others}]) is not None for each in accepted]

    assert told(*9 * [0], 1, *11 * [0]) == [False] * 19 + [True, False]
    assert told(*10 * [0], gradient_norm=2.0)[9] and told(*10 * [0], advantage_std=None)[9]
    for nothing_to_learn in (0.0, float("nan"), float("inf")):  # the last two are told otherwise
        assert not any(told(*20 * [0], gradient_norm=nothing_to_learn))
        assert not any(told(*20 * [0], advantage_std=nothing_to_learn))
    assert not any(told(*20 * [None])) and not any(told(*20 * [1]))
    assert symptoms.NothingAccepted().note([progress.NOTHING_DONE] * 20) is None


def test_entry_of_info_that_no_episode_has_is_told_once():
    nan = float("nan")

    def told(*rows):
        watch = symptoms.NeverLogged("success")
        return [watch.note([{"episodes": number, "success": value}]) for number, value in rows]

    found = told((30, nan), (20, nan), (50, nan))
    assert found[0] is found[2] is None
    assert found[1] == "log_info: none of the first 50 episodes ended with a number named success in its info"
    assert told((49, nan)) == [None]
    assert told((1, 0.0), (100, nan)) == told((100, 0.5), (100, nan)) == [None] * 2
    assert symptoms.NeverLogged("success").note([progress.NOTHING_DONE] * 9) is None
    assert [type(each) for each in symptoms.symptoms(invalid_is_broken=False, logged=("a", "b"))][3:] == 2 * [
        symptoms.NeverLogged
    ]


def test_setting_that_a_rule_has_broken_is_told_once():
    watch = symptoms.BrokenSetting("max_kl", "mine")
    assert watch.note([{"max_kl": 0.01}, {"max_kl": None}, {}]) is None
    told = watch.note([{"max_kl": 0.01}, {"max_kl": float("inf")}, {"max_kl": float("nan")}])
    assert told == "adapt=mine has set max_kl to inf, with which nothing can be learned"
    assert watch.note([{"max_kl": float("nan")}]) is None


def test_run_says_which_setting_its_rule_has_broken(capfd):
    def update(state, settings, metrics):
        return state, {**settings, "max_kl": jnp.nan * settings["max_kl"]}

    rule = Rule(lambda settings: (), update)
    jaxtrpo.train("Pendulum-v1", adapt=rule, actors=1, total_steps=4 * 1024)
    assert "adapt=custom has set max_kl to nan, with which nothing can be learned" in capfd.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_are_first_every_three_seconds_and_last():
    now, output = 0.0, io.StringIO()
    lines = progress._Lines(100_000, output, clock=lambda: now)
    for update in range(1, 101):
        now = 0.5 * update
        lines.update(row(update))
    lines.close()
    shown = [int(line.split()[1]) for line in output.getvalue().splitlines()]
    assert shown == [*range(1, 101, 6), 100]


def test_line_says_steps_share_returns_and_speed():
    output = io.StringIO()
    progress._Lines(10_000, output).update(row(2, return_100=-123.456))
    assert output.getvalue() == ("update 2  2,000 steps (20%)  return_100 -123.5  last -  kl 0.01  2,000 steps/s\n")


@pytest.mark.parametrize("terminal", [Terminal, io.StringIO])
def test_algorithms_that_do_not_know_their_kl_are_shown_without_it(monkeypatch, terminal):
    monkeypatch.setattr(sys, "stderr", terminal())
    without = {name: value for name, value in row(2, return_100=7.0).items() if name != "kl"}
    with progress.Progress(10_000) as bar:
        bar.update(without)
    shown = sys.stderr.getvalue()
    assert "return_100 7" in shown and "last -" in shown and "kl" not in shown


def test_lines_go_on_where_an_earlier_run_ended():
    output = io.StringIO()
    lines = progress._Lines(10_000, output, last=row(2))
    lines.close()
    lines.update({**row(4), "wall_seconds": 1.5})
    assert output.getvalue().startswith("update 4  4,000 steps (40%)") and "4,000 steps/s" in output.getvalue()


def test_bar_goes_on_where_an_earlier_run_ended(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.Progress(2500, row(2)) as bar:
        assert "2.00k/2.50k" in sys.stderr.getvalue()
        bar.update(row(3))
    assert "2.50k/2.50k" in sys.stderr.getvalue().split("\r")[-1]


def test_close_repeats_no_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.Progress(10_000) as bar:
        bar.update(row(1))
        bar.note("a note")
    assert [line.split()[0] for line in sys.stderr.getvalue().splitlines()] == ["update", "a"]
    with progress.Progress(10_000):
        pass
    assert len(sys.stderr.getvalue().splitlines()) == 2


def test_bar_in_a_terminal_never_passes_the_end(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.Progress(2500) as bar:
        for update in (1, 2, 3):
            bar.update(row(update, return_100=None if update == 1 else 7.0))
        bar.note("a note")
    shown = sys.stderr.getvalue()
    assert "100%" in shown.split("\r")[-1] and "2.50k/2.50k" in shown and "3.00k" not in shown
    assert "return_100 7, last -, kl 0.01" in shown
    assert "a note\n" in shown


def test_remaining_time_is_not_that_of_compiling(monkeypatch):
    def at(update, seconds):
        return {**row(update), "wall_seconds": seconds}

    output, now = io.StringIO(), 0.0
    lines = progress._Lines(10_000, output, clock=lambda: now)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.Progress(10_000) as bar:
        for update, seconds in ((1, 500.0), (2, 505.0), (4, 515.0)):
            now = seconds
            lines.update(at(update, seconds))
            bar.update(at(update, seconds))
            bar.status("")  # shows it at once
    first, second, third = output.getvalue().splitlines()
    assert "left" not in first and second.endswith("  0:00:40 left") and third.endswith("  0:00:30 left")
    shown = sys.stderr.getvalue().split("\r")
    assert "<00:30, 200" in shown[-1] and any("1.00k/10.0k" in each and "<?" in each for each in shown)


def test_evaluations_and_new_bests_are_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.Progress(10_000, best=3.0) as bar:
        for update, value in ((1, 2.0), (2, None), (3, 4.0), (4, float("nan")), (5, 4.0)):
            bar.update(row(update, eval_return=value))
    told = [line for line in sys.stderr.getvalue().splitlines() if line.startswith("evaluation")]
    assert told == [
        "evaluation after 1,000 steps: return 2",
        "evaluation after 3,000 steps: return 4, the best so far",
        "evaluation after 5,000 steps: return 4",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_work_goes_on_where_nobody_reads_of_it(is_terminal, monkeypatch):
    """The reader of a pipe has gone, or the disk of a log is full."""

    class Closed(io.StringIO):
        tries = 0

        def isatty(self):
            return is_terminal

        def write(self, text):
            self.tries += 1
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    monkeypatch.setattr(progress, "_bar_class", lambda: progress._timed(progress.tqdm) if is_terminal else None)
    with progress.Progress(10_000) as bar:
        bar.status("compiling")
        tries = sys.stderr.tries
        bar.update(row(1, eval_return=2.0))
        bar.note("a note")
        bar.expect(3)
    assert tries > 0 and (sys.stderr.tries == tries or is_terminal)


def test_lines_say_what_takes_long():
    output, now = io.StringIO(), 0.0
    lines = progress._Lines(10_000, output, clock=lambda: now)
    lines.status("compiling")
    for second in range(1, 15):
        now = float(second)
        lines.tick()
    lines.update(row(1))
    now = 16.0
    lines.tick()
    lines.status("evaluating")
    lines.update(row(2))
    lines.status("evaluating")
    now = 19.0
    lines.tick()
    told = [line for line in output.getvalue().splitlines() if not line.startswith("update")]
    assert told == ["compiling", *(f"compiling ({n} s)" for n in (3, 6, 12)), "evaluating", "evaluating (3 s)"]


def test_notebooks_have_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # not installed
    with progress.Progress(2500) as bar:
        bar.update(row(2))
    assert "2.00k/2.50k" in sys.stderr.getvalue()


def test_counted_parts_are_the_same(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.Progress(4, unit="frames") as bar:
        assert list(bar.count("ab")) == ["a", "b"] and list(bar.count("c")) == ["c"]
    assert sys.stderr.getvalue().splitlines()[-1].startswith("3 frames (75%)")


@pytest.mark.parametrize("terminal", [Terminal, io.StringIO])
def test_disabled_progress_is_silent(monkeypatch, terminal):
    monkeypatch.setattr(sys, "stderr", terminal())
    with progress.Progress(10, enabled=False) as bar:
        bar.update(row(1))
        bar.note("a note")
    assert sys.stderr.getvalue() == ""


# ---- directory


def snapshot(path):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.iterdir()}


@pytest.mark.parametrize("name", directory.RUN_FILES)
def test_directory_of_a_run_is_refused_and_untouched(tmp_path, name):
    (tmp_path / name).write_text("precious")
    (tmp_path / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match="out=.*overwrite=True.*--overwrite") as error:
        directory.open_directory(tmp_path, overwrite=False)
    assert "\n" not in str(error.value)
    assert snapshot(tmp_path) == before


def test_opening_with_overwrite_loses_nothing_and_clearing_only_the_run(tmp_path):
    half_written = [f".{name}.x7_ab0cd" for name in directory.RUN_FILES]
    for name in (*directory.RUN_FILES, *half_written, "notes.txt"):
        (tmp_path / name).write_text("old")
    before = snapshot(tmp_path)
    opened = directory.open_directory(tmp_path, overwrite=True)
    assert snapshot(tmp_path) == before
    directory.clear(opened, keep_run=True)
    assert snapshot(tmp_path) == {name: before[name] for name in (*directory.RUN_FILES, "notes.txt")}
    directory.clear(opened)
    assert snapshot(tmp_path) == {"notes.txt": before["notes.txt"]}


def test_directory_that_another_run_writes_to_is_refused(tmp_path):
    (tmp_path / directory.CHECKPOINT_FILE).write_text("theirs")
    code = """
import pathlib, sys
from jaxtrpo.runs.directory import hold
with hold(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""
    started = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match="out=.*is being written to by another run"):
            directory.open_directory(tmp_path, resume=True)
        with pytest.raises(BlockingIOError), directory.hold(tmp_path):
            pass
        other.kill()
    with directory.hold(tmp_path):  # not held any more, however it ended
        pass
    assert directory.open_directory(tmp_path, resume=True) == tmp_path


@pytest.mark.parametrize("overwrite", [False, True])
def test_directory_is_made_when_held_and_not_before(tmp_path, monkeypatch, overwrite):
    monkeypatch.chdir(tmp_path)
    opened = directory.open_directory("new/deep", overwrite=overwrite)
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir("/")
    with directory.hold(opened):
        pass
    assert opened == tmp_path / "new" / "deep" and opened.is_dir()


def test_directory_with_other_files_is_accepted(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert directory.open_directory(str(tmp_path), overwrite=False) == tmp_path


@pytest.mark.parametrize("inside", ["", "/sub", "/sub/sub"])
def test_file_is_no_directory(tmp_path, inside):
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="out="):
        directory.open_directory(f"{tmp_path}/file{inside}", overwrite=True)
    assert (tmp_path / "file").read_text() == "x"


def test_unwritable_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))  # root may write anywhere
    for path in (tmp_path, tmp_path / "new"):
        with pytest.raises(PermissionError, match="out=.*permission"):
            directory.open_directory(path, overwrite=False)


@pytest.mark.parametrize(("path", "kind"), [("", ValueError), ("x" * 5000, OSError), ("a\0b", ValueError)])
def test_impossible_paths_are_refused_in_one_sentence(path, kind):
    with pytest.raises(kind) as error:
        directory.open_directory(path, overwrite=False)
    assert "\n" not in str(error.value)


def test_writing_a_file_that_fails_leaves_the_old_one_alone(tmp_path, monkeypatch):
    (tmp_path / "f").write_text("old")

    def broken(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        directory.write_whole(tmp_path / "f", b"new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("f", "old")]


def test_written_files_are_as_readable_as_others(tmp_path):
    (tmp_path / "plain").write_text("x")
    directory.write_whole(tmp_path / "whole", b"x")
    assert stat.S_IMODE((tmp_path / "whole").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_rights_of_files_are_those_that_the_user_wants(tmp_path):
    """And stay so for what is written by others later."""
    before = os.umask(0o027)
    try:
        directory.write_whole(tmp_path / "file", b"x")
        directory.write_directory(tmp_path / "directory", lambda place: None)
        (tmp_path / "later").touch()
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "directory", "later")]
        assert modes == [0o640, 0o750, 0o640]
    finally:
        assert os.umask(before) == 0o027


def test_config_file_holds_every_setting(tmp_path):
    config = Config(total_steps=7, policy="mlp(hidden=(3,))")
    save_config(tmp_path, "Some-v1", config)
    read = json.loads((tmp_path / directory.CONFIG_FILE).read_text())
    assert read.pop("env") == "Some-v1"
    versions, machine = read.pop("versions"), read.pop("machine")
    assert versions["jaxtrpo"] == jaxtrpo.__version__ and {"python", "jax", "mujoco"} <= versions.keys()
    assert machine["cores"] >= 1
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in read.items()}
    assert Config(**tuples) == config
