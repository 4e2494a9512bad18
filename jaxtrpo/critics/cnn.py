"""A convolutional network as critic, fitted on minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PyTree

from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import Critic, CriticMaker
from jaxtrpo.critics.network import Network, network_critic, require_fit, stacking_network
from jaxtrpo.envs.observation_space import Observed
from jaxtrpo.policies.cnn import PIXEL_SCALE, Encoder, Shape, for_one, initial, require_images, shape_of
from jaxtrpo.policies.networks import LAST


class _CNN(nn.Module):
    shape: Shape

    @nn.compact
    def __call__(self, obs: dict[str, Any]) -> Float[Array, "..."]:
        return nn.Dense(1, kernel_init=nn.initializers.zeros, name=LAST)(Encoder(self.shape)(obs))[..., 0]


def cnn(
    *,
    kind: str = "impala",
    channels: Sequence[int] | None = None,
    hidden: int | None = None,
    pixel_scale: float | int = PIXEL_SCALE,
    epochs: int = 10,
    minibatch_size: int = 128,
    minibatch_per_env: float = 1.0,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> CriticMaker:
    """A convolutional network for observations with images, fitted with Adam on minibatches.

    Args:
      kind: "impala" or "nature"; see the policy of the same name.
      channels: channels of each section, or of each convolution; None: those of the policy.
      hidden: units of the layer after the convolutions; None: those of the policy.
      pixel_scale: uint8 pixels are divided by this number; see the policy of the same name.
      epochs: passes over the batch per fit.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: least number of them per environment.
      learning_rate: learning rate of Adam.
      normalize_returns: whether to normalise returns by their running mean and standard deviation.
      shared_from: number of actors from which they share passes instead of gradients; see `mlp`.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    given = dict(locals())
    shape = shape_of(kind, channels, hidden, pixel_scale)
    fit = {name: value for name, value in given.items() if name not in Shape._fields}
    require_fit(**fit)
    spec_string = spec_string_of(cnn, {**given, "channels": channels if channels is None else tuple(channels)})
    return CriticMaker(spec_string, lambda observed: _cnn_critic(observed, shape, **fit))


def _cnn_critic(observed: Observed, shape: Shape, **fit: Any) -> Critic:
    space = require_images(observed, shape, "critic=cnn").stacked
    network = _CNN(shape)

    def apply(params: PyTree, obs: dict[str, Any]) -> Float[Array, "..."]:
        return jnp.asarray(network.apply(params, obs))

    # Predicts 0 at first, like `mlp`.
    made = Network(lambda key: initial(network, space, key, last_scale=0.0), apply, multiply_adds=for_one(apply, space))
    return network_critic(stacking_network(made, observed), **fit)
