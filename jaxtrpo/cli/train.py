"""`jaxtrpo train` and `jaxtrpo evaluate`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

from jaxtrpo.cli.command import INTERRUPTED, Work, find_modules_here, needs, require_place
from jaxtrpo.config import Config
from jaxtrpo.config.checks import MOST_SEEDS, expanded, require_seed, require_whole

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
    mjx:NAME for a MuJoCo task on MJX, brax:NAME, gymnax:NAME or playground:NAME;
    module:NAME or file.py:NAME for an id that a module registers, or a function in it that makes the environment"""
    config: Annotated[Config, arg(name="")] = dataclasses.field(default_factory=Config)
    like: Annotated[Path | None, arg(name="config")] = None
    """config.json of a run, or its directory: repeat that run (omit ENV); other flags override its settings"""
    recipe: FlagCreatePairsOff[bool] = False
    """use the settings tuned for ENV; `jaxtrpo recipes` lists them, and other flags override them"""
    out: Path | None = None
    """directory for metrics, policy and checkpoints; if not given, nothing is saved"""
    overwrite: FlagCreatePairsOff[bool] = False
    """replace the run in the directory --out, if there is one"""
    resume: FlagCreatePairsOff[bool] = False
    """resume the run in the directory --out, if any; only total_steps, actors, processes, device, select,
    stop_at_return, stop_after_evaluations and stop_after_seconds may change"""
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
        from jaxtrpo.cli.own_parts import with_own_parts
        from jaxtrpo.envs.registry import make_env
        from jaxtrpo.parallel.machine import end_with_launcher
        from jaxtrpo.parallel.processes import is_first, join, reporting_errors
        from jaxtrpo.training.prepare import actors_of
        from jaxtrpo.training.train import prepare

        if not self.quiet and sys.stderr.isatty():
            print("starting", file=sys.stderr)  # JAX and the environment take seconds
        end_with_launcher()
        find_modules_here(self.env)
        if self.seeds is not None:
            require_whole(1, MOST_SEEDS, seeds=self.seeds)
        else:
            join(self.config.processes)
        env = self.env
        with reporting_errors():
            # Before an environment starts JAX, with one device.
            actors_of(self.env, self.config, for_good=True)
            settings = with_own_parts(self.config)
            watched = self._watched() if is_first() else contextlib.nullcontext()
            if self.backend is not None:
                _require_brax(env, self.config.env_options)
                env = make_env(env, backend=self.backend, max_episode_steps=self.config.max_episode_steps)
        files = ("out", "overwrite", "resume", "checkpoint_seconds", "keep_best", "keep_every", "tensorboard", "wandb")
        arguments = {**{name: getattr(self, name) for name in files}, **settings}
        if self.seeds is not None:
            return self._prepare_many(env, self.seeds, arguments, watched)
        # Simulators are closed when the process ends, where one that hangs does not keep it.
        run = dataclasses.replace(prepare(env, **arguments), close=lambda: None)

        def work() -> int:
            with self._around(watched):
                return self._finish(self._report, lambda: run.run(progress=not self.quiet))

        return work if is_first() else lambda: self._finish(lambda result: None, lambda: run.run(progress=False))

    def _prepare_many(
        self,
        env: str | Environment,
        number: int,
        arguments: dict[str, Any],
        watched: contextlib.AbstractContextManager[str | None],
    ) -> Work:
        from jaxtrpo.training.train_many import prepare_many

        first = arguments.pop("seed")
        run = prepare_many(env, seeds=range(first, first + number), **arguments)

        def work() -> int:
            with self._around(watched):
                return self._finish(self._report_many, lambda: run(not self.quiet))

        return work

    def _finish(self, report: Callable[[Any], None], run: Callable[[], Any]) -> int:
        """Trains, reports the result, also that of an interrupted training, and returns the exit code."""
        from jaxtrpo.runs.termination import Interrupted

        try:
            report(run())
        except Interrupted as error:
            report(error.result)
            return INTERRUPTED
        return 0

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
        return serving([expanded(self.out)])

    def _how_to_resume(self) -> str:
        if self.out is None:
            return "; nothing was saved because --out was not given"
        return f"; saved in {self.out}; resume with the same command and --resume"

    def _report(self, result: Result) -> None:
        import numpy as np

        from jaxtrpo.training.selection import earlier_best

        metrics = result.metrics
        if not len(metrics["env_steps"]):
            print("interrupted before the first update", file=sys.stderr)
            return
        best = earlier_best(result.state, int(metrics["env_steps"][-1]))
        compared = "evaluation" if np.isfinite(metrics.get("eval_return", np.nan)).any() else "return_100"
        print(
            f"{_return_of(metrics)}, {metrics['env_steps'][-1]:,} environment steps, "
            f"{metrics['wall_seconds'][-1]:.1f} seconds, {self._saved()}"
            + ("" if best is None else f"; policy of step {best[0]:,}, {compared} {best[1]:.1f}")
        )

    def _report_many(self, results: Sequence[Result]) -> None:
        import numpy as np

        from jaxtrpo.runs.view.curves import interquartile_mean
        from jaxtrpo.training.selection import earlier_best

        begun = [result for result in results if len(result.metrics["env_steps"])]
        if not begun:
            print("interrupted before the first update", file=sys.stderr)
            return
        last = np.array([result.metrics["return_100"][-1] for result in begun])
        known = last[np.isfinite(last)]
        score = f"no episode finished in {len(begun)} seeds"
        if len(known):
            middle, low, high = (float(each[0]) for each in interquartile_mean(known[:, None]))
            score = (
                f"return_100 {middle:.1f}, interquartile mean of {len(known)} seeds (95 % bootstrap interval {low:.1f} "
                f"to {high:.1f})"
            )
        made = [int(result.metrics["env_steps"][-1]) for result in begun]
        each = f"{min(made):,} to {max(made):,}" if min(made) < max(made) else f"{made[0]:,}"
        earlier = sum(earlier_best(one.state, steps) is not None for one, steps in zip(begun, made, strict=True))
        which = f"; {earlier} of {len(begun)} policies are of an earlier step" if earlier else ""
        print(f"{score}, {each} environment steps each, {self._saved()}{which}")

    def _saved(self) -> str:
        return "not saved (no --out)" if self.out is None else f"saved in {self.out}"


