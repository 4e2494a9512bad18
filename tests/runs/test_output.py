"""The files of a run, and that they survive interruptions and failures of the machine."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from test_train import PARTS, PENDULUM, train_part, without_seconds

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.rollout.evaluation import Evaluation
from jaxtrpo.runs.checkpoint import load_checkpoint
from jaxtrpo.runs.directory import (
    BEST,
    CHECKPOINT_BEFORE,
    CHECKPOINT_FILE,
    METRICS_FILE,
    DirectoryInUse,
    OutputError,
    clear,
    writing,
)
from jaxtrpo.runs.metrics import Metrics
from jaxtrpo.runs.output import Output, Saving
from jaxtrpo.runs.termination import DeferredSignals, Terminated, Termination
from jaxtrpo.training.record import Record
from jaxtrpo.training.run import Plan
from jaxtrpo.training.train import prepare

pytestmark = pytest.mark.shared_programs
LONG = [
    PENDULUM, "--total-steps", "1000000000", "--actors", "1", "--steps-per-update", "64", "--algorithm", "pg",
    "--policy", "mlp(hidden=(8,))", "--critic", "none",
]  # fmt: skip


def steps_of(place) -> int:
    return int(load_checkpoint(place).metrics["env_steps"][-1])


# ---- snapshots


def test_snapshots_are_as_requested_and_can_act_and_resume(tmp_path):
    out = tmp_path / "run"
    whole = train_part(out, total_steps=640, keep_best=True, keep_every=200)
    snapshots = sorted(place.name for place in out.iterdir() if place.is_dir() and place.name.startswith("step-"))
    steps = whole.metrics["env_steps"]
    crossed = steps[np.diff(steps // 200, prepend=0) > 0]
    assert len(crossed) == 3 and snapshots == [f"step-{number:010d}" for number in crossed]
    best = int(steps[np.nanargmax(whole.metrics["eval_return"])])
    assert steps_of(out / BEST) == best and [place.name for place in out.glob("best-*")] == [f"best-{best:010d}"]
    returns = load_checkpoint(out / BEST).metrics["eval_return"]
    assert returns[-1] == np.nanmax(whole.metrics["eval_return"])
    assert jaxtrpo.load_policy(out / BEST)(np.ones(4)).shape == (1,)
    on = train_part(out / snapshots[0], total_steps=640, resume=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(on.state), jax.device_get(whole.state))


def test_resumed_run_keeps_the_best_snapshot(tmp_path, monkeypatch):
    train_part(tmp_path, total_steps=128, keep_best=True)
    before = steps_of(tmp_path / BEST)
    monkeypatch.setattr(Plan, "evaluator", lambda self: lambda *_: Evaluation(-1.0, 0.0, np.zeros(0)))
    train_part(tmp_path, total_steps=640, keep_best=True, resume=True)
    assert steps_of(tmp_path / BEST) == before


@pytest.mark.parametrize("mine", ["tensorboard/events", "step-0000000001/data", "best"])
def test_directory_with_what_a_new_run_would_remove_is_refused(tmp_path, mine):
    place = tmp_path / mine
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(tmp_path) if mine == "best" else place.write_text("mine")
    with pytest.raises(FileExistsError, match="already holds a run; use resume=True"):
        train_part(tmp_path, total_steps=64)
    assert place.exists()


def test_best_snapshot_that_was_resumed_is_kept(tmp_path, monkeypatch):
    values = itertools.count(1.0)
    monkeypatch.setattr(Plan, "evaluator", lambda self: lambda *_: Evaluation(next(values), 0.0, np.zeros(0)))
    train_part(tmp_path, total_steps=64, keep_best=True)
    (branch,) = tmp_path.glob("best-*")
    on = steps_of(branch) + 64
    train_part(branch, total_steps=on, resume=True)
    train_part(tmp_path, total_steps=192, keep_best=True, resume=True)
    assert steps_of(branch) >= on and steps_of(tmp_path / BEST) >= 192
    kept = {branch.name, (tmp_path / BEST).readlink().name}
    assert {place.name for place in tmp_path.glob("best-*")} == kept and len(kept) == 2


def test_a_directory_is_written_anew_only_if_it_is_outdated(tmp_path):
    train_part(tmp_path, total_steps=128)
    columns = load_checkpoint(tmp_path).metrics
    written = []
    for outdated, times in ((False, 0), (True, 1)):
        output = Output(tmp_path, Saving(), columns, lambda place, metrics: written.append(place), outdated=outdated)
        output.save()
        assert written == times * [tmp_path]


def test_resuming_with_the_same_settings_writes_nothing(tmp_path):
    train_part(tmp_path, total_steps=128)
    before = [(tmp_path / name).stat().st_mtime_ns for name in (CHECKPOINT_FILE, CHECKPOINT_BEFORE)]
    train_part(tmp_path, total_steps=128, resume=True)
    assert [(tmp_path / name).stat().st_mtime_ns for name in (CHECKPOINT_FILE, CHECKPOINT_BEFORE)] == before


def test_overwrite_removes_snapshots_and_nothing_else(tmp_path):
    train_part(tmp_path, total_steps=200, keep_best=True, keep_every=64)
    for mine in ("step-by-step", "step-0000000064.backup"):
        (tmp_path / mine).mkdir()
    (tmp_path / ".step-0000000064.abc").mkdir()
    of_an_editor = tmp_path / f".{METRICS_FILE}.swp"
    of_an_editor.touch()
    left = [tmp_path / f".{METRICS_FILE}.a_0bcdef", tmp_path / f".{CHECKPOINT_BEFORE}.link"]
    for unfinished in left:
        unfinished.touch()
    clear(tmp_path, keep_run=True)
    assert (tmp_path / BEST).exists() and not (tmp_path / ".step-0000000064.abc").exists()
    assert of_an_editor.exists() and not any(unfinished.exists() for unfinished in left)
    clear(tmp_path)
    kept = [of_an_editor.name, "step-0000000064.backup", "step-by-step"]
    assert sorted(place.name for place in tmp_path.iterdir()) == kept


def test_resuming_from_before_the_first_update_keeps_snapshots(tmp_path):
    """A run that is killed before its first checkpoint with updates has nothing else."""
    out = tmp_path / "run"
    program = (
        "import os, sys\nfrom test_train import train_part\n"
        "end = lambda row, state: os._exit(9) if row['update'] == 5 else None\n"
        "train_part(sys.argv[1], keep_every=64, checkpoint_seconds=1e6, on_update=end, total_steps=10_000)"
    )
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    assert subprocess.run([sys.executable, "-c", program, str(out)], env=where, check=False).returncode == 9
    kept = {place.name for place in out.iterdir() if place.name.startswith("step-")}
    assert kept and load_checkpoint(out).metrics == {}
    resumed = train_part(out, total_steps=64, resume=True, keep_every=64)
    assert kept <= {place.name for place in out.iterdir()}
    assert (out / METRICS_FILE).read_text().count("\n") - 1 == len(resumed.metrics["update"])


# ---- the previous checkpoint


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b""])
def test_damaged_checkpoint_offers_the_previous_one_which_ends_identically(tmp_path, damage):
    whole, out = train_part(tmp_path / "whole", total_steps=640), tmp_path / "run"
    train_part(out, total_steps=320, checkpoint_seconds=0.0)
    path, before = out / CHECKPOINT_FILE, out / CHECKPOINT_BEFORE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ValueError, match=r"of jaxtrpo; the previous checkpoint, of \d+ environment steps, is intact: rename"
    ):
        prepare(PENDULUM, out=out, resume=True, **PARTS)
    before.rename(path)
    on = train_part(out, total_steps=640, resume=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(on.state), jax.device_get(whole.state))
    assert without_seconds(out) == without_seconds(tmp_path / "whole")


def test_a_run_that_has_only_its_previous_checkpoint_is_not_to_be_overwritten(tmp_path):
    train_part(tmp_path, total_steps=320, checkpoint_seconds=0.0)
    (tmp_path / CHECKPOINT_FILE).unlink()
    with pytest.raises(FileExistsError, match=f"rename {CHECKPOINT_BEFORE} to {CHECKPOINT_FILE} to resume") as error:
        prepare(PENDULUM, out=tmp_path, resume=True, **PARTS)
    assert "overwrite" not in str(error.value)
    (tmp_path / CHECKPOINT_BEFORE).unlink()
    with pytest.raises(FileExistsError, match="cannot be resumed; use overwrite=True"):
        prepare(PENDULUM, out=tmp_path, resume=True, **PARTS)


# ---- on_update


def test_on_update_receives_every_row_and_its_state():
    seen = []
    result = train_part(total_steps=320, on_update=lambda row, state: seen.append((row, state)))
    assert [row["update"] for row, _ in seen] == list(result.metrics["update"])
    np.testing.assert_array_equal([row["kl"] for row, _ in seen], result.metrics["kl"])
    assert seen[-1][1] is result.state


def test_error_in_on_update_ends_the_run_with_a_checkpoint(tmp_path):
    def unhappy(row, state):
        if row["update"] == 3:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        train_part(tmp_path, total_steps=640, on_update=unhappy)
    assert len(load_checkpoint(tmp_path).metrics["update"]) == 3


# ---- config.json


def test_run_is_repeated_from_its_config(tmp_path):
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    train_part(one, total_steps=200, seed=3)
    jaxtrpo.train(out=two, progress=False, **jaxtrpo.load_config(one))
    assert without_seconds(one) == without_seconds(two)
    assert cli.main(["train", "--config", str(one), "--total-steps", "100", "--out", str(three), "--quiet"]) == 0
    assert without_seconds(one)[: len(without_seconds(three))] == without_seconds(three)
    assert 0 < len(without_seconds(three)) < len(without_seconds(one))


def test_invalid_config_file_is_rejected_in_one_sentence(tmp_path, capsys):
    path = tmp_path / "config.json"
    for content, told in (
        (None, "no such file"),
        ("{", "is not a config.json"),
        ("[]", "is not a config.json"),
        ('{"env": "X", "total_stps": 3}', "unknown setting 'total_stps'; did you mean total_steps?"),
        ('{"env": "X", "total_steps": 0}', "total_steps=0"),
    ):
        if content is not None:
            path.write_text(content)
        assert cli.main(["train", "--config", str(path)]) == cli.INPUT_ERROR
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds=-1.0"),
        ({"keep_every": 1.5}, "keep_every=1.5"),
        ({"keep_every": 100}, "keep_every=100 needs out"),
        ({"keep_best": True}, "keep_best=True needs out"),
        ({"keep_best": True, "out": "new"}, "keep_best=True needs eval_every"),
        ({"keep_best": 1, "out": "new"}, "keep_best=1"),
    ],
)
def test_bad_saving_settings_are_reported_first(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=told):
        prepare("Nothing-v0", **arguments)
    assert not list(tmp_path.iterdir())


# ---- termination and failures


def started(*arguments, **how) -> subprocess.Popen:
    """Starts the command with one actor."""
    command = [sys.executable, "-m", "jaxtrpo", "train", *arguments]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **how)


def wait_for_updates(out, number: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (out / METRICS_FILE).exists() and (out / METRICS_FILE).read_text().count("\n") > number:
            return
        time.sleep(0.02)
    raise AssertionError("no updates")


def test_termination_saves_and_says_how_to_resume(tmp_path):
    out = tmp_path / "run"
    with started(*LONG, "--out", str(out), "--quiet") as process:
        wait_for_updates(out, 5)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert errors == f"terminated; saved in {out}; resume with the same command and --resume\n"
    rows = (out / METRICS_FILE).read_text().count("\n") - 1
    assert rows >= 5 and len(load_checkpoint(out).metrics["update"]) in (rows, rows - 1)


SIGNALLED = """
import gc, signal, sys
import jaxtrpo
signal.signal(signal.SIGINT, signal.default_int_handler)
class Slow:
    def __del__(self):
        sum(range(20_000))
