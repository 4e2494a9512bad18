"""Training on several hosts: network namespaces with addresses and names of their own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from test_processes import TRAIN, assert_same_run, command, environment, free_address, train_alone

from jaxtrpo.parallel.machine import ADDRESS, COUNT, INDEX

spec = importlib.util.spec_from_file_location(
    "hosts", Path(__file__).parents[2] / "experiments" / "common" / "hosts.py"
)
assert spec is not None and spec.loader is not None
network = sys.modules["hosts"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(network)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(network.why_not() is not None, reason=str(network.why_not()))]


def test_two_hosts_are_the_training_of_one_process_with_two_actors(tmp_path):
    words = (*TRAIN, "--total-steps", 320, "--eval-every", 320)
    port = free_address().rsplit(":", 1)[1]
    with network.hosts(2, 1.0) as hosts:  # milliseconds of delay
        said = environment(**{ADDRESS: f"{hosts[0].address}:{port}", COUNT: "2"})
        started = [
            host.start(
                command(*words, "--actors", 2, "--out", tmp_path / "run"),
                said | {INDEX: str(host.index)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for host in hosts
        ]
        errors = [process.communicate(timeout=250)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    whole = tmp_path / "whole"
    train_alone(*words, "--out", whole, JAX_NUM_CPU_DEVICES="2")
    assert_same_run(tmp_path / "run", whole)
