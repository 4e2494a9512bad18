"""`train`: from what a person types to a run."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxtrpo.actors import Actors, choose_actors
from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.algorithm import Algorithm, starting_with
from jaxtrpo.config import Config, Sizes, for_all, make_config, resolve_sizes
from jaxtrpo.critics.critic import CriticMaker
from jaxtrpo.envs.base import Environment, require_time_limit
from jaxtrpo.envs.registry import environment_for
from jaxtrpo.loop import OnUpdate, Result, Run
from jaxtrpo.losses import Surrogate
from jaxtrpo.runs.checkpoint import Checkpoint, load_checkpoint, require_same_run, restore
from jaxtrpo.runs.compilation import cache_compilations
from jaxtrpo.runs.config_file import as_json
from jaxtrpo.runs.directory import has_checkpoint, open_directory
from jaxtrpo.runs.followers import Follower, TensorBoard, WeightsAndBiases
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.output import Saving
from jaxtrpo.settings import require_bool, require_not_negative, require_whole
from jaxtrpo.types import TrainState
from jaxtrpo.update import Parts, make_update
from jaxtrpo.words import parse, policy_maker


def train(
    env: str | Environment | Callable[[], Any],
    *,
    algorithm: Algorithm | str = Config.algorithm,
    policy: Any = Config.policy,
    critic: CriticMaker | str | None = None,
    adapt: Rule | str | None = None,
    surrogate: Surrogate | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    checkpoint_seconds: float = 60.0,
    keep_best: bool = False,
    keep_every: int = 0,
    on_update: OnUpdate | None = None,
    tensorboard: bool = False,
    wandb: str | None = None,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Trains a policy.

    Algorithm, policy, critic and rule are values, such as `ppo(clip=0.1)`, or their words, as in the shell.

    Args:
      env: name (see `make_env`), a function that returns a `gymnasium.Env`, or an environment of your own.
      algorithm: how it learns (see `jaxtrpo.algorithms`, and `jaxtrpo algorithms` in the shell).
      policy: network that acts: `mlp(...)` of `jaxtrpo.policies.networks`, or a flax module of your own that gives
        distributions of actions (see `jaxtrpo.policies.modules`).
      critic: what predicts returns (see `jaxtrpo.critics`); what goes with the algorithm if not given.
      adapt: how settings change between updates (see `jaxtrpo.adapt`); what goes with the algorithm if not given.
      surrogate: what the policy maximises (see `jaxtrpo.losses`), in place of what the algorithm would.
      out: directory for metrics.csv, the policy and checkpoints; nothing is written without it.
      overwrite: replace a run that `out` already holds.
      resume: go on with the run that `out` holds, if it holds one, from its last checkpoint. It takes the same
        arguments as before, except that `total_steps` and `actors` may differ, and ends as if it had never stopped: to
        the bit if `actors` is the same. Settings are compared with those of the run; what you wrote yourself
        (environment, `surrogate`, a rule) cannot be. Environments whose simulators cannot be saved (Gymnasium's) begin
        new episodes, and `a3c` is never the same twice.
      checkpoint_seconds: seconds between checkpoints; there also is one at the end of a run, and where it is
        interrupted, by SIGTERM too.
      keep_best: keep the state with the best evaluation, as `out`/best; needs `eval_every`.
      keep_every: environment steps between states that are kept, as `out`/step-0000200704 and so on; 0 for none.
        Kept states are directories like `out`, which `load_policy` and `jaxtrpo evaluate` take.
      on_update: (row of metrics, state of the run) called after each update; what it raises ends the run, which is
        saved. Where several updates are one program the state is that after the last of them.
      tensorboard: write event files into `out`/tensorboard.
      wandb: project of Weights & Biases (the package `wandb`) that is told the metrics; its own settings say where.
      progress: show a bar, or lines where the output is no terminal.
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
      SimulatorError: a simulator of Gymnasium's kind failed while training; what was learned before is saved.
      OutputError: `out` cannot be written to any more, as on a full disk; what was saved before is whole.
      Terminated: a SystemExit, since SIGTERM was received; everything is saved.
    """
    run = prepare(
        env,
        algorithm=algorithm,
        policy=policy,
        critic=critic,
        adapt=adapt,
        surrogate=surrogate,
        out=out,
        overwrite=overwrite,
        resume=resume,
        checkpoint_seconds=checkpoint_seconds,
        keep_best=keep_best,
        keep_every=keep_every,
        on_update=on_update,
        tensorboard=tensorboard,
        wandb=wandb,
        **settings,
    )
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
    env: str | Environment | Callable[[], Any],
    *,
    algorithm: Algorithm | str = Config.algorithm,
    policy: Any = Config.policy,
    critic: CriticMaker | str | None = None,
    adapt: Rule | str | None = None,
    surrogate: Surrogate | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    checkpoint_seconds: float = 60.0,
    keep_best: bool = False,
    keep_every: int = 0,
    on_update: OnUpdate | None = None,
    tensorboard: bool = False,
    wandb: str | None = None,
    **settings: Any,
) -> Run:
    """Checks everything that a person may get wrong; arguments and errors as in `train`."""
    started = time.perf_counter()
    config = make_config(settings)
    saving = Saving(checkpoint_seconds, keep_best, keep_every)
    _require_saving(saving, out, config)
    _require_followers(out, tensorboard, wandb)
    parts = _parts(config, algorithm, policy, critic, adapt, surrogate)
    directory = _open(out, overwrite=overwrite, resume=resume)
    saved = load_checkpoint(directory) if directory is not None and resume and has_checkpoint(directory) else None
    if saved is not None and config.num_envs is None:  # whose default depends on the actors
        config = dataclasses.replace(config, num_envs=saved.config["num_envs"])
    actors = choose_actors(config.actors)
    parts, config, sizes = _resolved(parts, config, actors)
    cache_compilations()
    environment, close = environment_for(env, actors.count)
    try:
        if config.eval_every:
            require_time_limit(environment, "eval_every")
        update = make_update(environment, parts, sizes, actors, config.total_steps)
        replay = update.learner.replay
        if replay is not None:
            replay.require_memory(actors.count)
        run = Run(
            env=environment,
            config=config,
            actors=actors,
            maker=parts.policy,
            update=update,
            state=None,  # pyright: ignore[reportArgumentType]
            directory=directory,
            started=started,
            metrics={},
            close=close,
            notes=() if replay is None else (replay.in_words(),),
            saving=saving,
            on_update=on_update,
            follow=_followers(directory, environment.name, config, tensorboard, wandb),
        )
        return _begin(run) if saved is None else _go_on(run, saved)
    except BaseException:
        close()
        raise


