"""Runs of policies with memory: trained policies, evaluation, resuming, several trainings, and what is refused."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from recall_env import RecallEnvironment
from support import TWO_NUMBERS

import jaxtrpo
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.recurrent import gru
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.rollout.evaluation import evaluation_key

pytestmark = pytest.mark.shared_programs
SMALL = {"policy": "gru(hidden=8, encoder=(), bptt_steps=4)", "num_envs": 4, "progress": False}


def trained_policy() -> TrainedPolicy:
    rng = np.random.default_rng(0)
    params = gru(hidden=8).make(3, TWO_NUMBERS).init(jax.random.PRNGKey(0))
    params = jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), params)
    moments = Moments(np.float32(10), np.float32([0.1, 0, 0.3]), np.float32([1, 2, 0.5]))
    return TrainedPolicy("Some-v1", 3, TWO_NUMBERS, gru(hidden=8), params, moments)


def test_policy_remembers_until_it_is_reset():
    policy, obs = trained_policy(), np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    assert policy.state is None
    first = [policy(row) for row in obs]
    assert not np.allclose(policy(obs[0]), first[0])
    policy.reset()
    np.testing.assert_array_equal(np.stack([policy(row) for row in obs]), np.stack(first))
    state, stepped = None, []
    for row in obs:
        action, state = policy.step(state, row)
        stepped.append(action)
    np.testing.assert_array_equal(np.stack(stepped), np.stack(first))


def test_batch_is_remembered_per_environment_and_forgotten_where_an_episode_begins():
    policy, obs = trained_policy(), np.random.default_rng(1).normal(size=(4, 2, 3)).astype(np.float32)
    alone = []
    for env in range(2):
        state, actions = None, []
        for t in range(4):
            action, state = policy.step(state, obs[t, env], first=env == 1 and t == 2)
            actions.append(action)
        alone.append(np.stack(actions))
    state, together = None, []
    for t in range(4):
        action, state = policy.step(state, obs[t], first=np.array([False, t == 2]))
        together.append(action)
    np.testing.assert_allclose(np.stack(together, axis=1), np.stack(alone), rtol=1e-5, atol=1e-6)
    fresh, _ = policy.step(None, obs[2, 1])
    np.testing.assert_allclose(alone[1][2], fresh, rtol=1e-5, atol=1e-6)


def test_another_number_of_observations_needs_a_reset():
    policy = trained_policy()
    policy(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"reset\(\)"):
        policy(np.zeros(3, np.float32))
    policy.reset()
    assert policy(np.zeros(3, np.float32)).shape == (2,)
    with pytest.raises(ValueError, match="deterministic_step"):
        policy.deterministic()


def test_sampled_actions_depend_on_the_key():
    policy, obs = trained_policy(), np.zeros((2, 3), np.float32)
    one, two = (policy.step(None, obs, key=jax.random.PRNGKey(seed))[0] for seed in (0, 1))
    assert one.shape == (2, 2) and np.all(one != two)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "recall"
    result = jaxtrpo.train(
        RecallEnvironment(), total_steps=12_000, seed=100, out=out, actors=1, **{**SMALL, "num_envs": 16}
    )
    return result, out


def test_evaluation_steps_the_memory(trained):
    """The return of each episode is that of a loop with the policy's own memory."""
    result, _ = trained
    found = jaxtrpo.evaluate(result.policy, RecallEnvironment(), episodes=6, seed=3)
    env, policy = RecallEnvironment(), result.policy
    state = jax.jit(env.reset, static_argnums=1)(evaluation_key(3), 6)
    total, over, carry, step = np.zeros(6), np.zeros(6, bool), None, jax.jit(env.step)
    for _ in range(6):
        action, carry = policy.step(carry, np.asarray(state.obs), first=np.asarray(state.elapsed) == 0)
        state = step(state, action)
        total += np.where(over, 0, state.reward)
        over |= np.asarray(state.terminated | state.truncated)
    assert over.all()
    np.testing.assert_allclose(found.returns, total)


