"""Simulators in processes of another Python interpreter, for packages that cannot be installed beside JAX or ours.

That interpreter needs Gymnasium and NumPy, but neither JAX nor this package: it gets the directory of this package, and
of that imports only what worker processes need.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtrpo.config.messages import described, one_line, short, type_name
from jaxtrpo.envs.gymnasium.spec import Source, find_source
from jaxtrpo.envs.modules import split, value_of

if TYPE_CHECKING:
    from jaxtrpo.envs.gymnasium.planning import How, Planned

SECONDS_TO_PLAN = 120.0  # simulators may import large packages
_PACKAGE = Path(__file__).parents[2]
# Does not make the packages beside this one visible, as its directory in `sys.path` would.
_IMPORT = f"""
import importlib.util, sys
sys.path[:0] = [] if "" in sys.path else [""]
spec = importlib.util.spec_from_file_location("{_PACKAGE.name}", {str(_PACKAGE / "__init__.py")!r})
sys.modules["{_PACKAGE.name}"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["{_PACKAGE.name}"])
"""


@dataclass(frozen=True)
class NamedSource:
    """How to create simulators that another interpreter finds by their name (see `spec.Source`)."""

    python: str  # path of the interpreter
    name: str
    source: str  # as the user wrote it
    options: Mapping[str, Any] = field(default_factory=dict)
    masks: str | None = None

    def make_single(self) -> Any:
        """See `spec.Source`."""
        return self._found().make_single()

    def make_vector(self, num_envs: int) -> Any:
        """See `spec.Source`."""
        return self._found().make_vector(num_envs)

    def _found(self) -> Source:
        return dataclasses.replace(_find(self.source, self.options, self.name), masks=self.masks)


def command_of(python: str | None, module: str) -> list[str]:
    """Returns the beginning of a command that calls `main` of a module in a new process.

    Args:
      python: path of an interpreter; None: this one, with this path of modules.
      module: a module of this package.
    """
    load = f"import sys; sys.path[:] = {sys.path!r}" if python is None else _IMPORT
    return [python or sys.executable, "-c", f"{load}\nfrom {module} import main\nmain()"]


def plan_elsewhere(
    python: str, source: str | Callable[..., Any], options: Mapping[str, Any], name: str | None, how: How
) -> Planned:
    """Plans how to step an environment that another interpreter makes; see `planning.plan_env`.

    Raises:
      ValueError: the interpreter cannot be started or lacks a package, or the environment cannot be used.
    """
    if not isinstance(source, str):
        raise ValueError(
            f"python={short(python, 60)}: another interpreter makes environments by name; give a function as "
            "'module:function' or 'file.py:function'"
        )
    if how.processes == 0:
        raise ValueError(f"processes=0: another interpreter (python={short(python, 60)}) needs at least 1 process")
    if not isinstance(python, str) or shutil.which(python := os.path.expanduser(python)) is None:
        raise ValueError(f"python={short(python, 60)} must be the path of a Python interpreter")
    try:
        request = pickle.dumps((python, source, dict(options), name, tuple(how)))
    except Exception as error:
        raise ValueError(f"python={short(python, 60)}: an option cannot be sent to it: {described(error)}") from error
    seconds = max(SECONDS_TO_PLAN, how.timeout)
    with tempfile.TemporaryFile() as errors:  # no pipe, which processes of the simulator could keep open
        streams = {"input": request, "stdout": subprocess.PIPE, "stderr": errors}
        try:
            done = subprocess.run(command_of(python, __name__), timeout=seconds, check=False, **streams)
        except subprocess.TimeoutExpired:
            raise ValueError(f"{source}: {python} did not create it within {seconds:.0f} seconds") from None
        except OSError as error:
            raise ValueError(f"python={short(python, 60)} cannot be started: {error.strerror}") from error
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    try:
        planned = pickle.loads(done.stdout)
    except Exception:  # it has not come to its answer
        why = one_line(lines[-1], 200) if lines else f"it ended with exit status {done.returncode}"
        raise ValueError(f"{source}: {python} did not create it: {why}") from None
    if isinstance(planned, str):
        raise ValueError(planned)
    return planned


def main() -> None:
    """Plans what the standard input asks for, and writes the plan, or what is wrong, to the standard output."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what simulators print
    from jaxtrpo.envs.gymnasium.errors import SimulatorError, without_traceback
    from jaxtrpo.envs.gymnasium.planning import How, Planned, plan_env

    python, source, options, name, how = pickle.loads(sys.stdin.buffer.read())
    try:
        found = _find(source, options, name)
        plan, unmasked = plan_env(found, How(*how))
        named = NamedSource(python, found.name, source, options, plan.source.masks)
        planned: Planned | str = Planned(dataclasses.replace(plan, source=named, needs_processes=True), unmasked)
    except SimulatorError as error:
        planned = without_traceback(error)
    except ValueError as error:
        planned = str(error)
    with answer:
        pickle.dump(planned, answer)
    os._exit(0)  # a simulator may hang at its exit


def _find(source: str, options: Mapping[str, Any], name: str | None) -> Source:
    """Finds a registered id, or a function in a module or file."""
    found = split(source)
    value = None if found is None else value_of(source, *found)
    if value is not None and not callable(value):
        raise ValueError(f"{source} must be a function that returns a gymnasium.Env, not of type {type_name(value)}")
    return find_source(source if value is None else value, options, name)
