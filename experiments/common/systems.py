"""Ways to train, ours and those of other libraries, each a command that trains once and ends."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.peer import BASELINES
from common.runs import TRAIN, as_flags, with_cache
from common.watch import Enough, Watched, watch

SECOND = ", second time"  # ends the names of systems that find compiled what they need


class System(NamedTuple):
    """A way to train."""

    command: Sequence[str]  # before the name of the task
    settings: Mapping[str, Any]
    what: str
    compiled: bool = False  # before the clock starts

    @property
    def ours(self) -> bool:
        """Whether it is jaxtrpo."""
        return self.command == TRAIN

    def words(self, env: str, seed: int, total_steps: int) -> list[str]:
        """The whole command line."""
        return [*self.command, env, *as_flags({**self.settings, "seed": seed, "total_steps": total_steps})]

    def train(
        self,
        env: str,
        seed: int,
        total_steps: int,
        enough: Enough | None = None,
    ) -> Watched:
        """One training, watched. Ours starts without any compiled function, or with those of one update before.

        An evaluation that is `enough` (see `watch`) is the end.

        Raises:
          CalledProcessError: the command failed.
        """
        words = self.words(env, seed, total_steps)
        if not self.ours:
            return watch(words, enough=enough)
        with tempfile.TemporaryDirectory() as folder:
            environment, words = with_cache(folder), [*words, "--quiet", "--out", f"{folder}/run"]
            if self.compiled:
                one_update = [*self.words(env, seed, 1), "--quiet"]
                subprocess.run(one_update, env=environment, check=True, stdout=subprocess.DEVNULL)
            return watch(words, metrics=Path(folder) / "run" / "metrics.csv", environment=environment, enough=enough)


def our_systems(name: str, what: str, **settings: Any) -> dict[str, System]:
    """Ours with nothing compiled, and with what it compiled before."""
    return {
        name: System(TRAIN, settings, f"{what}; compiles everything first"),
        name + SECOND: System(TRAIN, settings, "the same where it has been run before", compiled=True),
    }


def peer_system(script: str, what: str, **settings: Any) -> System:
    """A script of `baselines`."""
    return System((sys.executable, str(BASELINES / script)), settings, what)
