"""Convolutions as matrix products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def convolve(
    x: Float[Array, "*batch height width inputs"],
    kernel: Float[Array, "rows columns inputs outputs"],
    *,
    stride: int = 1,
    same: bool = False,
) -> Float[Array, "*batch new_height new_width outputs"]:
    """Computes the cross-correlation of images with a kernel, out[i, j] = sum_ab x[s i + a, s j + b] kernel[a, b].

    What the kernel covers is gathered first, so that the sum is one matrix product. Inside of loops, XLA's CPU backend
    takes six to nine times as long for the gradients of its own convolution of few channels.

    Args:
      x: images.
      kernel: odd sizes with `same`, else multiples of the stride.
      stride: pixels between neighbours in the result.
      same: pad with zeros, so that the result has the size of the images; needs `stride` 1.
    """
    rows, columns, inputs, outputs = kernel.shape
    if same:
        for axis, side in ((-3, rows), (-2, columns)):
            x = framed(x, axis, side // 2, side // 2, 0.0)
    if stride > 1:
        x, kernel = _to_depth(x, kernel, stride)
        rows, columns, inputs, outputs = kernel.shape
    height, width = x.shape[-3] - rows + 1, x.shape[-2] - columns + 1
    covered = [x[..., i : i + height, j : j + width, :] for i in range(rows) for j in range(columns)]
    return jnp.concatenate(covered, axis=-1) @ kernel.reshape(-1, outputs)


def framed(x: Float[Array, "..."], axis: int, before: int, after: int, value: float) -> Float[Array, "..."]:
    """Adds entries of one value before and after those of an axis; unlike `jnp.pad`, this can be exported as ONNX."""

    def edge(number: int) -> list[Array]:
        return [jnp.full_like(jax.lax.slice_in_dim(x, 0, 1, axis=axis), value)] * number

    return jnp.concatenate([*edge(before), x, *edge(after)], axis=axis)


def _to_depth(x: Array, kernel: Array, stride: int) -> tuple[Array, Array]:
    """Returns images and a kernel of which `stride` x `stride` pixels are the channels of one; then the stride is 1."""
    rows, columns, inputs, outputs = kernel.shape
    used = [(size - side) // stride * stride + side for size, side in zip(x.shape[-3:-1], (rows, columns), strict=True)]
    height, width = used
    blocks = x[..., :height, :width, :].reshape(
        *x.shape[:-3], height // stride, stride, width // stride, stride, inputs
    )
    x = jnp.moveaxis(blocks, -4, -3).reshape(*x.shape[:-3], height // stride, width // stride, stride * stride * inputs)
    blocks = kernel.reshape(rows // stride, stride, columns // stride, stride, inputs, outputs)
    kernel = jnp.moveaxis(blocks, 1, 2).reshape(rows // stride, columns // stride, stride * stride * inputs, outputs)
    return x, kernel
