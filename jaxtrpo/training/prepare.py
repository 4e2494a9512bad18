"""Prepares a run: checks all settings, and builds its parts, before anything is compiled."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.algorithm import Algorithm, starting_with
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.config import Config, make_config
from jaxtrpo.config.checks import require_bool, require_not_negative, require_whole
from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import KINDS, parse, require_one_value
from jaxtrpo.critics.critic import CriticMaker
from jaxtrpo.envs.abilities import saves_state, wastes_steps
from jaxtrpo.envs.base import MOST_STEPS_WITHOUT_LIMIT, Environment, has_time_limit
from jaxtrpo.envs.registry import environment_for, is_program
from jaxtrpo.parallel.actors import Actors, Trainings, join_envs
from jaxtrpo.parallel.devices import PROGRAM_THREADS, choose_actors, memory_of, threads_may_run_out
from jaxtrpo.parallel.processes import expected, is_first, join, reporting_errors, require_count, require_same
from jaxtrpo.policies.custom import policy_maker
from jaxtrpo.rollout.replay import Replay, without_replay
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.runs.checkpoint import Checkpoint, load_checkpoint, require_same_run, restore
from jaxtrpo.runs.compilation_cache import cache_compilations
from jaxtrpo.runs.config_file import as_json, versions
from jaxtrpo.runs.directory import has_checkpoint, open_directory
from jaxtrpo.runs.loggers import Logger, TensorBoard, WeightsAndBiases
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.output import Saving
from jaxtrpo.training.defaults import fill_in, with_whole_episodes
from jaxtrpo.training.record import OnUpdate
from jaxtrpo.training.run import Plan, Run
from jaxtrpo.training.update import Parts, Update, make_update, segment_parts, segments_of_run


class Options(NamedTuple):
    """Arguments of `train` besides those of `Config`; they are described there."""

    algorithm: Algorithm | str = Config.algorithm
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


def prepare(env: str | Environment | Callable[[], Any], **arguments: Any) -> Run:
    """Checks all arguments and returns a run that is ready to start; arguments and errors as for `train`."""
    return begin(plan(env, arguments))


def _notes(env: Environment, config: Config, replay: Replay | None) -> Iterator[str]:
    """Yields what the user should know before the run starts."""
    if config.eval_every and not has_time_limit(env):
        yield (
            f"{env.name} has no time limit: evaluations stop an episode after {MOST_STEPS_WITHOUT_LIMIT:,} steps; "
            "max_episode_steps (--max-episode-steps) sets a limit"
        )
    if replay is not None:
        yield replay.description()
    if is_program(env) and threads_may_run_out():
        yield (
            f"{env.name}: JAX was started with few threads, for other environments; if this one solves equations, it "
            f"may hang. Start a new process for it, or set NPROC={PROGRAM_THREADS} before Python starts"
        )


def begin(plan: Plan) -> Run:
    """Returns the run of a plan, with its initial state or that of its checkpoint."""
    try:
        if plan.saved is None:
            state, metrics, note = plan.update.start(plan.config.seed), {}, None
            require_finite_start(plan.env, state)
        else:
            gathered, note = restored(plan, plan.saved)
            state, metrics = plan.update.place(gathered), plan.saved.metrics
    except BaseException:
        plan.close()
        raise
    notes = plan.notes if note is None else (*plan.notes, note)
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return Run(**{**fields, "notes": notes}, state=state, metrics=metrics)


def plan(
    env: str | Environment | Callable[[], Any],
    arguments: Mapping[str, Any],
    *,
    actors: Actors | None = None,
    trainings: Trainings | None = None,
) -> Plan:
    """Checks all arguments, and builds the parts of a run.

    Args:
      env: see `train`.
      arguments: other arguments of `train`, by name.
      actors: devices that collect and learn; None to choose them by the settings.
      trainings: see `make_update`.
    """
    if actors is not None:
        return _plan(env, arguments, actors, trainings)
    _join(arguments.get("processes"))
    with reporting_errors():
        planned = _plan(env, arguments)
    if planned.actors.in_one_process:
        return planned
    try:
        require_same(_to_compare(planned, arguments))
    except BaseException:
        planned.close()
        raise
    return planned


def _join(processes: Any) -> None:
    if processes is not None:
        require_whole(1, processes=processes)
    join(processes)


def _to_compare(plan: Plan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what must be equal in all processes that train jointly."""
    files = {name: str(arguments.get(name)) for name in ("out", "overwrite", "resume", "keep_best", "keep_every")}
    saved = plan.saved
    resumed_at = None if saved is None else int(saved.metrics["update"][-1]) if saved.metrics else 0
    return {"env": plan.env.name, **as_json(plan.config), **files, "checkpoint's update": resumed_at, **versions()}


