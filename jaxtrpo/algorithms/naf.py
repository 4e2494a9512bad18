"""Normalised advantage functions, NAF (Gu et al. 2016): Q-learning for continuous actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.algorithm import Algorithm, Info, Learner, Spec, replay_for, require_plain_networks
from jaxtrpo.algorithms.q_learning import (
    NUM_ENVS,
    STEPS_PER_UPDATE,
    Bellman,
    Params,
    q_learner,
    require_settings,
)
from jaxtrpo.config.checks import require_sizes
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import is_network
from jaxtrpo.ops.minibatches import minibatches_for
from jaxtrpo.policies.action_units import encoded
from jaxtrpo.policies.distributions import Distribution
from jaxtrpo.policies.heads import LAST, in_last_layer
from jaxtrpo.rollout.replay import Transitions

# Bounds of the logarithm of the diagonal of L(s). Where the advantage has no peak, the best fit has zero curvature, and
# a mean with zero curvature gets no gradient and never moves again; the lower bound lets it follow the slope.
LOG_DIAGONAL = -2.0, 5.0


class ValueAndCurvature(nn.Module):
    """Network for V(s) and the lower triangular L(s) of the curvature P = L L^T, with a positive diagonal."""

    hidden: Sequence[int]
    action_size: int

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"]) -> tuple[Float[Array, "..."], Float[Array, "... action action"]]:
        """Returns V and L for observations on the last axis."""
        x = obs
        for size in self.hidden:
            x = nn.relu(nn.LayerNorm()(nn.Dense(size)(x)))
        n = self.action_size
        out = nn.Dense(1 + n * n, name=LAST)(x)  # outputs above the diagonal are ignored
        square = out[..., 1:].reshape(*out.shape[:-1], n, n)
        diagonal = jnp.exp(jnp.clip(square, *LOG_DIAGONAL)) * jnp.eye(n)
        return out[..., 0], square * jnp.tri(n, k=-1) + diagonal


def values_scaled(params: PyTree, scale: Float[Array, ""], action_size: int) -> PyTree:
    """Returns parameters of `ValueAndCurvature` with which V and L L^T are `scale` times as large."""
    is_diagonal = jnp.eye(action_size).reshape(-1)
    by = jnp.concatenate([scale[None], jnp.where(is_diagonal, 1.0, jnp.sqrt(scale))])
    more = jnp.concatenate([jnp.zeros(1), is_diagonal * 0.5 * jnp.log(scale)])  # since outputs are logarithms there

    def scaled(path: tuple, leaf: Array) -> Array:
        if not in_last_layer(path):
            return leaf
        return leaf * by + (more if leaf.ndim == 1 else 0.0)  # the bias is the vector

    return jax.tree_util.tree_map_with_path(scaled, params)


def quadratic_advantage(
    lower: Float[Array, "... action action"], mean: Float[Array, "... action"], action: Float[Array, "... action"]
) -> Float[Array, "..."]:
    """Computes -1/2 (a - m)^T L L^T (a - m), which is 0 for the best action m (Gu et al. 2016, equation 11)."""
    return -0.5 * jnp.sum(jnp.einsum("...ij,...i->...j", lower, action - mean) ** 2, axis=-1)


def naf(
    *,
    learning_rate: float = 1e-3,
    hidden: Sequence[int] = (128, 128),
    replay: int = 200_000,
    replay_ratio: float = 0.5,
    minibatch_size: int = 128,
    minibatch_per_env: float = 0.25,
    target_rate: float = 0.02,
    asynchronous: bool = False,
) -> Algorithm:
    """Normalised advantage functions (NAF): Q-learning from a replay buffer, for continuous actions.

        Q(s, a) = V(s) - 1/2 (a - m(s))^T P(s) (a - m(s))

    is largest at the mean m(s) of the policy, where it equals V(s). The regression target of a step is therefore
    reward + discount V'(s'), with the target network V' a slow copy of V. Exploration noise is the policy's own, whose
    standard deviation is not learned but set by, for example, `--policy "mlp(initial_log_std=-1)"`. Actions are clipped
    to the action space, as in the simulator; means outside of it are penalised, because Q cannot tell them from the
    bounds.

    Args:
      learning_rate: learning rate of Adam.
      hidden: sizes of the hidden layers of the network for the value V and the curvature P.
      replay: capacity of the replay buffer, environment steps.
      replay_ratio: gradient steps per environment step, rounded in each update to a whole number of at least 1; fewer,
        in proportion, if `minibatch_per_env` makes minibatches larger.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: minimum size of a minibatch, in steps per environment, so that thousands of environments do not
        mean thousands of small gradient steps, one after another.
      target_rate: fraction by which the target network V' moves towards V in each gradient step.
      asynchronous: whether actors keep collecting while the network learns (Gu, Holly et al. 2017). If learning is
        slower than collecting, fewer gradient steps are taken. Runs are then not reproducible bit by bit, and batches
        that are learned from together share their learning metrics.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(naf, locals())
    require_settings(
        learning_rate=learning_rate,
        replay=replay,
        replay_ratio=replay_ratio,
        minibatch_size=minibatch_size,
        minibatch_per_env=minibatch_per_env,
        target_rate=target_rate,
        asynchronous=asynchronous,
    )
    require_sizes(hidden=hidden)

    def make(spec: Spec) -> Learner:
        require_plain_networks(spec, "naf")
        if is_network(spec.critic):
            raise ValueError("critic: naf has its own value function; use critic=none")
        policy, some_obs = spec.policy, jnp.zeros(spec.observation_size)
        action = jax.eval_shape(lambda key: policy.apply(policy.init(key), some_obs).mode(), jax.random.PRNGKey(0))
        if not jnp.issubdtype(action.dtype, jnp.floating):
            raise ValueError("algorithm: naf needs continuous actions, but these are discrete; use trpo or ppo")
        minibatches = minibatches_for(spec.num_envs, minibatch_size, minibatch_per_env, replay_ratio)
        network = ValueAndCurvature(tuple(hidden), action.shape[-1])
        apply = cast(Callable[[PyTree, Array], tuple[Array, Array]], network.apply)
        buffer = replay_for(spec, replay, action.shape[-1])

        def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> Params:
            return policy.init(for_policy), network.init(for_critic, some_obs)

        def loss(
            params: Params, target: PyTree, rows: Transitions, unit: Float[Array, ""], noise: Float[Array, "row noise"]
        ) -> tuple[Float[Array, " row"], Float[Array, " row"]]:
            """Returns squared Bellman errors with and without the penalty on means outside the bounds."""
            of_policy, critic = params
            later, _ = apply(target, rows.final_obs)
            worth = rows.reward / unit + spec.discount * (1 - rows.terminated) * later
            value, lower = apply(critic, rows.obs)
            mean = policy.apply(of_policy, rows.obs).mode()
            inside = encoded(mean, spec.actions)
            found = value + quadratic_advantage(lower, inside, encoded(rows.action, spec.actions))
            error = (found - worth) ** 2
            return error + jnp.sum((mean - inside) ** 2, axis=-1), error

        def in_units(params: Params, target: PyTree, change: Float[Array, ""]) -> tuple[Params, PyTree]:
            critic, target = values_scaled((params[1], target), change, action.shape[-1])
            return (params[0], critic), target

        def summary(params: Params, obs: Float[Array, "row obs"], unit: Float[Array, ""]) -> Info:
            return policy.apply(params[0], obs).summary()

        bellman = Bellman(init, lambda params: params[1], buffer.draw, loss, in_units, summary)
        return q_learner(spec, bellman, buffer, minibatches, target_rate=target_rate, asynchronous=asynchronous)

    starts = {"learning_rate": learning_rate, "steps_per_update": STEPS_PER_UPDATE}
    return Algorithm(
        spec_string,
        starts,
        make,
        critic="none",
        num_envs=NUM_ENVS,
        distributions=Distribution,
        refuses_shared="it learns action values",
    )
