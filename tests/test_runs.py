"""What a run leaves on disk and on the screen."""

import csv
import io
import os
import stat
import sys

import chex
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.networks import gaussian_policy
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs import compilation, directory, policy_file, progress
from jaxtrpo.runs.metrics import Metrics

# ---- metrics

NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=True, allow_infinity=True),
)
TABLES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def csv_file(tmp_path_factory):
    return tmp_path_factory.mktemp("metrics") / "metrics.csv"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


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


# ---- progress


def row(update, return_100=1.0, **more):
    steps = 1000 * update
    return {
        **{"update": update, "env_steps": steps, "wall_seconds": 0.5 * update, "steps_per_update": 1000},
        **{"mean_return": float("nan"), "return_100": return_100, "kl": 0.01, **more},
    }


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_are_first_every_five_seconds_and_last():
    now, output = 0.0, io.StringIO()
    lines = progress._Lines(100_000, output, clock=lambda: now)
    for update in range(1, 101):
        now = 0.5 * update
        lines.update(row(update))
    lines.close()
    shown = [int(line.split()[1]) for line in output.getvalue().splitlines()]
    assert shown == [*range(1, 101, 10), 100]


def test_line_says_steps_share_returns_and_speed():
    output = io.StringIO()
    progress._Lines(10_000, output).update(row(2, return_100=-123.456))
    assert output.getvalue() == ("update 2  2,000 steps (20%)  return_100 -123.5  last -  kl 0.01  2,000 steps/s\n")


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


def test_opening_with_overwrite_loses_nothing_and_claiming_only_the_run(tmp_path):
    for name in (*directory.RUN_FILES, "notes.txt"):
        (tmp_path / name).write_text("old")
    before = snapshot(tmp_path)
    opened = directory.open_directory(tmp_path, overwrite=True)
    assert snapshot(tmp_path) == before
    directory.claim(opened)
    assert snapshot(tmp_path) == {"notes.txt": before["notes.txt"]}


@pytest.mark.parametrize("overwrite", [False, True])
def test_directory_is_made_when_claimed_and_not_before(tmp_path, monkeypatch, overwrite):
    monkeypatch.chdir(tmp_path)
    opened = directory.open_directory("new/deep", overwrite)
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir("/")
    directory.claim(opened)
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


# ---- policy file


def make_policy(hidden=(5, 3), observation_size=4, action_size=2, seed=0):
    keys = jax.random.split(jax.random.PRNGKey(seed), 3)
    params = gaussian_policy(observation_size, action_size, hidden=hidden).init(keys[0])
    mean, variance = jax.random.normal(keys[1], (2, observation_size))
    return TrainedPolicy(
        env_name="Some-v1",
        observation_size=observation_size,
        action_low=np.linspace(-1, -0.3, action_size, dtype=np.float32),
        action_high=np.linspace(0.1, 2, action_size, dtype=np.float32),
        hidden=hidden,
        params=params,
        moments=Moments(jax.numpy.float32(1e6), mean, variance**2),
    )


@pytest.mark.parametrize("hidden", [(), (5, 3)])
def test_policy_comes_back_exactly(tmp_path, hidden):
    policy = make_policy(hidden)
    policy_file.save_policy(tmp_path, policy)
    loaded = policy_file.load_policy(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == [directory.POLICY_FILE]
    assert (loaded.env_name, loaded.observation_size, loaded.hidden) == ("Some-v1", 4, hidden)
    for field in ("action_low", "action_high", "params", "moments"):
        chex.assert_trees_all_equal(getattr(loaded, field), getattr(policy, field))
        chex.assert_trees_all_equal_dtypes(getattr(loaded, field), getattr(policy, field))
    obs = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded(obs), policy(obs))
    key = jax.random.PRNGKey(1)
    np.testing.assert_array_equal(loaded(obs, key=key), policy(obs, key=key))


def test_policy_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    policy_file.save_policy(tmp_path, make_policy(seed=0))
    before = (tmp_path / directory.POLICY_FILE).read_bytes()

    def broken(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        policy_file.save_policy(tmp_path, make_policy(seed=1))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [(directory.POLICY_FILE, before)]


def test_missing_policies_are_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such directory: .*missing"):
        policy_file.load_policy(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match=f"no {directory.POLICY_FILE} in"):
        policy_file.load_policy(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="file is not a directory"):
        policy_file.load_policy(tmp_path / "file")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("policy")
    policy_file.save_policy(place, make_policy())
    return place, (place / directory.POLICY_FILE).read_bytes()


@given(st.data())
def test_truncated_policy_files_are_called_damaged(saved, data):
    place, content = saved
    (place / directory.POLICY_FILE).write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match=r"is not a policy file, or damaged$"):
        policy_file.load_policy(place)


@given(st.binary(max_size=100))
def test_any_other_bytes_are_called_damaged(saved, garbage):
    place, _ = saved
    (place / directory.POLICY_FILE).write_bytes(garbage)
    with pytest.raises(ValueError, match=r"is not a policy file, or damaged$"):
        policy_file.load_policy(place)


def test_policy_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_file, "FORMAT", 99)
    policy_file.save_policy(tmp_path, make_policy())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 99"):
        policy_file.load_policy(tmp_path)


# ---- compilation cache


@pytest.fixture
def jax_cache(tmp_path, monkeypatch):
    """No cache configured, a user's cache directory of our own; JAX as it was afterwards."""
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", True)
    monkeypatch.setattr(compilation, "user_cache_path", lambda name: tmp_path / name)
    yield tmp_path / "jaxtrpo"
    for name, value in before.items():
        jax.config.update(name, value)


def test_cache_is_in_the_users_cache_directory(jax_cache):
    compilation.cache_compilations()
    place = jax.config.jax_compilation_cache_dir
    assert place.startswith(str(jax_cache)) and os.path.isdir(place)
    compilation.cache_compilations()
    assert jax.config.jax_compilation_cache_dir == place


def test_cache_that_the_user_chose_stays(jax_cache, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    seconds = jax.config.jax_persistent_cache_min_compile_time_secs
    compilation.cache_compilations()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == seconds
    assert not jax_cache.exists()


def test_cache_that_the_user_switched_off_stays_off(jax_cache):
    jax.config.update("jax_enable_compilation_cache", False)
    compilation.cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None and not jax_cache.exists()


def test_cache_that_cannot_be_made_is_done_without(jax_cache, recwarn):
    jax_cache.write_text("a file where the directory should be")
    compilation.cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None and not recwarn.list
