"""Training: collect -> learn and adapt -> report."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jaxtrpo.actors import Actors, choose_actors, first
from jaxtrpo.adapt import Rule
from jaxtrpo.config import Config, make_config, resolve_sizes
from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.registry import make_env
from jaxtrpo.evaluate import make_evaluator
from jaxtrpo.losses import Surrogate, importance_weighted_advantage
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.rule_parser import parse_rule
from jaxtrpo.runs.checkpoint import load_checkpoint, require_same_run, restore, save_checkpoint, save_config
from jaxtrpo.runs.compilation import cache_compilations
from jaxtrpo.runs.directory import METRICS_FILE, clear, has_checkpoint, hold, open_directory
from jaxtrpo.runs.metrics import Metrics, Row
from jaxtrpo.runs.policy_file import save_policy
from jaxtrpo.runs.progress import NOTHING_DONE, Progress
from jaxtrpo.types import TrainState
from jaxtrpo.update import METRIC_NAMES, Update, gather, make_update

T = TypeVar("T")
SECONDS_BETWEEN_CHECKPOINTS = 60.0
# Of metrics.csv, in this order.
COLUMNS = (
    "update", "env_steps", "wall_seconds", "collect_seconds", "learn_seconds", *METRIC_NAMES, "eval_return",
)  # fmt: skip
COUNTS = ("steps_per_update", "episodes", "line_search_steps", "accepted", "cg_iterations", "invalid_steps")


class Result(NamedTuple):
    """What a training run leaves."""

    policy: TrainedPolicy  # callable on observations
    metrics: dict[str, np.ndarray]  # the columns of metrics.csv; blanks are NaN
    state: TrainState  # everything, on the actors' devices
    config: Config


def train(
    env: str | Environment,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    surrogate: Surrogate = importance_weighted_advantage,
    adapt: Rule | str = Config.adapt,
    **settings: Any,
) -> Result:
    """Trains a policy with TRPO.

    Args:
      env: name (see `make_env`) or an environment of your own.
      out: directory for metrics.csv, the policy and checkpoints; nothing is written without it.
      overwrite: replace a run that `out` already holds.
      resume: go on with the run that `out` holds, if it holds one, from its last checkpoint (one a minute, when it was
        interrupted, and at its end). It takes the same arguments as before, except that `total_steps` and `actors` may
        differ, and ends as if it had never stopped: to the bit if `actors` is the same. Settings are compared with
        those of the run; functions of your own (environment, `surrogate`, a rule) cannot be, beyond their names.
      progress: show a bar, or lines where the output is no terminal.
      surrogate: what the policy maximises (see `jaxtrpo.losses`).
      adapt: how settings change between updates: a rule (see `jaxtrpo.adapt`), or its name as in the shell.
      **settings: see `jaxtrpo.Config`.

    Returns:
      The policy and the metrics.

    Raises:
      ValueError: a setting is out of bounds or does not fit the others, the environment is not known, its first
        observation is not finite, or the run in `out` is not one that can go on so. Nothing has been compiled or
        written then.
      TypeError: there is no such setting.
      FileExistsError: `out` holds a run, and neither `overwrite` nor `resume` says what to do with it.
      BlockingIOError: another process is writing to `out`.
    """
    run = prepare(env, out=out, overwrite=overwrite, resume=resume, surrogate=surrogate, adapt=adapt, **settings)
    return run.run(progress=progress)


def _with_settings(function: Callable) -> inspect.Signature:
    """The signature that `help` shows: every setting by name, with its default."""
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind != parameter.VAR_KEYWORD]
    settings = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in dataclasses.fields(Config)
        if field.name not in signature.parameters
    ]
    return signature.replace(parameters=[*own, *settings])


train.__signature__ = _with_settings(train)  # pyright: ignore[reportFunctionMemberAccess]


def prepare(
    env: str | Environment,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    surrogate: Surrogate = importance_weighted_advantage,
    adapt: Rule | str = Config.adapt,
    **settings: Any,
) -> Run:
    """Checks everything that a person may get wrong; arguments and errors as in `train`."""
    started = time.perf_counter()
    rule, name = (parse_rule(adapt), adapt) if isinstance(adapt, str) else (adapt, "custom")
    config = make_config({**settings, "adapt": name})
    if config.max_steps_per_update is None and rule.max_steps_per_update is not None:
        largest = max(rule.max_steps_per_update, config.steps_per_update)
        config = dataclasses.replace(config, max_steps_per_update=largest)
    directory = _open(out, overwrite=overwrite, resume=resume)
    saved = load_checkpoint(directory) if directory is not None and resume and has_checkpoint(directory) else None
    if saved is not None and config.num_envs is None:  # whose default depends on the actors
        config = dataclasses.replace(config, num_envs=saved.config["num_envs"])
    actors = choose_actors(config.actors)
    sizes = resolve_sizes(config, actors.count)
    config = dataclasses.replace(config, num_envs=sizes.num_envs)
    cache_compilations()
    environment = make_env(env) if isinstance(env, str) else env
    update = make_update(environment, config, sizes, actors, surrogate, rule)
    if saved is not None:
        require_same_run(saved, environment.name, config, COLUMNS)
        state = update.place(restore(saved.state, update.shapes()))
        metrics = {name: saved.metrics[name] for name in COLUMNS} if saved.metrics else {}  # in this order
        return Run(environment, config, actors, update, state, directory, started, metrics)
    state = update.start(config.seed)
    _require_finite_start(environment, state)
    return Run(environment, config, actors, update, state, directory, started, {})


def _open(out: str | Path | None, *, overwrite: bool, resume: bool) -> Path | None:
    """Checks where a run shall be written to, if anywhere."""
    if resume and out is None:
        raise ValueError("resume=True (--resume) needs out, the directory of the run")
    if resume and overwrite:
        raise ValueError("resume=True (--resume) and overwrite=True (--overwrite) contradict each other")
    return None if out is None else open_directory(out, overwrite=overwrite, resume=resume)


def _require_finite_start(env: Environment, state: TrainState) -> None:
    finite = np.isfinite(jax.device_get(state.actors.env.obs)).reshape(-1, env.observation_size).all(axis=0)
    if not finite.all():
        raise ValueError(f"env={env.name}: the first observation is not finite (entries {np.flatnonzero(~finite)[:5]})")


def _in_background(function: Callable[..., T], *arguments: Any) -> Callable[[], T]:
    """Starts a call on another thread; what is returned waits for its result."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return future.result


