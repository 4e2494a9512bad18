"""`jaxtrpo algorithms`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from tyro.conf import Positional, arg

from jaxtrpo.cli.command import Work


@dataclasses.dataclass(frozen=True)
class Algorithms:
    """List all algorithms, rules, critics and policies with their settings and defaults."""

    name: Positional[Annotated[str | None, arg(metavar="NAME")]] = None
    """show only the entries of this name"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        from jaxtrpo.cli.catalogue import catalogue

        text = catalogue(self.name)

        def show() -> int:
            print(text)
            return 0

        return show
