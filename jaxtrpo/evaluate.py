"""Whole episodes of the deterministic policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from jaxtrpo.actors import Actors, join_envs
from jaxtrpo.devices import choose_actors
from jaxtrpo.envs.base import Environment, EnvState, action_space, require_time_limit, require_working
from jaxtrpo.envs.registry import environment_for, is_program
from jaxtrpo.ops.keys import key_for
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.trained import TrainedPolicy, likeliest_action


class Evaluation(NamedTuple):
    """Unnormalised returns of complete episodes of the deterministic policy."""

    mean: float
    std: float  # population standard deviation
    returns: np.ndarray  # one an episode


def evaluate(
    policy: TrainedPolicy,
    env: str | Environment | Callable[[], Any] | None = None,
    episodes: int = 10,
    seed: int = 0,
) -> Evaluation:
    """Lets a policy act with its mean for some whole episodes.

    Args:
      policy: who acts.
      env: where, as for `train`, if not in the environment that it was trained in.
      episodes: how many, all at once.
      seed: of the first states.

    Returns:
      Their returns. An episode whose simulation broke has return NaN.

    Raises:
      ValueError: there is no such environment, its episodes need not end, or the policy does not fit it.
      SimulatorError: a simulator of Gymnasium's kind failed.
    """
    return prepare_evaluation(policy, env, episodes)(seed)


def prepare_evaluation(
    policy: TrainedPolicy, env: str | Environment | Callable[[], Any] | None, episodes: int
) -> Callable[[int], Evaluation]:
    """Checks everything that a person may get wrong, and returns what only needs a seed; as `evaluate` otherwise."""
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        raise ValueError(f"episodes={episodes!r} must be a whole number of at least 1")
    where = policy.env_name if env is None else env
    actors = choose_actors(program=is_program(where))
    environment, _ = environment_for(where, actors.count)
    require_time_limit(environment, "evaluate")
    require_fitting(policy, environment)
    run = make_evaluator(environment, policy.network, actors, episodes)

    def evaluate_once(seed: int) -> Evaluation:
        try:
            return run(actors.replicate((policy.params, policy.moments)), evaluation_key(seed))
        finally:
            if environment is not env:  # made here; its simulators would stay until someone forgets it
                getattr(environment, "close", lambda: None)()

    return evaluate_once


def require_fitting(policy: TrainedPolicy, env: Environment) -> None:
    """Refuses an environment in which the numbers of a policy would mean something else.

    Sizes and choices must be the same. Bounds of real numbers may differ, since a policy acts in units of the range
    between them, but not whether there are any: without, it acts in the simulator's units.

    Raises:
      ValueError: one sentence says what does not fit.
    """
    ours, theirs = policy.actions, action_space(env)
    sizes = env.observation_size, theirs.size
    if sizes != (policy.observation_size, ours.size):
        raise ValueError(
            f"the policy has {policy.observation_size} observations and {ours.size} actions, but "
            f"{env.name} has {sizes[0]} and {sizes[1]}"
        )
    if ours.counts != theirs.counts:
        raise ValueError(
            f"the policy's actions are {ours.kind}, but {env.name} takes {theirs.kind}; give an environment like "
            f"{policy.env_name}, where it was trained"
        )
    differ = [] if ours.counts else np.flatnonzero(ours.bounded != theirs.bounded)
    if len(differ):
        has, lacks = ("the policy", env.name) if ours.bounded[differ[0]] else (env.name, "the policy")
        raise ValueError(
            f"action {differ[0]} has two bounds for {has} but not for {lacks}, which changes its units; give an "
            f"environment like {policy.env_name}, where the policy was trained"
        )


def evaluation_key(seed: int) -> UInt32[Array, "2"]:
    """Of the first states of an evaluation; a training with the same seed has others."""
    return key_for("evaluation", jax.random.PRNGKey(seed))


Evaluator = Callable[[tuple[PyTree, Moments], UInt32[Array, "2"]], Evaluation]


def make_evaluator(env: Environment, policy: Policy, actors: Actors, episodes: int) -> Evaluator:
    """Builds (policy parameters and observation moments of every actor, key) -> evaluation; compiles once."""
    num_envs = -(-episodes // actors.count) * actors.count
    reset = jax.jit(env.reset, static_argnums=1)
    rollout = actors.map(make_rollout(env, policy))

    def run(who: tuple[PyTree, Moments], key: UInt32[Array, "2"]) -> Evaluation:
        with actors.on_first():
            begun = jax.block_until_ready(reset(key, num_envs))
        require_working(env)
        returns = jax.block_until_ready(rollout(actors.split_envs(begun), *who))
        require_working(env)
        returns = join_envs(returns)[:episodes].astype(np.float64)
        return Evaluation(float(np.mean(returns)), float(np.std(returns)), returns)

    return run


class _Episode(NamedTuple):
    env: EnvState
    total: Float[Array, " env"]
    finished: Bool[Array, " env"]


def make_rollout(env: Environment, policy: Policy) -> Callable[[EnvState, PyTree, Moments], Float[Array, " env"]]:
    """Builds (first state, policy parameters, observation moments) -> return of each environment's first episode.

    Environments that finish early go on unseen until the last one has finished.
    """
    space = action_space(env)

    def one_step(episode: _Episode, params: PyTree, moments: Moments) -> _Episode:
        after = env.step(episode.env, likeliest_action(policy, params, moments, episode.env.obs, space))
        reward = jnp.where(after.invalid, jnp.nan, after.reward)
        total = episode.total + jnp.where(episode.finished, 0.0, reward)
        return _Episode(after, total, episode.finished | after.terminated | after.truncated)

    def rollout(start: EnvState, params: PyTree, moments: Moments) -> Float[Array, " env"]:
        num_envs = start.obs.shape[0]
        first = _Episode(start, jnp.zeros(num_envs), jnp.zeros(num_envs, bool))
        return jax.lax.while_loop(
            lambda episode: ~jnp.all(episode.finished), lambda episode: one_step(episode, params, moments), first
        ).total

    return rollout
