"""Gradient steps of Q-learning that actors share."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtrpo
from jaxtrpo.algorithms import q_learning
from jaxtrpo.algorithms.naf import ValueAndCurvature
from jaxtrpo.algorithms.sac import ActionValue, values_of
from jaxtrpo.ops.minibatches import Parts
from jaxtrpo.parallel import collectives
from jaxtrpo.parallel.actors import first
from jaxtrpo.training.train import prepare

# 33 rows, which two actors cannot halve.
ROWS = "minibatch_size=33, minibatch_per_env=0.0"
SIZES = {"num_envs": 8, "steps_per_update": 64, "total_steps": 512, "actors": 2, "seed": 3, "progress": False}
CASES = {
    "sac": ("InvertedPendulum-v5", f"sac(hidden=(8,), replay_ratio=0.1, {ROWS})", "squashed(hidden=(8,))"),
    "naf": ("InvertedPendulum-v5", f"naf(hidden=(8,), replay_ratio=0.1, {ROWS})", "mlp(hidden=(8,))"),
    "dqn": ("CartPole-v1", f"dqn(n_step=2, replay_ratio=0.1, {ROWS})", "mlp(hidden=(8,))"),
}


@pytest.mark.parametrize("name", CASES)
def test_actors_that_share_minibatches_learn_what_each_would_alone(name, monkeypatch):
    env, algorithm, policy = CASES[name]
    settings = {**SIZES, "algorithm": algorithm, "policy": policy}
    chosen, parts_for = [], q_learning.parts_for

    def recorded(multiply_adds, params, steps):
        chosen.append(parts_for(multiply_adds, params, steps))
        return chosen[-1]

    monkeypatch.setattr(q_learning, "parts_for", recorded)
    alone = jaxtrpo.train(env, **settings)
    assert set(chosen) == {Parts()}
    size = sum(leaf.size for leaf in jax.tree.leaves((alone.state.learner.policy, alone.state.learner.critic))) // 2
    chosen.clear()
    monkeypatch.setattr(collectives, "MULTIPLY_ADDS_TO_SHARE", 33 * size)
    # With another discount, nothing that was compiled before is used again.
    together = jaxtrpo.train(env, **settings, discount=0.99 + 1e-9)
    assert set(chosen) == {Parts(1, shared=True)}
    assert sum(together.metrics["gradient_steps"]) > 40
    for column in ("bellman_error", "return_100"):
        np.testing.assert_allclose(together.metrics[column], alone.metrics[column], rtol=1e-3, err_msg=column)
    for name in ("policy", "critic", "target"):
        ours, wanted = (jax.tree.leaves(getattr(result.state.learner, name)) for result in (together, alone))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), ours, wanted)
    monkeypatch.setattr(collectives, "MULTIPLY_ADDS_TO_SHARE", 33 * size + 1)
    chosen.clear()
    jaxtrpo.train(env, **{**settings, "total_steps": 64}, discount=0.99 + 2e-9)
    assert set(chosen) == {Parts()}


class Jackpot(gymnasium.RewardWrapper):
    """Every step is worth 1, and from the fiftieth on more."""

    def __init__(self, env, later):
        super().__init__(env)
        self.steps, self.later = 0, later

    def reward(self, reward):
        self.steps += 1
        return self.later if self.steps > 50 else 1.0


def predictions(name, policy, learner, obs):
    """What networks and target predict, in units of reward."""
    if name == "dqn":
        found = [policy.apply(params, obs).logits[0] for params in (learner.policy, learner.target)]
    elif name == "sac":
        network, action = ActionValue((8,)), jnp.ones((len(obs), 1))
        values = [values_of(network, params, obs, action) for params in (learner.critic.values, learner.target)]
        found = [*values, jnp.exp(learner.critic.log_temperature)]
    else:
        made = [ValueAndCurvature((8,), 1).apply(params, obs) for params in (learner.critic, learner.target)]
        found = [part for value, lower in made for part in (value, lower @ jnp.swapaxes(lower, -1, -2))]
    return [learner.unit * each for each in found]


@pytest.mark.parametrize(("name", "later"), [("sac", 1000.0), ("naf", 4.0), ("dqn", 1000.0)])
def test_larger_rewards_do_not_multiply_what_was_learned(name, later):
    """Values are learned in a unit that follows the rewards, and so networks must follow the unit."""
    env, algorithm, policy = CASES[name]
    seen = []

    def on_update(row, state):
        seen.append(first(jax.device_get(state.learner)))

    run = prepare(
        lambda: Jackpot(gymnasium.make(env), later),
        algorithm=algorithm.replace("(", "(learning_rate=1e-20, ", 1),
        adapt="fixed",
        policy=policy,
        normalize_observations=False,
        on_update=on_update,
        **{"num_envs": 4, "steps_per_update": 64, "total_steps": 512, "actors": 1, "seed": 3},
    )
    run.run(progress=False)
    units = [float(learner.unit) for learner in seen]
    np.testing.assert_allclose(units[0], 10.0, rtol=1e-6)
    assert units[-1] > 6 * later  # of at most 10 times as much
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)), jnp.float32)
    begun, ended = (predictions(name, run.update.policy, learner, obs) for learner in (seen[0], seen[-1]))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(other, one, rtol=1e-3), begun, ended)


@pytest.mark.parametrize("name", ["sac", "naf", "dqn"])
def test_a_reward_whose_square_overflows_does_not_end_learning(name):
    """One of 1e25 in each environment; until their rows are overwritten, updates may be discarded."""
    env, algorithm, policy = CASES[name]
    seen = []

    class Glitch(gymnasium.RewardWrapper):
        steps = 0

        def reward(self, reward):
            self.steps += 1
            return 1e25 if self.steps == 40 else 1.0

    def on_update(row, state):
        seen.append(first(jax.device_get((state.learner.policy, state.learner.rewards, state.learner.unit))))

    metrics = jaxtrpo.train(
        lambda: Glitch(gymnasium.make(env)),
        algorithm=algorithm.replace("(", "(replay=256, ", 1),
        adapt="fixed",
        policy=policy,
        critic="none",
        on_update=on_update,
        progress=False,
        **{"num_envs": 4, "steps_per_update": 64, "total_steps": 1024, "actors": 1, "seed": 3},
    ).metrics
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(seen))
    assert np.all(metrics["accepted"][-8:] == 1)
    assert name == "dqn" or not metrics["accepted"].all()  # whose loss grows with the error only, not with its square
    last = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(each[0])]) for each in seen[-2:]]
    assert np.any(last[0] != last[1])