def _parts(
    config: Config,
    algorithm: Algorithm | str,
    policy: Any,
    critic: CriticMaker | str | None,
    adapt: Rule | str | None,
    surrogate: Surrogate | None,
) -> Parts:
    """What words stand for, and what goes with the algorithm where nothing is said."""

    def value(kind: str, given: Any, wanted: type) -> Any:
        made = parse(kind, given) if isinstance(given, str) else given
        if not isinstance(made, wanted):
            raise ValueError(f"{kind}={given!r} must be a name, a call in words, or a value of {wanted.__name__}")
        return made

    chosen = value("algorithm", algorithm, Algorithm)
    given = {"max_kl": config.max_kl, "steps_per_update": config.steps_per_update}
    chosen = starting_with(chosen, **{name: number for name, number in given.items() if number is not None})
    return Parts(
        algorithm=chosen,
        policy=policy_maker(policy),
        critic=value("critic", chosen.critic if critic is None else critic, CriticMaker),
        rule=value("adapt", chosen.adapt if adapt is None else adapt, Rule),
        surrogate=surrogate,
        discount=config.discount,
        normalize_observations=config.normalize_observations,
    )


def _resolved(parts: Parts, config: Config, actors: Actors) -> tuple[Parts, Config, Sizes]:
    """What was left open is decided, and written into the settings."""
    if config.steps_per_update is None:
        parts = parts._replace(algorithm=_with_steps_of_each(parts.algorithm, config, actors))
    hyperparameters = parts.algorithm.hyperparameters
    first_steps = int(hyperparameters["steps_per_update"])
    largest = config.max_steps_per_update or max(parts.rule.max_steps_per_update or 0, first_steps)
    config = dataclasses.replace(
        config,
        algorithm=parts.algorithm.words,
        policy=parts.policy.words,
        critic=parts.critic.words,
        adapt=parts.rule.words,
        max_kl=hyperparameters.get("max_kl"),
        steps_per_update=first_steps,
        max_steps_per_update=largest,
    )
    sizes = resolve_sizes(config, actors.count, num_envs=parts.algorithm.num_envs, steps_per_update=first_steps)
    return parts, dataclasses.replace(config, num_envs=sizes.num_envs, segment_length=sizes.segment_length), sizes


