"""The command that starts jaxtrpo in another process."""

from __future__ import annotations

import sys
from pathlib import Path

import jaxtrpo


def own_command() -> tuple[str, ...]:
    """Returns the command, to which arguments of `jaxtrpo` are added.

    `python -m` finds modules of the current directory before Python's own, so that a file `random.py` there would end
    the process. Environments and other parts that are modules there are found all the same, since commands look there
    where they are named. Only a jaxtrpo that is not installed, but lies there itself, needs the directory.
    """
    lies_here = Path(jaxtrpo.__file__).parents[1] == Path.cwd()
    return (sys.executable, *([] if lies_here else ["-P"]), "-m", "jaxtrpo")
