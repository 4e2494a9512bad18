"""What breaks when everything goes wrong: kills, signals, flipped bits, strangers, malformed files and bad input?

    pip install '.[experiments,test]'
    python experiments/attack.py [--quick] [PART ...]

Each part is a list of attacks, each of which must end as it should: `kills` and `signals` at random moments of small
runs, `flips` of single bits of a checkpoint, `strangers` at the port of `jaxtrpo launch`, `malformed` run directories
for the commands that show runs, and `inputs` typed to the command. Attacks that were made are kept in
experiments/results/attack/PART.csv and are not repeated; remove the file to start again.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from common.bad_inputs import BAD_INPUTS
from common.comparison import extent_of, options
from common.machine import machine
from common.runs import as_flags, differences
from common.tables import write_csv
from jaxtrpo.runs.checkpoint import load_checkpoint
from jaxtrpo.runs.policy_file import save_policy

TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS), *(str(TESTS / name) for name in ("cli", "runs", "runs/view"))]  # whose tables are used
REFUSAL_SECONDS = 5.0
START_SECONDS = 200.0  # within which a run must make updates and a process must end, on a busy machine
NUMBERS = {"kills": 60, "signals": 60, "flips": 12, "strangers": 18, "malformed": 22, "inputs": None}
TASK = {"steps_per_update": 256, "total_steps": 10_240, "seed": 3, "checkpoint_seconds": 0, "actors": 1}
TASK |= {"policy": "mlp(hidden=(16,))", "critic": "mlp(hidden=(16,))"}
SIGNALLED = """
import gc, jaxtrpo
class Slow:
    def __del__(self):
        sum(range(20_000))
def collect(row, state):
    for _ in range(5):
        loop = [Slow()]
        loop.append(loop)
    gc.collect()
try:
    jaxtrpo.train("InvertedPendulum-v5", algorithm="{algorithm}", actors=1, num_envs=4, total_steps=10**8,
                  policy="mlp(hidden=(8,))", checkpoint_seconds=1000, out="{out}", progress=False, on_update=collect)
except KeyboardInterrupt:
    raise SystemExit(130)
"""
ALGORITHMS = ("trpo", "ppo", "a3c", "naf(replay=4096)", "naf(replay=4096, asynchronous=True)", "trpo_replay")
SIGNALS = ((signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT))


class Attack(NamedTuple):
    """An attack and how it ended."""

    part: str
    name: str
    survived: bool
    seconds: float  # from the attack to the end of the process
    processor_seconds: float  # of a refusal
    how: str


class Zygote:
    """Starts processes of one environment quickly (see common/zygote.py), one at a time."""

    def __init__(self, folder: Path, **variables: str):
        self.output = folder / "output"
        command = [sys.executable, str(Path(__file__).parent / "common" / "zygote.py"), str(self.output)]
        variables = {**os.environ, **(variables or {"JAX_NUM_CPU_DEVICES": "1", "NPROC": "1"})}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, env=variables, **pipes)
        self.imports = float(self.process.stdout.readline())  # processor seconds
        self.child, self.used = 0, 0.0  # of the newest process: its id, and processor seconds including the imports

    def start(self, work: list[str] | str) -> int:
        """Starts a process and returns its id."""
        self.process.stdin.write(json.dumps(work) + "\n")
        self.child = int(self.process.stdout.readline())
        return self.child

    def end(self) -> int:
        """Waits for the process, which is killed if it hangs, and returns its exit code."""
        timer = threading.Timer(START_SECONDS, os.kill, (self.child, signal.SIGKILL))
        timer.start()
        code, used = self.process.stdout.readline().split()
        timer.cancel()
        self.used = self.imports + float(used)
        return int(code)

    def said(self) -> str:
        """Returns the output of the process that has ended."""
        return self.output.read_text(errors="replace")


def rows_of(out: Path) -> int:
    """Returns the number of updates in metrics.csv."""
    path = out / "metrics.csv"
    return max(path.read_text().count("\n") - 1, 0) if path.exists() else 0


def saved_updates(out: Path) -> int:
    """Returns the number of updates that the checkpoint knows; 0 without one."""
    if not (out / "checkpoint.msgpack").exists():
        return 0
    return len(load_checkpoint(out).metrics.get("update", ()))  # no columns before the first update


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds; raises TimeoutError after `START_SECONDS`."""
    ends = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(0.002)


