"""Trained policies accept observations in the form of their environment and return actions of its space."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting_env import Spaces
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

import jaxtrpo
from jaxtrpo.envs.base import ActionSpace, action_space
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.networks import mlp
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs import policy_file

NESTED = spaces.Dict(
    {
        "b": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.Box(0, 255, (2, 2), np.uint8)]),
        "a": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 5]]),
        "c": spaces.MultiBinary(4),
    }
)
# (observation space, action space)
SPACES = [
    (spaces.Discrete(16), spaces.Discrete(3, start=5)),
    (spaces.Discrete(5, start=-2), spaces.Box(-0.1, 0.7, (2, 2), np.float64)),
    (spaces.MultiDiscrete([3, 2], start=[0, 4]), spaces.MultiDiscrete([[2, 3]], start=[[0, 4]])),
    (spaces.Box(0, 255, (4, 5, 3), np.uint8), spaces.MultiBinary((2, 1))),
    (spaces.Box(-1, 1, (), np.float64), spaces.Box(-1.1, 2.3, (), np.float32)),
    (spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-0.1, 0.1, (2,), np.float16)),
    (spaces.MultiBinary((2, 2)), spaces.Discrete(2)),
    (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]), spaces.Discrete(2, start=2**40)),
    (NESTED, spaces.Box(-np.inf, np.inf, (1,), np.float64)),
]
KEY = jax.random.PRNGKey(3)


def policy_for(observation, action) -> TrainedPolicy:
    env = jaxtrpo.make_env(lambda: Spaces(observation, action), processes=0)
    actions, maker, size = action_space(env), mlp(hidden=()), env.observation_size
    params = maker.make(size, actions).init(jax.random.PRNGKey(0))
    params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(KEY, leaf.shape), params)
    moments = Moments(np.float32(10), np.zeros(size, np.float32), np.ones(size, np.float32))
    return TrainedPolicy("Some-v1", size, actions, maker, params, moments, env.observations)


@pytest.fixture(scope="module", params=SPACES, ids=repr)
def case(request, tmp_path_factory):
    """Spaces, a saved and loaded policy for them, sampled observations, and these flattened by Gymnasium."""
    observation, action = request.param
    observation.seed(0)
    directory = tmp_path_factory.mktemp("policy")
    policy = policy_for(observation, action)
    policy_file.save_policy(directory, policy)
    loaded = policy_file.load_policy(directory)
    assert loaded.actions.low.dtype == policy.actions.low.dtype == action.dtype
    samples = [observation.sample() for _ in range(6)]
    flat = np.stack([np.asarray(spaces.flatten(observation, sample), np.float32).ravel() for sample in samples])
    return observation, action, loaded, samples, flat


def stacked(space, samples):
    """Returns a batch of observations in the form of Gymnasium's vector environments."""
    return concatenate(space, samples, create_empty_array(space, len(samples)))


def test_action_for_single_observation_is_in_action_space(case):
    _, action, policy, samples, flat = case
    for sample, row in zip(samples, flat, strict=True):
        for key in (None, KEY):
            chosen = policy(sample, key=key)
            assert action.contains(chosen)
            np.testing.assert_array_equal(policy(row, key=key).reshape(action.shape), chosen)
        np.testing.assert_array_equal(policy.flatten(sample), row)


def test_batch_of_observations_gives_batch_of_actions(case):
    observation, action, policy, samples, flat = case
    batch = stacked(observation, samples)
    np.testing.assert_array_equal(policy.flatten(batch), flat)
    chosen = policy(batch)
    assert chosen.shape == (6, *action.shape) and chosen.dtype == action.dtype
    np.testing.assert_allclose(chosen, np.stack([policy(sample) for sample in samples]), rtol=2e-3, atol=1e-5)
    np.testing.assert_array_equal(chosen, policy(flat).reshape(chosen.shape))


