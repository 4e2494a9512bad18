"""Faults of the machine that a run meets while it trains; more are in test_output.py, test_sweep.py, test_video.py."""

from __future__ import annotations

import os
import time

import jax
import numpy as np
import pytest
from test_train import train_part

from jaxtrpo.runs.checkpoint import load_checkpoint
from jaxtrpo.runs.directory import CHECKPOINT_FILE, METRICS_FILE, OutputError


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
