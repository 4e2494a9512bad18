"""Actions are converted into the simulator's units, within its bounds."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.policies.action_units import stretch, to_simulator


def test_stretch_maps_to_the_whole_range():
    low, high = np.float32([-0.4, 0.0]), np.float32([0.4, 10.0])
    action = np.float32([[-1, -1], [0, 0], [1, 1], [0.5, -0.5], [-7, 3]])
    expected = [[-0.4, 0.0], [0.0, 5.0], [0.4, 10.0], [0.2, 2.5], [-0.4, 10.0]]
    compiled = jax.jit(lambda action: stretch(action, low, high))
    np.testing.assert_allclose(compiled(action), expected, atol=1e-6)


def test_to_simulator_stretches_bounded_actions():
    rng = np.random.default_rng(6)
    low = rng.normal(size=4).astype(np.float32)
    high = low + rng.random(4).astype(np.float32)
    action = rng.normal(size=(50, 4)).astype(np.float32)
    compiled = jax.jit(lambda action: to_simulator(action, ActionSpace(low, high)))
    expected = jax.jit(lambda action: stretch(action, low, high))(action)
    np.testing.assert_array_equal(compiled(action), expected)


@pytest.mark.parametrize("unbounded", [np.inf, np.finfo(np.float32).max])
def test_to_simulator_keeps_units_of_unbounded_actions(unbounded):
    low = np.float32([-unbounded, -3.0, -unbounded, 2.0])
    high = np.float32([unbounded, unbounded, 0.5, 4.0])
    action = np.float32([[100.0, 100.0, 100.0, 100.0], [-100.0, -100.0, -100.0, -100.0], [0.25, 0.25, 0.25, 0.5]])
    expected = [[100.0, 100.0, 0.5, 4.0], [-100.0, -3.0, -100.0, 2.0], [0.25, 0.25, 0.25, 3.5]]
    found = jax.jit(lambda action: to_simulator(action, ActionSpace(low, high)))(action)
    np.testing.assert_array_equal(found, np.float32(expected))
    alone = jax.jit(lambda action: to_simulator(action, ActionSpace(low[:1], high[:1])))(action[:, :1])
    np.testing.assert_array_equal(alone, action[:, :1])


def test_to_simulator_keeps_discrete_actions():
    space = ActionSpace(np.float32([5, 0]), np.float32([7, 1]), (3, 2))
    action = np.int32([[0, 1], [2, 0]])
    found = jax.jit(lambda action: to_simulator(action, space))(action)
    np.testing.assert_array_equal(found, action)
    assert found.dtype == np.int32