class Run(NamedTuple):
    """A training run that is ready to start."""

    env: Environment
    config: Config
    actors: Actors
    update: Update
    state: TrainState
    directory: Path | None
    started: float  # seconds, perf_counter
    metrics: Mapping[str, np.ndarray]  # columns of the updates before, if it goes on with a run

    def run(self, *, progress: bool = True) -> Result:
        """Trains to the end, or until it is interrupted; what was learned by then is kept in both cases."""
        with nullcontext() if self.directory is None else hold(self.directory):
            return self._run(progress=progress)

    def _run(self, *, progress: bool) -> Result:
        if self.directory is not None:
            clear(self.directory, keep_run=bool(self.metrics))
        metrics = Metrics(self.directory and self.directory / METRICS_FILE, self.metrics)
        last = metrics.rows[-1] if metrics.rows else NOTHING_DONE
        reached = self.state, int(last["update"] or 0)  # one name: an interrupt finds a state and its number
        self._save(*reached, metrics)
        if self.directory is not None:
            save_config(self.directory, self.env.name, self.config)
        save_at = time.monotonic() + SECONDS_BETWEEN_CHECKPOINTS
        with Progress(self.config.total_steps, last, enabled=progress) as bar:
            try:
                for state, row in self._updates(last):
                    metrics.add(row)
                    reached = state, int(row["update"])
                    bar.update(row)
                    if time.monotonic() >= save_at:
                        self._save(*reached, metrics)
                        save_at = time.monotonic() + SECONDS_BETWEEN_CHECKPOINTS
            except KeyboardInterrupt:
                bar.note("interrupted; keeping what was learned so far")
        self._save(*reached, metrics)
        state, _ = reached
        return Result(self._policy(state), metrics.columns(), state, self.config)

    def _save(self, state: TrainState, updates: int, metrics: Metrics) -> None:
        if self.directory is not None:
            done = metrics.columns(updates)
            save_checkpoint(self.directory, self.env.name, self.config, done, gather(state))
            save_policy(self.directory, self._policy(state))

    def _updates(self, last: Row = NOTHING_DONE) -> Iterator[tuple[TrainState, dict[str, float]]]:
        """The state and a row of metrics after each update, of which `last` was the one before."""
        state, evaluate = self.state, self._evaluation()
        update, env_steps = int(last["update"] or 0), int(last["env_steps"] or 0)
        started = self.started - float(last["wall_seconds"] or 0)
        if env_steps >= self.config.total_steps:
            return
        lowered = self.update.lower(state)
        learn = _in_background(lowered.compile_learn)  # while the first batch is collected
        collect = lowered.compile_collect()
        while env_steps < self.config.total_steps:
            begin = time.perf_counter()
            state, batch = jax.block_until_ready(collect(state))
            collected = time.perf_counter()
            state, measured = learn()(state, batch)
            measured = dict(zip(METRIC_NAMES, first(measured).tolist(), strict=True))
            learned = time.perf_counter()
            update += 1
            steps_before = env_steps
            env_steps += round(measured["steps_per_update"])
            row = {
                "update": update,
                "env_steps": env_steps,
                "wall_seconds": learned - started,
                "collect_seconds": collected - begin,
                "learn_seconds": learned - collected,
                **{name: round(value) if name in COUNTS else value for name, value in measured.items()},
                "eval_return": evaluate(state, steps_before, env_steps),
            }
            yield state, row

    def _evaluation(self) -> Callable[[TrainState, int, int], float]:
        """Evaluates the deterministic policy if an update took another `eval_every` environment steps; else NaN."""
        config = self.config
        run = make_evaluator(self.env, self.update.policy, self.actors, config.eval_episodes)

        def evaluate(state: TrainState, steps_before: int, env_steps: int) -> float:
            if not config.eval_every or env_steps // config.eval_every == steps_before // config.eval_every:
                return math.nan
            key = jax.random.fold_in(jax.random.PRNGKey(config.seed), env_steps // config.eval_every)
            return run((state.learner.policy, state.learner.obs_moments), key).mean

        return evaluate

    def _policy(self, state: TrainState) -> TrainedPolicy:
        learner = first(state.learner)
        return TrainedPolicy(
            env_name=self.env.name,
            observation_size=self.env.observation_size,
            action_low=np.asarray(self.env.action_low),
            action_high=np.asarray(self.env.action_high),
            hidden=self.config.policy_hidden,
            params=learner.policy,
            moments=learner.obs_moments,
        )