def _plan(
    env: str | Environment | Callable[[], Any],
    arguments: Mapping[str, Any],
    actors: Actors | None = None,
    trainings: Trainings | None = None,
) -> Plan:
    started = time.perf_counter()
    options = Options(**{name: value for name, value in arguments.items() if name in Options._fields})
    config = make_config({name: value for name, value in arguments.items() if name not in Options._fields})
    require_one_value({**vars(config), **{kind: getattr(options, kind) for kind in KINDS}}, vars(Config()))
    saving = Saving(options.checkpoint_seconds, options.keep_best, options.keep_every)
    _require_saving(saving, options.out, config)
    _require_loggers(options.out, options.tensorboard, options.wandb)
    parts, usual_steps = _parts(config, options)
    actors = actors or actors_of(env, config)  # starts JAX, which tells `_open` whether this is the first process
    directory = _open(options)
    saved = None
    if directory is not None and options.resume and has_checkpoint(directory):
        saved = load_checkpoint(directory)
    if saved is not None and config.num_envs is None:  # the default depends on the number of actors
        config = dataclasses.replace(config, num_envs=saved.config["num_envs"])
    # The sizes of batches of whole episodes depend on the environment, which is made below.
    filled = fill_in(parts, config, actors, usual_steps) if parts.algorithm.episodes is None else None
    cache_compilations()
    environment, close = environment_for(env, actors.count, config.max_episode_steps)
    try:
        if filled is None:
            filled = fill_in(*with_whole_episodes(parts, config, actors, environment), actors, usual_steps)
        parts, config, sizes = filled
        update = make_update(environment, parts, sizes, actors, config.total_steps, trainings)
        if not (update.learner.waits or actors.in_one_process):
            raise ValueError(
                f"algorithm={config.algorithm} does not support multi-process training; run it in one process"
            )
        replay, devices = update.learner.replay, trainings.devices if trainings else actors.own
        memory = memory_of(devices)
        if replay is not None:
            learners = len(devices)
            if trainings and update.learner.waits and is_program(environment):  # all in memory at the same time
                learners = trainings.number
            replay.require_memory(learners, memory, saved=directory is not None)
        _require_memory(config, update, memory)
        return Plan(
            env=environment,
            config=config,
            actors=actors,
            maker=parts.policy,
            update=update,
            directory=directory,
            directory_is_new=saved is None and not options.overwrite,
            saved=saved,
            started=started,
            close=close,
            notes=tuple(_notes(environment, config, replay)),
            # Otherwise, steps after the episode in a fixed batch, or steps that only reset, are invalid, too.
            invalid_is_broken=parts.algorithm.episodes is None and not wastes_steps(environment),
            saving=saving,
            on_update=options.on_update,
            loggers=_make_loggers(directory, environment.name, config, options.tensorboard, options.wandb),
        )
    except BaseException:
        close()
        raise


def _require_memory(config: Config, update: Update, memory: float) -> None:
    """Raises ValueError if networks or batches cannot fit into memory, by a lower bound of what they need."""
    key, env = jax.ShapeDtypeStruct((2,), np.uint32), update.env
    learner = jax.eval_shape(update.learner.init, key, key)
    leaves = jax.tree.leaves(learner if update.learner.replay is None else without_replay(learner))
    networks = sum(math.prod(leaf.shape) for leaf in leaves)
    columns = 2 * (2 * env.observation_size + env.action_size + 8)  # what is collected, and what is made of it
    rows = update.sizes.segment_steps * update.sizes.max_segments
    for setting, numbers in (
        (f"policy={config.policy}, critic={config.critic}", networks),
        (f"num_envs={config.num_envs}, max_steps_per_update={config.max_steps_per_update}", rows * columns),
    ):
        if 4 * numbers > memory:
            need, has = (f"{size / 2**30:,.0f} GiB" for size in (4 * numbers, memory))
            raise ValueError(f"{setting} need at least {need} of memory, but there are {has}")


def actors_of(env: Any, config: Config, *, for_good: bool = False) -> Actors:
    """Returns the actors of a training, over all processes; other arguments and errors as for `choose_actors`."""
    program = is_program(env)
    if config.device in ("gpu", "tpu") and not program:
        name = getattr(env, "name", None) or (env if isinstance(env, str) else short(env))
        raise ValueError(
            f"device={config.device}: {name} is stepped by CPU cores; only environments that are JAX "
            "programs (brax:NAME, gymnax:NAME, mjx:NAME, playground:NAME, your own) run on accelerators"
        )
    actors = choose_actors(
        config.actors,
        device=config.device,
        for_good=for_good,
        program=program,
        processes=expected(config.processes),
    )
    require_count(config.processes)
    return actors


