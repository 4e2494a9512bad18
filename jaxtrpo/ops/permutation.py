"""Random permutations evaluated position by position, without sorting or storing them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

ROUNDS = 4


def shuffled(
    key: PRNGKeyArray | UInt32[Array, "2"], position: Int[Array, "*shape"], count: Int[Array, ""] | int
) -> Int[Array, "*shape"]:
    """Returns the entries at the given positions of a random permutation of 0, 1, ..., count - 1.

    Runs in time proportional to the number of positions, independently of the count, which may be traced. Bits are
    mixed by invertible operations (adding, multiplying by an odd number, folding the upper half onto the lower), so no
    entry occurs twice. Results between the count and the next power of two are mixed again until they fall below the
    count ("cycle walking", Black & Rogaway 2002).

    Args:
      key: PRNG key of the permutation; use the same key for all its positions.
      position: non-negative integers; positions at or beyond the count are returned unchanged.
      count: length of the permutation, at most 2**31.
    """
    numbers = jax.random.bits(key, (2, ROUNDS), jnp.uint32)
    last = (jnp.maximum(jnp.asarray(count), 1) - 1).astype(jnp.uint32)
    bits = jnp.uint32(32) - jax.lax.clz(last)
    mask = jnp.where(bits > 0, jnp.uint32(0xFFFFFFFF) >> (32 - jnp.maximum(bits, 1)), 0).astype(jnp.uint32)
    half = jnp.maximum((bits + 1) // 2, 1)

    def mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
        for add, multiply in zip(*numbers, strict=True):
            x = ((x + add) * (multiply | 1)) & mask
            x = x ^ (x >> half)
        return x

    inside = position < count

    def walk(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
        return jnp.where(inside & (x > last), mix(x), x)

    start = jnp.where(inside, mix(position.astype(jnp.uint32)), position.astype(jnp.uint32))
    found = jax.lax.while_loop(lambda x: jnp.any(inside & (x > last)), walk, start)
    return found.astype(position.dtype)
