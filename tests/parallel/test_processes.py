"""Several processes that are one training: real ones, on the loopback address."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxtrpo.cli import main as cli
from jaxtrpo.parallel import processes
from jaxtrpo.parallel.machine import ADDRESS, COUNT, INDEX
from jaxtrpo.runs.checkpoint import load_checkpoint

SECONDS_BETWEEN = "0.05"  # checkpoints
SMALL = ("--num-envs", "4", "--segment-length", "8", "--steps-per-update", "64", "--policy", "mlp(hidden=(8,))",
         "--checkpoint-seconds", SECONDS_BETWEEN)  # fmt: skip
TRAIN = ("train", "InvertedPendulum-v5", *SMALL, "--critic", "mlp(hidden=(8,), epochs=2)")
ENDLESS = ("train", "InvertedPendulum-v5", *SMALL, "--algorithm", "pg", "--critic", "none", "--total-steps", "10000000")
SECONDS = ("wall_seconds", "collect_seconds", "learn_seconds")


def environment(**more: str) -> dict[str, str]:
    """Without what a test process says of its devices."""
    return {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "NPROC")} | more


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "jaxtrpo", *map(str, words)]


def run(words: list[str], **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, timeout=200, env=environment(**more))


def train_alone(*words: object, **more: str) -> None:
    """Trains with two actors in one process: a new one, since rounding depends on the number of XLA's threads."""
    done = run(command(*words, "--actors", 2), **more)
    assert done.returncode == 0, done.stderr


def launch(*words: object) -> subprocess.CompletedProcess:
    return run(command("launch", "--processes", 2, "--", *words))


def launch_well(*words: object) -> subprocess.CompletedProcess:
    done = launch(*words)
    assert done.returncode == 0, done.stderr
    return done


# Wait less long for each other, and for processes that do not end.
HASTY_LAUNCHER = """
import sys
from jaxtrpo.cli import launch, main
from jaxtrpo.parallel import processes
launch.GRACE_SECONDS, processes.LATE_SECONDS = 2, 5
launch.own_command = lambda: (sys.executable, "-c", sys.orig_argv[2])
sys.exit(main.main(sys.argv[1:]))
"""


def begin(*words: object, hasty: bool = False) -> subprocess.Popen:
    launching = command("launch", "--processes", 2, "--", *words)
    if hasty:
        launching[1:3] = ["-c", HASTY_LAUNCHER]
    return start(launching)


STARTED: list[subprocess.Popen] = []


def start(words: list[str], **more: str) -> subprocess.Popen:
    started = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment(**more))
    STARTED.append(started)
    return started


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Ends what a test that fails has started."""
    yield
    while STARTED:
        started = STARTED.pop()
        if started.poll() is None:
            for number in (*children_of(started), started.pid):
                os.kill(number, signal.SIGKILL)
        if not started.stderr.closed:  # of one that ended unseen, which would be a warning in a later test
            started.communicate()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def begin_by_hand(*codes: str) -> list[subprocess.Popen]:
    """Starts processes that run different code."""
    address = free_address()
    return [
        start([sys.executable, "-c", code], **{ADDRESS: address, COUNT: str(len(codes)), INDEX: str(index)})
        for index, code in enumerate(codes)
    ]


def ends(started: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Exit code and errors of processes."""
    errors = [process.communicate(timeout=200)[1] for process in started]
    return [(process.returncode, said) for process, said in zip(started, errors, strict=True)]


