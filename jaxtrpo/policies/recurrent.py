"""Recurrent networks, GRU and LSTM, and policies built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.config.checks import (
    MOST_BPTT_STEPS,
    MOST_UNITS,
    require_sizes,
    require_whole,
)
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Observed, flat_size
from jaxtrpo.policies.heads import INITIAL_LOG_STD, Head, head_for, require_head
from jaxtrpo.policies.networks import LAST, Policy, PolicyMaker, orthogonal
from jaxtrpo.policies.recurrence import Recurrence, Sequences, single_step
from jaxtrpo.policies.value_head import SHARED, with_value_head

HIDDEN, ENCODER, BPTT_STEPS = 64, (64,), 16
RECURRENT = "recurrent"  # name of the matrix between a cell's steps


class Cell(NamedTuple):
    """One step of a recurrent layer."""

    gates: int  # number of gates
    parts: int  # number of vectors that the carry consists of
    # (carry, contribution of the input to the gates, recurrent matrix) -> carry; the output is the first part
    step: Callable[[tuple[Array, ...], Float[Array, "env gates"], Float[Array, "hidden gates"]], tuple[Array, ...]]


def _gru_step(carry: tuple[Array, ...], inputs: Array, matrix: Array) -> tuple[Array, ...]:
    (hidden,) = carry
    of_input, of_hidden = jnp.split(inputs, 3, axis=-1), jnp.split(hidden @ matrix, 3, axis=-1)
    reset = nn.sigmoid(of_input[0] + of_hidden[0])
    keep = nn.sigmoid(of_input[1] + of_hidden[1])
    new = nn.tanh(of_input[2] + reset * of_hidden[2])
    return ((1 - keep) * new + keep * hidden,)


def _lstm_step(carry: tuple[Array, ...], inputs: Array, matrix: Array) -> tuple[Array, ...]:
    hidden, cell = carry
    admit, forget, new, show = jnp.split(inputs + hidden @ matrix, 4, axis=-1)
    # With a bias of 1, gradients reach far into the past from the start (Jozefowicz et al. 2015).
    cell = nn.sigmoid(forget + 1) * cell + nn.sigmoid(admit) * nn.tanh(new)
    return nn.sigmoid(show) * nn.tanh(cell), cell


CELLS = {"gru": Cell(3, 1, _gru_step), "lstm": Cell(4, 2, _lstm_step)}


class RecurrentNetwork(nn.Module):
    """Tanh layers, a recurrent layer, and a linear layer that sees the outputs of both."""

    cell: str  # a name in `CELLS`
    hidden: int
    encoder: Sequence[int]
    outputs: int

    @nn.compact
    def __call__(self, inputs: Sequences) -> tuple[Float[Array, "time env outputs"], tuple[Array, ...]]:
        """Returns outputs, and carries after each step."""
        cell, features = CELLS[self.cell], inputs.obs
        dense = functools.partial(nn.Dense, kernel_init=nn.initializers.zeros)
        for size in self.encoder:
            features = nn.tanh(dense(size)(features))
        gates = dense(cell.gates * self.hidden, name="gates")(features)
        matrix = self.param(RECURRENT, nn.initializers.zeros, (self.hidden, cell.gates * self.hidden))

        def step(carry: tuple[Array, ...], now: tuple[Array, Array]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            gates, first = now
            carry = cell.step(tuple(jnp.where(first[:, None], 0.0, part) for part in carry), gates, matrix)
            return carry, carry

        _, carries = jax.lax.scan(step, inputs.carry, (gates, inputs.first))
        return dense(self.outputs, name=LAST)(jnp.concatenate([features, carries[0]], axis=-1)), carries


class _RecurrentPolicy(nn.Module):
    """A recurrent network whose outputs are the parameters of action distributions."""

    network: RecurrentNetwork
    head: Head

    @nn.compact
    def __call__(self, inputs: Sequences) -> tuple[Any, tuple[Array, ...]]:
        """Returns what the head makes of the outputs, and carries after each step."""
        outputs, carries = self.network(inputs)
        return self.head.distribution(self, outputs), carries


def start_of(cell: str, hidden: int) -> Callable[[int], tuple[Array, ...]]:
    """Returns number of environments -> carry at the beginning of an episode."""
    return lambda num_envs: (jnp.zeros((num_envs, hidden)),) * CELLS[cell].parts


def initial_params(
    network: nn.Module, cell: str, hidden: int, observation_size: int, key: PRNGKeyArray, *, last_scale: float
) -> PyTree:
    """Initialises like `orthogonal_init`; singular values of each gate's recurrent matrix are around 1."""
    inputs = Sequences(jnp.zeros((1, 1, observation_size)), jnp.zeros((1, 1), bool), start_of(cell, hidden)(1))
    return orthogonal(
        network.init(key, inputs), key, last_scale=last_scale, scales={RECURRENT: CELLS[cell].gates ** 0.5}
    )


