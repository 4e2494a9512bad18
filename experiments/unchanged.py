"""Does TRPO still give the same runs, to the bit, as it did at an earlier commit?

    python experiments/unchanged.py [--against fa1a9da]

Short runs are trained by that commit and by the code as it lies here, with nothing compiled before, in the words that
each understands. What is compared is all that metrics.csv holds of both but seconds, as text, and the bytes of the
policies and of the moments of their observations. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from common.runs import TRAIN, as_flags, with_cache
from jaxtrpo.runs.directory import METRICS_FILE, POLICY_FILE

HERE = Path(__file__).parent.parent
AGAINST = "fa1a9da"  # the last commit with one algorithm
SINCE = Path("jaxtrpo") / "words.py"  # of code that understands the words of today
COMMON = {"total_steps": 40_000, "actors": 2}


class Case(NamedTuple):
    """A run."""

    env: str
    settings: Mapping[str, Any]
    # What the settings were called before an algorithm was a value, where that was another name.
    before: Mapping[str, Any] | None = None


CASES = (
    Case("HalfCheetah-v5", {}),
    Case("Hopper-v5", {"seed": 1}),
    Case(
        "Reacher-v5",
        {"algorithm": "trpo(gae_lambda=1)", "critic": "linear"},
        {"advantages": "monte_carlo", "critic": "linear"},
    ),
    Case("Swimmer-v5", {"adapt": "improvement", "max_kl": 0.001}),
    Case("InvertedPendulum-v5", {"actors": 1}),
    Case("brax:fast", {"adapt": "fixed", "seed": 2}),
    Case(
        "Walker2d-v5",
        {
            "algorithm": "trpo(cg_iterations=10, advantage_memory=0)",
            "policy": "mlp(hidden=(32, 32), initial_log_std=-1)",
            "critic": "mlp(epochs=3, hidden=(32,))",
            "steps_per_update": 4_096,
        },
        {
            "cg_iterations": 10,
            "advantage_memory": 0,
            "policy_hidden": "32 32",
            "initial_log_std": -1,
            "critic_epochs": 3,
            "critic_hidden": "32",
            "steps_per_update": 4_096,
        },
    ),
)


class Trained(NamedTuple):
    """What one run left."""

    rows: list[dict[str, str]]  # of metrics.csv
    arrays: dict[str, np.ndarray]  # of the policy, by their place in it


def check_out(commit: str, folder: Path) -> None:
    """Lays a commit out; the repository and its work tree stay as they are."""
    packed = subprocess.run(["git", "archive", commit], cwd=HERE, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def train(code: Path, case: Case, out: Path, cache: Path) -> Trained:
    """One run by the code that lies there."""
    today = case.before is None or (code / SINCE).exists()
    settings = {**COMMON, **(case.settings if today else case.before or {})}
    flags = [part for word in as_flags(settings) for part in (word.split(" ") if not today else [word])]
    # As many devices in both, whatever the machine has.
    environment = {**with_cache(cache), "PYTHONPATH": str(code), "JAX_NUM_CPU_DEVICES": str(COMMON["actors"])}
    command = [*TRAIN, case.env, *flags, "--quiet", "--out", str(out)]
    subprocess.run(command, cwd=code, env=environment, check=True, stdout=subprocess.DEVNULL)
    with (out / METRICS_FILE).open() as file:
        rows = list(csv.DictReader(file))
    content = serialization.msgpack_restore((out / POLICY_FILE).read_bytes())
    leaves = jax.tree.leaves_with_path({name: content[name] for name in ("params", "moments")})
    return Trained(rows, {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})


def require_own_code(code: Path) -> None:
    """Stops unless a command that is given there runs the code that lies there."""
    environment = {**os.environ, "PYTHONPATH": str(code)}
    ask = [sys.executable, "-c", "import jaxtrpo; print(jaxtrpo.__file__)"]
    found = subprocess.run(ask, cwd=code, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if Path(found).resolve().parent.parent != code.resolve():
        raise SystemExit(f"in {code} Python takes {found}")


def differences(then: Trained, now: Trained) -> list[str]:
    """In words; none if both are the same."""
    found = []
    if len(then.rows) != len(now.rows):
        found.append(f"{len(then.rows)} updates became {len(now.rows)}")
    for name in columns(then, now):
        pairs = zip(then.rows, now.rows, strict=False)
        others = [number for number, (old, new) in enumerate(pairs, 1) if old[name] != new[name]]
        if others:
            old, new = then.rows[others[0] - 1][name], now.rows[others[0] - 1][name]
            found.append(f"{name} in {len(others)} updates, first in {others[0]}: {old} became {new}")
    if then.arrays.keys() != now.arrays.keys():
        found.append(f"arrays {sorted(then.arrays.keys() ^ now.arrays.keys())} are not in both policies")
    for name in then.arrays.keys() & now.arrays.keys():
        old, new = then.arrays[name], now.arrays[name]
        if (old.dtype, old.shape, old.tobytes()) != (new.dtype, new.shape, new.tobytes()):
            found.append(f"policy{name}")
    return found


def columns(then: Trained, now: Trained) -> list[str]:
    """That are compared."""
    return [name for name in then.rows[0] if name in now.rows[0] and not name.endswith("_seconds")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default=AGAINST, metavar="COMMIT")
    arguments = parser.parse_args()
    changed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = {"then": folder / "code", "now": HERE}
        check_out(arguments.against, code["then"])
        for each in code.values():
            require_own_code(each)
        for number, case in enumerate(CASES):
            then, now = (
                train(place, case, folder / f"{when}{number}", folder / f"cache_{when}") for when, place in code.items()
            )
            found = differences(then, now)
            changed |= bool(found)
            compared = f"{len(now.rows)} updates, {len(columns(then, now))} columns, {len(now.arrays)} arrays"
            words = shlex.join((case.env, *as_flags(case.settings)))
            print(f"{words}: {'; '.join(found) or 'same to the bit'} ({compared})", flush=True)
    sys.exit(changed)


if __name__ == "__main__":
    main()
