"""Many keys from one, for nothing."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32


def numbered_key(key: UInt32[Array, "2"], number: Int[Array, ""]) -> UInt32[Array, "2"]:
    """The key that lies `number` after `key`; do not use `key` itself besides.

    The streams of a counter-based generator are independent for keys that differ in any bit (Salmon et al. 2011,
    section 2), so this is as good as `jax.random.fold_in`. It is one addition, where that is a cipher to compile.
    """
    return key.at[1].add(number.astype(jnp.uint32))
