"""`jaxtrpo algorithms`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from tyro.conf import Positional, arg

from jaxtrpo.cli.command import Work


@dataclasses.dataclass(frozen=True)
class Algorithms:
    """List algorithms, rules, critics and policies with their settings."""

    name: Positional[Annotated[str | None, arg(metavar="NAME")]] = None
    """only what is called so"""

    def prepare(self) -> Work:
        """As for `Train`."""
        from jaxtrpo.cli.catalogue import catalogue

        text = catalogue(self.name)

        def show() -> int:
            print(text)
            return 0

        return show
