"""Arguments of `train` that are not settings of `Config`: parts, what is saved, and loggers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.algorithm import Algorithm
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.config import Config
from jaxtrpo.config.checks import (
    expanded,
    plain,
    require_bool,
    require_not_negative,
    require_path,
    require_whole,
    whole,
)
from jaxtrpo.config.messages import one_line, short
from jaxtrpo.critics.critic import CriticMaker
from jaxtrpo.parallel.processes import is_first
from jaxtrpo.runs.config_file import as_json
from jaxtrpo.runs.directory import OutputError, open_directory
from jaxtrpo.runs.loggers import Logger, TensorBoard, WeightsAndBiases
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.output import Saving
from jaxtrpo.training.record import OnUpdate


class Options(NamedTuple):
    """Arguments of `train` besides those of `Config`; they are described there."""

    algorithm: Algorithm | str | None = Config.algorithm
    policy: Any = Config.policy
    critic: CriticMaker | str | None = None
    adapt: Rule | str | None = None
    surrogate: Surrogate | None = None
    out: str | Path | None = None
    overwrite: bool = False
    resume: bool = False
    checkpoint_seconds: float = Saving().checkpoint_seconds
    keep_best: bool = False
    keep_every: int = 0
    on_update: OnUpdate | None = None
    tensorboard: bool = False
    wandb: str | None = None


def saving_of(options: Options, config: Config) -> Saving:
    """Returns what is saved, and when, after checking these settings."""
    saving = Saving(options.checkpoint_seconds, options.keep_best, whole(plain(options.keep_every)))
    require_not_negative(checkpoint_seconds=saving.checkpoint_seconds)
    require_bool(keep_best=saving.keep_best, overwrite=options.overwrite, resume=options.resume)
    for name, value in (("on_update", options.on_update), ("surrogate", options.surrogate)):
        if value is not None and not callable(value):
            raise ValueError(f"{name}={short(value)} must be a function")
    if options.out is not None:
        require_path(out=options.out)
    require_whole(0, None, keep_every=saving.keep_every)
    for name, value in (("keep_best", saving.keep_best), ("keep_every", saving.keep_every)):
        if value and options.out is None:
            raise ValueError(f"{name}={value} needs out, the directory of the run")
    if saving.keep_best and not config.eval_every:
        raise ValueError("keep_best=True needs eval_every, environment steps between evaluations")
    return saving


def open_for(options: Options) -> Path | None:
    """Returns the directory of the run, if it has one, after checking that it can be used."""
    if options.resume and options.out is None:
        raise ValueError("resume=True (--resume) needs out, the directory of the run")
    if options.resume and options.overwrite:
        raise ValueError("resume=True (--resume) and overwrite=True (--overwrite) contradict each other")
    if options.out is None:
        return None
    if not is_first():  # other processes only read
        return expanded(options.out).absolute()
    return open_directory(options.out, overwrite=options.overwrite, resume=options.resume)


def require_loggers(options: Options) -> None:
    """Raises ValueError if a logger is set wrongly, or its package is missing."""
    tensorboard, wandb = options.tensorboard, options.wandb
    require_bool(tensorboard=tensorboard)
    if tensorboard and options.out is None:
        raise ValueError("tensorboard=True needs out, the directory of the run")
    if wandb is not None and not (isinstance(wandb, str) and wandb):
        raise ValueError(f"wandb={short(wandb)} must be the name of a project")
    for setting, wanted, package in (("tensorboard", tensorboard, "tensorboardX"), ("wandb", wandb, "wandb")):
        if wanted and importlib.util.find_spec(package) is None:
            raise ValueError(f"{setting}={wanted!r} needs the package {package}: pip install {package}")


def make_loggers(
    options: Options, directory: Path | None, env: str, config: Config
) -> tuple[Callable[[Row | None], Logger], ...]:
    """Returns functions of the last row that is logged already, if any, which open the loggers of a run."""
    wandb = options.wandb
    found: list[Callable[[Row | None], Logger]] = []
    if options.tensorboard and directory is not None:
        found.append(_starting("tensorboard=True", directory, lambda last: TensorBoard(directory, last)))
    if wandb is not None:
        name = env if directory is None else directory.name
        settings = {"env": env, **as_json(config)}
        found.append(
            _starting(
                f"wandb={short(wandb)}",
                directory,
                lambda last: WeightsAndBiases(wandb, directory, name, settings),
            )
        )
    return tuple(found)


def _starting(
    setting: str, directory: Path | None, begin: Callable[[Row | None], Logger]
) -> Callable[[Row | None], Logger]:
    """Returns a function that opens a logger, or says in one sentence why it cannot."""

    def start(last: Row | None) -> Logger:
        try:
            return begin(last)
        except Exception as error:  # of other packages, which may raise anything
            then = "" if directory is None else "; resume=True (--resume) then begins the run, which is saved"
            why = one_line(str(error) or type(error).__name__, 300)
            raise OutputError(f"{setting} cannot be used: {why}{then}") from error

    return start
