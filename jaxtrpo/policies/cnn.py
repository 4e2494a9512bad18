"""Convolutional networks, and policies built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from jaxtrpo.config.checks import MOST_UNITS, require_positive, require_sizes, require_whole
from jaxtrpo.config.environment import VECTOR
from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import ObservationSpace, Observed, as_space
from jaxtrpo.ops.convolution import convolve, framed
from jaxtrpo.ops.costs import multiply_adds
from jaxtrpo.ops.in_parts import in_parts, rows_at_once
from jaxtrpo.policies.distributions import Distribution
from jaxtrpo.policies.heads import Head, as_float, head_for, require_head
from jaxtrpo.policies.networks import LAST, Policy, PolicyMaker, orthogonal
from jaxtrpo.policies.value_head import SHARED, with_value_head

KINDS = {"impala": ((16, 32, 32), 256), "nature": ((32, 64, 64), 512)}  # channels and units by default
PIXEL_SCALE = 255.0  # of images of a camera
NATURE = ((8, 4), (4, 2), (3, 1))  # sizes and strides of kernels
OF_VECTORS = 64  # units of the layer for numbers beside images
POOLED_SIDE = 8  # pixels; smaller images are not halved


Plan = dict[str, tuple[int, int, int]]  # by layer: side of the kernel, inputs and outputs
Kernels = dict[str, tuple[Array, Array]]  # by layer: kernel and bias


class Shape(NamedTuple):
    """Settings of a convolutional network."""

    kind: str
    channels: tuple[int, ...]
    hidden: int
    pixel_scale: float = PIXEL_SCALE


def shape_of(kind: Any, channels: Any, hidden: Any, pixel_scale: Any = PIXEL_SCALE) -> Shape:
    """Returns the settings of a network; None stands for what is usual for its kind.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind={short(kind)} must be {' or '.join(map(repr, KINDS))}")
    usual_channels, usual_hidden = KINDS[kind]
    channels = usual_channels if channels is None else channels
    require_sizes(channels=channels)
    if not channels or (kind == "nature" and len(channels) != len(NATURE)):
        wanted = f"{len(NATURE)} sizes" if kind == "nature" else "at least one size"
        raise ValueError(f"channels={short(channels)} must be {wanted}")
    hidden = usual_hidden if hidden is None else hidden
    require_whole(1, MOST_UNITS, hidden=hidden)
    require_positive(pixel_scale=pixel_scale)
    return Shape(kind, tuple(channels), hidden, float(pixel_scale))


class _Kernel(nn.Module):
    """Parameters of a convolution."""

    side: int
    inputs: int
    outputs: int

    @nn.compact
    def __call__(self) -> tuple[Float[Array, "side side inputs outputs"], Float[Array, " outputs"]]:
        zeros = nn.initializers.zeros
        kernel = self.param("kernel", zeros, (self.side, self.side, self.inputs, self.outputs))
        return kernel, self.param("bias", zeros, (self.outputs,))


class Encoder(nn.Module):
    """From observations with images to features; initialise it with `orthogonal`."""

    shape: Shape

    @nn.compact
    def __call__(self, obs: dict[str, Any]) -> Float[Array, "... hidden"]:
        """Applies convolutions to each image, and a layer to all of their outputs and those for other numbers."""
        dense = functools.partial(nn.Dense, kernel_init=nn.initializers.zeros)
        parts = [self._of_images(name, obs[name]) for name in sorted(obs.keys() - {VECTOR})]
        if VECTOR in obs:
            parts.append(nn.relu(dense(OF_VECTORS, name=VECTOR)(obs[VECTOR])))
        return nn.relu(dense(self.shape.hidden, name="joined")(jnp.concatenate(parts, axis=-1)))

    def _of_images(self, name: str, images: Shaped[Array, "... height width channel"]) -> Float[Array, "... features"]:
        """Applies convolutions to as many images at a time as fit into the cache."""
        *lead, height, width, channels = images.shape
        plan, convolutions = (_impala_plan, _impala) if self.shape.kind == "impala" else (_nature_plan, _nature)
        layers = plan((height, width, channels), self.shape.channels)
        kernels = {layer: _Kernel(*sizes, name=f"{name}_{layer}")() for layer, sizes in layers.items()}
        if images.dtype == jnp.uint8:  # the first layer divides pixels
            first, (kernel, bias) = next(iter(kernels.items()))
            kernels[first] = kernel / self.shape.pixel_scale, bias

        def features(part: Array) -> Array:
            return convolutions(part, kernels).reshape(part.shape[0], -1)

        at_once = rows_at_once(height * width * (channels + self.shape.channels[0]))
        found = in_parts(features, images.reshape(-1, height, width, channels), at_once)
        return found.reshape(*lead, found.shape[-1])