def collect(row, state):
    for _ in range(20):
        loop = [Slow()]
        loop.append(loop)
    gc.collect()
algorithm = "naf(replay=4096, hidden=(8,), minibatch_size=16, asynchronous={asynchronous})"
jaxtrpo.train("InvertedPendulum-v5", algorithm=algorithm, num_envs=4, total_steps=10**8, policy="mlp(hidden=(8,))",
              checkpoint_seconds=1000, out=sys.argv[1], progress=False, on_update=collect)
"""


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_signals_end_a_replay_run_with_everything_saved(signals, asynchronous, tmp_path):
    """While garbage is collected, too, where exceptions of handlers would be lost."""
    out = tmp_path / "run"
    command = [sys.executable, "-c", SIGNALLED.format(asynchronous=asynchronous), str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (out / METRICS_FILE).exists() or (out / METRICS_FILE).read_text().count("\n") < 5:
            assert process.poll() is None
            time.sleep(0.01)
        for kind in signals:
            process.send_signal(kind)
        errors = process.communicate(timeout=60)[1]
    interrupted = signals == (signal.SIGINT,)  # which ends the script with an exception
    assert process.returncode == (1 if interrupted else 128 + signal.SIGTERM), errors
    assert ("jaxtrpo.runs.termination.Interrupted" if interrupted else "") in errors
    assert errors.count("Traceback") == interrupted and "ignored" not in errors
    assert len(load_checkpoint(out).metrics["update"]) == (out / METRICS_FILE).read_text().count("\n") - 1


TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize("kinds", [(TERM,), (INT,), (TERM, INT), (INT, TERM)])
@pytest.mark.parametrize("updates", [0, 1])
def test_a_signal_whose_exception_is_lost_ends_the_update(updates, kinds):
    """As an exception of a handler is while Python collects garbage, before the first update, too."""
    with DeferredSignals() as signals:
        for _ in range(updates):
            signals.defer()
            signals.end_of_update()
        for kind in kinds:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), kind)
                time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt) as found:
            signals.end_of_update()
    assert found.type is (Termination if TERM in kinds else KeyboardInterrupt)


def test_a_signal_while_the_first_update_is_written_waits_for_its_end(tmp_path):
    written = []

    def interrupt(row, state):
        os.kill(os.getpid(), INT)
        time.sleep(0.01)
        written.append(row)

    with pytest.raises(KeyboardInterrupt):
        train_part(tmp_path / "run", total_steps=960, on_update=interrupt)
    assert len(written) == len(load_checkpoint(tmp_path / "run").metrics["update"]) == 1


def test_a_termination_while_an_interrupted_run_is_saved_ends_the_process(tmp_path, monkeypatch):
    save = Record.save

    def terminated_save(record):
        os.kill(os.getpid(), TERM)
        save(record)

    monkeypatch.setattr(Record, "save", terminated_save)
    with pytest.raises(Terminated):
        train_part(tmp_path / "run", total_steps=960, on_update=lambda row, state: os.kill(os.getpid(), INT))
    assert steps_of(tmp_path / "run") < 960


# It hangs after 2,400 steps of all environments; actors wait when 1,024 have not been read, so there are rows by then.
HANGING = """
import sys
import counting_env, jaxtrpo
from jaxtrpo.runs import termination
termination.END_SECONDS = 2.0
jaxtrpo.train(lambda: counting_env.Misbehaving("hangs", at=600), algorithm={algorithm!r}, critic="none", actors=1,
              num_envs=4, steps_per_update=64, total_steps=10**8, policy="mlp(hidden=(8,))", out=sys.argv[1],
              progress=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["pg", "naf(replay=1024, hidden=(8,), minibatch_size=16, asynchronous=True)"])