def by_hand(*codes: str) -> list[tuple[int, str]]:
    """Exit code and errors of processes that run different code."""
    return ends(begin_by_hand(*codes))


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
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return sorted(map(int, found.stdout.split()))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """A run of one process with two actors."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train_alone(*TRAIN, "--total-steps", 1280, "--eval-every", 320, "--out", out)
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
    train_alone(*words, "--total-steps", 1280, "--resume")
    assert_same_run(out, one_process)


def test_a_process_that_is_killed_ends_the_other_with_a_sentence_and_the_run_resumes_exactly(tmp_path):
    """First the second process is killed, then the first of the resumed run."""
    out, other = tmp_path / "run", tmp_path / "other"
    words = (*TRAIN, "--eval-every", 320)
    for which, more in ((1, ()), (0, ("--resume",))):
        begun_from = len(rows(out)) if more else 0
        started = begin(*words, "--out", out, "--total-steps", 10**7, *more)
        wait_for_updates(out, begun_from + 5)
        begun = time.monotonic()
        os.kill(children_of(started)[which], signal.SIGKILL)
        errors = started.communicate(timeout=150)[1]
        assert started.returncode == cli.FAILED and time.monotonic() - begun < 120
        assert (
            f"process {which} of 2 was ended by SIGKILL; --resume resumes from the last checkpoint in {out}" in errors
        )
    total = load_checkpoint(out).metrics["env_steps"][-1] + 320
    launch_well(*words, "--out", out, "--total-steps", total, "--resume")
    train_alone(*words, "--out", other, "--total-steps", total)
    assert_same_run(out, other)


@pytest.mark.slow
def test_a_process_that_is_stopped_ends_the_other_and_is_killed(tmp_path):
    """Both cases at the same time, because most of it is waiting: the first and the second process of a run."""
    outs = [tmp_path / str(which) for which in (0, 1)]
    runs = [begin(*ENDLESS, "--out", out, hasty=True) for out in outs]
    children = []
    for which, (started, out) in enumerate(zip(runs, outs, strict=True)):
        wait_for_updates(out, 5)
        children += children_of(started)
        os.kill(children_of(started)[which], signal.SIGSTOP)
    begun = time.monotonic()
    for which, started in enumerate(runs):
        errors = started.communicate(timeout=150)[1]
        assert started.returncode == cli.FAILED and time.monotonic() - begun < 120
        assert f"process {which} of 2 did not end with the others and was killed; --resume resumes from" in errors
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


LATER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int error = real(clock, now);
  if (!error && clock == CLOCK_REALTIME && access(getenv("CLOCK_JUMPS"), F_OK) == 0) now->tv_sec += 864000;
  return error;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc, and LD_PRELOAD")
def test_a_wall_clock_that_jumps_by_days_ends_nothing(tmp_path):
    source, library, jump, out = (tmp_path / name for name in ("clock.c", "clock.so", "jump", "run"))
    source.write_text(LATER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    endless = command("launch", "--processes", 2, "--", *TRAIN, "--out", out, "--total-steps", 10**7)
    started = start(endless, LD_PRELOAD=str(library), CLOCK_JUMPS=str(jump))
    wait_for_updates(out, 5)
    jump.touch()
    time.sleep(5)  # JAX looks at heartbeats every second
    wait_for_updates(out, len(rows(out)) + 5)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=100)
    assert started.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("kind", "code", "sentence"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, "terminated; saved in"),
        (signal.SIGINT, cli.INTERRUPTED, "interrupted; keeping what was learned"),
    ],
)
def test_a_signal_to_the_launcher_ends_all_at_the_same_update_with_everything_saved(kind, code, sentence, tmp_path):
    out = tmp_path / "run"
    started = begin(*(word if word != SECONDS_BETWEEN else "1000" for word in ENDLESS), "--out", out)
    wait_for_updates(out, 5)
    started.send_signal(kind)
    errors = started.communicate(timeout=100)[1]
    assert started.returncode == code
    assert errors.count(sentence) == 1 and "error" not in errors
    assert load_checkpoint(out).metrics["update"][-1] == len(rows(out))


@pytest.mark.slow
def test_processes_end_with_their_launcher_and_save_the_run(tmp_path):
    out = tmp_path / "run"
    started = begin(*(word if word != SECONDS_BETWEEN else "1000" for word in ENDLESS), "--out", out)
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
import jaxtrpo.parallel.processes as processes
processes.SHUTDOWN_SECONDS = 4
def look(row, state): {look}
jaxtrpo.train("InvertedPendulum-v5", num_envs=4, segment_length=8, steps_per_update=64, total_steps=640,
              policy="mlp(hidden=(8,))", algorithm="pg", critic="none", progress=False, on_update=look)
"""


def without_look(code: str) -> str:
    """Without `on_update`, which would be waited for."""
    return code.format(look="pass").replace(", on_update=look", "")


