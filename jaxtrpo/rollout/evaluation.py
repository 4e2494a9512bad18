"""Evaluation: returns of whole episodes of the deterministic policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from jaxtrpo.config.checks import MOST_EPISODES, require_seed, require_whole
from jaxtrpo.config.messages import short
from jaxtrpo.envs.abilities import close, require_working
from jaxtrpo.envs.base import MOST_STEPS_WITHOUT_LIMIT, Environment, EnvState, action_space, has_time_limit
from jaxtrpo.envs.registry import environment_for, is_program, module_of
from jaxtrpo.ops.keys import key_for
from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.actors import Actors, join_envs
from jaxtrpo.parallel.devices import choose_actors
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.trained import TrainedPolicy, likeliest_action


class Evaluation(NamedTuple):
    """Unnormalised returns of complete episodes of the deterministic policy."""

    mean: float
    std: float  # population standard deviation
    returns: np.ndarray  # one per episode
    stopped: int = 0  # episodes that were stopped after `MOST_STEPS_WITHOUT_LIMIT` steps; their returns are partial


def evaluate(
    policy: TrainedPolicy,
    env: str | Environment | Callable[[], Any] | None = None,
    episodes: int = 10,
    seed: int = 0,
    max_episode_steps: int | None = None,
) -> Evaluation:
    """Evaluates the deterministic policy, which acts with the mode of its distributions.

    Args:
      policy: policy to evaluate.
      env: environment, as for `train`; None: the one in which the policy was trained.
      episodes: number of episodes, which run in parallel.
      seed: seed of the initial states.
      max_episode_steps: time limit in steps; None: that of the policy's training or, if `env` is given, its own.

    Returns:
      The returns of the episodes; NaN for an episode with an invalid step. Without a time limit, episodes are stopped
      after 10,000 steps, with a warning.

    Raises:
      ValueError: there is no such environment, or the policy does not fit it.
      SimulatorError: a Gymnasium simulator failed.
    """
    evaluation = prepare_evaluation(policy, env, episodes, max_episode_steps)(seed)
    if evaluation.stopped:
        warnings.warn(stopped_in_words(evaluation), stacklevel=2)
    return evaluation


def prepare_evaluation(
    policy: TrainedPolicy,
    env: str | Environment | Callable[[], Any] | None,
    episodes: int,
    max_episode_steps: int | None = None,
) -> Callable[[int], Evaluation]:
    """Validates the arguments of `evaluate`, and returns a function from a seed to the evaluation."""
    require_whole(1, MOST_EPISODES, episodes=episodes)
    if not isinstance(policy, TrainedPolicy):
        raise ValueError(f"policy={short(policy, 60)} must be a TrainedPolicy, such as train(...).policy")
    where, limit = where_to_act(policy, env, max_episode_steps)
    actors = choose_actors(program=is_program(where))
    environment, _ = environment_for(where, actors.count, limit)
    require_fitting(policy, environment)
    run = make_evaluator(environment, policy.network, actors, episodes)

    def evaluate_once(seed: int) -> Evaluation:
        try:
            require_seed(seed=seed)
            return run(actors.replicate((policy.params, policy.moments)), evaluation_key(seed))
        finally:
            if environment is not env:  # created above; its simulators would otherwise run until garbage collection
                close(environment)

    return evaluate_once


def where_to_act(policy: TrainedPolicy, env: Any, max_episode_steps: int | None) -> tuple[Any, int | None]:
    """Returns the environment and the time limit; None is replaced with that of the policy's training.

    Raises:
      ValueError: the policy's environment is in a module that has not been imported. A file of somebody else's must not
        choose which code is run.
    """
    if max_episode_steps is not None:
        require_whole(1, max_episode_steps=max_episode_steps)
    if env is None:
        module = module_of(policy.env_name)
        if module is not None:
            raise ValueError(
                f"env={policy.env_name}, where the policy was trained, imports the module {short(module)}: give env "
                f"(--env {policy.env_name}) if you trust it"
            )
        return policy.env_name, max_episode_steps or policy.max_episode_steps
    return env, max_episode_steps


def stopped_in_words(evaluation: Evaluation) -> str:
    """Returns the warning about episodes that were stopped."""
    count = len(evaluation.returns)
    return (
        f"{evaluation.stopped} of {count} episodes were stopped after {MOST_STEPS_WITHOUT_LIMIT:,} steps, "
        "because the environment has no time limit; set max_episode_steps (--max-episode-steps)"
    )


def require_fitting(policy: TrainedPolicy, env: Environment) -> None:
    """Checks that a policy fits an environment.

    Sizes and discrete choices must be the same. Bounds of continuous actions may differ, because a policy acts in units
    of the range between them; but it must be the same coordinates that are bounded on both sides, because a policy acts
    in the simulator's units on the others.

    Raises:
      ValueError: the observation or action space does not fit.
    """
    ours, theirs = policy.actions, action_space(env)
    sizes = env.observation_size, theirs.size
    if sizes != (policy.observation_size, ours.size):
        raise ValueError(
            f"the policy has observations of size {policy.observation_size} and actions of size {ours.size}, but "
            f"those of {env.name} have sizes {sizes[0]} and {sizes[1]}"
        )
    if ours.counts != theirs.counts:
        raise ValueError(
            f"the policy's actions are {ours.kind}, but those of {env.name} are {theirs.kind}; use an environment like "
            f"{policy.env_name}, where the policy was trained"
        )
    differ = [] if ours.counts else np.flatnonzero(ours.bounded != theirs.bounded)
    if len(differ):
        has, lacks = ("the policy", env.name) if ours.bounded[differ[0]] else (env.name, "the policy")
        raise ValueError(
            f"action {differ[0]} has two bounds for {has} but not for {lacks}, which changes its units; use an "
            f"environment like {policy.env_name}, where the policy was trained"
        )


def evaluation_key(seed: int) -> UInt32[Array, "2"]:
    """Returns the key of the initial states, which differ from those of a training with the same seed."""
    return key_for("evaluation", jax.random.PRNGKey(seed))


Evaluator = Callable[[tuple[PyTree, Moments], UInt32[Array, "2"]], Evaluation]


def make_evaluator(env: Environment, policy: Policy, actors: Actors, episodes: int) -> Evaluator:
    """Builds (policy parameters and observation moments per actor, key) -> evaluation; compiles once."""
    num_envs = -(-episodes // actors.count) * actors.count
    reset = jax.jit(env.reset, static_argnums=1)
    rollout = actors.map(make_rollout(env, policy))

    def run(policy_and_moments: tuple[PyTree, Moments], key: UInt32[Array, "2"]) -> Evaluation:
        with actors.on_first():
            start = jax.block_until_ready(reset(key, num_envs))
        require_working(env)
        returns, ended = jax.block_until_ready(rollout(actors.split_envs(start), *policy_and_moments))
        require_working(env)
        returns = join_envs(returns)[:episodes].astype(np.float64)
        stopped = episodes - int(np.sum(join_envs(ended)[:episodes]))
        return Evaluation(float(np.mean(returns)), float(np.std(returns)), returns, stopped)

    return run


class _Episode(NamedTuple):
    env: EnvState
    total: Float[Array, " env"]
    finished: Bool[Array, " env"]
    steps: Int[Array, ""]


Rollout = Callable[[EnvState, PyTree, Moments], tuple[Float[Array, " env"], Bool[Array, " env"]]]


def make_rollout(env: Environment, policy: Policy) -> Rollout:
    """Builds the function that runs the first episode of each environment.

    Without a time limit, it stops after `MOST_STEPS_WITHOUT_LIMIT` steps. Environments that finish early are stepped on
    until the last one has finished, without effect on the results.

    Returns:
      (initial state, policy parameters, observation moments) -> (returns, whether each episode has ended).
    """
    space = action_space(env)

    def one_step(episode: _Episode, params: PyTree, moments: Moments) -> _Episode:
        after = env.step(episode.env, likeliest_action(policy, params, moments, episode.env.obs, space))
        reward = jnp.where(after.invalid, jnp.nan, after.reward)
        total = episode.total + jnp.where(episode.finished, 0.0, reward)
        return _Episode(after, total, episode.finished | after.terminated | after.truncated, episode.steps + 1)

    def unfinished(episode: _Episode) -> Bool[Array, ""]:
        running = ~jnp.all(episode.finished)
        # With a time limit, the environment ends every episode.
        return running if has_time_limit(env) else running & (episode.steps < MOST_STEPS_WITHOUT_LIMIT)

    def rollout(start: EnvState, params: PyTree, moments: Moments) -> tuple[Float[Array, " env"], Bool[Array, " env"]]:
        num_envs = start.obs.shape[0]
        first = _Episode(start, jnp.zeros(num_envs), jnp.zeros(num_envs, bool), jnp.int32(0))
        last = jax.lax.while_loop(unfinished, lambda episode: one_step(episode, params, moments), first)
        return last.total, last.finished

    return rollout