def test_two_terminations_end_a_process_whose_simulator_hangs(algorithm, tmp_path):
    """Where the main thread waits for the program that steps it, too, so that no handler runs."""
    out = tmp_path / "run"
    command = [sys.executable, "-c", HANGING.format(algorithm=algorithm), str(out)]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": paths}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        wait_for_updates(out, 2)
        rows = 0
        while rows != (rows := (out / METRICS_FILE).read_text().count("\n")):
            time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        time.sleep(1.0)  # signals of one kind that wait for a busy machine become one
        process.send_signal(signal.SIGTERM)
        try:
            errors = process.communicate(timeout=180)[1]
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM, errors
    load_checkpoint(out)  # is whole


def test_installed_sigterm_handler_stays_in_place(tmp_path):
    calls = []
    before = signal.signal(signal.SIGTERM, lambda *_: calls.append("mine"))
    try:
        train_part(total_steps=96, on_update=lambda row, state: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls and set(calls) == {"mine"}
    train_part(total_steps=32)
    assert signal.getsignal(signal.SIGTERM) == before


def test_full_disk_is_reported_in_one_sentence_and_saved_files_are_intact(tmp_path):
    """A limit on file sizes stands in for a full disk."""
    out = tmp_path / "run"
    words = ["--checkpoint-seconds", "0.2"]
    no_cache = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0", "JAX_NUM_CPU_DEVICES": "1"}
    # In KiB: enough for the policy, and for a checkpoint of up to some hundred rows.
    limited = ["bash", "-c", 'ulimit -f 40; exec "$@"', "bash", sys.executable, "-m", "jaxtrpo", "train"]
    command = [*limited, *LONG, *words, "--out", str(out), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env=no_cache, timeout=300)
    assert done.returncode == cli.FAILED and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"jaxtrpo: error: out='{out}' cannot be written to: ")
    lines = (out / METRICS_FILE).read_text().splitlines()
    assert len({line.count(",") for line in lines}) == 1
    assert not list(out.glob(".*"))
    saved = load_checkpoint(out)
    assert 0 < len(saved.metrics["update"]) < len(lines)
    on = [*words, "--total-steps", str(int(saved.metrics["env_steps"][-1]) + 64), "--resume"]
    shorter = [word for word in LONG if word not in ("--total-steps", "1000000000")]
    assert cli.main(["train", *shorter, "--out", str(out), "--quiet", *on]) == 0