def test_saved_policy_acts_like_the_trained_one(trained):
    result, out = trained
    loaded, obs = jaxtrpo.load_policy(out), np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
    result.policy.reset()
    for now in obs:
        np.testing.assert_array_equal(loaded(now), result.policy(now))
    result.policy.reset()


def leaves(state) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


@pytest.mark.parametrize("algorithm", ["trpo(fisher_samples=16)", "ppo(minibatch_size=8)"])
def test_resumed_run_is_bit_identical(algorithm, tmp_path):
    settings = {**SMALL, "algorithm": algorithm, "steps_per_update": 32, "segment_length": 3, "adapt": "fixed"}
    if algorithm.startswith("trpo"):
        settings["actors"] = 2
    whole = jaxtrpo.train(RecallEnvironment(), total_steps=120, **settings)
    jaxtrpo.train(RecallEnvironment(), total_steps=60, out=tmp_path / "run", **settings)
    resumed = jaxtrpo.train(RecallEnvironment(), total_steps=120, out=tmp_path / "run", resume=True, **settings)
    for ours, theirs in zip(leaves(whole.state), leaves(resumed.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert any(leaf.shape[-1:] == (8,) and leaf.any() for leaf in leaves(whole.state.actors.carries))


@pytest.mark.parametrize("algorithm", ["npg", "trpo_penalty", "pg", "a2c", "a3c"])
def test_other_on_policy_algorithms_learn_with_memory(algorithm):
    result = jaxtrpo.train(
        RecallEnvironment(), total_steps=200, algorithm=algorithm, steps_per_update=64, actors=1, **SMALL
    )
    assert len(result.metrics["env_steps"]) >= 2
    assert all(np.isfinite(leaf).all() for leaf in leaves(result.policy.params))
    assert "gru" in result.config.critic or algorithm == "pg"


def test_trainings_in_one_program_match_trainings_alone():
    settings = {**SMALL, "total_steps": 300, "steps_per_update": 64, "algorithm": "ppo(minibatch_size=16)"}
    many = jaxtrpo.train_many(RecallEnvironment(), seeds=[5, 6], **settings)
    alone = [jaxtrpo.train(RecallEnvironment(), seed=seed, actors=1, **settings) for seed in (5, 6)]
    for ours, theirs in zip(many, alone, strict=True):
        for a, b in zip(leaves(ours.policy.params), leaves(theirs.policy.params), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4)


def test_default_critic_has_memory_and_the_settings_of_the_algorithm():
    def critic_of(**settings) -> str:
        return jaxtrpo.training.prepare.plan(RecallEnvironment(), {"total_steps": 1, **settings}).config.critic

    assert critic_of(policy="gru(hidden=32)") == "gru(hidden=32)"
    assert critic_of(policy="lstm", algorithm="ppo(epochs=3)") == (
        "lstm(epochs=3, minibatch_size=64, learning_rate=0.0003)"
    )
    assert critic_of(policy="gru", critic="mlp") == "mlp"
    assert critic_of(policy="mlp", critic="gru") == "gru"
    assert critic_of(policy="gru", algorithm="pg(gae_lambda=1)", critic="none") == "none"


@pytest.mark.parametrize("algorithm", ["trpo_replay", "naf", "gps"])
@pytest.mark.parametrize("part", ["policy", "critic"])
def test_algorithm_without_memory_says_so(algorithm, part):
    env = "Pendulum-v1" if algorithm == "naf" else "Swimmer-v5"
    if part == "critic" and algorithm != "trpo_replay":
        pytest.skip("the critic is refused for another reason")
    with pytest.raises(ValueError, match=f"{part}: {algorithm} cannot train networks with memory"):
        jaxtrpo.train(env, total_steps=100, algorithm=algorithm, **{part: "gru"})
