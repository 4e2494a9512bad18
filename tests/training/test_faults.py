"""Faults of the machine that a run meets while it trains; more are in test_output.py, test_sweep.py, test_video.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from test_train import train_part

from jaxtrpo.cli import main as cli
from jaxtrpo.runs.checkpoint import load_checkpoint
from jaxtrpo.runs.directory import CHECKPOINT_FILE, METRICS_FILE, OutputError
from jaxtrpo.training.record import Record

pytestmark = pytest.mark.shared_programs


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    """Forth and back by days, as where a machine finds its time server."""
    whole = train_part(tmp_path / "whole", total_steps=640)
    days = iter([30, -60, 400, -1000] * 1000)
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + 86_400 * next(days))
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 86_400 * 10**9 * next(days))
    out = tmp_path / "run"
    written = []

    def look(row, state):
        written.append((out / CHECKPOINT_FILE).stat().st_mtime_ns)

    train_part(out, total_steps=320, checkpoint_seconds=1e-6, on_update=look)
    assert len(set(written)) > 3  # checkpoints go on
    result = train_part(out, total_steps=640, resume=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(result.state), jax.device_get(whole.state))
    seconds = result.metrics["wall_seconds"]
    assert (np.diff(seconds) > 0).all() and seconds[-1] < 600


@pytest.mark.parametrize("words", ["report", "plot", "video"])
def test_a_disk_that_is_full_keeps_what_was_there_of_a_page_or_a_picture(words, tmp_path):
    """The size of files is limited, which a process meets like the end of a disk."""
    run = tmp_path / "run"
    train_part(run, total_steps=192)
    out = tmp_path / {"report": "page.html", "plot": "curves", "video": "film.mp4"}[words]
    there = [out] if out.suffix else [out.with_suffix(end) for end in (".png", ".svg", ".csv")]
    for path in there:
        path.write_text("of before")
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", sys.executable, "-m", "jaxtrpo", words]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0", "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run(
        [*limited, str(run), "--out", str(out)], capture_output=True, text=True, env=environment, timeout=300
    )
    if words == "video" and done.returncode == cli.INPUT_ERROR:
        pytest.skip("nothing can draw here")
    assert done.returncode == cli.FAILED, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("jaxtrpo: error: out=") and "cannot be written to: File too large" in last
    assert [path.read_text() for path in there][-1] == "of before" and not list(tmp_path.glob(".*"))


def test_error_of_a_run_that_cannot_be_saved_is_the_one_that_is_raised(tmp_path, monkeypatch):
    def full(record):
        raise OutputError("the disk is full")

    def fail(row, state):
        if row["update"] == 2:
            monkeypatch.setattr(Record, "save_alone", full)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train_part(tmp_path / "run", total_steps=192, on_update=fail)


def test_a_directory_that_becomes_read_only_is_a_sentence_and_stays_whole(tmp_path):
    out = tmp_path / "run"
    train_part(out, total_steps=192)
    before = (out / CHECKPOINT_FILE).read_bytes()

    def lock(row, state):
        out.chmod(0o555)
        if os.geteuid() == 0:
            os.seteuid(65_534)  # for root no directory is read-only

    root = os.geteuid() == 0
    try:
        with pytest.raises(OutputError, match=r"out='.*run' cannot be written to: Permission denied; what was saved"):
            train_part(out, total_steps=640, resume=True, on_update=lock)
    finally:
        if root:
            os.seteuid(0)
        out.chmod(0o755)
    rows = (out / METRICS_FILE).read_text().splitlines()
    assert (out / CHECKPOINT_FILE).read_bytes() == before and not list(out.glob(".*"))
    assert len({row.count(",") for row in rows}) == 1 and len(load_checkpoint(out).metrics["update"]) < len(rows)
    whole = train_part(tmp_path / "whole", total_steps=640)
    result = train_part(out, total_steps=640, resume=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(result.state), jax.device_get(whole.state))