def kills(folder: Path, names: list[str]) -> Iterator[Attack]:
    """SIGKILL at a random moment; the run is resumed, and compared with an uninterrupted one."""
    zygote, rng = Zygote(folder), random.Random(0)
    train = ["train", "InvertedPendulum-v5", "--quiet", "--resume", *as_flags(TASK), "--out"]
    whole = folder / "whole"
    zygote.start([*train, str(whole)])
    assert zygote.end() == 0, zygote.said()
    with (whole / "metrics.csv").open() as file:
        lasts = [float(row["wall_seconds"]) for row in csv.DictReader(file)]
    for number in range(NUMBERS["kills"]):
        name, moment, out = f"kill {number}", rng.uniform(0, 1), folder / f"killed-{number}"
        if name in names:
            continue
        child = zygote.start([*train, str(out)])
        wait_for(lambda out=out: rows_of(out) > 0)
        time.sleep(moment * (lasts[-1] - lasts[0]))
        begin = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.kill(child, signal.SIGKILL)
        zygote.end()
        saved = saved_updates(out)
        zygote.start([*train, str(out)])
        code = zygote.end()
        differ = differences(whole, out) if code == 0 else [zygote.said()[-200:]]
        how = f"resumed after update {saved}" + (f"; differs: {differ}" if differ else "")
        shutil.rmtree(out)
        yield Attack("kills", name, code == 0 and not differ, time.monotonic() - begin, 0.0, how)