def _with_steps_of_each(algorithm: Algorithm, config: Config, actors: Actors) -> Algorithm:
    """Many actors have many environments, and few steps of each would be too few to learn from."""
    num_envs = config.num_envs or for_all(actors.count, algorithm.num_envs)
    steps = max(int(algorithm.hyperparameters["steps_per_update"]), algorithm.steps_of_each * num_envs)
    return starting_with(algorithm, steps_per_update=steps)


def _begin(run: Run) -> Run:
    state = run.update.start(run.config.seed)
    _require_finite_start(run.env, state)
    return run._replace(state=state)


def _go_on(run: Run, saved: Checkpoint) -> Run:
    require_same_run(saved, run.env.name, run.config)
    state = restore(saved.state, run.update.shapes())
    state = state._replace(total_steps=np.float32(run.config.total_steps))
    if not run.update.learner.waits:  # counts the segments of single actors, who may be others now
        segment_steps = run.update.sizes.segment_steps // run.actors.count
        done = saved.metrics["env_steps"][-1] if saved.metrics else 0  # nothing yet if it ended before an update
        state = state._replace(segments=np.int32(done // segment_steps))
    notes = run.notes
    if not getattr(run.env, "saves_state", True):
        state = run.update.restart(state)
        notes = (*notes, f"the simulators of {run.env.name} cannot be saved: all of them begin new episodes")
    return run._replace(state=run.update.place(state), metrics=saved.metrics, notes=notes)


def _open(out: str | Path | None, *, overwrite: bool, resume: bool) -> Path | None:
    """Checks where a run shall be written to, if anywhere."""
    if resume and out is None:
        raise ValueError("resume=True (--resume) needs out, the directory of the run")
    if resume and overwrite:
        raise ValueError("resume=True (--resume) and overwrite=True (--overwrite) contradict each other")
    return None if out is None else open_directory(out, overwrite=overwrite, resume=resume)


def _require_saving(saving: Saving, out: str | Path | None, config: Config) -> None:
    require_not_negative(checkpoint_seconds=saving.checkpoint_seconds)
    require_bool(keep_best=saving.keep_best)
    require_whole(0, keep_every=saving.keep_every)
    for name, value in (("keep_best", saving.keep_best), ("keep_every", saving.keep_every)):
        if value and out is None:
            raise ValueError(f"{name}={value} needs out, the directory of the run")
    if saving.keep_best and not config.eval_every:
        raise ValueError("keep_best=True needs eval_every, environment steps between evaluations")


def _require_followers(out: str | Path | None, tensorboard: bool, wandb: str | None) -> None:
    require_bool(tensorboard=tensorboard)
    if tensorboard and out is None:
        raise ValueError("tensorboard=True needs out, the directory of the run")
    if wandb is not None and not (isinstance(wandb, str) and wandb):
        raise ValueError(f"wandb={wandb!r} must be the name of a project")
    for setting, wanted, package in (("tensorboard", tensorboard, "tensorboardX"), ("wandb", wandb, "wandb")):
        if wanted and importlib.util.find_spec(package) is None:
            raise ValueError(f"{setting}={wanted!r} needs the package {package}: pip install {package}")


def _followers(
    directory: Path | None, env: str, config: Config, tensorboard: bool, wandb: str | None
) -> tuple[Callable[[Row | None], Follower], ...]:
    found: list[Callable[[Row | None], Follower]] = []
    if tensorboard and directory is not None:
        found.append(lambda last: TensorBoard(directory, last))
    if wandb is not None:
        name = env if directory is None else directory.name
        found.append(lambda last: WeightsAndBiases(wandb, directory, name, {"env": env, **as_json(config)}))
    return tuple(found)


def _require_finite_start(env: Environment, state: TrainState) -> None:
    finite = np.isfinite(jax.device_get(state.actors.env.obs)).reshape(-1, env.observation_size).all(axis=0)
    if not finite.all():
        raise ValueError(f"env={env.name}: the first observation is not finite (entries {np.flatnonzero(~finite)[:5]})")
