"""Deep Q-networks, DQN (Mnih et al. 2015): Q-learning for discrete actions."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.algorithms.algorithm import Algorithm, Info, Learner, Spec, replay_for, require_plain_networks
from jaxtrpo.algorithms.q_learning import (
    NUM_ENVS,
    STEPS_PER_UPDATE,
    Bellman,
    Params,
    q_learner,
    require_settings,
)
from jaxtrpo.config.checks import require_bool, require_share, require_whole
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import is_network
from jaxtrpo.ops.minibatches import minibatches_for
from jaxtrpo.policies.distributions import Categorical, Distribution
from jaxtrpo.policies.heads import last_layer_scaled
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.replay import Ring, Transitions
from jaxtrpo.rollout.types import Hyperparameters

LEAST_PROBABILITY = 1e-30  # of a choice, so that its logarithm is finite
N_STEP = 3  # by default
LAST_EPSILON = 0.01  # at the end of a run
MOST_STEPS = 1_000  # of an n-step return


def dqn(
    *,
    learning_rate: float = 1e-3,
    replay: int = 100_000,
    replay_ratio: float = 0.5,
    minibatch_size: int = 128,
    minibatch_per_env: float = 0.25,
    target_rate: float = 0.01,
    epsilon: float = 1.0,
    n_step: int | None = None,
    double: bool = True,
    asynchronous: bool = False,
) -> Algorithm:
    """Deep Q-networks (DQN): Q-learning from a replay buffer, for environments with one discrete action.

    The logits of the policy are the values Q(s, a), so its mode is the greedy action. The regression target of a step
    is

        r_0 + d r_1 + ... + d^(n-1) r_(n-1) + d^n Q'(s_n, argmax_a Q(s_n, a))

    with the discount d and the target network Q', a slow copy of Q; where an episode ends earlier, so does the sum.
    With probability epsilon, actions are uniformly random instead of greedy. A policy with a value head, such as
    `--policy "mlp(shared=True)"`, is a dueling network (Wang et al. 2016): Q = V + A - mean A, with the logits as
    advantages A.

    Args:
      learning_rate: initial learning rate of Adam. By default it decays exponentially to a tenth over the run.
      replay: capacity of the replay buffer, environment steps.
      replay_ratio: gradient steps per environment step, rounded in each update to a whole number of at least 1; fewer,
        in proportion, if `minibatch_per_env` makes minibatches larger.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: least number of them per environment.
      target_rate: fraction by which the target network moves towards the policy in each gradient step.
      epsilon: initial probability of a random action. By default it decays exponentially to 0.01 over the run.
      n_step: environment steps n of a return (Sutton 1988; Hessel et al. 2018), not corrected for later policies. None
        for 3, or for 1 if `asynchronous`, which allows no other.
      double: whether the policy chooses the action that the target network evaluates (van Hasselt et al. 2016);
        otherwise the target network does both.
      asynchronous: whether actors keep collecting while the network learns, as in Gorila (Nair et al. 2015). If
        learning is slower than collecting, it takes fewer gradient steps. Runs are then not reproducible bit by bit,
        and batches learned from together share their learning metrics.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(dqn, locals())
    require_settings(
        learning_rate=learning_rate,
        replay=replay,
        replay_ratio=replay_ratio,
        minibatch_size=minibatch_size,
        minibatch_per_env=minibatch_per_env,
        target_rate=target_rate,
        asynchronous=asynchronous,
    )
    require_bool(double=double)
    require_share(epsilon=epsilon)
    if n_step is not None:
        require_whole(1, MOST_STEPS, n_step=n_step)
    length = n_step or (1 if asynchronous else N_STEP)
    if asynchronous and length > 1:
        raise ValueError(
            f"n_step={n_step} of dqn needs asynchronous=False, because asynchronous actors take turns in the buffer"
        )

    def make(spec: Spec) -> Learner:
        require_plain_networks(spec, "dqn")
        if is_network(spec.critic) and spec.policy.value_head is None:
            raise ValueError("critic: the values of dqn are those of its policy; use critic=none")
        if len(spec.actions.counts) != 1:
            raise ValueError(
                f"algorithm: dqn needs one discrete action, but the environment's are {spec.actions.kind}; use trpo or "
                "ppo"
            )
        (count,) = spec.actions.counts
        buffer = replay_for(spec, replay, 1)
        if length * spec.num_envs > buffer.capacity:
            raise ValueError(
                f"n_step={length} of dqn needs a replay of at least {length * spec.num_envs} steps, as many of each of "
                f"the {spec.num_envs} environments, not {replay}"
            )

        def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> Params:
            return spec.policy.init(for_policy), ()

        def draw(ring: Ring, key: PRNGKeyArray | UInt32[Array, "2"], number: int) -> Transitions:
            return buffer.draw_windows(ring, key, number, length)

        def loss(
            params: Params, target: PyTree, rows: Transitions, unit: Float[Array, ""], noise: Float[Array, "row noise"]
        ) -> tuple[Float[Array, " row"], Float[Array, " row"]]:
            """Returns Huber losses and squared Bellman errors."""
            total, final_obs, share = n_step_return(rows, spec.discount)
            later = values_of(spec.policy, target, final_obs)
            best = jnp.argmax(values_of(spec.policy, params[0], final_obs) if double else later, axis=-1)
            worth = total / unit + share * _chosen(later, best)
            found = _chosen(values_of(spec.policy, params[0], rows.obs[:, 0]), rows.action[:, 0, 0].astype(jnp.int32))
            return optax.losses.huber_loss(found, worth), (found - worth) ** 2

        def in_units(params: Params, target: PyTree, change: Float[Array, ""]) -> tuple[Params, PyTree]:
            return last_layer_scaled((params, target), change)

        def summary(params: Params, obs: Float[Array, "row obs"], unit: Float[Array, ""]) -> Info:
            return {"value": unit * jnp.mean(jnp.max(values_of(spec.policy, params[0], obs), axis=-1))}

        minibatches = minibatches_for(spec.num_envs, minibatch_size, minibatch_per_env, replay_ratio)
        bellman = Bellman(init, lambda params: params[0], draw, loss, in_units, summary)
        return q_learner(spec, bellman, buffer, minibatches, target_rate=target_rate, asynchronous=asynchronous)

    starts = {"learning_rate": learning_rate, "epsilon": epsilon, "steps_per_update": STEPS_PER_UPDATE}
    return Algorithm(
        spec_string,
        starts,
        make,
        critic="none",
        adapt=_schedule(learning_rate, epsilon),
        num_envs=NUM_ENVS,
        explore=epsilon_greedy,
        distributions=Distribution,
        refuses_shared=None,
    )


