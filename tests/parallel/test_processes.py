"""Several processes that are one training: real ones, on the loopback address."""

from __future__ import annotations

import csv
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxtrpo.cli import main as cli
from jaxtrpo.parallel.machine import ADDRESS, COUNT, INDEX
from jaxtrpo.runs.checkpoint import load_checkpoint

SECONDS_BETWEEN = "0.05"  # checkpoints
SMALL = ("--num-envs", "4", "--segment-length", "8", "--steps-per-update", "64", "--policy", "mlp(hidden=(8,))",
         "--critic", "mlp(hidden=(8,), epochs=2)", "--checkpoint-seconds", SECONDS_BETWEEN)  # fmt: skip
TRAIN = ("train", "InvertedPendulum-v5", *SMALL)
SECONDS = ("wall_seconds", "collect_seconds", "learn_seconds")


def environment(**more: str) -> dict[str, str]:
    """Without what a test process says of its devices."""
    return {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "NPROC")} | more


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "jaxtrpo", *map(str, words)]


def run(*words: object, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=200, env=environment(**more))


def launch(*words: object) -> subprocess.CompletedProcess:
    return run("launch", "--processes", 2, "--", *words)


def launch_well(*words: object) -> subprocess.CompletedProcess:
    done = launch(*words)
    assert done.returncode == 0, done.stderr
    return done


def begin(*words: object) -> subprocess.Popen:
    return subprocess.Popen(
        command("launch", "--processes", 2, "--", *words), stderr=subprocess.PIPE, text=True, env=environment()
    )


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def by_hand(*codes: str) -> list[tuple[int, str]]:
    """Exit code and errors of processes that run different code."""
    address = free_address()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**{ADDRESS: address, COUNT: str(len(codes)), INDEX: str(index)}),
        )
        for index, code in enumerate(codes)
    ]
    errors = [process.communicate(timeout=200)[1] for process in started]
    return [(process.returncode, said) for process, said in zip(started, errors, strict=True)]


def rows(directory) -> list[dict[str, str]]:
    """Of metrics.csv, but for what they took."""
    with (directory / "metrics.csv").open() as file:
        return [{name: row[name] for name in row if name not in SECONDS} for row in csv.DictReader(file)]


def wait_for_updates(directory, number: int):
    path, end = directory / "metrics.csv", time.monotonic() + 120
    while not path.exists() or path.read_text().count("\n") < number:
        assert time.monotonic() < end
        time.sleep(0.05)


