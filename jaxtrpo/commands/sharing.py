"""`jaxtrpo export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from jaxtrpo.commands.work import Work, needs


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a policy as ONNX and StableHLO, for those who have no jaxtrpo."""

    directory: Positional[Annotated[Path, arg(metavar="DIR")]]
    """a run, or a state that was kept of one"""
    out: Path | None = None
    """directory of policy.onnx and policy.stablehlo; DIR/export if not given"""
    card: FlagCreatePairsOff[bool] = False
    """also a model card, README.md, in the form that the Hugging Face hub reads; lets the policy act for it"""
    episodes: int = 10
    """of the evaluation in the card"""

    def prepare(self) -> Work:
        """As for `Train`."""
        from jaxtrpo.devices import choose_actors
        from jaxtrpo.evaluate import prepare_evaluation
        from jaxtrpo.runs.export import export_policy
        from jaxtrpo.runs.policy_file import load_policy

        choose_actors(program=True)  # it may be
        policy = load_policy(self.directory)
        out = (self.out or self.directory / "export").expanduser()
        if out.exists() and not out.is_dir():
            raise NotADirectoryError(f"out={str(out)!r} is not a directory")
        try:
            import jax2onnx  # noqa: F401
            import onnx  # noqa: F401

            from jaxtrpo.runs.card import write_card
        except ModuleNotFoundError as error:
            raise needs("export", error, "share") from error
        from jaxtrpo.runs.read import find_runs, read_run

        evaluate = prepare_evaluation(policy, None, self.episodes) if self.card else None

        def work() -> int:
            files = export_policy(policy, out)
            if evaluate is not None:
                try:
                    run = read_run(find_runs([self.directory])[0])
                except FileNotFoundError:  # a kept state has no metrics.csv
                    run = None
                files.append(write_card(policy, run, evaluate(0), out))
            for path in files:
                print(path)
            return 0

        return work