def _return_of(metrics: Mapping[str, Any]) -> str:
    last = float(metrics["return_100"][-1])
    return "no episode finished" if math.isnan(last) else f"return_100 {last:.1f}"


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Evaluate the policy of a run, and print the mean return with its 95 % confidence interval (Student's t)."""

    directory: Positional[Annotated[Path, arg(metavar="DIR")]]
    """directory of a run or of a snapshot"""
    episodes: int = 10
    """number of episodes, which run in parallel"""
    seed: int = 0
    """random seed of the initial states, and of sampled actions"""
    stochastic: FlagCreatePairsOff[bool] = False
    """sample actions from the policy, independently in each step, instead of acting with the mode of its
    distributions"""
    record: Path | None = None
    """.npz file for the steps of the episodes, one episode after the other: observations, actions, rewards, terminated,
    truncated, and the number of each step's episode"""
    env: str | None = None
    """environment; if not given, the one the policy was trained in"""
    env_options: str | None = None
    """options of the environment's constructor; if not given, those of the training run, or none with another --env"""
    max_episode_steps: int | None = None
    """time limit in environment steps; if not given, that of the training run, or that of --env itself.
    Without a time limit, episodes are stopped after 10,000 steps"""
    backend: str | None = None
    """physics backend of a Brax environment"""
    policy: str | None = None
    """network of your own that the policy was trained with, such as my_module:MyPolicy"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        from jaxtrpo.cli.own_parts import network
        from jaxtrpo.envs.registry import make_env
        from jaxtrpo.parallel.devices import choose_actors
        from jaxtrpo.rollout.evaluation import prepare_evaluation, where_to_act
        from jaxtrpo.runs.policy_file import load_policy
        from jaxtrpo.runs.progress import Progress

        require_seed(seed=self.seed)
        find_modules_here(self.env)
        if self.record is not None:
            if self.record.suffix != ".npz":
                raise ValueError(f"record={str(self.record)!r} must end with .npz")
            require_place(self.record, "record")
        choose_actors(program=True)  # the environment may be a JAX program
        policy = load_policy(self.directory, policy=network(self.policy))
        if self.backend is None:
            place = self.env, self.episodes, self.max_episode_steps, self.env_options
        else:
            env, limit, options = where_to_act(policy, self.env, self.max_episode_steps)
            _require_brax(env, self.env_options)
            named = env if self.env else _without_backend(env)
            made = make_env(named, max_episode_steps=limit, **{**options, "backend": self.backend})
            place = made, self.episodes, limit, None
        evaluation = prepare_evaluation(policy, *place, stochastic=self.stochastic, record=self.record is not None)

        def work() -> int:
            with Progress(self.episodes, unit="episodes") as bar:
                bar.status("evaluating")
                found = evaluation(self.seed)
                bar.update({"env_steps": self.episodes, "wall_seconds": 0.0})
            return self._report(found)

        return work

    def _report(self, evaluation: Evaluation) -> int:
        from jaxtrpo.rollout.evaluation import stopped_in_words
        from jaxtrpo.runs.recording import write_recording

        if evaluation.stopped:
            print(stopped_in_words(evaluation), file=sys.stderr)
        low, high = evaluation.interval
        interval = f" (95 % confidence interval {low:.2f} to {high:.2f})" if low == low else ""
        print(f"mean {evaluation.mean:.2f}{interval}, std {evaluation.std:.2f}, {len(evaluation.returns)} episodes")
        for value in evaluation.returns:
            print(f"{value:.2f}")
        if self.record is not None and evaluation.recording is not None:
            write_recording(expanded(self.record), evaluation.recording)
            print(self.record)
        return 0


def _require_brax(env: str, env_options: str | None) -> None:
    """Raises ValueError if --backend is not for this environment, or beside options, of which it is one."""
    if not env.startswith("brax:"):
        raise ValueError(f"--backend is for environments of Brax (brax:NAME), not for {env}")
    if env_options is not None:
        raise ValueError(f"--backend cannot be combined with --env-options; add backend to env_options={env_options!r}")


def _without_backend(name: str) -> str:
    """Removes the backend from the name stored with a policy, because --backend replaces it."""
    return name.partition("/")[0] if name.startswith("brax:") else name