def test_a_process_waits_for_the_callback_of_the_other():
    hasty = "import jaxtrpo.parallel.processes as processes\nprocesses.LATE_SECONDS = 3\n"
    slow = "import time; time.sleep(8 if row['update'] == 4 else 0)"
    # Without JAX's own exit, in which its coordinator may abort; the first process holds that, and leaves last.
    leave = "import os, time\ntime.sleep({})\nos._exit(0)\n"
    codes = (hasty + CODE.format(look=look) + leave.format(wait) for look, wait in ((slow, 2), ("pass", 0)))
    for code, said in by_hand(*codes):
        assert code == 0, said


@pytest.mark.parametrize("which", [0, 1])
def test_an_error_of_one_process_ends_the_other(which):
    begun = time.monotonic()
    ended = by_hand(*(CODE.format(look="1 / 0" if index == which else "pass") for index in (0, 1)))
    assert ended[0][0] != 0 and ended[1][0] != 0 and time.monotonic() - begun < 60
    assert "ZeroDivisionError" in ended[which][1] and "ZeroDivisionError" not in ended[1 - which][1]


def test_a_process_that_lives_but_never_comes_ends_the_other():
    """Both cases at the same time, because most of it is waiting: the first and the second process hang."""
    patient = "import jaxtrpo.parallel.processes as processes; processes.HEARTBEAT_SECONDS = 10\n"
    less_patient = patient + "processes.LATE_SECONDS, processes.LONG_LATE_SECONDS = 3, 30\n" + without_look(CODE)
    hangs = patient + CODE.format(look="import time; time.sleep(1000 if row['update'] > 1 else 0)")
    runs = [begin_by_hand(*(hangs if index == which else less_patient for index in (0, 1))) for which in (0, 1)]
    for which, ended in enumerate(map(ends, runs)):
        assert ended[1 - which][0] == cli.FAILED and ended[which][0] == -signal.SIGABRT  # by JAX
        assert "jaxtrpo: error: another process did not reach a collective within" in ended[1 - which][1]


STOPS = """
import os, signal
import jaxtrpo.parallel.processes as processes, jaxtrpo.rollout.evaluation as evaluation
import jaxtrpo.runs.output as output, jaxtrpo.training.record as record
processes.LATE_SECONDS, processes.LONG_LATE_SECONDS = 3, 15
def stop(*_): os.kill(os.getpid(), signal.SIGSTOP)
"""
STOPPED_AT = {
    "writing": (0, "output.Output.keep = stop", "pass"),
    "gathering": (1, "pass", "record.gather = stop"),
    "evaluating": (1, "evaluation.join_envs = stop", "pass"),
    "ending": (0, "pass", "processes.exchange = stop"),
}


@pytest.mark.parametrize("place", STOPPED_AT)
def test_a_process_that_stops_anywhere_ends_the_other(place, tmp_path):
    which, at_start, in_look = STOPPED_AT[place]
    healthy = STOPS + CODE.replace(
        "on_update", f"out={str(tmp_path / 'run')!r}, checkpoint_seconds=0, eval_every=320, on_update"
    )
    stops = healthy.replace("\nimport jaxtrpo\n", f"\nimport jaxtrpo\n{at_start}\n").format(
        look=f"exec({in_look!r}, globals())"
    )
    started = begin_by_hand(*(stops if index == which else without_look(healthy) for index in (0, 1)))
    [(code, said)] = ends([started[1 - which]])
    stopped = started[which]
    state = Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[0]
    stopped.kill()
    stopped.communicate()
    assert state == "T" and code == cli.FAILED
    assert "jaxtrpo: error: another process did not reach a collective within" in said


def test_who_interrupts_twice_does_not_wait_for_the_others():
    # A process that was started in the background may have been told to ignore interrupts.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    twice = "import os; [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]"
    begun = time.monotonic()
    of_first, of_second = by_hand(heed + CODE.format(look=twice), CODE.format(look="pass"))
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
    begun, train = time.monotonic(), CODE.format(look="pass")
    killed = train + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    looks = train + (LOOK_AT_THREADS if sys.platform == "linux" else "")
    ended = by_hand(*(killed if index == which else looks for index in (0, 1)))
    assert ended[which][0] == -signal.SIGKILL and "AssertionError" not in ended[1 - which][1]
    assert time.monotonic() - begun < 60