def test_jax_observations_are_accepted_eagerly_and_under_jit(case):
    observation, _, policy, samples, flat = case
    batch = jax.tree.map(jnp.asarray, stacked(observation, samples))
    for function in (policy.flatten, jax.jit(lambda obs: policy.flatten(obs))):
        found = function(batch)
        assert isinstance(found, jax.Array)
        np.testing.assert_array_equal(found, flat)


@pytest.mark.parametrize(
    ("space", "wrong", "message"),
    [
        (SPACES[0][0], 16, "observation is 16, which is not in Discrete(16)"),
        (SPACES[0][0], 1.0, "obs has shape (); pass observations of Discrete(16), or flat ones: its last axis must"),
        (SPACES[0][0], np.zeros((2, 15)), "its last axis must have size 16"),
        (SPACES[2][0], np.int64([3, 4]), "which is not in MultiDiscrete([3 2]"),
        (SPACES[3][0], np.zeros((4, 5, 4)), "pass observations of Box(0, 255, (4, 5, 3), uint8), or flat ones"),
        (SPACES[7][0], (1,), "the observation (1,) has no entry 1"),
        (SPACES[7][0], (1, np.zeros(3)), "observation[1] has shape (3,), but its space Box"),
        (NESTED, {"a": 1}, "observation['a'] has shape (), but its space MultiDiscrete"),
        (SPACES[5][0], np.zeros(4), "obs has shape (4,); its last axis must have size 3"),
    ],
)
def test_observations_that_do_not_fit_are_rejected_in_one_line(space, wrong, message):
    with pytest.raises(ValueError) as error:
        policy_for(space, spaces.Discrete(2))(wrong)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_discrete_actions_beyond_jax_integers_are_rejected():
    observation, action = SPACES[7]
    policy, obs = policy_for(observation, action), (1, np.zeros(2, np.float32))
    assert action.contains(policy(obs))
    with pytest.raises(ValueError, match="from 1099511627776 to 1099511627777, beyond JAX's int32; pass NumPy"):
        policy(jax.tree.map(jnp.asarray, obs))


def test_policy_files_without_observation_spaces_can_be_loaded(tmp_path, monkeypatch):
    """Old files have float32 bounds, for discrete actions too, and no observation space."""
    actions = ActionSpace(np.float32([5, 0]), np.float32([7, 1]), (3, 2), (2,))
    maker = mlp(hidden=())
    moments = Moments(np.float32(10), np.zeros(4, np.float32), np.ones(4, np.float32))
    policy = TrainedPolicy("Some-v1", 4, actions, maker, maker.make(4, actions).init(KEY), moments)
    write = policy_file.write_msgpack

    def write_old_format(path, version, content):
        assert content.pop("observations") is None
        write(path, version, content)

    monkeypatch.setattr(policy_file, "write_msgpack", write_old_format)
    policy_file.save_policy(tmp_path, policy)
    found = policy_file.load_policy(tmp_path)(np.ones((20, 4)), key=KEY)
    assert found.dtype == np.int64
    assert all(spaces.MultiDiscrete([3, 2], start=[5, 0]).contains(each) for each in found)


WITHOUT_GYMNASIUM = """
import sys
sys.modules["gymnasium"] = None
import jaxtrpo
print(jaxtrpo.load_policy(sys.argv[1])(3))
"""


def test_trained_policy_acts_in_gymnasium_environment_and_loads_without_gymnasium(tmp_path):
    policy = jaxtrpo.train("FrozenLake-v1", total_steps=1000, num_envs=10, out=tmp_path, progress=False).policy
    env = gymnasium.make("FrozenLake-v1")
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        obs, _, terminated, truncated, _ = env.step(policy(obs))
        if terminated or truncated:
            obs, _ = env.reset()
    vector = gymnasium.make_vec("FrozenLake-v1", 3)
    obs, _ = vector.reset(seed=0)
    vector.step(policy(obs))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_GYMNASIUM, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert int(done.stdout) == policy(3)