def children_of(process: subprocess.Popen) -> list[int]:
    """In the order in which they were started."""
    return sorted(map(int, subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """A run of one process with two actors."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = run(*TRAIN, "--total-steps", 1280, "--eval-every", 320, "--actors", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def assert_same_run(found, wanted):
    assert rows(found) == rows(wanted)
    here, there = load_checkpoint(found).state, load_checkpoint(wanted).state
    assert here.keys() == there.keys()
    for name, leaf in there.items():
        np.testing.assert_array_equal(here[name], leaf, err_msg=name)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one process with two actors needs two cores")
def test_two_processes_are_the_training_of_one_with_two_actors_and_go_on_as_it(tmp_path, one_process):
    out = tmp_path / "run"
    words = (*TRAIN, "--eval-every", 320, "--out", out, "--keep-every", 512)
    done = launch_well(*words, "--total-steps", 640)
    assert done.stdout.count("return_100") == 1 and "saved in" in done.stdout  # one speaks for all
    assert sorted(path.name for path in out.glob("step-*")) == ["step-0000000544"]
    # The same number of processes, and then another.
    launch_well(*words, "--total-steps", 960, "--resume")
    done = run(*words, "--total-steps", 1280, "--resume", "--actors", 2)
    assert done.returncode == 0, done.stderr
    assert_same_run(out, one_process)


@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_is_killed_ends_the_other_with_a_sentence_and_the_run_resumes_exactly(
    which, tmp_path, one_process
):
    out = tmp_path / "run"
    words = (*TRAIN, "--eval-every", 320, "--out", out)
    started = begin(*words, "--total-steps", 10**7)
    wait_for_updates(out, 5)
    begun = time.monotonic()
    os.kill(children_of(started)[which], signal.SIGKILL)
    errors = started.communicate(timeout=100)[1]
    assert started.returncode == cli.FAILED and time.monotonic() - begun < 60
    assert f"process {which} of 2 was ended by SIGKILL; --resume resumes from the last checkpoint in {out}" in errors
    done = load_checkpoint(out).metrics["env_steps"][-1]
    words = (*words, "--total-steps", done + 640, "--resume")
    launch_well(*words)
    other = tmp_path / "other"
    launch_well(*TRAIN, "--eval-every", 320, "--out", other, "--total-steps", done + 640)
    assert_same_run(out, other)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_is_stopped_ends_the_other_and_is_killed(which, tmp_path):
    out = tmp_path / "run"
    started = begin(*TRAIN, "--out", out, "--total-steps", 10**7)
    wait_for_updates(out, 5)
    children, begun = children_of(started), time.monotonic()
    os.kill(children[which], signal.SIGSTOP)
    errors = started.communicate(timeout=100)[1]
    assert started.returncode == cli.FAILED and time.monotonic() - begun < 60
    assert f"process {which} of 2 did not end with the others and was killed; --resume resumes from" in errors
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


@pytest.mark.parametrize(
    ("kind", "code", "sentence"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, "terminated; saved in"),
        (signal.SIGINT, cli.INTERRUPTED, "interrupted; keeping what was learned"),
    ],
)
def test_a_signal_to_the_launcher_ends_all_at_the_same_update_with_everything_saved(kind, code, sentence, tmp_path):
    out = tmp_path / "run"
    words = (*(word if word != SECONDS_BETWEEN else "1000" for word in TRAIN), "--out", out)
    started = begin(*words, "--total-steps", 10**7)
    wait_for_updates(out, 5)
    started.send_signal(kind)
    errors = started.communicate(timeout=100)[1]
    assert started.returncode == code
    assert errors.count(sentence) == 1 and "error" not in errors
    assert load_checkpoint(out).metrics["update"][-1] == len(rows(out))


@pytest.mark.slow
def test_processes_end_with_their_launcher_and_save_the_run(tmp_path):
    out = tmp_path / "run"
    words = (*(word if word != SECONDS_BETWEEN else "1000" for word in TRAIN), "--out", out)
    started = begin(*words, "--total-steps", 10**7)
    wait_for_updates(out, 5)
    children = children_of(started)
    started.kill()
    ends = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{child}") for child in children) and time.monotonic() < ends:
        time.sleep(0.1)
    started.communicate(timeout=100)
    assert not any(os.path.exists(f"/proc/{child}") for child in children)
    assert load_checkpoint(out).metrics["update"][-1] == len(rows(out))


CODE = """
import jaxtrpo
def look(row, state): {look}
jaxtrpo.train("InvertedPendulum-v5", num_envs=4, segment_length=8, steps_per_update=64, total_steps=640,
              policy="mlp(hidden=(8,))", critic="mlp(hidden=(8,))", progress=False, on_update=look, {more})
"""


@pytest.mark.parametrize("which", [0, 1])
def test_an_error_of_one_process_ends_the_other(which):
    begun = time.monotonic()
    ended = by_hand(*(CODE.format(look="1 / 0" if index == which else "pass", more="") for index in (0, 1)))
    assert ended[0][0] != 0 and ended[1][0] != 0 and time.monotonic() - begun < 60
    assert "ZeroDivisionError" in ended[which][1] and "ZeroDivisionError" not in ended[1 - which][1]


@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_lives_but_never_comes_ends_the_other(which):
    less_patient = "import jaxtrpo.parallel.processes as processes; processes.LATE_SECONDS = 3\n"
    hangs = CODE.format(look="import time; time.sleep(1000)", more="")
    ended = by_hand(
        *(hangs if index == which else less_patient + CODE.format(look="pass", more="") for index in (0, 1))
    )
    assert ended[1 - which][0] == cli.FAILED and ended[which][0] == -signal.SIGABRT  # by JAX
    assert "jaxtrpo: error: another process did not reach a collective within" in ended[1 - which][1]


def test_who_interrupts_twice_does_not_wait_for_the_others():
    # A process that was started in the background may have been told to ignore interrupts.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    twice = "import os; [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]"
    begun = time.monotonic()
    of_first, of_second = by_hand(heed + CODE.format(look=twice, more=""), CODE.format(look="pass", more=""))
    assert "interrupted twice" in of_first[1] and time.monotonic() - begun < 60
    assert of_second[0] != 0


# gloo's thread may not interrupt the one that sends, and that one is like any other.
LOOK_AT_THREADS = """
import os
kinds = {number: os.sched_getscheduler(int(number)) for number in os.listdir("/proc/self/task")}
assert kinds[str(os.getpid())] == os.SCHED_OTHER and os.SCHED_BATCH in kinds.values(), kinds
"""


@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_is_killed_on_the_way_out_does_not_keep_the_other(which):
    begun, train = time.monotonic(), CODE.format(look="pass", more="")
    killed = train + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    looks = train + (LOOK_AT_THREADS if sys.platform == "linux" else "")
    ended = by_hand(*(killed if index == which else looks for index in (0, 1)))
    assert ended[which][0] == -signal.SIGKILL and "AssertionError" not in ended[1 - which][1]
    assert time.monotonic() - begun < 60


def test_processes_with_different_settings_are_refused_by_all_with_the_difference():
    for code, errors in by_hand(CODE.format(look="pass", more="seed=1"), CODE.format(look="pass", more="seed=2")):
        assert code != 0 and "ValueError: processes differ: seed=1 in process 0, seed=2 in process 1" in errors


def test_what_one_process_finds_wrong_is_told_by_all(tmp_path):
    (tmp_path / "metrics.csv").write_text("of another run")
    done = launch(*TRAIN, "--out", tmp_path)
    assert done.returncode == cli.INPUT_ERROR
    assert "error: process 0: out=" in done.stderr and done.stderr.count("already holds a run") == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("CartPole-v1", "--algorithm", "a3c"), "does not support multi-process training"),
        (("InvertedPendulum-v5", "--processes", "3"), "processes=3, but the launcher started 2"),
        (("InvertedPendulum-v5", "--actors", "3"), "actors=3 must be a multiple of the 2 processes"),
        (("InvertedPendulum-v5", "--seeds", "3"), "train_many (--seeds) uses the devices of one process"),
    ],
)
def test_what_several_processes_cannot_do(words, sentence):
    done = launch("train", *words)
    assert done.returncode == cli.INPUT_ERROR and done.stderr.count(sentence) == 2


def test_what_a_launcher_must_say():
    assert "launch: evaluate is no `train ...` after --" in launch("evaluate", "run").stderr
    assert "processes=0 must be a whole number" in run("launch", "--processes", 0, "--", "train").stderr
    assert (
        "processes=2, but no launcher was found: use `jaxtrpo launch --processes 2 -- train ...`"
        in run(*TRAIN, "--processes", 2).stderr
    )
    said = {ADDRESS: "here", COUNT: "2", INDEX: "0"}
    assert "JAX_COORDINATOR_ADDRESS=here, JAX_NUM_PROCESSES=2" in run(*TRAIN, **said).stderr


def test_simulators_of_gymnasium_and_programs_are_stepped_by_their_own_process(tmp_path):
    words = ("--steps-per-update", 64, "--num-envs", 4, "--total-steps", 256)
    done = launch("train", "gymnasium:CartPole-v1", *words, "--policy", "mlp(hidden=(8,))", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path / "run")) == 4
