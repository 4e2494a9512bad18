"""Recurrent networks, GRU and LSTM, and policies built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
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
from jaxtrpo.envs.observation_space import ObservationSpace, Observed, as_space
from jaxtrpo.policies.cnn import PIXEL_SCALE, Encoder, Shape, for_one, initial, require_images, shape_of
from jaxtrpo.policies.heads import Head, as_float, head_for, require_head
from jaxtrpo.policies.networks import LAST, Policy, PolicyMaker, orthogonal
from jaxtrpo.policies.recurrence import Recurrence, Sequences, single_step
from jaxtrpo.policies.value_head import SHARED, with_value_head

HIDDEN, ENCODER, BPTT_STEPS = 64, (64,), 16  # the encoder is that of observations without images
RECURRENT = "recurrent"  # name of the matrix between a cell's steps
IMAGES, REST = "images", "rest"  # parameters of the convolutions, and of the layers after them


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


class Memory(NamedTuple):
    """Settings of a recurrent network."""

    cell: str  # a name in `CELLS`
    hidden: int
    encoder: tuple[int, ...] | None
    kind: str
    channels: tuple[int, ...] | None
    pixel_scale: float
    bptt_steps: int

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of `gru` and `lstm`."""
        return {name: value for name, value in self._asdict().items() if name != "cell"}

    @property
    def convolutions(self) -> Shape:
        """Settings of the network that images pass through."""
        return shape_of(self.kind, self.channels, self.encoder[0] if self.encoder else None, self.pixel_scale)

    @property
    def start(self) -> Callable[[int], tuple[Array, ...]]:
        """Number of environments -> carry at the beginning of an episode."""
        return lambda num_envs: (jnp.zeros((num_envs, self.hidden)),) * CELLS[self.cell].parts

    def network(self, space: ObservationSpace, outputs: int) -> RecurrentNetwork:
        """Returns the network for numbers, or for the features of images."""
        encoder = ENCODER if self.encoder is None and not space.images else self.encoder or ()
        return RecurrentNetwork(self.cell, self.hidden, encoder[1:] if space.images else encoder, outputs)

    def functions(self, network: nn.Module, observed: Observed, part: str, *, last_scale: float) -> Functions:
        """Returns functions of a network, or of a module around it, after the convolutions where there are images.

        Args:
          network: made by `network`, or around it.
          observed: observations that it is made for.
          part: setting that chooses it, for messages.
          last_scale: scale of the initial matrix of the last layer.

        Raises:
          ValueError: an image is smaller than the kernels, or nothing follows the convolutions; one sentence.
        """
        space = as_space(observed)

        def unroll(params: PyTree, inputs: Sequences) -> tuple[Any, PyTree]:
            return cast(Any, network.apply(params, inputs))

        def initial_of(size: int) -> Callable[[PRNGKeyArray], PyTree]:
            return lambda key: initial_params(network, self, size, key, last_scale=last_scale)

        if not space.images:
            return Functions(initial_of(space.stacked.size), unroll)
        require_images(space, self.convolutions, part)
        if self.encoder == ():
            raise ValueError(f"{part}: encoder=() must have at least one size where observations have images")
        encoder = Encoder(self.convolutions)
        encode = cast(Callable[..., Array], encoder.apply)
        init_rest = initial_of(self.convolutions.hidden)

        def init(key: PRNGKeyArray) -> PyTree:
            of_images, of_rest = jax.random.split(key)
            return {IMAGES: initial(encoder, space, of_images, last_scale=1.0), REST: init_rest(of_rest)}

        def unroll_features(params: PyTree, inputs: Sequences) -> tuple[Any, PyTree]:
            return unroll(params[REST], inputs._replace(obs=encode(params[IMAGES], inputs.obs)))

        def multiply_adds(params: PyTree) -> float:
            return for_one(encode, space)(params[IMAGES]) + optax.tree.size(params[REST])

        return Functions(init, unroll_features, multiply_adds)


class Functions(NamedTuple):
    """Functions of a recurrent network."""

    init: Callable[[PRNGKeyArray], PyTree]
    unroll: Callable[[PyTree, Sequences], tuple[Any, PyTree]]  # see `Recurrence`
    multiply_adds: Callable[[PyTree], float] | None = None  # see `Policy`


def initial_params(
    network: nn.Module, memory: Memory, input_size: int, key: PRNGKeyArray, *, last_scale: float
) -> PyTree:
    """Initialises like `orthogonal_init`; singular values of each gate's recurrent matrix are around 1."""
    inputs = Sequences(jnp.zeros((1, 1, input_size)), jnp.zeros((1, 1), bool), memory.start(1))
    scales = {RECURRENT: CELLS[memory.cell].gates ** 0.5}
    return orthogonal(network.init(key, inputs), key, last_scale=last_scale, scales=scales)