def _impala_plan(image: tuple[int, int, int], channels: Sequence[int]) -> Plan:
    """Small images use as many sections as they can be halved."""
    plan: Plan = {}
    *sides, inputs = image
    for section, size in enumerate(channels):
        if section and min(sides) < POOLED_SIDE:
            break
        plan[f"{section}"] = 3, inputs, size
        plan |= {f"{section}_{block}_{layer}": (3, size, size) for block in range(2) for layer in range(2)}
        if min(sides) >= POOLED_SIDE:
            sides = [-(-side // 2) for side in sides]
        inputs = size
    return plan


def _impala(x: Array, kernels: Kernels) -> Array:
    """Residual blocks (Espeholt et al. 2018, figure 3)."""

    def conv(x: Array, layer: str) -> Array:
        kernel, bias = kernels[layer]
        return convolve(x, kernel, same=True) + bias

    for section in (layer for layer in kernels if "_" not in layer):
        x = conv(x, section)
        x = _halved(x) if min(x.shape[-3:-1]) >= POOLED_SIDE else x
        for block in range(2):
            inner = conv(nn.relu(x), f"{section}_{block}_0")
            x = x + conv(nn.relu(inner), f"{section}_{block}_1")
    return nn.relu(x)


def _halved(x: Array) -> Array:
    """Largest values of 3 x 3 pixels, two pixels apart; by comparisons, whose products are cheap to linearise."""
    for axis in (-3, -2):
        size = x.shape[axis]
        half = -(-size // 2)
        missing = max(2 * half + 1 - size, 0)
        padded = framed(x, axis, missing // 2, missing - missing // 2, -jnp.inf)
        after = (slice(None),) * (-1 - axis)
        first, second, third = (padded[(..., slice(i, i + 2 * half - 1, 2), *after)] for i in range(3))
        x = jnp.maximum(jnp.maximum(first, second), third)
    return x


def _nature_plan(image: tuple[int, int, int], channels: Sequence[int]) -> Plan:
    inputs = image[-1], *channels[:-1]
    return {f"{layer}": (NATURE[layer][0], *sizes) for layer, sizes in enumerate(zip(inputs, channels, strict=True))}


def _nature(x: Array, kernels: Kernels) -> Array:
    """Three convolutions (Mnih et al. 2015)."""
    for (kernel, bias), (_, stride) in zip(kernels.values(), NATURE, strict=True):
        x = nn.relu(convolve(x, kernel, stride=stride) + bias)
    return x


def smallest_side(kind: str) -> int:
    """Returns the smallest side of an image, pixels."""
    if kind == "impala":
        return 3
    side = 1
    for kernel, stride in reversed(NATURE):
        side = (side - 1) * stride + kernel
    return side


def require_images(observed: Observed, shape: Shape, part: str) -> ObservationSpace:
    """Returns the space of observations that a network can take.

    Args:
      observed: observations that it is made for.
      shape: settings of the network.
      part: setting that chooses the network, for messages.

    Raises:
      ValueError: there are no images, or one is too small; one sentence.
    """
    space = as_space(observed)
    if not space.images:
        raise ValueError(
            f"{part} needs observations with images, arrays of uint8 or bool, but these are {space.size} numbers; "
            "use mlp"
        )
    least = smallest_side(shape.kind)
    for image in space.images:
        if min(image.shape[:2]) < least:
            advice = f"; use {part.partition('=')[0]}=cnn" if shape.kind != "impala" else ""
            raise ValueError(
                f"{part}: the kernels need images of at least {least} x {least} pixels, but {image.name} has "
                f"{image.shape[0]} x {image.shape[1]}{advice}"
            )
    return space


def initial(network: nn.Module, space: ObservationSpace, key: PRNGKeyArray, *, last_scale: float) -> PyTree:
    """Initialises a network for observations of a space like `orthogonal_init`."""
    return orthogonal(network.init(key, jax.tree.map(jnp.asarray, space.zeros(1))), key, last_scale=last_scale)


def for_one(apply: Callable[[PyTree, Any], Any], space: ObservationSpace) -> Callable[[PyTree], float]:
    """Returns parameters -> multiply-adds of a function of parameters and observations, for one observation."""
    return lambda params: multiply_adds(apply, params, space.zeros(1))


class _CNNPolicy(nn.Module):
    shape: Shape
    head: Head

    @nn.compact
    def __call__(self, obs: dict[str, Any]) -> Distribution | tuple[Distribution, Array]:
        features = Encoder(self.shape)(obs)
        outputs = nn.Dense(self.head.outputs, kernel_init=nn.initializers.zeros, name=LAST)(features)
        return self.head.distribution(self, outputs)


def cnn(
    *,
    kind: str = "impala",
    channels: Sequence[int] | None = None,
    hidden: int | None = None,
    pixel_scale: float | int = PIXEL_SCALE,
    initial_log_std: float | int | None = None,
    state_dependent_std: bool = False,
    shared: bool = False,
) -> PolicyMaker:
    """A convolutional network for observations with images; numbers beside them pass through a layer of their own.

    Chosen by itself where an observation has an image. Unless another is chosen, the critic is a network of the same
    kind.

    Args:
      kind: "impala", residual blocks with 3 x 3 kernels, or "nature", three convolutions for images of at least 36 x 36
        pixels, which are faster.
      channels: channels of each section of residual blocks, or of each convolution; None: (16, 32, 32) for impala, (32,
        64, 64) for nature. Small images use fewer sections: after the first, one for each time that they can be halved
        from sides of at least 8 pixels.
      hidden: units of the layer after the convolutions; None: 256 for impala, 512 for nature.
      pixel_scale: uint8 pixels are divided by this number; 10 suits cells that are small integers, such as Minigrid's.
      initial_log_std: initial log standard deviation, in units in which the range of an action is [-1, 1]; ignored for
        discrete actions. None: -1 for 8 to 11 coordinates, unless `state_dependent_std`, else -0.5.
      state_dependent_std: whether the standard deviation depends on the observation.
      shared: whether the network also predicts values, in place of a critic; see `mlp`.

    Raises:
      ValueError: a setting is invalid. `make` raises it if there are no images, or smaller ones than the kernels.
    """
    shape = shape_of(kind, channels, hidden, pixel_scale)
    require_head(initial_log_std, state_dependent_std, shared)
    given = {
        "kind": kind,
        "channels": channels if channels is None else tuple(channels),
        "hidden": hidden,
        "pixel_scale": shape.pixel_scale,
    }
    return _cnn(shape, tuple(given.items()), as_float(initial_log_std), state_dependent_std, shared)


@functools.cache
def _cnn(
    shape: Shape, given: tuple, initial_log_std: float | None, state_dependent_std: bool, shared: bool
) -> PolicyMaker:
    settings = {**dict(given), "initial_log_std": initial_log_std, "state_dependent_std": state_dependent_std}
    network_settings = spec_string_of(cnn, dict(given))

    def make(observed: Observed, actions: ActionSpace) -> Policy:
        space = require_images(observed, shape, f"policy={network_settings}").stacked
        head = head_for(actions, initial_log_std, state_dependent_std, shared)
        network = _CNNPolicy(shape, head)
        apply = cast(Callable[..., Distribution], network.apply)
        policy = Policy(
            init=lambda key: initial(network, space, key, last_scale=0.01),
            apply=apply,
            noise_size=head.noise_size,
            draw_noise=head.draw_noise,
            multiply_adds=for_one(apply, space),
        )
        return with_value_head(policy) if shared else policy

    spec_string = spec_string_of(cnn, {**settings, "shared": shared})
    return PolicyMaker(spec_string, make, critic=SHARED if shared else network_settings)
