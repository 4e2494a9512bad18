"""Assembles the update of a run from its parts, which are checked against each other and the environment."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxtrpo.adapt import require_settings
from jaxtrpo.algorithms.algorithm import Learner, Spec
from jaxtrpo.config import UNLIMITED_STEPS, Sizes
from jaxtrpo.config.messages import short, type_name
from jaxtrpo.config.specs import is_built_in
from jaxtrpo.critics.critic import Critic
from jaxtrpo.critics.shared import shared_critic
from jaxtrpo.envs.abilities import Informative, has, masks_actions, observation_space, observations_of
from jaxtrpo.envs.base import Environment, action_space
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.envs.observation_space import ObservationSpace, Observed, as_observed, as_space
from jaxtrpo.parallel.actors import Actors, Trainings
from jaxtrpo.policies.distributions import Comparable
from jaxtrpo.policies.exploring import exploring
from jaxtrpo.policies.making import distribution_of, policy_for
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import Recurrence
from jaxtrpo.policies.value_head import SHARED
from jaxtrpo.rollout.collect import CollectSegments, make_collect, whole_episodes
from jaxtrpo.training.parts import Parts
from jaxtrpo.training.programs import Programs
from jaxtrpo.training.update import Update


def make_update(
    env: Environment,
    parts: Parts,
    sizes: Sizes,
    actors: Actors,
    total_steps: int,
    trainings: Trainings | None = None,
    programs: Programs | None = None,
) -> Update:
    """Checks that the parts of a run fit together, and builds its functions. Nothing is compiled.

    Args:
      env: environment to learn in.
      parts: parts of the run.
      sizes: batch sizes.
      actors: devices that collect and learn.
      total_steps: environment steps of the run.
      trainings: trainings that this run is planned with, if there are several; `actors` is then one.
      programs: of equal runs; None if there are none.

    Raises:
      ValueError: the parts do not fit each other or the environment; one sentence.
    """
    algorithm, rule = parts.algorithm, parts.rule
    require_settings(rule, algorithm.hyperparameters, algorithm.spec_string)
    space = observation_space(env)._replace(frames=parts.frame_stack)
    _require_stackable(env, parts.frame_stack)
    if masks_actions(env) and not action_space(env).counts:
        raise ValueError(f"env={env.name}: action masks need discrete actions, but these are continuous")
    policy = policy_for(parts.policy, as_observed(space), action_space(env), masked=masks_actions(env))
    spec = Spec(
        observation_size=env.observation_size,
        policy=policy,
        critic=_critic_of(parts, policy, as_observed(space)),
        discount=parts.discount,
        surrogate=parts.surrogate,
        normalize_observations=parts.normalize_observations,
        steps_per_update=int(algorithm.hyperparameters["steps_per_update"]),
        segment_steps=sizes.segment_steps,
        segment_length=sizes.segment_length,
        actions=action_space(env),
        observations=space,
    )
    if parts.surrogate is not None and not algorithm.uses_surrogate:
        name = algorithm.spec_string.partition("(")[0]
        raise ValueError(f"surrogate: {name} does not use a surrogate; trpo, npg, trpo_penalty, trpo_replay and ppo do")
    _require_distribution(parts, spec)
    learner = algorithm.make(spec)
    if not isinstance(learner, Learner):
        raise ValueError(f"algorithm={algorithm.spec_string}: its make must return a Learner, not {type_name(learner)}")
    if learner.asynchronous is not None and spec.steps_per_update < 2 * actors.count:
        # Advantages are relative to their mean, so the advantage of a single step would be 0.
        raise ValueError(
            f"steps_per_update={spec.steps_per_update} must be at least {2 * actors.count}, two for each of the "
            f"{actors.count} asynchronous actors"
        )
    # A policy with a value head has one memory, also for its values.
    of_critic = spec.critic.recurrence if policy.value_head is None else None
    acting = policy if algorithm.explore is None else exploring(policy, algorithm.explore)
    _require_normal_noise(parts, acting, env)
    starts, collect = _collecting(env, acting, of_critic, parts, sizes)
    update = Update(
        env=env,
        actors=actors,
        trainings=trainings,
        algorithm=algorithm,
        policy=policy,
        learner=learner,
        rule=rule,
        sizes=sizes,
        total_segments=segments_of_run(total_steps, sizes, segment_parts(learner, actors)),
        programs=Programs() if programs is None else programs,
        _starts=starts,
        _collect=collect,
        _recurrences=(policy.recurrence, of_critic),
        _selects_best=parts.select == "best",
        _correlated_noise=acting.noise_size if parts.noise_correlation else None,
    )
    logs_info = has(env, Informative) and bool(env.info_columns)
    reads = parts.rule_was_chosen and rule.reads
    if (reads or logs_info or _has_own(parts)) and learner.waits:
        update.trace()
    return update


def _has_own(parts: Parts) -> bool:
    """Returns whether any function of the user's own is part of an update."""
    specs = {"algorithm": parts.algorithm, "critic": parts.critic, "adapt": parts.rule}
    return parts.surrogate is not None or not all(is_built_in(kind, part.spec_string) for kind, part in specs.items())


