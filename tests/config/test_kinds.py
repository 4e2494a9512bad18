"""Trees of which a compiled loop could not carry both."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.config.kinds import kinds_differ


@jax.tree_util.register_pytree_node_class
class Body:
    """A node that cannot be compared."""

    def __init__(self, mass):
        self.mass = mass

    def tree_flatten(self):
        return (self.mass,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Pair(NamedTuple):
    first: object
    second: object


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Body(jnp.zeros(3)), Body(jnp.ones(3))),
        (Pair(jnp.zeros(2), 1), Pair(np.ones(2, np.float32), jnp.int32(2))),
        ((), ()),
        ({"x": 1.0}, {"x": jnp.float32(2)}),
    ],
)
def test_equal_kinds(before, after):
    assert kinds_differ(before, after) is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Body(jnp.zeros(3)), Body(jnp.ones(4)), ("[<flat index 0>] float32[3]", "[<flat index 0>] float32[4]")),
        (1, 1.0, ("int32[]", "float32[]")),
        ({"a": 1, "b": jnp.zeros(2)}, {"a": 1, "b": jnp.zeros((2, 1))}, ("['b'] float32[2]", "['b'] float32[2, 1]")),
        (Pair(1, 2), (1, 2), ("PyTreeDef(CustomNode(namedtuple[Pair], [*, *]))", "PyTreeDef((*, *))")),
        ((), (1,), ("nothing at [0]", "[0] int32[]")),
        ({"a": 1, "b": 2.0}, {"a": 1}, ("['b'] float32[]", "nothing at ['b']")),
        ({"b": 2.0}, {"a": 1, "b": ()}, ("PyTreeDef({'b': *})", "PyTreeDef({'a': *, 'b': ()})")),
        (1, (), ("int32[]", "nothing at its root")),
    ],
)
def test_different_kinds_are_described(before, after, expected):
    assert kinds_differ(before, after) == expected
