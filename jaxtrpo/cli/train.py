"""`jaxtrpo train` and `jaxtrpo evaluate`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

from jaxtrpo.cli.command import INTERRUPTED, Work, needs
from jaxtrpo.config import Config
from jaxtrpo.config.checks import require_whole

if TYPE_CHECKING:
    from jaxtrpo.envs.base import Environment
    from jaxtrpo.rollout.evaluation import Evaluation
    from jaxtrpo.training.train import Result


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a policy."""

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """HalfCheetah-v5 or another environment of Gymnasium, gymnasium:NAME for its own version of one that is native
    here, mjx:NAME for a native one on MJX, brax:NAME, gymnax:NAME or playground:NAME"""
    config: Annotated[Config, arg(name="")] = dataclasses.field(default_factory=Config)
    like: Annotated[Path | None, arg(name="config")] = None
    """config.json of a run, or its directory: repeats the run, without ENV; what else is said here changes it"""
    out: Path | None = None
    """directory for metrics.csv, the policy and checkpoints; nothing is saved without it"""
    overwrite: FlagCreatePairsOff[bool] = False
    """replace a run that the directory already holds"""
    resume: FlagCreatePairsOff[bool] = False
    """go on with the run that the directory holds, if it holds one: the same words, more total steps if you like"""
    seeds: int | None = None
    """so many trainings, from --seed on, each in a directory of its own such as DIR/seed-0: one program where the
    environment is one, else side by side, one a core"""
    checkpoint_seconds: float = 60.0
    """seconds between checkpoints; there also is one at the end, and where a run is interrupted or terminated"""
    keep_best: FlagCreatePairsOff[bool] = False
    """keep the state with the best evaluation, as DIR/best"""
    keep_every: int = 0
    """environment steps between states that are kept, as DIR/step-0000200704 and so on; 0 for none"""
    tensorboard: FlagCreatePairsOff[bool] = False
    """write event files into DIR/tensorboard"""
    wandb: str | None = None
    """project of Weights & Biases that is told the metrics; its own settings, such as WANDB_MODE, say where"""
    watch: FlagCreatePairsOff[bool] = False
    """serve the page of `jaxtrpo watch` to this machine's browsers meanwhile"""
    quiet: FlagCreatePairsOff[bool] = False
    """no progress"""
    backend: str | None = None
    """physics of a Brax environment: generalized, positional, spring or mjx"""

    def prepare(self) -> Work:
        """Checks everything that a person may get wrong; raises ValueError, TypeError or OSError."""
        from jaxtrpo.envs.registry import make_env
        from jaxtrpo.parallel.processes import is_first, join, telling_errors
        from jaxtrpo.training.prepare import actors_of
        from jaxtrpo.training.train import prepare

        if self.seeds is None:
            join(self.config.processes)
        settings = {field.name: getattr(self.config, field.name) for field in dataclasses.fields(Config)}
        env = self.env
        with telling_errors():
            # Before an environment starts JAX, with one device.
            actors_of(self.env, self.config, for_good=True)
            watched = self._watched() if is_first() else contextlib.nullcontext()
            if self.backend is not None:
                env = make_env(env, backend=self.backend, max_episode_steps=self.config.max_episode_steps)
        files = ("out", "overwrite", "resume", "checkpoint_seconds", "keep_best", "keep_every", "tensorboard", "wandb")
        arguments = {**{name: getattr(self, name) for name in files}, **settings}
        if self.seeds is not None:
            return self._prepare_many(env, self.seeds, arguments, watched)
        run = prepare(env, **arguments)

        def work() -> int:
            with self._around(watched):
                return self._report(run.run(progress=not self.quiet))

        return work if is_first() else lambda: self._exit_code(run.run(progress=False).metrics)

    def _prepare_many(
        self,
        env: str | Environment,
        number: int,
        arguments: dict[str, Any],
        watched: contextlib.AbstractContextManager[str | None],
    ) -> Work:
        from jaxtrpo.training.train_many import prepare_many

        require_whole(1, seeds=number)
        first = arguments.pop("seed")
        run = prepare_many(env, seeds=range(first, first + number), **arguments)

        def work() -> int:
            with self._around(watched):
                return self._report_many(run(not self.quiet))

        return work

    @contextlib.contextmanager
    def _around(self, watched: contextlib.AbstractContextManager[str | None]) -> Iterator[None]:
        """While it trains."""
        try:
            with watched as address:
                if address is not None:
                    print(f"watch it at {address}", flush=True)
                yield
        except SystemExit:
            print(f"terminated{self._how_to_go_on()}", file=sys.stderr)
            raise

    def _watched(self) -> contextlib.AbstractContextManager[str | None]:
        """What serves the run's page, if it shall be."""
        if not self.watch:
            return contextlib.nullcontext()
        if self.out is None:
            raise ValueError("--watch needs --out, the directory whose files it shows")
        try:
            from jaxtrpo.runs.view.watch import serving
        except ModuleNotFoundError as error:
            raise needs("train --watch", error, "view") from error
        return serving([self.out.expanduser()])

    def _how_to_go_on(self) -> str:
        if self.out is None:
            return "; nothing was saved, since there was no --out"
        return f"; saved in {self.out}, where the same words with --resume go on"

    def _report(self, result: Result) -> int:
        metrics = result.metrics
        if not len(metrics["env_steps"]):
            print("interrupted before the first update", file=sys.stderr)
            return INTERRUPTED
        print(
            f"return_100 {metrics['return_100'][-1]:.1f}, {metrics['env_steps'][-1]:,} environment steps, "
            f"{metrics['wall_seconds'][-1]:.1f} seconds, {self._saved()}"
        )
        return self._exit_code(metrics)

    def _exit_code(self, metrics: Mapping[str, Any]) -> int:
        steps = metrics["env_steps"]
        return 0 if len(steps) and steps[-1] >= self.config.total_steps else INTERRUPTED

    def _report_many(self, results: Sequence[Result]) -> int:
        import numpy as np

        from jaxtrpo.runs.view.curves import interquartile_mean

        begun = [result.metrics for result in results if len(result.metrics["env_steps"])]
        if not begun:
            print("interrupted before the first update", file=sys.stderr)
            return INTERRUPTED
        last = np.array([metrics["return_100"][-1] for metrics in begun])
        middle, low, high = (float(each[0]) for each in interquartile_mean(last[:, None]))
        steps = min(int(metrics["env_steps"][-1]) for metrics in begun)
        print(
            f"return_100 {middle:.1f}, the interquartile mean of {len(begun)} seeds (95 % of resamples: {low:.1f} to "
            f"{high:.1f}), {steps:,} environment steps each, {self._saved()}"
        )
        return 0 if len(begun) == self.seeds and steps >= self.config.total_steps else INTERRUPTED

    def _saved(self) -> str:
        return "not saved (no --out)" if self.out is None else f"saved in {self.out}"


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
    max_episode_steps: int | None = None
    """time limit in steps; that of the training, or of --env itself, if not given. Without any, an episode is stopped
    after 10,000 steps"""
    backend: str | None = None
    """physics of a Brax environment"""

    def prepare(self) -> Work:
        """As for `Train`."""
        from jaxtrpo.envs.registry import make_env
        from jaxtrpo.parallel.devices import choose_actors
        from jaxtrpo.rollout.evaluation import prepare_evaluation, where_to_act
        from jaxtrpo.runs.policy_file import load_policy

        choose_actors(program=True)  # it may be
        policy = load_policy(self.directory)
        env, limit = where_to_act(policy, self.env, self.max_episode_steps)
        if self.backend is not None:
            named = env if self.env else _without_backend(env)
            env = make_env(named, backend=self.backend, max_episode_steps=limit)
        evaluation = prepare_evaluation(policy, env, self.episodes, limit)
        return lambda: self._report(evaluation(self.seed))

    def _report(self, evaluation: Evaluation) -> int:
        from jaxtrpo.rollout.evaluation import stopped_in_words

        if evaluation.stopped:
            print(stopped_in_words(evaluation), file=sys.stderr)
        print(f"mean {evaluation.mean:.2f}, std {evaluation.std:.2f}, {len(evaluation.returns)} episodes")
        for value in evaluation.returns:
            print(f"{value:.2f}")
        return 0


def _without_backend(name: str) -> str:
    """The name of an environment that nobody typed, where another physics was."""
    return name.partition("/")[0] if name.startswith("brax:") else name