def _critic_of(parts: Parts, policy: Policy, observed: Observed) -> Critic:
    """Returns the critic of a run: the value head of the policy, if it has one.

    Raises:
      ValueError: policy, critic and algorithm do not fit each other; one sentence.
    """
    if policy.value_head is None:
        critic = parts.critic.make(observed)
        if not is_built_in("critic", parts.critic.spec_string):
            _require_values(critic, parts.critic.spec_string, as_space(observed))
        return critic
    given = f"policy={parts.policy.spec_string}"
    if reason := parts.algorithm.refuses_shared:
        name = parts.algorithm.spec_string.partition("(")[0]
        raise ValueError(f"{given}: {name} cannot train a shared torso, because {reason}; ppo, a2c, a3c and dqn can")
    if parts.critic.spec_string != SHARED:
        raise ValueError(f"critic={parts.critic.spec_string}: {given} predicts values itself; leave out the critic")
    return shared_critic(policy)


def _require_values(critic: Critic, name: str, space: ObservationSpace) -> None:
    """Raises ValueError if a critic of the user's does not return one value per state."""
    if critic.recurrence is not None:
        return
    number = 3
    obs = space.map(lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype))
    elapsed = jax.ShapeDtypeStruct((number,), jnp.int32)
    key = jax.random.PRNGKey(0)
    found = jax.eval_shape(lambda key, obs, elapsed: critic.value(critic.init(key), obs, elapsed), key, obs, elapsed)
    if getattr(found, "shape", None) != (number,):
        raise ValueError(
            f"critic={name} must return one value per state, but returns {short(getattr(found, 'shape', found))} for "
            f"{number} states"
        )


def _require_distribution(parts: Parts, spec: Spec) -> None:
    """Raises ValueError if the distributions of the policy lack methods that the algorithm needs."""
    wanted, policy = parts.algorithm.distributions, parts.policy.spec_string
    methods = ("entropy", "kl_divergence", "fisher_metric", "expected_value")
    needed = [method for method in methods if hasattr(wanted, method)]
    # All built-in distributions are comparable, and it takes a trace of the network to see one.
    if not needed or (wanted is Comparable and is_built_in("policy", policy)):
        return
    found = distribution_of(spec.policy, spec.observations, spec.actions)
    missing = [method for method in needed if not hasattr(found, method)]
    if missing:
        name = parts.algorithm.spec_string.partition("(")[0]
        raise ValueError(
            f"policy={policy}: {name} needs distributions with {', '.join(missing)}, which {type(found).__name__} lacks"
        )


def _require_stackable(env: Environment, frame_stack: int) -> None:
    """Raises ValueError if observations consist only of choices, of which no frames are stacked."""
    structured = observations_of(env)
    if frame_stack > 1 and structured is not None and all(part.counts for part in structured.parts):
        raise ValueError(
            f"frame_stack={frame_stack}: observations of {env.name} are choices ({structured.description}), neither "
            "images nor vectors"
        )


def _require_normal_noise(parts: Parts, policy: Policy, env: Environment) -> None:
    """Raises ValueError if noise is to be correlated that is not normal."""
    if not parts.noise_correlation or policy.draws_normal_noise:
        return
    given = f"noise_correlation={parts.noise_correlation:g}"
    if action_space(env).counts:
        raise ValueError(f"{given} needs continuous actions, but those of {env.name} are discrete")
    raise ValueError(f"{given}: policy={parts.policy.spec_string} draws noise of its own, which cannot be correlated")


def _collecting(
    env: Environment, policy: Policy, critic_recurrence: Recurrence | None, parts: Parts, sizes: Sizes
) -> tuple[Environment, CollectSegments]:
    """Returns the environment in which batches are collected, and the function that collects them."""
    make = functools.partial(
        make_collect,
        policy=policy,
        segment_length=sizes.segment_length,
        max_segments=sizes.max_segments,
        critic_recurrence=critic_recurrence,
        noise_correlation=parts.noise_correlation,
    )
    episodes = parts.algorithm.episodes
    if episodes is None:
        return env, make(env)
    repeated = Repeated(env, episodes.conditions, sizes.segment_length)
    return repeated, whole_episodes(make(repeated), repeated)


def segment_parts(learner: Learner, actors: Actors) -> int:
    """Returns the number of parts in which a segment of all actors is counted: asynchronous actors count their own."""
    return 1 if learner.waits else actors.count


def segments_of_run(total_steps: int, sizes: Sizes, parts: int) -> int:
    """Returns the number of segments in a run.

    Args:
      total_steps: environment steps of the run.
      sizes: batch sizes.
      parts: parts in which a segment of all actors is counted (see `segment_parts`).

    Raises:
      ValueError: the number exceeds the integers of compiled programs; one sentence.
    """
    number = -(-total_steps * parts // sizes.segment_steps)
    if total_steps == UNLIMITED_STEPS:  # which nobody asked for
        number = min(number, 2**31 - 1)
    if number >= 2**31:
        raise ValueError(
            f"total_steps={total_steps} makes {number} segments of {sizes.segment_steps // parts} steps, but must make "
            "fewer than 2**31; use more environments (num_envs) or longer segments (segment_length)"
        )
    return number
