"""Does a change leave runs as they were, to the bit?

    python experiments/unchanged.py [--against HEAD]

For changes that shall change nothing, such as moving code. Short runs of one actor are trained by another commit and by
the code as it lies here, with nothing compiled before. What is compared is all that metrics.csv holds of both but
seconds, as text, and the bytes of the policies and of the moments of their observations. Exits with 1 if anything
differs.

Bits are promised for one actor. Several sum in an order that the compiler chooses and changes with the code around it,
so that what they promise is the same distribution of runs: two_actors.py compares that.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from common.commits import run, then_and_now
from common.runs import as_flags
from jaxtrpo.runs.directory import POLICY_FILE
from jaxtrpo.runs.msgpack_file import content_of

AGAINST = "HEAD"
COMMON = {"total_steps": 40_000, "actors": 1, "discount": 0.99}  # whatever a version has by default


class Case(NamedTuple):
    """A run."""

    env: str
    settings: Mapping[str, Any]


CASES = (
    Case("HalfCheetah-v5", {}),
    Case("Hopper-v5", {"seed": 1}),
    Case("Reacher-v5", {"algorithm": "trpo(gae_lambda=1)", "critic": "linear"}),
    Case("Swimmer-v5", {"adapt": "improvement", "max_kl": 0.001}),
    Case("InvertedPendulum-v5", {"algorithm": "ppo"}),
    Case("Pendulum-v1", {"algorithm": "naf", "total_steps": 10_000}),
    Case("CartPole-v1", {"algorithm": "a2c"}),
    Case("brax:fast", {"adapt": "fixed", "seed": 2}),
    Case("HalfCheetah-v5", {"algorithm": "trpo_replay", "total_steps": 20_000}),
    Case(
        "Walker2d-v5",
        {
            "algorithm": "trpo(cg_iterations=10, advantage_memory=0)",
            "policy": "mlp(hidden=(32, 32), initial_log_std=-1)",
            "critic": "mlp(epochs=3, hidden=(32,))",
            "steps_per_update": 4_096,
        },
    ),
)


class Trained(NamedTuple):
    """What one run left."""

    rows: list[dict[str, str]]  # of metrics.csv
    arrays: dict[str, np.ndarray]  # of the policy, by their place in it


def train(code: Path, case: Case, out: Path, cache: Path) -> Trained:
    """One run by the code that lies there."""
    rows = run(code, case.env, {**COMMON, **case.settings}, out, cache)
    content = serialization.msgpack_restore(content_of((out / POLICY_FILE).read_bytes()))
    leaves = jax.tree.leaves_with_path({name: content[name] for name in ("params", "moments")})
    return Trained(rows, {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})


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
    with then_and_now(arguments.against) as (folder, code):
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