def _parts(config: Config, options: Options) -> tuple[Parts, int]:
    """Builds the parts from spec strings and the algorithm's defaults; also returns its default steps_per_update."""

    def value(kind: str, given: Any, wanted: type) -> Any:
        made = parse(kind, given) if isinstance(given, str) else given
        if not isinstance(made, wanted):
            raise ValueError(f"{kind}={short(given)} must be a spec string or a value of type {wanted.__name__}")
        return made

    chosen = value("algorithm", options.algorithm, Algorithm)
    usual_steps = int(chosen.hyperparameters["steps_per_update"])
    given = {"max_kl": config.max_kl, "steps_per_update": config.steps_per_update}
    chosen = starting_with(chosen, **{name: number for name, number in given.items() if number is not None})
    parts = Parts(
        algorithm=chosen,
        policy=policy_maker(options.policy),
        critic=value("critic", chosen.critic if options.critic is None else options.critic, CriticMaker),
        rule=value("adapt", chosen.adapt if options.adapt is None else options.adapt, Rule),
        rule_was_chosen=options.adapt is not None,
        surrogate=options.surrogate,
        discount=config.discount,
        normalize_observations=config.normalize_observations,
    )
    return parts, usual_steps


def restored(plan: Plan, saved: Checkpoint) -> tuple[TrainState, str | None]:
    """Returns the gathered state of a run that is resumed, and a note for the user, if any.

    Raises:
      ValueError: the checkpoint is that of a different run.
    """
    require_same_run(saved, plan.env.name, plan.config)
    state = restore(saved.state, plan.update.shapes())
    parts = segment_parts(plan.update.learner, plan.actors)
    total = segments_of_run(plan.config.total_steps, plan.update.sizes, parts)
    state = state._replace(total_segments=np.int32(total))
    if not plan.update.learner.waits:  # each actor counts its own segments, and their number may have changed
        done = saved.metrics["env_steps"][-1] if saved.metrics else 0  # no metrics before the first update
        state = state._replace(segments=np.int32(done * parts // plan.update.sizes.segment_steps))
    if saves_state(plan.env):
        return state, None
    note = f"the simulators of {plan.env.name} cannot be saved, so all environments start new episodes"
    return plan.update.restart(state), note


def _open(options: Options) -> Path | None:
    """Returns the directory of the run, if it has one, after checking that it can be used."""
    if options.resume and options.out is None:
        raise ValueError("resume=True (--resume) needs out, the directory of the run")
    if options.resume and options.overwrite:
        raise ValueError("resume=True (--resume) and overwrite=True (--overwrite) contradict each other")
    if options.out is None:
        return None
    if not is_first():  # other processes only read
        return Path(options.out).expanduser().absolute()
    return open_directory(options.out, overwrite=options.overwrite, resume=options.resume)


def _require_saving(saving: Saving, out: str | Path | None, config: Config) -> None:
    require_not_negative(checkpoint_seconds=saving.checkpoint_seconds)
    require_bool(keep_best=saving.keep_best)
    require_whole(0, None, keep_every=saving.keep_every)
    for name, value in (("keep_best", saving.keep_best), ("keep_every", saving.keep_every)):
        if value and out is None:
            raise ValueError(f"{name}={value} needs out, the directory of the run")
    if saving.keep_best and not config.eval_every:
        raise ValueError("keep_best=True needs eval_every, environment steps between evaluations")


def _require_loggers(out: str | Path | None, tensorboard: bool, wandb: str | None) -> None:
    require_bool(tensorboard=tensorboard)
    if tensorboard and out is None:
        raise ValueError("tensorboard=True needs out, the directory of the run")
    if wandb is not None and not (isinstance(wandb, str) and wandb):
        raise ValueError(f"wandb={short(wandb)} must be the name of a project")
    for setting, wanted, package in (("tensorboard", tensorboard, "tensorboardX"), ("wandb", wandb, "wandb")):
        if wanted and importlib.util.find_spec(package) is None:
            raise ValueError(f"{setting}={wanted!r} needs the package {package}: pip install {package}")


def _make_loggers(
    directory: Path | None, env: str, config: Config, tensorboard: bool, wandb: str | None
) -> tuple[Callable[[Row | None], Logger], ...]:
    found: list[Callable[[Row | None], Logger]] = []
    if tensorboard and directory is not None:
        found.append(lambda last: TensorBoard(directory, last))
    if wandb is not None:
        name = env if directory is None else directory.name
        found.append(lambda last: WeightsAndBiases(wandb, directory, name, {"env": env, **as_json(config)}))
    return tuple(found)


def require_finite_start(env: Environment, state: TrainState) -> None:
    """Raises ValueError if a first observation is not finite."""
    finite = np.isfinite(join_envs(state.actors.env.obs)).reshape(-1, env.observation_size).all(axis=0)
    if not finite.all():
        raise ValueError(f"env={env.name}: the first observation is not finite (entries {np.flatnonzero(~finite)[:5]})")
