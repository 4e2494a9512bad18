"""Compiled functions of runs, which later runs in the same process use again if they differ in data alone."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import jax

from jaxtrpo.config import Config, Sizes
from jaxtrpo.config.specs import is_built_in
from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.registry import always_makes_the_same
from jaxtrpo.parallel.actors import Actors

MOST_RUNS = 8  # whose programs are kept, or two for each device: those that were used last
# Settings that no compiled function depends on, or that it gets as an argument.
DATA = (
    "total_steps", "seed", "max_kl", "eval_every", "start_from", "stop_at_return", "stop_after_evaluations",
    "stop_after_seconds",
)  # fmt: skip

T = TypeVar("T")


class Programs:
    """Compiled functions by name."""

    def __init__(self) -> None:
        """Starts empty."""
        self._made = dict[Hashable, Any]()

    def get(self, name: Hashable, make: Callable[[], T]) -> T:
        """Returns the function of this name, which is made when it is first asked for."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


_kept, _lock = OrderedDict[Hashable, Programs](), threading.Lock()


def programs_of(kind: Hashable | None) -> Programs:
    """Returns the programs of all runs of a kind (see `kind_of_run`), or empty ones if the kind is None."""
    if kind is None:
        return Programs()
    with _lock:
        programs = _kept.setdefault(kind, Programs())
        _kept.move_to_end(kind)
        # Trainings side by side have a device each.
        if len(_kept) > max(MOST_RUNS, 2 * jax.local_device_count()):
            _kept.popitem(last=False)
    return programs


def forget_programs() -> None:
    """Forgets the programs of all runs."""
    with _lock:
        _kept.clear()


def kind_of_run(
    env: Any, made: Environment, parts: Mapping[str, Any], config: Config, sizes: Sizes, actors: Actors
) -> Hashable | None:
    """Returns what is equal for runs that compile the same functions; None if it is unknown, as for functions of users.

    Args:
      env: environment, as for `train`.
      made: what it has made.
      parts: arguments of `train` for each kind of part; the run has no other part that was given.
      config: settings of the run, with those that were left open filled in.
      sizes: batch sizes of the run.
      actors: devices that collect and learn.
    """
    named = all(part is None or (isinstance(part, str) and is_built_in(kind, part)) for kind, part in parts.items())
    if not (named and actors.in_one_process and always_makes_the_same(env, made)):
        return None
    settings = (value for name, value in vars(config).items() if name not in DATA)
    return env, tuple(parts.items()), tuple(settings), sizes, actors, tuple(jax.config.values.items())
