"""The command `jaxtrpo`. Whatever takes long to import is imported when it is known to be needed."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg, subcommand

import jaxtrpo
from jaxtrpo.config import Config
from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.runs.config_file import load_config
from jaxtrpo.runs.directory import OutputError

if TYPE_CHECKING:
    from jaxtrpo.envs.base import Environment
    from jaxtrpo.evaluate import Evaluation
    from jaxtrpo.train import Result

FAILED, INPUT_ERROR, INTERRUPTED = 1, 2, 130

Work = Callable[[], int]  # to an exit code


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a policy."""

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """HalfCheetah-v5 or another environment of Gymnasium, gymnasium:NAME for its own version of one that is native
    here, or brax:NAME"""
    config: Annotated[Config, arg(name="")] = dataclasses.field(default_factory=Config)
    like: Annotated[Path | None, arg(name="config")] = None
    """config.json of a run, or its directory: repeats the run, without ENV; what else is said here changes it"""
    out: Path | None = None
    """directory for metrics.csv, the policy and checkpoints; nothing is saved without it"""
    overwrite: FlagCreatePairsOff[bool] = False
    """replace a run that the directory already holds"""
    resume: FlagCreatePairsOff[bool] = False
    """go on with the run that the directory holds, if it holds one: the same words, more total steps if you like"""
    checkpoint_seconds: float = 60.0
    """seconds between checkpoints; there also is one at the end, and where a run is interrupted or terminated"""
    keep_best: FlagCreatePairsOff[bool] = False
    """keep the state with the best evaluation, as DIR/best"""
    keep_every: int = 0
    """environment steps between states that are kept, as DIR/step-0000200704 and so on; 0 for none"""
    quiet: FlagCreatePairsOff[bool] = False
    """no progress"""
    backend: str | None = None
    """physics of a Brax environment: generalized, positional, spring or mjx"""

    def prepare(self) -> Work:
        """Checks everything that a person may get wrong; raises ValueError, TypeError or OSError."""
        from jaxtrpo.actors import choose_actors
        from jaxtrpo.train import prepare

        choose_actors(self.config.actors)  # before an environment starts JAX, with one device
        settings = {field.name: getattr(self.config, field.name) for field in dataclasses.fields(Config)}
        env = self.env if self.backend is None else _make_env(self.env, self.backend)
        files = ("out", "overwrite", "resume", "checkpoint_seconds", "keep_best", "keep_every")
        run = prepare(env, **{name: getattr(self, name) for name in files}, **settings)

        def work() -> int:
            try:
                return self._report(run.run(progress=not self.quiet))
            except SystemExit:
                print(f"terminated{self._how_to_go_on()}", file=sys.stderr)
                raise

        return work

    def _how_to_go_on(self) -> str:
        if self.out is None:
            return "; nothing was saved, since there was no --out"
        return f"; saved in {self.out}, where the same words with --resume go on"

    def _report(self, result: Result) -> int:
        metrics = result.metrics
        if not len(metrics.get("env_steps", ())):
            print("interrupted before the first update", file=sys.stderr)
            return INTERRUPTED
        saved = "not saved (no --out)" if self.out is None else f"saved in {self.out}"
        print(
            f"return_100 {metrics['return_100'][-1]:.1f}, {metrics['env_steps'][-1]:,} environment steps, "
            f"{metrics['wall_seconds'][-1]:.1f} seconds, {saved}"
        )
        return 0 if metrics["env_steps"][-1] >= self.config.total_steps else INTERRUPTED


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Let a trained policy act, without exploring, for some whole episodes."""

    directory: Positional[Annotated[Path, arg(metavar="DIR")]]
    """what `train` was given as --out"""
    episodes: int = 10
    """how many, all at once"""
    seed: int = 0
    """of the first states"""
    env: str | None = None
    """where, if not in the environment that the policy was trained in"""
    backend: str | None = None
    """physics of a Brax environment"""

    def prepare(self) -> Work:
        """As for `Train`."""
        from jaxtrpo.actors import choose_actors
        from jaxtrpo.evaluate import prepare_evaluation
        from jaxtrpo.runs.policy_file import load_policy

        choose_actors()
        policy = load_policy(self.directory)
        env = _make_env(self.env or policy.env_name, self.backend)
        evaluation = prepare_evaluation(policy, env, self.episodes)
        return lambda: self._report(evaluation(self.seed))

    def _report(self, evaluation: Evaluation) -> int:
        print(f"mean {evaluation.mean:.2f}, std {evaluation.std:.2f}, {len(evaluation.returns)} episodes")
        for value in evaluation.returns:
            print(f"{value:.2f}")
        return 0


@dataclasses.dataclass(frozen=True)
class Algorithms:
    """List algorithms, rules, critics and policies with their settings."""

    name: Positional[Annotated[str | None, arg(metavar="NAME")]] = None
    """only what is called so"""

    def prepare(self) -> Work:
        """As for `Train`."""
        from jaxtrpo.catalogue import catalogue

        text = catalogue(self.name)

        def show() -> int:
            print(text)
            return 0

        return show


def _make_env(name: str, backend: str | None) -> Environment:
    from jaxtrpo.envs.registry import make_env

    return make_env(name) if backend is None else make_env(name, backend=backend)


def parse(arguments: Sequence[str]) -> Train | Evaluate | Algorithms:
    """Reads a command line.

    Raises:
      SystemExit: there was a --help, or an error in the words themselves, which has been reported.
      ValueError: a setting is out of bounds.
    """
    repeated = _run_to_repeat(arguments)
    as_before: dict[str, Any] = {} if repeated is None else {"default": repeated}
    train = Annotated[Train, subcommand("train", prefix_name=False, **as_before)]
    evaluate = Annotated[Evaluate, subcommand("evaluate", prefix_name=False)]
    algorithms = Annotated[Algorithms, subcommand("algorithms", prefix_name=False)]
    return tyro.cli(
        train | evaluate | algorithms,
        prog="jaxtrpo",
        description=f"Trust-region and actor-critic reinforcement learning in JAX, version {jaxtrpo.__version__}.",
        args=list(arguments),
        config=(OmitArgPrefixes,),
    )


def _run_to_repeat(arguments: Sequence[str]) -> Train | None:
    """What `--config` says; the other words are read with this as their defaults."""
    found = [
        after if joined else following
        for word, following in itertools.pairwise([*arguments, ""])
        for name, joined, after in [word.partition("=")]
        if name == "--config"
    ]
    if not any(found) or arguments[0] != "train":
        return None
    settings = load_config(found[-1])
    return Train(env=settings.pop("env"), config=Config(**settings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code.

    What a person can correct becomes one line; an error after that keeps its traceback.
    """
    try:
        try:
            return _main(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # who reads it has seen enough; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        print(f"jaxtrpo {jaxtrpo.__version__}")
        return 0
    try:
        try:
            work = parse(arguments).prepare()
        except BrokenPipeError:
            raise
        except (ValueError, TypeError, OSError) as error:
            print(f"jaxtrpo: error: {' '.join(str(error).split())}", file=sys.stderr)
            return INPUT_ERROR
        return work()
    except (SimulatorError, OutputError) as error:  # one sentence, and the simulator's own traceback
        print(f"jaxtrpo: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