def test_full_disk_before_the_first_checkpoint_promises_nothing(tmp_path):
    def fail():
        with writing(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OutputError, match="No space left on device; nothing was saved that could be resumed$"):
        fail()
    (tmp_path / CHECKPOINT_FILE).touch()
    with pytest.raises(OutputError, match="what was saved before is intact, and resume=True"):
        fail()


def test_table_that_was_removed_is_written_again(tmp_path):
    path = tmp_path / METRICS_FILE
    metrics = Metrics(path)
    metrics.add({"update": 1, "kl": 0.5})
    path.unlink()
    metrics.add({"update": 2, "kl": 0.25})
    assert path.read_text() == "update,kl\n1,0.5\n2,0.25\n"


def test_run_that_came_first_is_kept(tmp_path):
    """Both found the directory empty; the second one gets its lock when the first one has ended."""
    out = tmp_path / "run"
    first, second = (prepare(PENDULUM, out=out, **{**PARTS, "total_steps": 32}) for _ in range(2))
    first.run(progress=False)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(DirectoryInUse, match="out=.*holds a run that another process has just written$"):
        second.run(progress=False)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_rows_are_written_completely_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / METRICS_FILE
    metrics = Metrics(path)
    metrics.add({"update": 1, "kl": 0.5})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 3, hard))
    try:
        with pytest.raises(OSError):
            metrics.add({"update": 2, "kl": 0.25})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before and len(metrics) == 1


