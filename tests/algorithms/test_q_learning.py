"""Gradient steps of Q-learning that actors share."""

import jax
import numpy as np
import pytest

import jaxtrpo
from jaxtrpo.algorithms import q_learning
from jaxtrpo.ops.minibatches import Parts
from jaxtrpo.parallel import collectives

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
