"""The command `jaxtrpo`. Whatever takes long to import is imported when it is known to be needed."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg, subcommand

import jaxtrpo
from jaxtrpo.config import Config
from jaxtrpo.envs.gymnasium.errors import SimulatorError

if TYPE_CHECKING:
    from jaxtrpo.envs.base import Environment
    from jaxtrpo.evaluate import Evaluation
    from jaxtrpo.train import Result

SIMULATOR_ERROR, INPUT_ERROR, INTERRUPTED = 1, 2, 130

Work = Callable[[], int]  # to an exit code


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a policy."""

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """HalfCheetah-v5 or another environment of Gymnasium, gymnasium:NAME for its own version of one that is native
    here, or brax:NAME"""
    config: Annotated[Config, arg(name="")] = dataclasses.field(default_factory=Config)
    out: Path | None = None
    """directory for metrics.csv, the policy and checkpoints; nothing is saved without it"""
    overwrite: FlagCreatePairsOff[bool] = False
    """replace a run that the directory already holds"""
    resume: FlagCreatePairsOff[bool] = False
    """go on with the run that the directory holds, if it holds one: the same words, more total steps if you like"""
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
        run = prepare(env, out=self.out, overwrite=self.overwrite, resume=self.resume, **settings)
        return lambda: self._report(run.run(progress=not self.quiet))

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
            try:
                print(text, flush=True)
            except BrokenPipeError:  # who reads it has seen enough; Python would complain once more when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
    train = Annotated[Train, subcommand("train", prefix_name=False)]
    evaluate = Annotated[Evaluate, subcommand("evaluate", prefix_name=False)]
    algorithms = Annotated[Algorithms, subcommand("algorithms", prefix_name=False)]
    return tyro.cli(
        train | evaluate | algorithms,
        prog="jaxtrpo",
        description=f"Trust-region and actor-critic reinforcement learning in JAX, version {jaxtrpo.__version__}.",
        args=list(arguments),
        config=(OmitArgPrefixes,),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code.

    What a person can correct becomes one line; an error after that keeps its traceback.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"jaxtrpo {jaxtrpo.__version__}")
        return 0
    try:
        try:
            work = parse(arguments).prepare()
        except (ValueError, TypeError, OSError) as error:
            print(f"jaxtrpo: error: {' '.join(str(error).split())}", file=sys.stderr)
            return INPUT_ERROR
        return work()
    except SimulatorError as error:  # one sentence, and the simulator's own traceback
        print(f"jaxtrpo: error: {error}", file=sys.stderr)
        return SIMULATOR_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
