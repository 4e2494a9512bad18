"""Deep Q-networks: returns and losses against float64 loops, exploration, and learning on probes."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from probe import BOTH, DELAYED, DISCOUNT, DISCOUNTED, ProbeEnvironment
from support import actors, counted_compilations, deal_batch, first, learner_of, random_batch, spread

import jaxtrpo
from jaxtrpo.algorithms.dqn import dqn, epsilon_greedy, n_step_return, values_of
from jaxtrpo.critics.none import none
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import normalize
from jaxtrpo.policies.distributions import Categorical
from jaxtrpo.policies.networks import categorical_policy, mlp
from jaxtrpo.rollout.replay import Transitions, inserted
from jaxtrpo.training.train import prepare

THREE_CHOICES = ActionSpace(np.zeros(1, np.int64), np.full(1, 2), (3,))
POLICY = categorical_policy(3, (3,), hidden=(8,))
DUELING = mlp(hidden=(8,), shared=True).make(3, THREE_CHOICES)
SIGNS = np.float32([[1, 0], [-1, 0]])  # observations of first steps
SECONDS = ("wall_seconds", "collect_seconds", "learn_seconds")


class Choices(ProbeEnvironment):
    """A probe with two choices, which stand for the actions -1/2 and 1/2."""

    action_counts, action_low, action_high = (2,), np.zeros(1, np.int64), np.ones(1, np.int64)

    def __init__(self, kind: int = BOTH):
        self.kind = kind

    def reset(self, key, num_envs):
        state = super().reset(key, num_envs)
        return state._replace(physics=state.physics._replace(kind=jnp.full(num_envs, self.kind, jnp.int32)))

    def step(self, state, action):
        return super().step(state, action - 0.5)


# ---- returns


def transitions(seed: int, rows: int = 6, time: int = 4) -> Transitions:
    """Returns windows in which episodes end in every way, and some steps are invalid or were never collected."""
    rng = np.random.default_rng(seed)
    elapsed = np.cumsum(rng.random((rows, time)) < 0.8, axis=1) + rng.integers(0, 9, (rows, 1))
    return Transitions(
        obs=np.float32(rng.normal(size=(rows, time, 3))),
        action=np.float32(rng.integers(0, 3, (rows, time, 1))),
        reward=np.float32(rng.normal(size=(rows, time))),
        terminated=np.float32(rng.random((rows, time)) < 0.2),
        final_obs=np.float32(rng.normal(size=(rows, time, 3))),
        elapsed=np.float32(elapsed),
        weight=np.float32(rng.random((rows, time)) < 0.9),
    )


def plain_return(rows: Transitions, row: int, discount: float):
    """Walks along a window, as long as its steps follow each other."""
    total, last = 0.0, 0
    for k in range(rows.reward.shape[1]):
        if k > 0:
            ended = rows.terminated[row, k - 1] or rows.elapsed[row, k] != rows.elapsed[row, k - 1] + 1
            if ended or not rows.weight[row, k]:
                break
        total, last = total + discount**k * float(rows.reward[row, k]), k
    return total, rows.final_obs[row, last], discount ** (last + 1) * (1 - float(rows.terminated[row, last]))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 1000), discount=st.sampled_from([0.5, 0.99]))
def test_n_step_return_matches_a_walk_along_the_episode(seed, discount):
    rows = transitions(seed)
    found = jax.tree.map(np.asarray, n_step_return(rows, discount))
    for row in range(len(rows.reward)):
        for value, wanted in zip(found, plain_return(rows, row, discount), strict=True):
            np.testing.assert_allclose(value[row], wanted, rtol=1e-5, atol=1e-6)


def test_return_of_one_step_is_its_reward():
    rows = jax.tree.map(lambda leaf: leaf[:, :1], transitions(0))
    total, final_obs, share = n_step_return(rows, 0.9)
    np.testing.assert_array_equal(total, rows.reward[:, 0])
    np.testing.assert_array_equal(final_obs, rows.final_obs[:, 0])
    np.testing.assert_allclose(share, 0.9 * (1 - rows.terminated[:, 0]))


# ---- loss


@functools.cache
def learning(policy=POLICY, **changes):
    algorithm = dqn(**{"replay": 10_000, "minibatch_size": 4096, "replay_ratio": 1e-6, **changes})
    learner = learner_of(algorithm, policy, none().make(3), segment_steps=12, segment_length=3, actions=THREE_CHOICES)

    def learn(state, batch, *others):
        return learner.learn(inserted(learner.replay, state, batch), batch, *others)

    return learner, actors(1).map(learn)


def learned(batch, policy=POLICY, rate: float = 1e-3, **changes):
    learner, learn = learning(policy, **changes)
    before = learner.init(jax.random.PRNGKey(1), jax.random.PRNGKey(1))
    # Another target, and values that differ between choices.
    before = before._replace(
        policy=jax.tree.map(lambda leaf: 30 * leaf, before.policy),
        target=jax.tree.map(lambda leaf: 30 * leaf, learner.init(*jax.random.split(jax.random.PRNGKey(2))).policy),
    )
    rates = {"learning_rate": np.full(1, rate, np.float32)}
    state, info = learn(spread(before, 1), deal_batch(batch, 1), rates, spread(jax.random.PRNGKey(3), 1))
    return before, first(state), first(info)


def steps_with_choices(seed: int, **changes):
    batch = random_batch(seed, action_size=1, **changes)
    action = np.random.default_rng(seed).integers(0, 3, batch.steps.action.shape).astype(np.int32)
    return batch._replace(steps=batch.steps._replace(action=action))


def plain_bellman_error(before, batch, policy, double: bool) -> float:
    """Computes the root mean square Bellman error of one-step returns over all steps, in units of reward."""
    steps, wide = batch.steps, functools.partial(np.asarray, dtype=np.float64)
    valid = ~np.ravel(steps.invalid)
    scale = 10 * np.sqrt(np.mean(wide(steps.reward).ravel()[valid] ** 2))
    obs = wide(steps.obs).reshape(-1, 3)
    mean, std = obs[valid].mean(axis=0), obs[valid].std(axis=0)

    def values(params, raw):
        return wide(values_of(policy, params, jnp.clip((raw.reshape(-1, 3) - mean) / std, -10, 10)))

    later = values(before.target, wide(steps.final_obs))
    chooser = values(before.policy, wide(steps.final_obs)) if double else later
    index = np.arange(len(valid))
    worth = wide(steps.reward).ravel() / scale + 0.99 * ~steps.terminated.ravel() * later[index, chooser.argmax(axis=1)]
    error = values(before.policy, obs)[index, steps.action.ravel()] - worth
    return scale * np.sqrt(np.mean(error[valid] ** 2))


@pytest.mark.parametrize(
    ("policy", "double"), [(POLICY, True), (POLICY, False), (DUELING, True)], ids=["double", "single", "dueling"]
)
def test_bellman_error_matches_float64(policy, double):
    """Fails if terminated steps bootstrap, broken ones count, or another network chooses the action."""
    batch = steps_with_choices(3, end=0.3, broken=0.2)
    before, _, info = learned(batch, policy, n_step=1, double=double)
    assert info["gradient_steps"] == 1
    # One minibatch of 4,096 draws from 48 rows: about 85 draws of each row.
    np.testing.assert_allclose(info["bellman_error"], plain_bellman_error(before, batch, policy, double), rtol=0.05)


def test_dueling_values_are_the_value_and_advantages_relative_to_their_mean():
    params, obs = DUELING.init(jax.random.PRNGKey(0)), jax.random.normal(jax.random.PRNGKey(1), (5, 3))
    params = jax.tree.map(lambda leaf: 30 * leaf + 0.1, params)
    distribution, value = DUELING.value_head.joint(params, obs)
    logits = np.asarray(distribution.logits[0], np.float64)
    found = values_of(DUELING, params, obs)
    np.testing.assert_allclose(found, value[:, None] + logits - logits.mean(axis=1, keepdims=True), rtol=1e-4)
    np.testing.assert_array_equal(np.argmax(found, axis=1), distribution.mode()[:, 0])


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_target_network_moves_by_target_rate(rate):
    before, after, _ = learned(steps_with_choices(0), target_rate=rate)
    for old, new, target in zip(
        *(jax.tree.leaves(each) for each in (before.target, after.policy, after.target)), strict=True
    ):
        np.testing.assert_allclose(target, old + rate * (new - old), atol=1e-6)
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before.policy, after.policy)), strict=True))


def test_errors_beyond_one_unit_pull_no_harder():
    """All values are 5 units, and all returns a tenth: the Huber loss has the slope 1, a squared one would have 4.9."""
    batch = steps_with_choices(0, end=0.0, broken=0.0)
    steps = batch.steps._replace(
        terminated=np.ones_like(batch.steps.terminated), reward=np.ones_like(batch.steps.reward)
    )
    learner, learn = learning(n_step=1)
    state = learner.init(jax.random.PRNGKey(1), jax.random.PRNGKey(1))
    of_last = state.policy["params"]["MLP_0"]["last"]
    constant = {"kernel": jnp.zeros_like(of_last["kernel"]), "bias": jnp.full(3, 5.0)}
    params = {"params": {**state.policy["params"], "MLP_0": {**state.policy["params"]["MLP_0"], "last": constant}}}
    rates = {"learning_rate": np.zeros(1, np.float32)}
    after, info = learn(
        spread(state._replace(policy=params), 1), deal_batch(batch._replace(steps=steps), 1), rates,
        spread(jax.random.PRNGKey(3), 1),
    )  # fmt: skip
    np.testing.assert_allclose(first(info)["bellman_error"], 10 * (5 - 0.1), rtol=1e-4)
    _, unravel = ravel_pytree((params, ()))
    slope = unravel(first(after).optimizer.mu / 0.1)[0]["params"]["MLP_0"]["last"]["bias"]  # Adam's mean begins at 0
    np.testing.assert_allclose(np.sum(slope), 1.0, rtol=1e-4)  # each row pulls at one of the values


# ---- exploration


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_takes_the_best_choice_or_any(epsilon):
    values = jnp.float32([[0.1, 0.5, -3.0], [9.0, 0.0, 8.9]])
    found = epsilon_greedy(Categorical((values,)), {"epsilon": jnp.float32(epsilon)})
    wanted = epsilon / 3 + (1 - epsilon) * np.eye(3)[[1, 0]]
    np.testing.assert_allclose(jax.nn.softmax(found.logits[0]), wanted, atol=1e-6)
    assert np.all(np.isfinite(found.logits[0]))


def choices_taken(epsilon: float):
    """Returns the observed signs and the choices of a batch, and the policy that made it."""
    run = prepare(Choices(), **{**TINY, "algorithm": f"dqn(epsilon={epsilon}, replay=512)"}, total_steps=640)
    update = run.update
    policy = jax.tree.map(lambda leaf: 100 * leaf, run.state.learner.policy)
    state = run.state._replace(learner=run.state.learner._replace(policy=policy))
    for _ in range(2):  # the first batch is one segment
        _, batch = update.actors.map(update.collect)(state.actors, state.learner, state.hyperparameters)
        known = state.learner.obs_moments._replace(count=np.full((1,), 9.0, np.float32), variance=np.ones((1, 2)))
        state = state._replace(learner=state.learner._replace(obs_moments=known))
    filled = int(batch.num_segments[0])
    obs, action = (np.asarray(leaf)[0, :filled] for leaf in (batch.steps.obs, batch.steps.action))
    of_one = first(policy)
    greedy = update.policy.apply(of_one, jnp.asarray(obs)).mode()
    return action[..., 0].ravel(), np.asarray(greedy)[..., 0].ravel()


TINY = {
    "segment_length": 16, "num_envs": 16, "steps_per_update": 256, "policy": "mlp(hidden=(8,))", "actors": 1,
}  # fmt: skip


def test_actors_follow_the_policy_as_often_as_epsilon_says():
    greedy, (action, best) = choices_taken(0.0), choices_taken(1.0)
    np.testing.assert_array_equal(*greedy)
    assert len(action) == 256 and abs(np.mean(action == best) - 0.5) < 0.15


def test_epsilon_and_learning_rate_decay_over_the_run():
    run = prepare(Choices(), **{**TINY, "algorithm": "dqn(replay=512, learning_rate=0.002)"}, total_steps=2560)
    metrics = run.run(progress=False).metrics
    for name, begin, end in (("epsilon", 1.0, 0.01), ("learning_rate", 2e-3, 2e-4)):
        progress = np.concatenate([[0], metrics["env_steps"][:-1]]) / 2560
        np.testing.assert_allclose(metrics[name], begin * (end / begin) ** progress, rtol=1e-4)


def test_an_epsilon_of_zero_stays_zero():
    run = prepare(Choices(), **{**TINY, "algorithm": "dqn(replay=512, epsilon=0.0)"}, total_steps=768)
    assert np.all(run.run(progress=False).metrics["epsilon"] == 0)


# ---- whole runs


def trained(kind: int, words: str = "dqn(replay=4000, replay_ratio=1.0, learning_rate=0.01)", **changes):
    settings = {**TINY, "steps_per_update": 64, "segment_length": 4, "discount": DISCOUNT, "total_steps": 4000}
    return prepare(Choices(kind), **{**settings, "algorithm": words, **changes}).run(progress=False)


@pytest.mark.parametrize("policy", ["mlp(hidden=(16,))", "mlp(hidden=(16,), shared=True)"], ids=["mlp", "dueling"])
def test_dqn_finds_the_best_choice_for_each_observation(policy):
    found = trained(BOTH, policy=policy).policy
    np.testing.assert_array_equal(found(SIGNS)[:, 0], [1, 0])


def test_returns_of_several_steps_see_what_one_step_cannot():
    """The reward of the second step depends on the first choice, which the second observation does not show."""
    np.testing.assert_array_equal(trained(DELAYED).policy(SIGNS)[:, 0], [1, 1])


def test_values_bootstrap_from_the_next_observation():
    """The rewards are 0 and 1, so the first step is worth the discount, and the second 1."""
    result = trained(DISCOUNTED, "dqn(replay=4000, replay_ratio=1.0, learning_rate=0.01, n_step=1, target_rate=0.05)")
    learner = first(result.state.learner)
    obs = normalize(jnp.float32([[1, 0], [1, 1]]), learner.obs_moments)
    unit = 10 * np.sqrt(learner.rewards.mean**2 + learner.rewards.variance)
    values = values_of(categorical_policy(2, (2,), hidden=(8,)), learner.policy, obs)
    np.testing.assert_allclose(unit * values, [[DISCOUNT] * 2, [1.0] * 2], atol=0.05)


def test_training_does_not_depend_on_number_of_actors_and_compiles_once():
    words = {"words": "dqn(replay=500, minibatch_size=16)", "adapt": "linear(steps_per_update=128, epsilon=0.0)"}
    one, two = (trained(BOTH, **words, actors=count, total_steps=320) for count in (1, 2))
    for name in set(one.metrics) - set(SECONDS):
        np.testing.assert_allclose(two.metrics[name], one.metrics[name], rtol=2e-3, atol=1e-4, err_msg=name)
    run = prepare(Choices(), **{**TINY, "algorithm": words["words"], "adapt": words["adapt"]}, total_steps=10_000)
    updates = run._updates()
    next(updates)
    with counted_compilations() as compiled:
        for _ in range(3):
            next(updates)
    assert not compiled


def test_resumed_run_equals_uninterrupted_run(tmp_path):
    settings = {"words": "dqn(replay=500, minibatch_size=16)", "adapt": "fixed"}
    whole = trained(BOTH, **settings, out=tmp_path / "whole", total_steps=1500)
    trained(BOTH, **settings, out=tmp_path / "parts", total_steps=700)
    resumed = trained(BOTH, **settings, out=tmp_path / "parts", total_steps=1500, resume=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))


def test_actors_that_do_not_wait_find_the_best_choices_too():
    threads = threading.active_count()
    words = "dqn(replay=4000, replay_ratio=1.0, learning_rate=0.01, asynchronous=True)"
    found = trained(BOTH, words, actors=2).policy
    np.testing.assert_array_equal(found(SIGNS)[:, 0], [1, 0])
    assert threading.active_count() == threads


def test_values_are_no_probabilities_to_draw_actions_by(tmp_path):
    policy = trained(BOTH, total_steps=200, out=tmp_path).policy
    said = "the policy of .* has learned values of actions, not probabilities to draw them by; leave it out"
    for each in (policy, jaxtrpo.load_policy(tmp_path)):
        assert each(SIGNS).shape == (2, 1)
        with pytest.raises(ValueError, match=f"^key: {said}"):
            each(SIGNS, key=jax.random.key(0))
        with pytest.raises(ValueError, match=rf"^stochastic=True \(--stochastic\): {said}"):
            jaxtrpo.evaluate(each, Choices(), episodes=2, stochastic=True)


# ---- refused settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"critic": "mlp"}, "critic: the values of dqn are those of its policy; use critic=none"),
        ({"surrogate": lambda new, samples: new}, "surrogate: dqn does not use a surrogate; "),
        ({"policy": "gru"}, "policy: dqn cannot train networks with memory; "),
    ],
)
def test_unsupported_parts_are_refused_with_one_line(changes, message):
    with pytest.raises(ValueError) as error:
        prepare(Choices(), **{**TINY, "algorithm": "dqn", **changes})
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings_of", "message"),
    [
        ({"n_step": 3, "asynchronous": True}, "n_step=3 of dqn needs asynchronous=False, "),
        ({"n_step": 0}, "n_step=0 must be a whole number of at least 1"),
        ({"epsilon": 1.5}, "epsilon=1.5 must be between 0 and 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings_of, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        dqn(**settings_of)


def test_returns_longer_than_the_buffer_are_refused():
    with pytest.raises(ValueError, match="^n_step=60 of dqn needs a replay of at least 240 steps, .* not 100$"):
        prepare(Choices(), **{**TINY, "num_envs": 4, "algorithm": "dqn(n_step=60, replay=100)"})
    prepare(Choices(), **{**TINY, "num_envs": 4, "algorithm": "dqn(n_step=60, replay=240)"})


@pytest.mark.parametrize("env", ["InvertedPendulum-v5", "several choices"])
def test_other_actions_are_refused(env):
    class Several(Choices):
        action_size, action_counts = 2, (2, 2)
        action_low, action_high = np.zeros(2, np.int64), np.ones(2, np.int64)

    with pytest.raises(ValueError, match="^algorithm: dqn needs one discrete action, but the environment's are "):
        prepare(Several() if env == "several choices" else env, **{**TINY, "algorithm": "dqn"})


@pytest.mark.parametrize(("epsilon", "probabilities"), [(2.0, (0.5, 0.5)), (-1.0, (1.0, 0.0)), (0.5, (0.75, 0.25))])
def test_epsilon_that_a_rule_has_moved_out_of_its_range_is_the_nearest_within(epsilon, probabilities):
    values = Categorical((jnp.float32([3.0, 1.0]),))
    (logits,) = epsilon_greedy(values, {"epsilon": jnp.float32(epsilon)}).logits
    np.testing.assert_allclose(jax.nn.softmax(logits), probabilities, atol=1e-6)
