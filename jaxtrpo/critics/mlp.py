"""A feed-forward network as critic, fitted on minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxtrpo.config.checks import require_sizes
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import Critic, CriticMaker
from jaxtrpo.critics.network import Network, network_critic, require_fit, stacking_network
from jaxtrpo.envs.observation_space import Observed, flat_size
from jaxtrpo.policies.networks import MLP, orthogonal_init


def mlp(
    *,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 10,
    minibatch_size: int = 128,
    minibatch_per_env: float = 1.0,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> CriticMaker:
    """A tanh network, fitted with Adam on minibatches.

    Args:
      hidden: sizes of the hidden layers.
      epochs: passes over the batch per fit.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: minimum size of a minibatch, in steps per environment. Thousands of environments collect large
        batches; without this minimum, a fit would make thousands of gradient steps, one after another, while most of
        the device is idle.
      learning_rate: learning rate of Adam.
      normalize_returns: whether to normalise returns by their running mean and standard deviation.
      shared_from: with at least this number of actors, the fit is distributed: each actor passes over its own samples,
        and parameters are averaged after every pass. The cost of a fit then grows with the samples per actor instead of
        all samples, but its result depends on the number of actors.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    settings = dict(locals())
    require_sizes(hidden=hidden)
    settings["hidden"] = tuple(hidden)
    fit = {name: value for name, value in settings.items() if name != "hidden"}
    require_fit(**fit)
    return CriticMaker(
        spec_string_of(mlp, settings), lambda observed: network_critic(_network(observed, settings["hidden"]), **fit)
    )


def mlp_critic(observation_size: int, *, hidden: Sequence[int] = (64, 64), **fit: Any) -> Critic:
    """Builds a tanh network critic.

    Args:
      observation_size: length of an observation.
      hidden: sizes of the hidden layers.
      **fit: settings of `network_critic`.
    """
    return network_critic(_network(observation_size, hidden), **fit)


def _network(observed: Observed, hidden: Sequence[int]) -> Network:
    size, network = flat_size(observed, "critic=mlp"), MLP(tuple(hidden), 1)

    def predict(params: PyTree, obs: Float[Array, "... obs"]) -> Float[Array, "..."]:
        return jnp.asarray(network.apply(params, obs))[..., 0]

    # Predicts 0 at first. Random predictions would be preserved once the scale of the returns is known (PopArt), and
    # with small rewards the policy would follow that noise.
    return stacking_network(Network(lambda key: orthogonal_init(network, key, size, last_scale=0.0), predict), observed)
