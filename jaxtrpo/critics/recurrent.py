"""Recurrent networks as critics, fitted on minibatches of sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jaxtyping import Array, Float, PyTree

from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import Critic, CriticMaker
from jaxtrpo.critics.network import Network, network_critic, require_fit
from jaxtrpo.envs.observation_space import Observed, single_size
from jaxtrpo.policies.recurrence import Recurrence, Sequences, single_step
from jaxtrpo.policies.recurrent import (
    BPTT_STEPS,
    ENCODER,
    HIDDEN,
    RecurrentNetwork,
    initial_params,
    require_recurrent,
    start_of,
)


def gru(
    *,
    hidden: int = HIDDEN,
    encoder: Sequence[int] = ENCODER,
    bptt_steps: int = BPTT_STEPS,
    epochs: int = 10,
    minibatch_size: int = 128,
    minibatch_per_env: float = 1.0,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> CriticMaker:
    """A network with a gated recurrent unit (GRU), fitted with Adam on minibatches of sequences of `bptt_steps` steps.

    Args:
      hidden: size of the recurrent state.
      encoder: sizes of the tanh layers before the recurrent layer.
      bptt_steps: steps through which gradients are propagated back in time.
      epochs: passes over the batch per fit.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: minimum size of a minibatch, in steps per environment.
      learning_rate: learning rate of Adam.
      normalize_returns: whether to normalise returns by their running mean and standard deviation.
      shared_from: with at least this number of actors, the fit is distributed; see `mlp`.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    return _recurrent("gru", gru, locals())


def lstm(
    *,
    hidden: int = HIDDEN,
    encoder: Sequence[int] = ENCODER,
    bptt_steps: int = BPTT_STEPS,
    epochs: int = 10,
    minibatch_size: int = 128,
    minibatch_per_env: float = 1.0,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> CriticMaker:
    """A network with long short-term memory (LSTM); otherwise like `gru`.

    Args:
      hidden: size of the recurrent state.
      encoder: sizes of the tanh layers before the recurrent layer.
      bptt_steps: steps through which gradients are propagated back in time.
      epochs: passes over the batch per fit.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: minimum size of a minibatch, in steps per environment.
      learning_rate: learning rate of Adam.
      normalize_returns: whether to normalise returns by their running mean and standard deviation.
      shared_from: with at least this number of actors, the fit is distributed; see `mlp`.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    return _recurrent("lstm", lstm, locals())


def _recurrent(cell: str, factory: Callable[..., CriticMaker], given: Mapping[str, Any]) -> CriticMaker:
    shape = ("hidden", "encoder", "bptt_steps")
    require_recurrent(*(given[name] for name in shape))
    fit = {name: value for name, value in given.items() if name not in shape}
    require_fit(**fit)
    settings = {**given, "encoder": tuple(given["encoder"])}

    def make(observed: Observed) -> Critic:
        size = single_size(observed, f"critic={cell}")
        return _recurrent_critic(cell, size, settings["hidden"], settings["encoder"], settings["bptt_steps"], **fit)

    return CriticMaker(spec_string_of(factory, settings), make)


def _recurrent_critic(
    cell: str, observation_size: int, hidden: int, encoder: tuple[int, ...], bptt_steps: int, **fit: Any
) -> Critic:
    network = RecurrentNetwork(cell, hidden, encoder, outputs=1)

    def unroll(params: PyTree, inputs: Sequences) -> tuple[Float[Array, "time env"], PyTree]:
        outputs, carries = cast(Any, network.apply(params, inputs))
        return outputs[..., 0], carries

    # Predicts 0 at first, like `mlp`.
    return network_critic(
        Network(
            init=lambda key: initial_params(network, cell, hidden, observation_size, key, last_scale=0.0),
            predict=lambda params, inputs: unroll(params, inputs)[0],
            recurrence=Recurrence(start_of(cell, hidden), single_step(unroll), unroll, bptt_steps),
        ),
        **fit,
    )