def test_what_one_process_finds_wrong_is_told_by_all(tmp_path):
    (tmp_path / "metrics.csv").write_text("of another run")
    done = launch(*TRAIN, "--out", tmp_path)
    assert done.returncode == cli.INPUT_ERROR
    assert "error: process 0: out=" in done.stderr and done.stderr.count("already holds a run") == 2


CANNOT = {
    ("CartPole-v1", "--algorithm", "a3c"): "does not support multi-process training",
    ("InvertedPendulum-v5", "--processes", "3"): "processes=3, but the launcher started 2",
    ("InvertedPendulum-v5", "--actors", "3"): "actors=3 must be a multiple of the 2 processes",
    ("InvertedPendulum-v5", "--seeds", "3"): "train_many (--seeds) supports only a single process",
}


def test_what_several_processes_cannot_do():
    code = f"""
from jaxtrpo.cli import main as cli
for words in {list(CANNOT)}:
    assert cli.main(["train", *words]) == cli.INPUT_ERROR, words
"""
    differ = "assert cli.main(['train', 'InvertedPendulum-v5', '--seed', '{}']) == cli.INPUT_ERROR"
    for returned, errors in by_hand(*(code + differ.format(seed) for seed in (1, 2))):
        assert returned == 0, errors
        for sentence in (*CANNOT.values(), "processes differ: seed=1 in process 0, seed=2 in process 1"):
            assert errors.count(sentence) == 1, errors


def test_what_a_launcher_must_say(capsys):
    for words, sentence in (
        (("launch", "--processes", "2", "--", "evaluate", "run"), "launch: expected `-- train ...`, not `evaluate`"),
        (("launch", "--processes", "0", "--", "train"), "processes=0 must be a whole number"),
    ):
        assert cli.main(words) == cli.INPUT_ERROR and sentence in capsys.readouterr().err
    code = f"""
import os
from jaxtrpo.cli import main as cli
assert cli.main({[*TRAIN, "--processes", "2"]}) == cli.INPUT_ERROR
os.environ |= {{"{ADDRESS}": "here", "{INDEX}": "0"}}
assert cli.main({[*TRAIN]}) == cli.INPUT_ERROR
os.environ["{COUNT}"] = "2"
assert cli.main({[*TRAIN]}) == cli.INPUT_ERROR
for processes in "1", "3":
    assert cli.main([*{[*TRAIN]}, "--processes", processes]) == cli.INPUT_ERROR
os.environ["{COUNT}"] = "1"
assert cli.main([*{[*TRAIN]}, "--processes", "2"]) == cli.INPUT_ERROR
os.environ["{COUNT}"] = "many"
assert cli.main([*{[*TRAIN]}, "--seeds", "2"]) == cli.INPUT_ERROR
"""
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert "processes=2, but no launcher was found: use `jaxtrpo launch --processes 2 -- train ...`" in done.stderr
    assert "JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID without JAX_NUM_PROCESSES: set all three" in done.stderr
    assert "JAX_COORDINATOR_ADDRESS=here, JAX_NUM_PROCESSES=2" in done.stderr
    for number, count in ((1, 2), (3, 2), (2, 1)):
        sentence = f"processes={number}, but the launcher started {count} (JAX_NUM_PROCESSES)"
        assert done.stderr.count(sentence) == 1
    assert "JAX_NUM_PROCESSES=many must be a number of processes" in done.stderr


def test_a_process_that_cannot_reach_the_first_names_its_address(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setattr(processes, "START_SECONDS", 0)
        for name, value in ((ADDRESS, address), (COUNT, "2"), (INDEX, "1")):
            monkeypatch.setenv(name, value)
        with pytest.raises(ConnectionError, match=f"^JAX_COORDINATOR_ADDRESS={address}: process 0 was not reached"):
            processes.join(None)
        unused.listen()
        processes._require_reachable(address, "1")
    processes._require_reachable(address, "0")  # which listens itself


def test_simulators_of_gymnasium_and_programs_are_stepped_by_their_own_process(tmp_path):
    words = ("--steps-per-update", 64, "--num-envs", 4, "--total-steps", 256)
    done = launch("train", "gymnasium:CartPole-v1", *words, "--policy", "mlp(hidden=(8,))", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path / "run")) == 4