def _schedule(learning_rate: float, epsilon: float) -> str:
    """Returns the default rule."""
    of_epsilon = f"epsilon={min(epsilon, LAST_EPSILON)}, " if epsilon else ""
    return f"exponential({of_epsilon}learning_rate={learning_rate / 10:.3g})"


def values_of(policy: Policy, params: PyTree, obs: Float[Array, "row obs"]) -> Float[Array, "row choices"]:
    """Returns the values of all choices (Wang et al. 2016, equation 9, for a policy with a value head)."""
    if policy.value_head is None:
        return cast(Categorical, policy.apply(params, obs)).logits[0]
    distribution, value = policy.value_head.joint(params, obs)
    (advantage,) = cast(Categorical, distribution).logits
    return value[:, None] + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


def _chosen(values: Float[Array, "row choices"], choice: Int[Array, " row"]) -> Float[Array, " row"]:
    return jnp.sum(values * jax.nn.one_hot(choice, values.shape[-1]), axis=-1)


def n_step_return(
    rows: Transitions, discount: float
) -> tuple[Float[Array, " row"], Float[Array, "row obs"], Float[Array, " row"]]:
    """Computes the discounted sum of the rewards of each row, as far as its steps follow each other in one episode.

    Args:
      rows: consecutive steps of an environment; leaves are [row, time, ...].
      discount: discount factor per step.

    Returns:
      The sum of discount^k reward_k; the observation after its last step; and what the value there counts for:
      discount^(number of steps), or 0 if the last step terminated the episode.
    """
    follows = (rows.elapsed[:, 1:] == rows.elapsed[:, :-1] + 1) & (rows.terminated[:, :-1] == 0)
    follows &= rows.weight[:, 1:] > 0
    counts = jnp.cumprod(jnp.concatenate([jnp.ones_like(rows.reward[:, :1]), follows], axis=1), axis=1)
    total = jnp.sum(counts * rows.reward * discount ** jnp.arange(counts.shape[1]), axis=1)
    steps = jnp.sum(counts, axis=1)
    is_last = jax.nn.one_hot(steps.astype(jnp.int32) - 1, counts.shape[1])
    final_obs = jnp.einsum("rt,rto->ro", is_last, rows.final_obs)
    return total, final_obs, discount**steps * (1 - jnp.sum(is_last * rows.terminated, axis=1))


def epsilon_greedy(distribution: Distribution, hyperparameters: Hyperparameters) -> Categorical:
    """Returns the distribution that takes the mode with probability 1 - epsilon, and any choice otherwise."""
    (values,) = cast(Categorical, distribution).logits
    count, epsilon = values.shape[-1], jnp.clip(hyperparameters["epsilon"], 0, 1)  # which a rule may have changed
    greedy = jax.nn.one_hot(jnp.argmax(values, axis=-1), count)
    return Categorical((jnp.log(jnp.maximum((1 - epsilon) * greedy + epsilon / count, LEAST_PROBABILITY)),))
