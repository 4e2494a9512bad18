"""Keys of random numbers that never meet."""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, UInt32


def numbered_key(key: PRNGKeyArray | UInt32[Array, "2"], number: Int[Array, ""]) -> UInt32[Array, "2"]:
    """The key that lies `number` after `key`; do not use `key` itself besides.

    The streams of a counter-based generator are independent for keys that differ in any bit (Salmon et al. 2011,
    section 2), so this is as good as `jax.random.fold_in`. It is one addition, where that is a cipher to compile.

    What it returns must not be numbered again: the third key behind the fifth is the second behind the sixth. Number
    keys that `jax.random.split` or `fold_in` made.
    """
    return jnp.asarray(key).at[1].add(number.astype(jnp.uint32))


def key_for(purpose: str, key: PRNGKeyArray | UInt32[Array, "2"]) -> UInt32[Array, "2"]:
    """A key of its own for one purpose.

    `jax.random.split(key, n)[i]` and `jax.random.fold_in(key, i)` are the same key, so that whoever folds small numbers
    into a key meets what others split from it. The purpose is a number above any that is counted to.
    """
    return jax.random.fold_in(key, 2**31 | zlib.crc32(purpose.encode()))
