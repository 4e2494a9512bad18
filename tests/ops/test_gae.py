"""Generalised advantages against sums over future steps in plain float64 loops."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.ops.gae import Tail, empty_tail, generalized_advantages

TIME, ENVS = 12, 3


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.partial(jax.jit, static_argnames=("discount", "gae_lambda"))
def compiled(data, tail, discount, gae_lambda, known=None):
    return generalized_advantages(*data, tail, discount=discount, gae_lambda=gae_lambda, action_advantage=known)


def make_data(seed: int, frequency: float, some_invalid: bool = True) -> tuple[np.ndarray, ...]:
    """Returns random reward, value, final value, terminated, cut, valid; the last steps are terminated or cut."""
    rng = np.random.default_rng(seed)
    reward, value, final_value = rng.normal(size=(3, TIME, ENVS))
    terminated, cut, invalid = rng.random((3, TIME, ENVS)) < frequency
    cut[-1] |= ~terminated[-1]
    # Values that must not be read may be anything.
    final_value[~cut] = np.nan
    return reward, value, final_value, terminated, cut, ~(invalid & some_invalid)


def plain_advantages(data, discount, gae_lambda, known=None) -> np.ndarray:
    """Sums A_t = sum_l (discount gae_lambda)^l (delta_{t+l} - C_{t+l}) + C_t from the definition, without recursion."""
    reward, value, final_value, terminated, cut, valid = data
    advantage = np.zeros((TIME, ENVS))
    for env in range(ENVS):
        for start in range(TIME):
            factor = 1.0
            for t in range(start, TIME):
                if not valid[t, env]:
                    break  # an invalid step; the one before it has already bootstrapped from its value
                if terminated[t, env]:
                    following = 0.0
                elif cut[t, env]:
                    following = final_value[t, env]
                else:
                    following = value[t + 1, env]
                explained = 0.0 if known is None or t == start else known[t, env]
                advantage[start, env] += factor * (reward[t, env] + discount * following - value[t, env] - explained)
                if terminated[t, env] or cut[t, env]:
                    break
                factor *= discount * gae_lambda
    return advantage


datasets = st.builds(make_data, seed=st.integers(0, 2**31), frequency=st.sampled_from([0.0, 0.1, 0.4, 0.9]))
settings_of_gae = st.sampled_from([(0.99, 0.95), (0.9, 0.0), (0.8, 1.0), (1.0, 1.0), (0.0, 0.5)])


@settings(deadline=None, max_examples=100)
@given(datasets, settings_of_gae)
def test_advantage_is_discounted_sum_of_td_errors_up_to_the_end(data, discount_and_lambda):
    advantage, _ = compiled(data, empty_tail(ENVS), *discount_and_lambda)
    np.testing.assert_allclose(advantage, plain_advantages(data, *discount_and_lambda), rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=50)
@given(datasets, settings_of_gae, st.integers(0, 2**31))
def test_advantages_of_later_actions_are_subtracted(data, discount_and_lambda, seed):
    known = np.random.default_rng(seed).normal(size=(TIME, ENVS))
    advantage, _ = compiled(data, empty_tail(ENVS), *discount_and_lambda, known)
    np.testing.assert_allclose(advantage, plain_advantages(data, *discount_and_lambda, known), rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from([0.9, 1.0]))
def test_with_true_action_advantages_any_behaviour_policy_gives_the_q_values(seed, discount):
    """In a deterministic environment, if C is a policy's true advantage, A_t + V(s_t) is that policy's Q(s_t, a_t),
    regardless of the policy that acted and of the value function.
    """
    rng = np.random.default_rng(seed)
    states, choices = 5, 3
    following = rng.integers(0, states, (TIME, states, choices))
    rewards = rng.normal(size=(TIME, states, choices))
    policy = rng.dirichlet(np.ones(choices), (TIME, states))
    policy_value = np.zeros((TIME + 1, states))  # of the policy, from the end backwards
    q = np.zeros((TIME, states, choices))
    for t in reversed(range(TIME)):
        q[t] = rewards[t] + discount * policy_value[t + 1][following[t]]
        policy_value[t] = np.sum(policy[t] * q[t], axis=-1)

    time, state = np.arange(TIME)[:, None], np.zeros((TIME, ENVS), int)
    action = rng.integers(0, choices, (TIME, ENVS))  # of any behaviour policy
    for t in range(TIME - 1):
        state[t + 1] = following[t, state[t], action[t]]
    value = rng.normal(size=(TIME, ENVS))
    terminated = np.broadcast_to(time == TIME - 1, (TIME, ENVS))
    never, always = np.zeros((TIME, ENVS), bool), np.ones((TIME, ENVS), bool)
    data = rewards[time, state, action], value, value, terminated, never, always
    known = (q - policy_value[:TIME, :, None])[time, state, action]
    advantage, _ = compiled(data, empty_tail(ENVS), discount, 1.0, known)
    np.testing.assert_allclose(advantage + value, q[time, state, action], rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=50)
@given(datasets, st.sampled_from([(4, 4, 4), (1, 5, 6), (11, 1)]))
def test_pieces_with_carried_tail_match_the_whole(data, lengths):
    tail, pieces, stop = empty_tail(ENVS), [], TIME
    for length in reversed(lengths):
        piece = tuple(leaf[stop - length : stop] for leaf in data)
        advantage, tail = compiled(piece, tail, 0.9, 0.7)
        pieces.insert(0, advantage)
        stop -= length
    whole, whole_tail = compiled(data, empty_tail(ENVS), 0.9, 0.7)
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(tail.value, whole_tail.value)
    np.testing.assert_allclose(tail.accumulated, whole_tail.accumulated, rtol=1e-12, atol=1e-14)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.sampled_from([0.05, 0.3]), st.sampled_from([0.8, 1.0]))
def test_with_lambda_one_advantage_plus_value_is_monte_carlo_return(seed, frequency, discount):
    data = make_data(seed, frequency, some_invalid=False)
    reward, value, final_value, terminated, cut, _ = data
    advantage, _ = compiled(data, empty_tail(ENVS), discount, 1.0)
    for env in range(ENVS):
        for start in range(TIME):
            total = 0.0
            for k in range(TIME - start):
                total += discount**k * reward[start + k, env]
                if terminated[start + k, env]:
                    break
                if cut[start + k, env]:
                    total += discount ** (k + 1) * final_value[start + k, env]
                    break
            np.testing.assert_allclose(advantage[start, env] + value[start, env], total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("end", ["terminated", "cut"])
def test_nothing_leaks_across_a_reset(end):
    data = list(make_data(0, 0.0))
    at = 5
    data[{"terminated": 3, "cut": 4}[end]][at] = True
    data[2][at] = 0.25
    before, _ = compiled(tuple(data), empty_tail(ENVS), 0.99, 0.95)
    reward, value = data[0].copy(), data[1].copy()
    reward[at + 1 :] += 100.0
    value[at + 1 :] -= 100.0
    after, _ = compiled((reward, value, *data[2:]), empty_tail(ENVS), 0.99, 0.95)
    np.testing.assert_array_equal(after[: at + 1], before[: at + 1])
    assert np.all(after[at + 1] != before[at + 1])


def test_termination_takes_precedence_over_a_cut():
    data = list(make_data(0, 0.0))
    data[3][4] = True
    only_terminated, _ = compiled(tuple(data), empty_tail(ENVS), 0.99, 0.95)
    data[4] = data[4].copy()
    data[4][4] = True
    data[2][4] = 1e6
    both, _ = compiled(tuple(data), empty_tail(ENVS), 0.99, 0.95)
    np.testing.assert_array_equal(both, only_terminated)


def test_invalid_step_has_no_advantage_and_is_bootstrapped_from():
    """Earlier advantages end with the value of the invalid step, regardless of the rewards from there on."""
    data = list(make_data(1, 0.0))
    at = 6
    data[5][at] = False
    before, _ = compiled(tuple(data), empty_tail(ENVS), 0.9, 0.8)
    assert np.all(np.asarray(before[at]) == 0)
    reward, value = data[0].copy(), data[1]
    np.testing.assert_allclose(before[at - 1], reward[at - 1] + 0.9 * value[at] - value[at - 1], rtol=1e-12)
    reward[at:] = 1e3
    after, _ = compiled((reward, *data[1:]), empty_tail(ENVS), 0.9, 0.8)
    np.testing.assert_array_equal(after[: at + 1], before[: at + 1])


def test_tail_replaces_the_steps_that_follow():
    data = list(make_data(2, 0.0))
    data[4] = np.zeros_like(data[4])
    tail = Tail(jnp.array([1.0, 2.0, 3.0]), jnp.array([-1.0, 0.5, 0.0]))
    advantage, _ = compiled(tuple(data), tail, 0.9, 0.8)
    expected = data[0][-1] + 0.9 * np.asarray(tail.value) - data[1][-1] + 0.9 * 0.8 * np.asarray(tail.accumulated)
    np.testing.assert_allclose(advantage[-1], expected, rtol=1e-12)


def test_float32_is_close_to_float64():
    data = make_data(4, 0.1)
    exact, _ = compiled(data, empty_tail(ENVS), 0.99, 0.95)
    with jax.enable_x64(False):
        rough, _ = compiled(data, empty_tail(ENVS), 0.99, 0.95)
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, exact, rtol=1e-5, atol=1e-5)
