"""Defaults of settings that depend on other settings and on the actors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxtrpo.algorithms.algorithm import starting_with
from jaxtrpo.config import (
    SEGMENT_LENGTH,
    USUAL_ALGORITHM,
    USUAL_DISCOUNT,
    Config,
    Sizes,
    for_batch,
    resolve_sizes,
)
from jaxtrpo.envs.abilities import envs_per_simulator, is_jax_program, may_terminate, observation_space
from jaxtrpo.envs.base import Environment, action_space, has_time_limit, require_time_limit
from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
from jaxtrpo.envs.observation_space import as_observed
from jaxtrpo.parallel.actors import Actors
from jaxtrpo.policies.making import policy_for
from jaxtrpo.runs.checkpoint import Checkpoint
from jaxtrpo.training.parts import Parts

# The more coordinates actions have, the less a batch says about each of them, and the more a critic of actions, which
# learns from many batches, is worth: with 17 (Humanoid) the most, with 8 (Ant) hardly its time. Where episodes never
# terminate, values are easier to learn, and fewer suffice: 6 (HalfCheetah) do, 2 (Swimmer) do not.
MANY_COORDINATES, MANY_WITHOUT_ENDS = 12, 6
ALGORITHM_OF_MANY_COORDINATES = "trpo_replay"
# It pays off late: before, `trpo` is as good in less time (experiments/results/frontier/NOTES.md). From how many
# environment steps, and seconds, on: where episodes may terminate, and where they never do.
LONG, LONG_WITHOUT_ENDS = (200_000, 100.0), (100_000, 60.0)
# Where episodes may end early, a policy that falls may be one update away from one that does not, so that it is worth a
# few evaluations which one a run hands out (experiments/results/selection/NOTES.md). Short runs would feel their time.
EVALUATIONS = 10
LONG_ENOUGH_STEPS, LONG_ENOUGH_SECONDS = 500_000, 60
MOST_OF_STEPS = 0.25  # that evaluations may take, in proportion to those of training
# Where one of them is given, it was chosen for the usual algorithm.
SETTINGS_OF_LEARNING = (
    "policy", "critic", "adapt", "surrogate", "max_kl", "steps_per_update", "max_steps_per_update", "discount",
    "noise_correlation", "normalize_observations", "frame_stack", "num_envs", "segment_length", "start_from",
)  # fmt: skip

# Where episodes last this long, whatever the policy does, the discount is the one whose horizon is as long. With the
# usual one, Swimmer never finds its fast gait; with a long horizon, noise that is correlated over time finds it early.
LONG_EPISODE = 1000
DISCOUNT_OF_LONG_EPISODES, NOISE_CORRELATION_OF_LONG_EPISODES = 0.999, 0.5


def usual_algorithm(chosen: Mapping[str, Any], environment: Environment, saved: Checkpoint | None) -> str:
    """Returns the algorithm of a run for which none is chosen.

    Args:
      chosen: what the user chose, the arguments of `train` by name.
      environment: environment of the run.
      saved: checkpoint to resume from, whose algorithm remains, however long the run is now.
    """
    if saved is not None:
        learns_from_replay = saved.config["algorithm"] == ALGORITHM_OF_MANY_COORDINATES
    else:
        usual: dict[str, tuple[Any, ...]] = {name: (value,) for name, value in vars(Config()).items()}
        usual |= {"surrogate": (None,), "discount": (None, USUAL_DISCOUNT), "noise_correlation": (None, 0.0)}
        learns_from_replay = (
            replay_pays_off(environment, chosen["total_steps"], chosen["stop_after_seconds"])
            and all(chosen[name] in usual[name] for name in SETTINGS_OF_LEARNING)
            and not observation_space(environment).images
            and not is_jax_program(environment)  # of which nothing is known yet
        )
    return ALGORITHM_OF_MANY_COORDINATES if learns_from_replay else USUAL_ALGORITHM


def replay_pays_off(environment: Environment, steps: float | None, seconds: float | None) -> bool:
    """Returns whether a replay buffer pays off: actions are real numbers of many coordinates, and the run is long.

    None is a length that is left open.
    """
    space = action_space(environment)
    many, length = (MANY_COORDINATES, LONG) if may_terminate(environment) else (MANY_WITHOUT_ENDS, LONG_WITHOUT_ENDS)
    long = all(given is None or given >= least for given, least in zip((steps, seconds), length, strict=True))
    return not space.counts and space.size >= many and long


def usual_evaluations(config: Config, environment: Environment) -> int:
    """Returns the number of evaluations of a run for which `eval_every` is left open."""
    seconds, steps = config.stop_after_seconds, config.most_steps
    evaluates = (
        config.eval_every is None
        and config.select == "best"
        and isinstance(environment, MujocoEnvironment)
        and may_terminate(environment)
        and (seconds is None or seconds >= LONG_ENOUGH_SECONDS)
        and steps >= LONG_ENOUGH_STEPS
        and EVALUATIONS * config.eval_episodes * environment.episode_length <= MOST_OF_STEPS * steps
    )
    return EVALUATIONS if evaluates else 0


def note_algorithm(algorithm: str, environment: Environment) -> str:
    """Returns the note for the user about an algorithm that was chosen in place of the usual one."""
    why = f"at least {MANY_COORDINATES} coordinates"
    if action_space(environment).size < MANY_COORDINATES:
        why = f"at least {MANY_WITHOUT_ENDS} coordinates and episodes of {environment.name} never end early"
    return (
        f"algorithm: {algorithm}, because actions have {why}; --algorithm {USUAL_ALGORITHM} makes several times as "
        "many steps in the same time"
    )


def with_horizon(
    parts: Parts,
    config: Config,
    environment: Environment,
    saved: Checkpoint | None,
    discount_before: float | None,
) -> tuple[Parts, Config, str | None]:
    """Chooses `discount` and `noise_correlation` if they were left open, and returns parts, settings and a note.

    A discount near 1 costs where episodes may terminate, and where they are short
    (experiments/results/benchmark_1m/NOTES.md).

    Args:
      parts: parts of the run.
      config: its settings.
      environment: environment of the run.
      saved: checkpoint to resume from, whose settings remain.
      discount_before: discount of the run that this one starts from, whose values it takes over; None if there is none.
    """
    usual = {"discount": USUAL_DISCOUNT, "noise_correlation": 0.0}
    note = None
    if saved is not None:
        usual = {name: saved.config.get(name, value) for name, value in usual.items()}
    elif (
        config.discount is None
        and discount_before in (None, DISCOUNT_OF_LONG_EPISODES)
        and _has_long_horizon(parts, environment)
    ):
        usual["discount"] = DISCOUNT_OF_LONG_EPISODES
        if _draws_normal_noise(parts, environment):
            usual["noise_correlation"] = NOISE_CORRELATION_OF_LONG_EPISODES
        note = f"episodes of {environment.name} never end early, so by default discount={usual['discount']:g}"
        if config.noise_correlation is None:
            note += f" and noise_correlation={usual['noise_correlation']:g}"
        note += f"; --discount {USUAL_DISCOUNT} for the usual ones"
    chosen = {name: value if getattr(config, name) is None else getattr(config, name) for name, value in usual.items()}
    return parts._replace(**chosen), dataclasses.replace(config, **chosen), note


def _has_long_horizon(parts: Parts, environment: Environment) -> bool:
    return (
        parts.algorithm.long_horizon
        and not may_terminate(environment)
        and has_time_limit(environment)
        and environment.episode_length >= LONG_EPISODE
        and not is_jax_program(environment)  # of which nothing is known yet
    )


def _draws_normal_noise(parts: Parts, environment: Environment) -> bool:
    space = observation_space(environment)._replace(frames=parts.frame_stack)
    policy = policy_for(parts.policy, as_observed(space), action_space(environment), masked=False)
    return policy.draws_normal_noise


def fill_in(parts: Parts, config: Config, actors: Actors, usual_steps: int) -> tuple[Parts, Config, Sizes]:
    """Chooses the settings that were left open, and returns the completed parts and settings.

    Args:
      parts: parts of the run; the given settings are already in its algorithm.
      config: the given settings.
      actors: devices that collect and learn.
      usual_steps: the algorithm's default of steps_per_update.

    Raises:
      ValueError: the settings do not fit together; one sentence.
    """
    accelerator = any(device.platform != "cpu" for device in actors.devices)
    steps = int(parts.algorithm.hyperparameters["steps_per_update"])
    num_envs = config.num_envs or for_batch(
        actors.count, parts.algorithm.num_envs, larger=steps / usual_steps, accelerator=accelerator
    )
    if config.steps_per_update is None:
        # Many actors have many environments, and few steps of each would be too few to learn from.
        least = SEGMENT_LENGTH if accelerator else parts.algorithm.steps_of_each
        steps = max(steps, least * num_envs)
        parts = parts._replace(algorithm=starting_with(parts.algorithm, steps_per_update=steps))
    config = dataclasses.replace(
        config,
        total_steps=config.most_steps,
        algorithm=parts.algorithm.spec_string,
        policy=parts.policy.spec_string,
        critic=parts.critic.spec_string,
        adapt=parts.rule.spec_string,
        max_kl=parts.algorithm.hyperparameters.get("max_kl"),
        steps_per_update=steps,
        max_steps_per_update=config.max_steps_per_update or max(parts.rule.max_steps_per_update or 0, steps),
    )
    sizes = resolve_sizes(config, actors.count, num_envs=num_envs, steps_per_update=steps)
    return parts, dataclasses.replace(config, num_envs=sizes.num_envs, segment_length=sizes.segment_length), sizes


def with_whole_simulators(config: Config, actors: Actors, environment: Environment) -> Config:
    """Sets the number of environments to that of one simulator per actor, if none is given.

    Raises:
      ValueError: the given number is not a multiple of that; one sentence.
    """
    each = envs_per_simulator(environment)
    unit = each * actors.count
    if config.num_envs is not None and config.num_envs % unit:
        raise ValueError(
            f"num_envs={config.num_envs} must be a multiple of {unit}, the {each} environments of {environment.name} "
            f"for each of the {actors.count} actors"
        )
    return dataclasses.replace(config, num_envs=config.num_envs or unit)


def with_whole_episodes(parts: Parts, config: Config, actors: Actors, environment: Environment) -> tuple[Parts, Config]:
    """Sets the sizes of batches that are one whole episode of every environment, for algorithms that need these.

    Raises:
      ValueError: a setting does not fit these sizes; one sentence that names it.
    """
    assert parts.algorithm.episodes is not None
    conditions, samples, horizon = parts.algorithm.episodes
    algorithm = f"algorithm={parts.algorithm.spec_string}"
    if horizon is None:
        require_time_limit(environment, f"{algorithm} without a horizon")
    elif horizon > environment.episode_length:
        raise ValueError(
            f"horizon={horizon} must be at most {environment.episode_length}, the episode length of {environment.name}"
        )
    length, num_envs = horizon or environment.episode_length, conditions * samples
    if conditions % actors.count:
        raise ValueError(f"conditions={conditions} must be a multiple of the {actors.count} actors")
    if config.num_envs is not None and config.num_envs < conditions:
        raise ValueError(
            f"num_envs={config.num_envs} is less than conditions={conditions}, which take {samples} environments each"
        )
    steps = num_envs * length
    wanted = {"num_envs": num_envs, "segment_length": length, "steps_per_update": steps, "max_steps_per_update": steps}
    for name, value in wanted.items():
        given = getattr(config, name)
        if given not in (None, value):
            raise ValueError(
                f"{name}={given} must be {value}: an update of {algorithm} is one episode of {length} steps in each of "
                f"{num_envs} environments"
            )
    parts = parts._replace(algorithm=starting_with(parts.algorithm, steps_per_update=steps))
    return parts, dataclasses.replace(config, **wanted)