def gru(
    *,
    hidden: int = HIDDEN,
    encoder: Sequence[int] | None = None,
    kind: str = "impala",
    channels: Sequence[int] | None = None,
    pixel_scale: float | int = PIXEL_SCALE,
    bptt_steps: int = BPTT_STEPS,
    initial_log_std: float | int | None = None,
    state_dependent_std: bool = False,
    shared: bool = False,
) -> PolicyMaker:
    """A recurrent network with a gated recurrent unit, GRU (Cho et al. 2014).

    Tanh layers, and the convolutions of `cnn` where observations have images, feed the recurrent layer; the
    distributions depend on the outputs of both. Learning unrolls the network
    over sequences of `bptt_steps` steps, starting from the recurrent state that was recorded when the policy acted. The
    default critic is a network of the same kind with a state of its own.

    Args:
      hidden: size of the recurrent state.
      encoder: sizes of the tanh layers before the recurrent layer; None: (64,). With images, the first is that of the
        relu layer after the convolutions; None: that of `cnn`.
      kind: of the convolutions, "impala" or "nature"; only used with images. See `cnn`.
      channels: of the convolutions; only used with images. See `cnn`.
      pixel_scale: uint8 pixels are divided by this number. See `cnn`.
      bptt_steps: steps through which gradients are propagated back in time; independent of `segment_length`.
      initial_log_std: initial log standard deviation, in units in which the range of an action is [-1, 1]; ignored for
        discrete actions. None: -1 for 8 to 11 coordinates, unless `state_dependent_std`, else -0.5.
      state_dependent_std: whether the standard deviation depends on the observations.
      shared: whether the network, with one recurrent state, also predicts values, in place of a critic; see `mlp`.

    Raises:
      ValueError: a setting is invalid. `make` raises it if `state_dependent_std` is set and actions are discrete.
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
    initial_log_std: float | int | None = None,
    state_dependent_std: bool = False,
    shared: bool = False,
) -> PolicyMaker:
    """A network with long short-term memory, LSTM (Hochreiter & Schmidhuber 1997); otherwise like `gru`.

    Args:
      hidden: size of the recurrent state.
      encoder: sizes of the tanh layers before the recurrent layer; None: (64,). With images, the first is that of the
        relu layer after the convolutions; None: that of `cnn`.
      kind: of the convolutions, "impala" or "nature"; only used with images. See `cnn`.
      channels: of the convolutions; only used with images. See `cnn`.
      pixel_scale: uint8 pixels are divided by this number. See `cnn`.
      bptt_steps: steps through which gradients are propagated back in time; independent of `segment_length`.
      initial_log_std: initial log standard deviation, in units in which the range of an action is [-1, 1]; ignored for
        discrete actions. None: -1 for 8 to 11 coordinates, unless `state_dependent_std`, else -0.5.
      state_dependent_std: whether the standard deviation depends on the observations.
      shared: whether the network, with one recurrent state, also predicts values, in place of a critic; see `mlp`.

    Raises:
      ValueError: a setting is invalid. `make` raises it if `state_dependent_std` is set and actions are discrete.
    """
    return _recurrent("lstm", lstm, locals())


def memory_of(cell: str, given: Mapping[str, Any]) -> Memory:
    """Returns the settings of a recurrent network, which are among those given.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    encoder, channels = given["encoder"], given["channels"]
    require_whole(1, MOST_UNITS, hidden=given["hidden"])
    if encoder is not None:
        require_sizes(encoder=encoder)
    shape = shape_of(given["kind"], channels, None, given["pixel_scale"])
    require_whole(1, MOST_BPTT_STEPS, bptt_steps=given["bptt_steps"])
    encoder, channels = (sizes if sizes is None else tuple(sizes) for sizes in (encoder, channels))
    return Memory(cell, given["hidden"], encoder, given["kind"], channels, shape.pixel_scale, given["bptt_steps"])


def _recurrent(cell: str, factory: Callable[..., PolicyMaker], given: Mapping[str, Any]) -> PolicyMaker:
    log_std, state_dependent, shared = (given[name] for name in ("initial_log_std", "state_dependent_std", "shared"))
    memory = memory_of(cell, given)
    require_head(log_std, state_dependent, shared)
    return _maker(factory, memory, as_float(log_std), state_dependent, shared)


@functools.cache
def _maker(
    factory: Callable[..., PolicyMaker],
    memory: Memory,
    initial_log_std: float | None,
    state_dependent_std: bool,
    shared: bool,
) -> PolicyMaker:
    def make(observed: Observed, actions: ActionSpace) -> Policy:
        head = head_for(actions, initial_log_std, state_dependent_std, shared)
        network = _RecurrentPolicy(memory.network(as_space(observed), head.outputs), head)
        init, unroll, multiply_adds = memory.functions(network, observed, f"policy={memory.cell}", last_scale=0.01)
        policy = Policy(
            init=init,
            apply=lambda params, inputs: unroll(params, inputs)[0],
            noise_size=head.noise_size,
            draw_noise=head.draw_noise,
            recurrence=Recurrence(memory.start, single_step(unroll), unroll, memory.bptt_steps),
            multiply_adds=multiply_adds,
        )
        return with_value_head(policy) if shared else policy

    of_policy = {"initial_log_std": initial_log_std, "state_dependent_std": state_dependent_std, "shared": shared}
    critic = SHARED if shared else spec_string_of(factory, memory.settings)
    return PolicyMaker(spec_string_of(factory, {**memory.settings, **of_policy}), make, critic=critic)