def test_removed_directory_is_reported_in_one_sentence(tmp_path):
    out = tmp_path / "run"

    def remove(row, state):
        if row["update"] == 2:
            for path in (*out.iterdir(), out):
                path.rmdir() if path.is_dir() else path.unlink()

    with pytest.raises(
        OutputError,
        match=r"out='.*run' cannot be written to: No such file or directory; nothing was saved that could be resumed",
    ):
        train_part(out, total_steps=640, on_update=remove)


@pytest.mark.parametrize(("kind", "ignored"), [("SIGTERM", False), ("SIGHUP", False), ("SIGHUP", True)])
def test_closed_terminal_ends_what_a_command_has_started_unless_it_is_ignored(kind, ignored):
    program = f"""
import os, signal
from jaxtrpo.runs.termination import Termination, termination_as_interrupt
if {ignored}:
    signal.signal(signal.{kind}, signal.SIG_IGN)
before = signal.getsignal(signal.{kind})
try:
    with termination_as_interrupt():
        os.kill(os.getpid(), signal.{kind})
    print("went on")
except Termination:
    print("terminated")
assert signal.getsignal(signal.{kind}) == before
"""
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    assert done.stdout == ("went on\n" if ignored else "terminated\n")


def run_unread(words: str, unread: str) -> tuple[str, int]:
    """Runs a command line with `stdout` or `stderr` closed by its reader; returns the other one, and the exit code."""
    program = f"import sys; sys.stdin.readline(); from jaxtrpo.cli.main import main; sys.exit(main({words.split()!r}))"
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, **piped) as command:
        outputs = {"stdout": command.stdout, "stderr": command.stderr}
        outputs.pop(unread).close()
        command.stdin.write("go on\n")
        command.stdin.close()
        (read,) = outputs.values()
        return read.read(), command.wait(60)


@pytest.mark.parametrize("words", ["--help", "train --help", "algorithms"])
def test_closed_pipe_ends_a_command_silently(words):
    assert run_unread(words, "stdout") == ("", 0)


def test_exit_code_tells_of_an_error_that_nobody_can_read():
    assert run_unread("train Nowhere", "stderr") == ("", 2)
