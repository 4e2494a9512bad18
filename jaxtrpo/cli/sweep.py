"""`jaxtrpo sweep`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg

from jaxtrpo.cli.command import FAILED, INTERRUPTED, Work, needs
from jaxtrpo.config import Config
from jaxtrpo.config.checks import require_whole
from jaxtrpo.parallel.machine import available_cores
from jaxtrpo.runs.sweep.space import Values, combinations, parse_grid, parse_random, require_different, with_settings

SHOWN = 10  # trials


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Try settings, every trial on several seeds, one run a core; goes on where it was stopped."""

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """as for `jaxtrpo train`"""
    config: Annotated[Config, arg(name="")] = dataclasses.field(default_factory=Config)
    grid: UseAppendAction[tuple[str, ...]] = ()
    """values to try in every combination: max_kl=0.005,0.01; again for other settings"""
    random: UseAppendAction[tuple[str, ...]] = ()
    """values to draw: "log(critic_learning_rate, 1e-4, 1e-2)", uniform(...), integer(...), choice(NAME, VALUE, ...)"""
    tpe: FlagCreatePairsOff[bool] = False
    """draw where trials before were good (tree-structured Parzen estimators)"""
    trials: int | None = None
    """how many; all combinations of --grid if there is no --random, else 20"""
    seeds: int = 5
    """of each trial, 0 and up; what counts is their interquartile mean"""
    out: Path = Path("sweep")
    """directory of the runs, the table and the plot"""
    storage: str | None = None
    """database of the study, where several machines work on one: postgresql://...; DIR/study.sqlite if not given"""
    cores: int | None = None
    """runs side by side; all cores if not given"""

    def prepare(self) -> Work:
        """As for `Train`."""
        grid, drawn = parse_grid(self.grid), parse_random(self.random)
        dimensions = [*grid, *drawn]
        require_different(dimensions)
        require_whole(1, seeds=self.seeds)
        for name in ("trials", "cores"):
            if getattr(self, name) is not None:
                require_whole(1, **{name: getattr(self, name)})
        every = [] if drawn or self.tpe else list(combinations([each for each in grid if isinstance(each, Values)]))
        self._require_possible(dimensions)
        try:
            from jaxtrpo.runs.sweep.plot import draw_sweep
            from jaxtrpo.runs.sweep.study import Sweep as Plan
            from jaxtrpo.runs.sweep.study import open_study, ranked, run_sweep, write_table
        except ModuleNotFoundError as error:
            raise needs("sweep", error, "sweep") from error
        from jaxtrpo.runs.directory import hold

        out = self.out.expanduser().absolute()
        out.mkdir(parents=True, exist_ok=True)
        with hold(out):
            pass
        study = open_study(out, self.env, self.storage, tpe=self.tpe, seed=self.config.seed)
        trials = self.trials or (len(every) if every else 20)
        plan = Plan(self.env, out, dimensions, every[:trials], trials, self.seeds, self._flags, study)

        def work() -> int:
            try:
                with hold(out):
                    run_sweep(plan, self.cores or available_cores(), lambda text: print(text, file=sys.stderr))
            except KeyboardInterrupt:
                print(f"interrupted; the same words go on with {out}", file=sys.stderr)
                return INTERRUPTED
            done = ranked(study)
            if not done:
                print("no trial came to its end", file=sys.stderr)
                return FAILED
            files = write_table(study, out), draw_sweep(done, dimensions, out)
            self._report(done, files)
            return 0

        return work

    def _settings(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        from jaxtrpo.config.specs import parse

        config = dataclasses.asdict(self.config)

        def default(part: str) -> str:
            return getattr(parse("algorithm", config["algorithm"]), part)

        return with_settings(config, chosen, default)

    def _require_possible(self, dimensions: list) -> None:
        """Every value by itself, beside the first of the others."""
        from jaxtrpo.config.specs import parse

        usual = {each.name: each.ends[0] for each in dimensions}
        for each in dimensions:
            for value in each.ends:
                settings = self._settings({**usual, each.name: value})
                Config(**settings)
                for part in ("algorithm", "policy", "critic", "adapt"):
                    if settings[part] is not None:
                        parse(part, settings[part])

    def _flags(self, chosen: Mapping[str, Any]) -> list[str]:
        """Words of `jaxtrpo train`, of what is not the default."""
        words: list[str] = []
        for name, value in self._settings(chosen).items():
            if value == getattr(Config(), name) or name in ("seed", "actors"):
                continue
            flag = name.replace("_", "-")
            words += (
                [f"--no-{flag}" if value is False else f"--{flag}"]
                if isinstance(value, bool)
                else [f"--{flag}", str(value)]
            )
        return words

    def _report(self, done: list, files: tuple[Path, ...]) -> None:
        from jaxtrpo.runs.sweep.study import in_words

        print(f"{'trial':>5}  {'return_100':>10}  settings")
        for trial in done[:SHOWN]:
            print(f"{trial.number:>5}  {trial.value:>10.1f}  {in_words(trial.params)}")
        print(*files, sep="\n")
        best = shlex.join(["jaxtrpo", "train", self.env, *self._flags(done[0].params), "--out", "best"])
        print(f"the best again: {best}")