def gru(
    *,
    hidden: int = HIDDEN,
    encoder: Sequence[int] = ENCODER,
    bptt_steps: int = BPTT_STEPS,
    initial_log_std: float | int = INITIAL_LOG_STD,
    state_dependent_std: bool = False,
    shared: bool = False,
) -> PolicyMaker:
    """A recurrent network with a gated recurrent unit, GRU (Cho et al. 2014).

    Tanh layers feed the recurrent layer; the distributions depend on the outputs of both. Learning unrolls the network
    over sequences of `bptt_steps` steps, starting from the recurrent state that was recorded when the policy acted. The
    default critic is a network of the same kind with a state of its own.

    Args:
      hidden: size of the recurrent state.
      encoder: sizes of the tanh layers before the recurrent layer.
      bptt_steps: steps through which gradients are propagated back in time; independent of `segment_length`.
      initial_log_std: initial log standard deviation, in units in which the range of an action is [-1, 1]; ignored for
        discrete actions.
      state_dependent_std: whether the standard deviation depends on the observations.
      shared: whether the network, with one recurrent state, also predicts values, in place of a critic; see `mlp`.

    Raises:
      ValueError: a setting is invalid. `make` raises it if `state_dependent_std` is set and actions are discrete.
    """
    return _recurrent("gru", gru, locals())


def lstm(
    *,
    hidden: int = HIDDEN,
    encoder: Sequence[int] = ENCODER,
    bptt_steps: int = BPTT_STEPS,
    initial_log_std: float | int = INITIAL_LOG_STD,
    state_dependent_std: bool = False,
    shared: bool = False,
) -> PolicyMaker:
    """A network with long short-term memory, LSTM (Hochreiter & Schmidhuber 1997); otherwise like `gru`.

    Args:
      hidden: size of the recurrent state.
      encoder: sizes of the tanh layers before the recurrent layer.
      bptt_steps: steps through which gradients are propagated back in time; independent of `segment_length`.
      initial_log_std: initial log standard deviation, in units in which the range of an action is [-1, 1]; ignored for
        discrete actions.
      state_dependent_std: whether the standard deviation depends on the observations.
      shared: whether the network, with one recurrent state, also predicts values, in place of a critic; see `mlp`.

    Raises:
      ValueError: a setting is invalid. `make` raises it if `state_dependent_std` is set and actions are discrete.
    """
    return _recurrent("lstm", lstm, locals())


def require_recurrent(hidden: Any, encoder: Any, bptt_steps: Any) -> None:
    """Raises ValueError if a setting of a recurrent network is out of range."""
    require_whole(1, MOST_UNITS, hidden=hidden)
    require_sizes(encoder=encoder)
    require_whole(1, MOST_BPTT_STEPS, bptt_steps=bptt_steps)


def _recurrent(cell: str, factory: Callable[..., PolicyMaker], given: Mapping[str, Any]) -> PolicyMaker:
    require_recurrent(given["hidden"], given["encoder"], given["bptt_steps"])
    require_head(given["initial_log_std"], given["state_dependent_std"], given["shared"])
    settings = {**given, "encoder": tuple(given["encoder"]), "initial_log_std": float(given["initial_log_std"])}
    return _maker(cell, factory, **settings)


@functools.cache
def _maker(
    cell: str,
    factory: Callable[..., PolicyMaker],
    *,
    hidden: int,
    encoder: tuple[int, ...],
    bptt_steps: int,
    initial_log_std: float,
    state_dependent_std: bool,
    shared: bool,
) -> PolicyMaker:
    def make(observed: Observed, actions: ActionSpace) -> Policy:
        observation_size = flat_size(observed, f"policy={cell}")
        head = head_for(actions, initial_log_std, state_dependent_std, shared)
        network = _RecurrentPolicy(RecurrentNetwork(cell, hidden, encoder, head.outputs), head)

        def unroll(params: PyTree, inputs: Sequences) -> tuple[Any, PyTree]:
            return cast(Any, network.apply(params, inputs))

        policy = Policy(
            init=lambda key: initial_params(network, cell, hidden, observation_size, key, last_scale=0.01),
            apply=lambda params, inputs: unroll(params, inputs)[0],
            noise_size=head.noise_size,
            draw_noise=head.draw_noise,
            recurrence=Recurrence(start_of(cell, hidden), single_step(unroll), unroll, bptt_steps),
        )
        return with_value_head(policy) if shared else policy

    settings = {"hidden": hidden, "encoder": encoder, "bptt_steps": bptt_steps}
    of_policy = {"initial_log_std": initial_log_std, "state_dependent_std": state_dependent_std, "shared": shared}
    critic = SHARED if shared else spec_string_of(factory, settings)
    return PolicyMaker(spec_string_of(factory, {**settings, **of_policy}), make, critic=critic)
