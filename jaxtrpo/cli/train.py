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
from jaxtrpo.config.checks import require_seed, require_whole

if TYPE_CHECKING:
    from jaxtrpo.envs.base import Environment
    from jaxtrpo.rollout.evaluation import Evaluation
    from jaxtrpo.training.train import Result


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a policy."""

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """environment: HalfCheetah-v5 or another Gymnasium id,
    gymnasium:NAME for Gymnasium's own version of a MuJoCo task that jaxtrpo steps natively,
    mjx:NAME for a MuJoCo task on MJX, brax:NAME, gymnax:NAME or playground:NAME"""
    config: Annotated[Config, arg(name="")] = dataclasses.field(default_factory=Config)
    like: Annotated[Path | None, arg(name="config")] = None
    """config.json of a run, or its directory: repeat that run (omit ENV); other flags override its settings"""
    out: Path | None = None
    """directory for metrics, policy and checkpoints; if not given, nothing is saved"""
    overwrite: FlagCreatePairsOff[bool] = False
    """replace the run in the directory --out, if there is one"""
    resume: FlagCreatePairsOff[bool] = False
    """resume the run in the directory --out, if any; only total_steps, actors, processes and device may change"""
    seeds: int | None = None
    """train this number of seeds, counting up from --seed, in directories such as DIR/seed-0;
    in one program if the environment is written in JAX, otherwise in parallel, one per core"""
    checkpoint_seconds: float = 60.0
    """seconds between checkpoints; another is saved at the end and on interruption or termination"""
    keep_best: FlagCreatePairsOff[bool] = False
    """keep a snapshot of the state with the best evaluation in DIR/best; needs --eval-every"""
    keep_every: int = 0
    """environment steps between snapshots, which are kept as DIR/step-0000200704 and so on; 0 means none"""
    tensorboard: FlagCreatePairsOff[bool] = False
    """log to TensorBoard event files in DIR/tensorboard"""
    wandb: str | None = None
    """log to this Weights & Biases project; configure it with its environment variables, such as WANDB_MODE"""
    watch: FlagCreatePairsOff[bool] = False
    """serve a live report on this machine during training, as `jaxtrpo watch` does; needs --out"""
    quiet: FlagCreatePairsOff[bool] = False
    """do not show progress"""
    backend: str | None = None
    """physics backend of a Brax environment: generalized, positional, spring or mjx"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        from jaxtrpo.envs.registry import make_env
        from jaxtrpo.parallel.machine import end_with_launcher
        from jaxtrpo.parallel.processes import is_first, join, reporting_errors
        from jaxtrpo.training.prepare import actors_of
        from jaxtrpo.training.train import prepare

        end_with_launcher()
        if self.seeds is None:
            join(self.config.processes)
        settings = {field.name: getattr(self.config, field.name) for field in dataclasses.fields(Config)}
        env = self.env
        with reporting_errors():
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
        """Serves the live report during training, and reports termination."""
        try:
            with watched as address:
                if address is not None:
                    print(f"live report at {address}", flush=True)
                yield
        except SystemExit:
            print(f"terminated{self._how_to_resume()}", file=sys.stderr)
            raise

    def _watched(self) -> contextlib.AbstractContextManager[str | None]:
        """Returns the server of the live report, as a context manager that yields its URL, or None without --watch."""
        if not self.watch:
            return contextlib.nullcontext()
        if self.out is None:
            raise ValueError("--watch needs --out, the directory of the run to show")
        try:
            from jaxtrpo.runs.view.watch import serving
        except ModuleNotFoundError as error:
            raise needs("train --watch", error, "view") from error
        return serving([self.out.expanduser()])

    def _how_to_resume(self) -> str:
        if self.out is None:
            return "; nothing was saved because --out was not given"
        return f"; saved in {self.out}; resume with the same command and --resume"

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
            f"return_100 {middle:.1f}, interquartile mean of {len(begun)} seeds (95 % bootstrap interval {low:.1f} to "
            f"{high:.1f}), {steps:,} environment steps each, {self._saved()}"
        )
        return 0 if len(begun) == self.seeds and steps >= self.config.total_steps else INTERRUPTED

    def _saved(self) -> str:
        return "not saved (no --out)" if self.out is None else f"saved in {self.out}"


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Evaluate the deterministic policy of a run over whole episodes."""

    directory: Positional[Annotated[Path, arg(metavar="DIR")]]
    """directory of a run or of a snapshot"""
    episodes: int = 10
    """number of episodes, which run in parallel"""
    seed: int = 0
    """random seed of the initial states"""
    env: str | None = None
    """environment; if not given, the one the policy was trained in"""
    max_episode_steps: int | None = None
    """time limit in environment steps; if not given, that of the training run, or that of --env itself.
    Without a time limit, episodes are stopped after 10,000 steps"""
    backend: str | None = None
    """physics backend of a Brax environment"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        from jaxtrpo.envs.registry import make_env
        from jaxtrpo.parallel.devices import choose_actors
        from jaxtrpo.rollout.evaluation import prepare_evaluation, where_to_act
        from jaxtrpo.runs.policy_file import load_policy

        require_seed(seed=self.seed)
        choose_actors(program=True)  # the environment may be a JAX program
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
    """Removes the backend from the name stored with a policy, because --backend replaces it."""
    return name.partition("/")[0] if name.startswith("brax:") else name
