"""Prepares a run: checks all settings, and builds its parts, before anything is compiled."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxtrpo.config import USUAL_ALGORITHM, Config, make_config
from jaxtrpo.config.checks import require_whole
from jaxtrpo.config.environment import names_of, options_of
from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import KINDS, require_one_value
from jaxtrpo.envs.abilities import (
    envs_per_simulator,
    is_jax_program,
    made_with,
    observation_space,
    observations_of,
    saves_state,
    wastes_steps,
)
from jaxtrpo.envs.base import MOST_STEPS_WITHOUT_LIMIT, Environment, has_time_limit
from jaxtrpo.envs.known_as import name_in_files
from jaxtrpo.envs.registry import environment_for, is_program, may_make_vectors, may_solve_equations
from jaxtrpo.parallel.actors import Actors, Trainings, join_envs
from jaxtrpo.parallel.devices import PROGRAM_THREADS, choose_actors, memory_of, threads_may_run_out
from jaxtrpo.parallel.processes import expected, join, reporting_errors, require_count, require_same
from jaxtrpo.rollout.replay import Replay
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.runs.checkpoint import Checkpoint, load_checkpoint, require_same_run, restore
from jaxtrpo.runs.compilation_cache import cache_compilations
from jaxtrpo.runs.config_file import as_json, versions
from jaxtrpo.runs.directory import has_checkpoint
from jaxtrpo.runs.recipes import mention
from jaxtrpo.training.defaults import (
    fill_in,
    note_algorithm,
    usual_algorithm,
    usual_evaluations,
    with_horizon,
    with_whole_episodes,
    with_whole_simulators,
)
from jaxtrpo.training.make_update import make_update, segment_parts, segments_of_run
from jaxtrpo.training.options import Options, make_loggers, open_for, require_loggers, saving_of
from jaxtrpo.training.parts import IMAGE_NETWORK, Parts, make_parts, with_image_critic
from jaxtrpo.training.programs import kind_of_run, programs_of
from jaxtrpo.training.requirements import (
    note_small_pixels,
    require_finite_start,
    require_fixed_batches,
    require_memory,
    require_one_clock,
)
from jaxtrpo.training.run import Plan, Run
from jaxtrpo.training.selection import with_best, with_segments, without_best
from jaxtrpo.training.warm_start import discount_of, read_warm_start, with_warm_start

SIZES = ("num_envs", "steps_per_update", "max_steps_per_update", "segment_length")
IMAGE_AXES = 3  # of arrays that are noted where they are flattened


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
    structured = observations_of(env)
    space = observation_space(env)
    moved = (
        [part for part in structured.parts if part.axes not in ((), tuple(range(len(part.shape))))]
        if structured
        else []
    )
    if space.images:
        arrays = ", ".join(f"{leaf.name} {leaf.dtype}{list(leaf.shape)}" for leaf in space.images)
        order = f"; channels are axis {moved[0].axes[-1]} of {moved[0].description}" if moved else ""
        yield f"{env.name}: images with channels last: {arrays}{order}"
    images = (
        [part.shape for part in structured.parts if len(part.shape) == IMAGE_AXES and not part.axes]
        if structured
        else []
    )
    if images:
        yield (
            f"{env.name}: images of shape {', '.join(map(str, images))} are flattened, so networks have "
            f"{env.observation_size:,} inputs"
        )
    if replay is not None:
        yield replay.description()
    if may_solve_equations(env) and threads_may_run_out():
        yield (
            f"{env.name}: JAX was started with few threads, for other environments; if this one solves equations, it "
            f"may hang. Start a new process for it, or set NPROC={PROGRAM_THREADS} before Python starts"
        )


def begin(plan: Plan) -> Run:
    """Returns the run of a plan, with its initial state or that of its checkpoint."""
    try:
        if plan.saved is None:
            state, metrics, note = plan.update.start(plan.config.seed), {}, None
            obs = join_envs(state.actors.env.obs)
            require_finite_start(plan.env, obs)
            small = note_small_pixels(plan, obs)
            if plan.warm_start is not None:
                state, note = with_warm_start(plan.warm_start, state, plan.actors), plan.warm_start.note
        else:
            (gathered, note), small = restored(plan, plan.saved), None
            state, metrics = plan.update.place(gathered), plan.saved.metrics
    except BaseException:
        plan.close()
        raise
    notes = (*plan.notes, *(each for each in (small, note) if each is not None))
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return Run(**{**fields, "notes": notes}, state=state, metrics=metrics)


def plan(
    env: str | Environment | Callable[[], Any],
    arguments: Mapping[str, Any],
    *,
    actors: Actors | None = None,
    trainings: Trainings | None = None,
    has_options: bool = False,
) -> Plan:
    """Checks all arguments, and builds the parts of a run.

    Args:
      env: see `train`.
      arguments: other arguments of `train`, by name.
      has_options: `env` was made with the options in `arguments`.
      actors: devices that collect and learn; None to choose them by the settings.
      trainings: see `make_update`.
    """
    if actors is not None:
        return _plan(env, arguments, actors, trainings, has_options=has_options)
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
    *,
    has_options: bool = False,
) -> Plan:
    started = time.perf_counter()
    options = Options(**{name: value for name, value in arguments.items() if name in Options._fields})
    algorithm = getattr(options.algorithm, "spec_string", options.algorithm)
    settings = {name: value for name, value in arguments.items() if name not in Options._fields}
    config = make_config(settings, algorithm=str(algorithm or USUAL_ALGORITHM))
    # What the environment is still to be made with; files record with what it was made before.
    limit, env_options = config.max_episode_steps, {} if has_options else options_of(config.env_options)
    if (made := made_with(env)) is not None:
        config = dataclasses.replace(config, **made._asdict())
    chosen = {**vars(config), **{name: getattr(options, name) for name in (*KINDS, "surrogate")}}
    require_one_value(chosen, vars(Config()))
    saving = saving_of(options, config)
    require_loggers(options)
    if config.stop_after_evaluations is not None and not config.eval_every:
        raise ValueError(
            f"stop_after_evaluations={config.stop_after_evaluations} needs eval_every, environment steps between "
            "evaluations"
        )

    def parts_with(policy: Any) -> tuple[Parts, int]:
        return make_parts(
            config,
            algorithm=USUAL_ALGORITHM if options.algorithm is None else options.algorithm,
            policy=policy,
            critic=options.critic,
            adapt=options.adapt,
            surrogate=options.surrogate,
        )

    parts, usual_steps = parts_with(options.policy)
    may_choose_actors = actors is None and config.actors is None
    actors = actors or actors_of(env, config)  # starts JAX, which tells `open_for` whether this is the first process
    directory = open_for(options)
    saved = None
    if directory is not None and options.resume and has_checkpoint(directory):
        saved = load_checkpoint(directory)
    if saved is not None and parts.algorithm.episodes is None:
        # By default, they depend on the number of actors and on the device, both of which may change.
        sizes_then = {name: saved.config[name] for name in SIZES if getattr(config, name) is None}
        config = dataclasses.replace(config, **sizes_then)
    if saved is not None and config.eval_every is None:
        config = dataclasses.replace(config, eval_every=saved.config["eval_every"])
        parts, _ = parts_with(options.policy)
    found = actors.count
    shared = config.num_envs if parts.algorithm.episodes is None else parts.algorithm.episodes[0]
    if may_choose_actors and shared is not None:
        actors = actors.for_envs(shared)
    # The sizes of batches of whole episodes and of vector environments depend on the environment, which is made below.
    depends = parts.algorithm.episodes is not None or may_make_vectors(env)
    filled = None if depends else fill_in(parts, config, actors, usual_steps)
    cache_compilations()
    # A run that was saved before this column existed is resumed without it.
    success = saved is None or not saved.metrics or "success_rate" in saved.metrics
    how = limit, env_options, names_of(config.log_info)
    environment, close = environment_for(env, actors.count, *how, success=success)
    try:
        if (each := envs_per_simulator(environment)) > 1:
            whole, rest = divmod(config.num_envs or 0, each)
            fewer = actors.for_envs(whole) if may_choose_actors and whole and not rest else actors
            if fewer.count < actors.count:
                close()
                actors = fewer
                environment, close = environment_for(env, actors.count, *how, success=success)
            config = with_whole_simulators(config, actors, environment)
        if observation_space(environment).images:
            parts, _ = parts_with(IMAGE_NETWORK if options.policy is None else with_image_critic(parts.policy))
            filled = None
        told: list[str] = []
        if is_jax_program(environment) and not is_program(env, options_of(config.env_options)):
            told.append(
                f"{environment.name} is a JAX program that a function has returned, and runs on CPU cores; pass the "
                "environment itself, which also runs on accelerators"
            )
        if actors.count < found:
            told.append(
                f"actors: {actors.count} of {found} devices collect, the most among which "
                f"{'environments' if parts.algorithm.episodes is None else 'conditions'} can be divided equally"
            )
        if options.algorithm is None:
            usual = usual_algorithm(chosen, environment, saved)
            options = options._replace(algorithm=usual)
            if usual != USUAL_ALGORITHM:
                (parts, usual_steps), filled = parts_with(options.policy), None
                if saved is None:
                    told.append(note_algorithm(usual, environment))
                chosen["algorithm"] = usual  # which its recipe may choose, too
        if saved is None and (mentioned := mention(env, chosen)):
            told.insert(0, mentioned)
        if parts.algorithm.episodes is not None:
            parts, config = with_whole_episodes(parts, config, actors, environment)
        parts, config, sizes = filled or fill_in(parts, config, actors, usual_steps)
        parts, config, note = with_horizon(parts, config, environment, saved, discount_of(config.start_from))
        if note is not None:
            told.append(note)
        kind = None
        if trainings is None and success and options.surrogate is None:
            of_kinds = {each: getattr(options, each) for each in KINDS}
            kind = kind_of_run(env, environment, of_kinds, config, sizes, actors)
        update = make_update(
            environment, parts, sizes, actors, config.most_steps, trainings, programs=programs_of(kind)
        )
        require_one_clock(config, update, actors)
        if not (update.learner.waits or actors.in_one_process):
            raise ValueError(
                f"algorithm={config.algorithm} does not support multi-process training; run it in one process"
            )
        replay, devices = update.learner.replay, trainings.devices if trainings else actors.own
        memory = memory_of(devices)
        if replay is not None:
            learners = len(devices)
            if trainings and update.in_one_program:  # all in memory at the same time
                learners = trainings.number
            replay.require_memory(learners, memory, saved=directory is not None)
        require_memory(config, update, memory)
        require_fixed_batches(parts)
        warm_start = None
        if config.start_from is not None and saved is None:
            warm_start = read_warm_start(config.start_from, environment, parts.policy, parts.critic.spec_string, update)
        return Plan(
            env=environment,
            name_in_files=name_in_files(env, environment),
            config=config,
            actors=actors,
            maker=parts.policy,
            update=update,
            directory=directory,
            directory_is_new=saved is None and not options.overwrite,
            saved=saved,
            warm_start=warm_start,
            started=started,
            close=close,
            notes=(*told, *_notes(environment, config, replay)),
            # Otherwise, steps after the episode in a fixed batch, or steps that only reset, are invalid, too.
            evaluations=usual_evaluations(config, environment),
            invalid_is_broken=parts.algorithm.episodes is None and not wastes_steps(environment),
            saving=saving,
            on_update=options.on_update,
            loggers=make_loggers(options, directory, environment.name, config),
        )
    except BaseException:
        close()
        raise


def actors_of(env: Any, config: Config, *, for_good: bool = False) -> Actors:
    """Returns the actors of a training, over all processes; other arguments and errors as for `choose_actors`."""
    options = options_of(config.env_options)
    program = is_program(env, options)
    if config.device in ("gpu", "tpu") and not program:
        name = getattr(env, "name", None) or (env if isinstance(env, str) else short(env))
        raise ValueError(
            f"device={config.device}: {name} runs on CPU cores; only environments that are JAX "
            "programs (brax:NAME, gymnax:NAME, mjx:NAME, playground:NAME, your own, but not a function that returns "
            "one) run on accelerators"
        )
    actors = choose_actors(
        config.actors,
        device=config.device,
        for_good=for_good,
        program=program,
        lapack=may_solve_equations(env, options),
        processes=expected(config.processes),
    )
    require_count(config.processes)
    return actors


def restored(plan: Plan, saved: Checkpoint) -> tuple[TrainState, str | None]:
    """Returns the gathered state of a run that is resumed, and a note for the user, if any.

    Raises:
      ValueError: the checkpoint is that of a different run.
    """
    require_same_run(saved, plan.env.name, plan.config)
    arrays = with_best(saved.state) if plan.config.select == "best" else without_best(saved.state)
    state = restore(arrays, plan.update.shapes())
    parts = segment_parts(plan.update.learner, plan.actors)
    total = segments_of_run(plan.config.most_steps, plan.update.sizes, parts)
    state = state._replace(total_segments=np.int32(total))
    if not plan.update.learner.waits:  # each actor counts its own segments, and their number may have changed
        done = saved.metrics["env_steps"][-1] if saved.metrics else 0  # no metrics before the first update
        segments = np.int32(done * parts // plan.update.sizes.segment_steps)
        state = with_segments(state, segments)
    if saves_state(plan.env):
        return state, None
    note = f"the simulators of {plan.env.name} cannot be saved, so all environments start new episodes"
    return plan.update.restart(state), note
