"""Commands that show runs: `jaxtrpo plot`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from jaxtrpo.commands.work import Work, needs


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw learning curves: interquartile means over seeds, with their intervals."""

    directories: Positional[Annotated[tuple[Path, ...], arg(metavar="DIR...")]]
    """runs, or directories that hold some; those that differ by nothing but their seed are one line"""
    out: Path = Path("curves")
    """files without their ending: curves.png, curves.svg and curves.csv"""
    x: Literal["env_steps", "update", "wall_seconds"] = "env_steps"
    """environment steps, updates or seconds"""
    y: str = "return_100"
    """column of metrics.csv"""

    def prepare(self) -> Work:
        """As for `Train`."""
        try:
            from jaxtrpo.runs.plot import curves_of, draw
        except ModuleNotFoundError as error:
            raise needs("plot", error, "view") from error
        from jaxtrpo.runs.read import find_runs, read_run

        if not self.directories:
            raise ValueError("DIR: give the directory of at least one run")
        if not self.out.expanduser().parent.is_dir():
            raise NotADirectoryError(f"out={str(self.out)!r}: there is no directory {self.out.parent}")
        curves = curves_of([read_run(place) for place in find_runs(self.directories)], self.x, self.y)

        def work() -> int:
            for path in draw(curves, self.out.expanduser(), x=self.x, y=self.y):
                print(path)
            return 0

        return work
