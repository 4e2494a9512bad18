"""Recurrent networks as critics, fitted on minibatches of sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Array, Float, PyTree

from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import Critic, CriticMaker
from jaxtrpo.critics.network import Network, network_critic, require_fit
from jaxtrpo.envs.observation_space import Observed, as_space, require_no_frames
from jaxtrpo.policies.cnn import PIXEL_SCALE
from jaxtrpo.policies.recurrence import Recurrence, Sequences, single_step
from jaxtrpo.policies.recurrent import BPTT_STEPS, HIDDEN, Memory, memory_of


def gru(
    *,
    hidden: int = HIDDEN,
    encoder: Sequence[int] | None = None,
    kind: str = "impala",
    channels: Sequence[int] | None = None,
    pixel_scale: float | int = PIXEL_SCALE,
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
      encoder: sizes of the layers before the recurrent layer; see the policy of the same name.
      kind: of the convolutions, "impala" or "nature"; only used with images. See the policy `cnn`.
      channels: of the convolutions; only used with images. See the policy `cnn`.
      pixel_scale: uint8 pixels are divided by this number. See the policy `cnn`.
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
    encoder: Sequence[int] | None = None,
    kind: str = "impala",
    channels: Sequence[int] | None = None,
    pixel_scale: float | int = PIXEL_SCALE,
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
      encoder: sizes of the layers before the recurrent layer; see the policy of the same name.
      kind: of the convolutions, "impala" or "nature"; only used with images. See the policy `cnn`.
      channels: of the convolutions; only used with images. See the policy `cnn`.
      pixel_scale: uint8 pixels are divided by this number. See the policy `cnn`.
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
    memory = memory_of(cell, given)
    fit = {name: value for name, value in given.items() if name not in memory.settings}
    require_fit(**fit)
    return CriticMaker(
        spec_string_of(factory, {**memory.settings, **fit}), lambda observed: _recurrent_critic(memory, observed, **fit)
    )


def _recurrent_critic(memory: Memory, observed: Observed, **fit: Any) -> Critic:
    part = f"critic={memory.cell}"
    require_no_frames(observed, part)
    network = memory.network(as_space(observed), outputs=1)
    # Predicts 0 at first, like `mlp`.
    init, unroll_outputs, multiply_adds = memory.functions(network, observed, part, last_scale=0.0)

    def unroll(params: PyTree, inputs: Sequences) -> tuple[Float[Array, "time env"], PyTree]:
        outputs, carries = unroll_outputs(params, inputs)
        return outputs[..., 0], carries

    return network_critic(
        Network(
            init=init,
            predict=lambda params, inputs: unroll(params, inputs)[0],
            recurrence=Recurrence(memory.start, single_step(unroll), unroll, memory.bptt_steps),
            multiply_adds=multiply_adds,
        ),
        **fit,
    )
