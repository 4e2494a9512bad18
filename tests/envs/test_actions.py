"""Conversion of actions from policy units to a simulator: they stay in its space and can reach its bounds."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting_env import Spaces
from flax import linen as nn
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxtrpo
from jaxtrpo.envs.gymnasium.actions import Actions, action_space_of
from jaxtrpo.envs.gymnasium.shared_arrays import RowSizes
from jaxtrpo.envs.gymnasium.vector_envs import VectorEnvs
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.action_units import encoded, stretch, to_simulator
from jaxtrpo.policies.custom import module_policy
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.trained import TrainedPolicy

SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)  # compiled code may flush smaller numbers to zero
DTYPES = (np.float16, np.float32, np.float64)
REQUESTED = np.float32([-np.inf, -1e30, -1.5, -1, -0.9999999, -0.3, 0, 1e-30, 0.7, 0.9999999, 1, 1.5, 1e30, np.inf])


def numbers(dtype) -> st.SearchStrategy[float]:
    """Bounds with few decimals, as users write them, and arbitrary ones."""
    width = 8 * np.dtype(dtype).itemsize
    return st.one_of(
        st.integers(-999, 999).map(lambda number: number / 10),
        st.integers(-9999, 9999).map(lambda number: number / 1000),
        st.floats(width=width, allow_nan=False),
        st.sampled_from([0.0, np.pi, -np.pi, 1e-45, 1e-38, 1e30, 3e38, -3e38, 3.5e38, 1e300, np.inf, -np.inf]),
    )


@st.composite
def boxes(draw) -> spaces.Box:
    dtype = draw(st.sampled_from(DTYPES))
    with np.errstate(over="ignore"):
        pairs = np.array(draw(st.lists(st.tuples(numbers(dtype), numbers(dtype)), min_size=4, max_size=4))).astype(
            dtype
        )
    low, high = np.sort(pairs, axis=1).T
    low, high = np.where(low == np.inf, 0, low), np.where(high == -np.inf, 0, high)
    return spaces.Box(np.minimum(low, high).astype(dtype), np.maximum(low, high).astype(dtype), dtype=dtype)


def received(space: spaces.Box, requested: np.ndarray) -> list[np.ndarray]:
    """Returns what the simulator receives for actions in policy units, each with equal coordinates."""
    actions = Actions(action_space_of(space))
    flat = np.repeat(requested[:, None], actions.size, axis=1)
    return actions.each(np.asarray(jax.jit(lambda flat: to_simulator(flat, actions.space))(flat)))


@settings(deadline=None, max_examples=60)
@given(boxes())
@example(spaces.Box(np.float64([-np.pi, 0.3, -1.1, 0.7]), np.float64([np.pi, 0.7, 2.3, 1.9]), dtype=np.float64))
@example(spaces.Box(np.float32([-1.1, -3e38, 1e30, -1e30]), np.float32([2.3, 3e38, 1.1e30, 1e-10]), dtype=np.float32))
def test_actions_stay_in_box_and_reach_its_bounds(space):
    found = received(space, REQUESTED)
    for action in found:
        assert space.contains(action) and action.dtype == space.dtype and np.all(np.isfinite(action))
    # float32 cannot separate bounds that are too close to each other, nor represent those too close to zero.
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    most = min(np.finfo(space.dtype).max, np.finfo(np.float32).max)
    separate = np.nextafter(np.nextafter(low, np.float32(np.inf)), np.float32(np.inf)) < high
    normal = ((low == 0) | (np.abs(low) > SMALLEST_NORMAL)) & ((high == 0) | (np.abs(high) > SMALLEST_NORMAL))
    reached = (space.low > -most) & (space.high < most) & separate & normal
    for requested, action in zip(REQUESTED, found, strict=True):
        if abs(requested) >= 1:
            np.testing.assert_array_equal(action[reached], (space.low if requested < 0 else space.high)[reached])


def test_compiled_stretch_reaches_decimal_bounds_exactly():
    """Naive rescaling overshoots a quarter of all bounds with one decimal and fails to reach another quarter."""
    rng = np.random.default_rng(0)
    ends = np.sort(rng.integers(-50, 50, (20_000, 2)) / 10, axis=1)
    low, high = ends[ends[:, 0] < ends[:, 1]].astype(np.float32).T
    compiled = jax.jit(lambda action: stretch(action, low, high))
    np.testing.assert_array_equal(compiled(np.full(low.size, -1, np.float32)), low)
    np.testing.assert_array_equal(compiled(np.full(low.size, 1, np.float32)), high)
    for action in rng.normal(size=(20, low.size)).astype(np.float32):
        found = np.asarray(compiled(action))
        assert np.all((found >= low) & (found <= high))
        exact = low + (np.clip(np.float64(action), -1, 1) + 1) / 2 * (np.float64(high) - low)
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-6)


def test_stretch_does_not_overflow_between_huge_bounds():
    found = stretch(np.float32([[-1], [0], [0.5], [1]]), np.float32([-3e38]), np.float32([3e38]))[:, 0]
    np.testing.assert_allclose(found, np.float32([-3e38, 0, 1.5e38, 3e38]), rtol=1e-6)


# ---- the range in policy units


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-2.0, 5.0, (-1, 1)),
        (0.0, np.inf, (0, np.inf)),
        (-np.inf, 0.25, (-np.inf, 0.25)),
        (-np.inf, np.inf, (-np.inf, np.inf)),
        (-1e30, 1e30, (-1, 1)),
        (float(np.finfo(np.float32).min), 7.0, (-np.inf, 7)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_policy_range_covers_exactly_the_distinguishable_actions(low, high, expected, dtype):
    space = action_space_of(spaces.Box(low, high, (1,), dtype))
    assert tuple(float(end[0]) for end in space.policy_range()) == expected
    # The simulator and critics receive equal actions beyond the ends of the range and different ones within it.
    for end, side in zip(expected, (-1, 1), strict=True):
        beyond, within = (end, end) if np.isfinite(end) else (1e20 * side, 1e19 * side)
        for function in (to_simulator, encoded):
            outer, at, inner = (
                float(function(jnp.float32([x]), space)[0]) for x in (beyond * 2 + side, beyond, within - side / 8)
            )
            assert (outer == at) == np.isfinite(end)
            assert side * (at - inner) > 0 or not np.isfinite(end)


# ---- through Gymnasium environments

STRICT = [
    spaces.Box(-np.pi, np.pi, (2,), np.float64),
    spaces.Box(np.float64([[0.1], [-np.inf]]), np.float64([[0.7], [1.1]]), dtype=np.float64),
    spaces.Box(-1.1, 2.3, (), np.float32),
    spaces.Box(-0.1, 65504.0, (2,), np.float16),
    spaces.Box(-np.inf, np.inf, (1,), np.float16),
    spaces.Discrete(3, start=2**40),
    spaces.MultiDiscrete([[2, 3]], dtype=np.int8, start=[[-128, 124]]),
    spaces.MultiBinary(3),
]


def policy_units(actions: Actions, num: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if actions.counts:
        return rng.integers(0, actions.counts, (num, actions.size)).astype(np.int32)
    return (rng.normal(size=(num, actions.size)) * [1e-3, 1, 1e6][num % 3]).astype(np.float32)


@pytest.mark.parametrize("space", STRICT, ids=repr)
def test_simulators_receive_actions_of_their_space(space):
    """`Spaces` asserts that its action space contains the actions it receives."""
    env = jaxtrpo.make_env(lambda: Spaces(spaces.Box(0, 1, (1,)), space), processes=0)
    described = env.plan.actions
    state = env.reset(jax.random.PRNGKey(0), 20)
    sizes = RowSizes(4, 1, described.size, described.flat_dtype.name)
    rows = sizes.on(bytearray(sizes.nbytes()))
    vectors = VectorEnvs(
        "strict",
        lambda num: gymnasium.vector.SyncVectorEnv([lambda: Spaces(spaces.Box(0, 1, (1,)), space)] * num),
        rows,
        (0, 4),
        100,
    )
    vectors.reset()
    for scale in range(3):
        flat = to_simulator(jnp.asarray(policy_units(described, 18 + scale))[:20], described.space)
        flat = jnp.resize(flat, (20, described.size))
        state = env.step(state, flat)
        assert env.failure is None and not np.any(state.invalid)
        rows.action[:] = flat[:4]
        if space.shape or described.counts:  # Gymnasium's vector environments warn about scalar continuous actions
            vectors.step(0, 4)
    env.close()
    vectors.close()


# ---- trained policies


class AsObserved(nn.Module):
    """A policy network whose mean is the observation."""

    @nn.compact
    def __call__(self, obs):
        return Gaussian(obs + self.param("shift", nn.initializers.zeros, ()), jnp.zeros(obs.shape[-1]))


def policy_for(space: spaces.Box) -> TrainedPolicy:
    actions, maker = action_space_of(space), module_policy(AsObserved())
    params = maker.make(actions.size, actions).init(jax.random.PRNGKey(0))
    moments = Moments(np.float32(1e6), np.zeros(actions.size, np.float32), np.ones(actions.size, np.float32))
    return TrainedPolicy("Some-v1", actions.size, actions, maker, params, moments)


@pytest.mark.parametrize("space", [space for space in STRICT if isinstance(space, spaces.Box)], ids=repr)
def test_trained_policies_stay_in_action_space_and_reach_its_bounds(space):
    policy = policy_for(space)
    bounded = np.isfinite(space.low) & np.isfinite(space.high) & (space.high < np.finfo(space.dtype).max)
    for requested, bound in ((-9, space.low), (-1, space.low), (-0.3, None), (1, space.high), (9, space.high)):
        obs = np.full(policy.observation_size, requested, np.float32)
        for key in (None, jax.random.PRNGKey(1)):
            action = policy(obs, key=key)
            assert space.contains(action) and action.dtype == space.dtype
            assert np.all(space.low <= np.asarray(policy(jnp.asarray(obs), key=key)))
            assert np.all(space.high >= np.asarray(policy(jnp.asarray(obs), key=key)))
        if bound is not None:
            np.testing.assert_array_equal(policy(obs)[bounded], bound[bounded])
    many = policy(np.random.default_rng(0).normal(size=(3, 50, policy.observation_size)))
    assert many.shape == (3, 50, *space.shape) and many.dtype == space.dtype
    assert all(space.contains(action[...]) for row in many for action in [row[i, ...] for i in range(50)])