def signals(folder: Path, names: list[str]) -> Iterator[Attack]:
    """SIGTERM and SIGINT while every update forces garbage collections; everything must be saved."""
    zygote, rng = Zygote(folder), random.Random(1)
    for number in range(NUMBERS["signals"]):
        algorithm, sent = ALGORITHMS[number % len(ALGORITHMS)], SIGNALS[number // len(ALGORITHMS) % len(SIGNALS)]
        name, out = f"{number}: {' '.join(each.name for each in sent)} to {algorithm}", folder / f"signalled-{number}"
        updates, gap = rng.randint(1, 20), rng.choice((0.0, 0.01, 0.1))
        if name in names:
            continue
        child = zygote.start(SIGNALLED.format(algorithm=algorithm, out=out))
        wait_for(lambda out=out, updates=updates: rows_of(out) >= updates)
        begin = time.monotonic()
        for each in sent:
            os.kill(child, each)
            time.sleep(gap)
        code, wanted = zygote.end(), 128 + (signal.SIGTERM if signal.SIGTERM in sent else signal.SIGINT)
        saved = saved_updates(out)
        # A second signal may interrupt an update whose row has been written.
        complete = rows_of(out) - saved in ((0,) if len(sent) == 1 else (0, 1))
        said = zygote.said()
        # A second one raises at once; Python reports the exception, and drops it, where it collects garbage by then.
        # After the run has ended, Python's own handlers get it.
        late = len(sent) > 1 and code == -sent[1]
        quiet = "Traceback" not in said or late or (len(sent) > 1 and said.startswith("Exception ignored in"))
        how = f"exit code {code}, {saved} of {rows_of(out)} updates saved" + (f", {said[:100]}" if said else "")
        good = (code == wanted or late) and complete and quiet
        shutil.rmtree(out)
        yield Attack("signals", name, good, time.monotonic() - begin, 0.0, how)


def flips(folder: Path, names: list[str]) -> Iterator[Attack]:
    """One bit of a checkpoint; resuming must refuse it in a sentence."""
    zygote, rng, out = Zygote(folder), random.Random(2), folder / "flipped"
    train = ["train", "InvertedPendulum-v5", "--quiet", "--resume", *as_flags(TASK), "--out", str(out)]
    zygote.start(train)
    assert zygote.end() == 0, zygote.said()
    path = out / "checkpoint.msgpack"
    whole = path.read_bytes()
    for _ in range(NUMBERS["flips"]):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        name = f"bit {bit} of byte {at}"
        if name in names:
            continue
        path.write_bytes(bytes(byte ^ (1 << bit if i == at else 0) for i, byte in enumerate(whole)))
        begin = time.monotonic()
        zygote.start(train)
        code, said = zygote.end(), zygote.said()
        yield Attack("flips", name, code == 2 and one_sentence(said), time.monotonic() - begin, 0.0, said.strip())


def one_sentence(said: str) -> bool:
    """Whether the output is an error in one line."""
    return said.count("\n") == 1 and said.startswith("jaxtrpo: error: ")


def _flood(data: bytes, *, times: int = 1, gap: float = 0.0, hold: float = 0.0) -> Callable[[socket.socket], None]:
    def send(one: socket.socket) -> None:
        for _ in range(times):
            one.sendall(data)
            time.sleep(gap)
        time.sleep(hold)

    return send


def _reset(one: socket.socket) -> None:
    one.sendall(b'{"index": 0, "count": 7}\n')
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close sends RST


STRANGERS = {
    "{}": _flood(b"{}\n"),
    "an index of Infinity": _flood(b'{"index": Infinity}\n'),
    "an index of NaN": _flood(b'{"index": NaN}\n'),
    "100,000 brackets": _flood(b"[" * 100_000 + b"\n"),
    "a wrong count, then a reset": _reset,
    "five seconds of silence": _flood(b"", hold=5.0),
    "one byte a second": _flood(b"{", times=5, gap=1.0),
    "a line without end": _flood(b"x" * 2**20, times=16),
    "HTTP": _flood(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "HTTP/2 without frames": _flood(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", hold=2.0),
    "HTTP/2 with a malformed frame": _flood(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64),
    "HTTP/2 with 1,000 settings": _flood(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" * 1000),
    "TLS": _flood(bytes.fromhex("1603010200010001fc0303") + bytes(64)),
    "SSH": _flood(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "random bytes": _flood(random.Random(3).randbytes(4096)),
    "zeros": _flood(bytes(2**16)),
    "nothing": _flood(b""),
    "half a preface": _flood(b"PRI * HT"),
}


def strangers(folder: Path, names: list[str]) -> Iterator[Attack]:
    """Connections to the port at which processes meet, while they train; the training must reach its end."""
    rest = [name for name in STRANGERS if name not in names]
    for group in (rest[start : start + 6] for start in range(0, len(rest), 6)):
        out = folder / f"launched-{group[0]}".replace(" ", "-").replace("/", "-")
        flags = as_flags({**TASK, "total_steps": 10**8, "num_envs": 16, "actors": 2})
        words = [*"launch --processes 2 -- train InvertedPendulum-v5 --quiet".split(), *flags, "--out", str(out)]
        process = subprocess.Popen([sys.executable, "-m", "jaxtrpo", *words], stderr=subprocess.PIPE, text=True)
        wait_for(lambda out=out: rows_of(out) > 2)
        port = _port_of(process)
        for name in group:
            begin, before = time.monotonic(), rows_of(out)
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
                    STRANGERS[name](one)
            except OSError:  # the server has closed the connection
                pass
            try:
                wait_for(lambda before=before, out=out: rows_of(out) > before + 2)
                how, good = "training continues", True
            except TimeoutError:
                how, good = f"no updates; exit code {process.poll()}", False
            yield Attack("strangers", name, good, time.monotonic() - begin, 0.0, how)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=START_SECONDS)[1]
        assert process.returncode == 143 and "Traceback" not in errors, errors


def _port_of(process: subprocess.Popen) -> int:
    """Returns the port at which the processes of a launcher meet."""
    child = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()[0]
    variables = Path(f"/proc/{child}/environ").read_text().split("\0")
    address = next(each for each in variables if each.startswith("JAX_COORDINATOR_ADDRESS="))
    return int(address.rpartition(":")[2])


def malformed(folder: Path, names: list[str]) -> Iterator[Attack]:
    """A malformed run directory: watch shows the others, other commands work or refuse it in a sentence."""
    from test_policy_file import make_policy
    from test_report import MALFORMED, get, make_full_run

    from jaxtrpo.runs.view.watch import serving

    zygote = Zygote(folder)
    kinds = {**MALFORMED, "a pipe": ("metrics.csv", None), "a pipe of settings": ("config.json", None)}
    kinds |= {
        "an empty table": ("metrics.csv", ""),
        "an empty policy": ("policy.msgpack", ""),
        "a pipe as policy": ("policy.msgpack", None),
        "words as policy": ("policy.msgpack", "words"),
        "settings that are empty": ("config.json", ""),
    }
    for name, (file, text) in kinds.items():
        if name in names:
            continue
        place, begin, problems = folder / f"malformed-{name}".replace(" ", "-"), time.monotonic(), []
        shutil.rmtree(place, ignore_errors=True)
        make_full_run(place / "run")
        other = make_full_run(place / "other")
        save_policy(other, make_policy())
        (other / file).unlink(missing_ok=True)
        os.mkfifo(other / file) if text is None else (other / file).write_bytes(text.encode(errors="surrogateescape"))
        with serving([place]) as address:
            found = json.loads(get(f"{address}/data".replace("//data", "/data")))
        if not found["runs"]:
            problems.append("watch shows nothing")
        for words in (f"report {other} --out {place}/r.html", f"plot {other} --out {place}/c", f"evaluate {other}"):
            zygote.start(shlex.split(words))
            code, said = zygote.end(), zygote.said()
            if not (code == 0 or (code == 2 and one_sentence(said))):
                problems.append(f"{words.split()[0]}: exit code {code}, {said[-200:]!r}")
        how = "; ".join(problems) or "shown or refused in a sentence"
        yield Attack("malformed", name, not problems, time.monotonic() - begin, 0.0, how)


def inputs(folder: Path, names: list[str]) -> Iterator[Attack]:
    """Bad input; each must be refused in time, without a traceback and without changing a file."""
    from test_bad_input import TABLE, directories

    place = folder / "inputs"
    place.mkdir()
    os.chdir(place)
    directories()
    path = os.pathsep.join([str(TESTS), *sys.path])
    zygote = Zygote(folder, MUJOCO_GL="egl", PYTHONPATH=path)
    for words in dict.fromkeys((*(words for words, _ in TABLE), *BAD_INPUTS)):
        if words in names:
            continue
        found = _refused(zygote, words)
        if not found.survived and found.processor_seconds > REFUSAL_SECONDS:  # once more, in case others were at work
            found = _refused(zygote, words)
        yield found


def _refused(zygote: Zygote, words: str) -> Attack:
    tree = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    begin = time.monotonic()
    zygote.start(words.split())
    code, said = zygote.end(), zygote.said()
    seconds, used = time.monotonic() - begin, zygote.used
    after = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file() and "new" not in path.parts}
    good = code == 2 and "Traceback" not in said and used < REFUSAL_SECONDS and after == tree
    lines = [line for line in said.splitlines() if line.startswith("jaxtrpo: error")]
    how = lines[-1] if lines else f"exit code {code}: {' '.join(said.split())[-160:]}"
    return Attack("inputs", words, good, seconds, used, how)


PARTS = {each.__name__: each for each in (kills, signals, flips, strangers, malformed, inputs)}


def read(path: Path) -> list[Attack]:
    """Returns the attacks of a part that were made before."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [
        Attack(part, name, good == "True", float(wall), float(used), how) for part, name, good, wall, used, how in rows
    ]


def summary(attacks: list[Attack]) -> str:
    """Returns the page of results."""
    lines = [
        "# Attacks",
        "",
        f"`python experiments/attack.py` on {machine()}.",
        "Other work used the same cores, so seconds are upper bounds.",
        "",
        "| part | attacks made | survived | median s | longest s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in PARTS:
        found = [each for each in attacks if each.part == name]
        if found:
            seconds = sorted(each.processor_seconds if name == "inputs" else each.seconds for each in found)
            good = sum(each.survived for each in found)
            made = f"{len(found)} of {NUMBERS[name] or len(found)}"
            lines.append(f"| {name} | {made} | {good} | {seconds[len(found) // 2]:.1f} | {seconds[-1]:.1f} |")
    lines += ["", "Seconds are of the wall clock; for `inputs` of the processor, with imports, and at most 5 s."]
    lines += ["", *(f"- `{name}`: {' '.join((part.__doc__ or '').split())}" for name, part in PARTS.items())]
    failed = [each for each in attacks if not each.survived]
    lines += ["", "## What did not end as it should", ""] if failed else []
    lines += [f"- `{each.part}`, {each.name}: {each.how} ({each.processor_seconds:.1f} s)" for each in failed]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; all if not given")
    arguments = parser.parse_args()
    if arguments.quick:
        NUMBERS.update(kills=2, signals=2, flips=2)
    folder = extent_of("attack", (), quick=arguments.quick).folder.absolute()
    start = Path.cwd()
    for name in arguments.parts or PARTS:
        attacks = read(folder / f"{name}.csv")
        with tempfile.TemporaryDirectory() as place:
            for attack in PARTS[name](Path(place), [each.name for each in attacks]):
                how = " ".join(attack.how.split()).replace(place, "DIR")
                seconds, used = round(attack.seconds, 2), round(attack.processor_seconds, 2)
                attacks.append(attack._replace(seconds=seconds, processor_seconds=used, how=how))
                write_csv(folder / f"{name}.csv", Attack._fields, attacks)
                print(*attacks[-1], flush=True)
            os.chdir(start)
    every = [attack for name in PARTS for attack in read(folder / f"{name}.csv")]
    (folder / "README.md").write_text(summary(every))


if __name__ == "__main__":
    main()
