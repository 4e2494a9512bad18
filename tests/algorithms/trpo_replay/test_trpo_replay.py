"""TRPO with an action-value critic: labels, gradients, updates, and learning with right and wrong critics."""

from __future__ import annotations

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Acting, LinearPolicy, actors, deal_batch, first, learner_of, random_batch, spread
from test_advantages import KNOWN_CRITIC, STATE, plain
from test_advantages import MOMENTS as OF_ADVANTAGES
from test_algorithms import ActingProbe, tiny, train

import jaxtrpo.parallel.collectives
from jaxtrpo.algorithms.surrogates import Samples
from jaxtrpo.algorithms.trpo_replay.labels import advantage_over, critic_surrogate, draw_labelled, label
from jaxtrpo.algorithms.trpo_replay.trpo_replay import trpo_replay
from jaxtrpo.algorithms.trpo_replay.weighting import WARMUP_BATCHES
from jaxtrpo.critics.action_values import ActionCritic, Labelled, action_critic
from jaxtrpo.critics.linear import linear_critic
from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import Moments
from jaxtrpo.ops.running_mean import RunningMean
from jaxtrpo.policies.action_units import encoded, encoded_size
from jaxtrpo.policies.distributions import Categorical, Gaussian
from jaxtrpo.policies.networks import categorical_policy, gaussian_policy
from jaxtrpo.rollout.replay import Transitions, inserted, make_replay
from jaxtrpo.training.train import prepare

SPACE = ActionSpace(np.full(2, -1.0), np.full(2, 1.0))
MOMENTS = Moments(jnp.float32(100), jnp.float32([0.5, 0.0, -0.5]), jnp.float32([4.0, 1.0, 0.25]))
WEIGHTS = np.float32([0.3, -0.2, 0.5])


@functools.cache
def spec_of():
    found = []
    learner_of(trpo_replay()._replace(make=found.append), gaussian_policy(3, 2), linear_critic(3), actions=SPACE)
    return found[0]


def some_critic(**changed) -> ActionCritic:
    sizes = {"hidden": (16,), "value_hidden": (12,)}
    return action_critic(
        3, SPACE, **{**sizes, "learning_rate": 1e-2, "minibatch_size": 64, "target_rate": 0.1, **changed}
    )


def known_critic(known=None) -> ActionCritic:
    """Returns a critic with values linear in the observation and the given advantages of actions."""
    return some_critic()._replace(
        value=lambda state, obs: obs @ state.target,
        advantage_over=lambda state, usual, obs, action, other: known(obs, action) if known else 0.0 * obs[..., 0],
    )


def stretches(batch) -> Transitions:
    """Returns every segment of every environment as a stretch of its own."""
    steps = batch.steps
    found = Transitions(
        steps.obs, steps.action, steps.reward, np.float32(steps.terminated), steps.final_obs,
        np.float32(steps.elapsed), np.float32(~steps.invalid),
    )  # fmt: skip
    return jax.tree.map(lambda leaf: np.moveaxis(leaf, 2, 1).reshape(-1, leaf.shape[1], *leaf.shape[3:]), found)


def known_of_actions(obs, action):
    return action[..., 0] * obs[..., 1]


def plain_labels(batch, gae_lambda: float, known=lambda obs, action: 0.0) -> np.ndarray:
    """Computes labels by a backward float64 loop over every segment."""
    steps, labels = batch.steps, []

    def normalised(obs):
        return np.clip((np.float64(obs) - np.asarray(MOMENTS.mean)) / np.sqrt(MOMENTS.variance), -10, 10)

    def value(obs):
        return normalised(obs) @ np.float64(WEIGHTS)

    for segment in range(steps.reward.shape[0]):
        for env in range(steps.reward.shape[2]):
            later, row = 0.0, []
            for t in reversed(range(steps.reward.shape[1])):
                here = segment, t, env
                over = steps.terminated[here] or steps.truncated[here]
                last = t == steps.reward.shape[1] - 1
                if steps.invalid[here]:
                    row.append(value(steps.obs[here]))
                    later = 0.0
                    continue
                now = value(steps.obs[here])
                # Uses final_obs, because the next row may come after a reset.
                beyond = 0.0 if steps.terminated[here] else value(steps.final_obs[here])
                delta = steps.reward[here] + 0.99 * beyond - now
                later = delta + (0.0 if over or last else 0.99 * gae_lambda * later)
                row.append(now + later)
                later -= known(normalised(steps.obs[here]), np.float64(steps.action[here]))
            labels.append(row[::-1])
    return np.array(labels)


@functools.cache
def labelling(known):
    """Returns a compiled function (stretches, gae_lambda) -> labels."""
    spec, key = spec_of(), jax.random.PRNGKey(0)
    params, state = jax.jit(spec.policy.init)(key), jax.jit(some_critic().init)(key)
    state = state._replace(target=jnp.asarray(WEIGHTS))
    return jax.jit(
        lambda drawn, gae_lambda: label(
            drawn, known_critic(known), state, MOMENTS, params, gae_lambda, spec, jax.random.PRNGKey(1)
        ),
        static_argnums=1,
    )


def labelled(batch, gae_lambda: float, known=None) -> Labelled:
    return labelling(known)(stretches(batch), gae_lambda)


@pytest.mark.parametrize("truncated", [(), (0,), (1,), (3,), (4,), (0, 2), (0, 1, 2, 3, 4)])
def test_labels_stop_at_every_cut(truncated):
    """Covers any number of cuts, including the first and last step. Fails if only some of them are handled."""
    batch = random_batch(5, segments=2, length=5, envs=3, end=0, broken=0)
    steps, elapsed, now = batch.steps, np.zeros_like(batch.steps.elapsed), 7
    flags = np.zeros_like(steps.truncated)
    for segment in range(2):
        for t in range(5):
            elapsed[segment, t], flags[segment, t] = now, t in truncated
            now = 0 if t in truncated else now + 1
    # Different from the first observation of the next episode.
    final_obs = np.where(flags[..., None], 3 * steps.final_obs, steps.final_obs)
    batch = batch._replace(steps=steps._replace(truncated=flags, elapsed=elapsed, final_obs=final_obs))
    for gae_lambda in (0.0, 0.5, 1.0):
        worth = labelled(batch, gae_lambda).worth
        np.testing.assert_allclose(worth, plain_labels(batch, gae_lambda), rtol=1e-4, atol=1e-5)


def test_discrete_actions_are_integers_again_when_drawn():
    """The buffer stores floats."""
    spec = spec_of()._replace(
        policy=categorical_policy(3, (2, 3), hidden=(8,)),
        actions=ActionSpace(np.zeros(2), np.float32([1, 2]), counts=(2, 3)),
    )
    critic = action_critic(
        3, spec.actions, hidden=(8,), value_hidden=(8,), learning_rate=1e-2, minibatch_size=4, target_rate=0.1
    )
    batch = random_batch(0, segments=1, length=5, envs=3)
    batch.steps.action[..., 0], batch.steps.action[..., 1] = 1, 2
    params, state = (jax.jit(part.init)(jax.random.PRNGKey(0)) for part in (spec.policy, critic))
    drawn = stretches(batch)
    found = jax.jit(lambda drawn: label(drawn, critic, state, MOMENTS, params, 0.5, spec, jax.random.PRNGKey(1)))(drawn)
    for action in (found.action, found.other):
        assert jnp.issubdtype(action.dtype, jnp.integer) and action.shape == (3, 5, 2)
    np.testing.assert_array_equal(found.action, np.broadcast_to([1, 2], (3, 5, 2)))


@pytest.mark.parametrize("truncating", ["often", "once", "never"])
@pytest.mark.parametrize(("gae_lambda", "known"), [(0.0, None), (0.5, None), (1.0, None), (0.5, known_of_actions)])
def test_labels_match_float64_loop(gae_lambda, known, truncating):
    """Fails if terminated steps bootstrap, truncated ones look into the next episode, or sums cross a reset."""
    batch = random_batch(4, segments=6, length=5, envs=3, end=0.2, broken=0.1 * (truncating == "often"))
    if truncating != "often":  # then values of only a few states are needed
        steps = batch.steps
        allowed = np.cumsum(steps.truncated, axis=1) <= 1 if truncating == "once" else np.zeros_like(steps.truncated)
        truncated = steps.truncated & allowed
        terminated = steps.terminated | (steps.truncated & ~allowed)
        assert truncated[:, :-1].any() == (truncating == "once")
        batch = batch._replace(steps=steps._replace(terminated=terminated, truncated=truncated))
    found = labelled(batch, gae_lambda, known)
    wanted = plain_labels(batch, gae_lambda, **({"known": known} if known else {}))
    np.testing.assert_allclose(found.worth, wanted, rtol=1e-4, atol=1e-5)
    broken = np.moveaxis(batch.steps.invalid, 2, 1).reshape(-1, 5)
    np.testing.assert_array_equal(found.weight == 0, broken)


def test_actions_are_encoded_as_the_simulator_takes_them():
    half = ActionSpace(np.float32([-1, 0, -np.inf]), np.float32([3, np.inf, np.inf]))
    np.testing.assert_array_equal(encoded(jnp.float32([-2, -2, -2]), half), [-1, 0, -2])
    np.testing.assert_array_equal(encoded(jnp.float32([5, 5, 5]), half), [1, 5, 5])
    choices = ActionSpace(np.zeros(2), np.float32([1, 2]), counts=(2, 3))
    np.testing.assert_array_equal(encoded(jnp.int32([1, 0]), choices), [0, 1, 1, 0, 0])
    assert encoded_size(choices) == 5 and encoded_size(half) == 3


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000))
def test_gradient_of_expected_value_matches_analytic(seed):
    """For a quadratic value, the expectation and its derivative with respect to the policy's mean are known."""
    rng = np.random.default_rng(seed)
    mean, log_std = (jnp.float32(rng.normal(size=2)) for _ in range(2))
    slope, matrix = rng.normal(size=2), np.diag(rng.normal(size=2))
    noise = rng.normal(size=(50, 2))
    action = jnp.float32(mean + np.exp(log_std) * noise)
    old = Gaussian(jnp.broadcast_to(mean, (50, 2)), jnp.broadcast_to(log_std, (50, 2)))

    def expected(mean, log_std):
        new = Gaussian(jnp.broadcast_to(mean, (50, 2)), jnp.broadcast_to(log_std, (50, 2)))
        value = new.expected_value(old, action, lambda a: a @ slope + jnp.einsum("...i,ij,...j->...", a, matrix, a))
        return jnp.mean(value)

    found, (of_mean, of_std) = jax.value_and_grad(expected, argnums=(0, 1))(mean, log_std)
    spread = np.mean(np.exp(2 * np.asarray(log_std)) * noise**2, axis=0)  # odd terms cancel between antithetic samples
    np.testing.assert_allclose(
        found, mean @ slope + mean @ matrix @ mean + spread @ np.diag(matrix), rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose(of_mean, slope + 2 * matrix @ mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(of_std, 0.0)  # the critic must not reduce exploration


def test_expected_value_sums_over_discrete_actions():
    """For one coordinate the result is the sum over choices; for several, each has its whole gradient."""
    one = Categorical((jnp.float32([[0.1, 0.7, -0.3]]),))
    table = jnp.float32([1.0, 5.0, -2.0])
    found = one.expected_value(one, jnp.int32([[0]]), lambda action: table[action[..., 0]])
    np.testing.assert_allclose(found, jax.nn.softmax(one.logits[0]) @ table, rtol=1e-6)
    two = Categorical((jnp.float32([[0.1, 0.7, -0.3]]), jnp.float32([[1.0, -1.0]])))

    def gradient(logits, other):
        value = lambda action: table[action[..., 0]] + 3.0 * action[..., 1]  # noqa: E731
        return jax.grad(lambda x: Categorical((x, other)).expected_value(two, jnp.int32([[2, 1]]), value).sum())(logits)

    alone = jax.grad(lambda x: (jax.nn.softmax(x) @ table).sum())(two.logits[0])
    np.testing.assert_allclose(gradient(*two.logits), alone, rtol=1e-5, atol=1e-6)


def test_expected_value_of_two_choices_has_the_exact_gradients_in_the_mean():
    """In the logits of both coordinates, and, as the critic needs it, in the values."""
    logits = jnp.float32([0.1, 0.7, -0.3]), jnp.float32([1.0, -1.0])
    table = jnp.float32([[1.0, 5.0], [-2.0, 0.5], [3.0, -1.0]])
    both = jnp.stack(jnp.meshgrid(jnp.arange(3), jnp.arange(2), indexing="ij"), axis=-1).reshape(-1, 2)
    chance = (jax.nn.softmax(logits[0])[:, None] * jax.nn.softmax(logits[1])).reshape(-1)
    old = Categorical(tuple(jnp.broadcast_to(each, (6, len(each))) for each in logits))

    def estimated(logits, table):
        new = Categorical(tuple(jnp.broadcast_to(each, (6, len(each))) for each in logits))
        return chance @ new.expected_value(old, both, lambda action: table[action[..., 0], action[..., 1]])

    def exact(logits, table):
        return jax.nn.softmax(logits[0]) @ table @ jax.nn.softmax(logits[1])

    found, wanted = (jax.value_and_grad(each, argnums=(0, 1))(logits, table) for each in (estimated, exact))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), found, wanted)


def test_critic_surrogate_is_expected_advantage_per_step():
    """Actions are clipped to their bounds, as in the simulator."""
    rng, actions = np.random.default_rng(0), some_critic()
    state, advantage = jax.jit(actions.init)(jax.random.PRNGKey(0)), jax.jit(actions.advantage)
    state = state._replace(unit=jnp.float32(30.0))  # it is 0 at first, and so are advantages
    obs, mean = jnp.float32(rng.normal(size=(6, 3))), jnp.float32(rng.normal(size=(6, 2)))
    old = Gaussian(mean, jnp.zeros((6, 2)))
    action = old.sample(jnp.float32(rng.normal(size=(6, 2))))
    assert np.any(np.abs(action) > 1)
    found = jax.jit(critic_surrogate(actions, state))(old, Samples(obs, action, jnp.zeros(6), old))
    here = advantage(state, obs, jnp.clip(action, -1, 1))
    opposite = advantage(state, obs, jnp.clip(2 * mean - action, -1, 1))
    np.testing.assert_allclose(found, 0.5 * (here + opposite), rtol=1e-5, atol=1e-5)
    assert np.all(np.abs(found) > 1e-3)


def test_advantage_over_policy_has_mean_zero():
    """The mean over many of the policy's own actions is 0."""
    spec, rng, actions, number = spec_of(), np.random.default_rng(0), some_critic(), 20_000
    state = jax.jit(actions.init)(jax.random.PRNGKey(0))._replace(unit=jnp.float32(30.0))
    params = jax.jit(spec.policy.init)(jax.random.PRNGKey(0))
    obs = jnp.broadcast_to(jnp.float32([0.5, -1.0, 2.0]), (number, 3))
    usual = spec.policy.apply(params, obs)
    own, other = (usual.sample(jnp.float32(rng.normal(size=(number, 2)))) for _ in range(2))
    value = functools.partial(jax.jit(actions.advantage), state, obs)
    mean, spread = np.mean(value(own)), np.std(value(own))
    found = jax.jit(advantage_over(actions, state, spec.policy, params))(obs, own)
    np.testing.assert_allclose(np.mean(found), 0, atol=0.02 * spread)
    shifted = jax.jit(actions.advantage_over)(state, usual, obs, own + 0.5, other)
    np.testing.assert_allclose(np.mean(shifted), np.mean(value(own + 0.5)) - mean, atol=0.02 * spread)
    assert abs(np.mean(shifted)) > 0.1 * spread


@pytest.mark.parametrize("length", [1, 5, 40])
def test_all_steps_of_a_stretch_are_drawn_equally_often(length):
    """32 steps are drawn: a whole number of stretches of one step, and not of the others."""
    spec = spec_of()._replace(segment_length=length)
    sizes = {"segment_steps": 4 * length, "segment_length": length, "observation_size": 3, "action_size": 2}
    buffer, batch = make_replay(4 * length, **sizes), random_batch(0, segments=1, length=length, broken=0)
    batch.steps.obs[..., 0] = np.arange(length)[:, None]  # the time step, kept distinguishable by the moments below
    ring = actors(1).map(buffer.insert)(spread(buffer.empty(), 1), deal_batch(batch, 1))
    ring = jax.tree.map(jnp.asarray, first(ring))
    unchanged = Moments(jnp.float32(1e6), jnp.zeros(3), jnp.full(3, 100.0))
    params, state = (jax.jit(part.init)(jax.random.PRNGKey(0)) for part in (spec.policy, some_critic()))
    draw = draw_labelled(buffer, ring, some_critic(), unchanged, params, 0.9, spec)
    keys = jax.random.split(jax.random.PRNGKey(1), 500)
    obs = jax.jit(jax.vmap(lambda key: draw(state, key, 32).obs))(keys)
    assert obs.shape == (500, 32, 3)
    often = np.bincount(np.round(10 * np.ravel(obs[..., 0])).astype(int), minlength=length)
    np.testing.assert_allclose(often, 500 * 32 / length, rtol=0.25)


def chain(rng: np.random.Generator, number: int):
    """Returns off-policy steps in which the action is added to the first coordinate, whose square is the cost."""
    obs, action = rng.uniform(-1, 1, (number, 3)), rng.uniform(-1, 1, (number, 2))
    after = np.clip(0.5 * (obs[:, :1] + action[:, :1]), -1, 1) * np.array([1.0, 0.0, 0.0])
    return obs, action, -(obs[:, 0] ** 2), after


def test_critic_learns_values_of_a_policy_off_policy():
    """Compares with Monte Carlo returns of a policy other than the one that made the steps."""
    discount, rng, spread = 0.8, np.random.default_rng(0), 0.3
    obs, action, reward, after = (jnp.float32(part) for part in chain(rng, 4_000))
    actions = some_critic(hidden=(64,), value_hidden=(64,), learning_rate=3e-3)

    def usual(obs):
        return Gaussian(-0.5 * obs[:1] * jnp.ones(2), jnp.full(2, np.log(spread)))

    def draw(state, key, number):
        rows, noise = jax.random.split(key)
        chosen = jax.random.randint(rows, (number,), 0, len(obs))
        policy = jax.vmap(usual)(obs[chosen])
        other = policy.sample(jax.random.normal(noise, (number, 2)))
        worth = reward[chosen] + discount * actions.value(state, after[chosen])
        return Labelled(obs[chosen], action[chosen], policy, other, worth, jnp.ones(number))

    @jax.jit
    def fit(state, key, unit):
        return actions.fit(state, unit, draw, jnp.int32(3_000), key)

    state = actions.init(jax.random.PRNGKey(0))
    for number, unit in enumerate((1.0, 1.0, 4.0, 4.0)):  # a new unit preserves predictions
        state, unexplained = fit(state, jax.random.PRNGKey(number), jnp.float32(unit))
    starts = np.linspace(-0.9, 0.9, 7)

    def worth(act) -> np.ndarray:
        position, returns = np.repeat(starts, 4_000), 0.0
        for t in range(40):
            returns = returns - discount**t * position**2
            position = np.clip(0.5 * (position + np.clip(act(position), -1, 1)), -1, 1)
        return np.mean(returns.reshape(7, -1), axis=1)

    wanted = worth(lambda position: -0.5 * position + spread * rng.normal(size=position.shape))
    of_others = worth(lambda position: rng.uniform(-1, 1, position.shape))
    found = actions.value(state, jnp.float32(starts[:, None] * np.array([1.0, 0.0, 0.0])))
    error = np.abs(found - wanted).mean()
    assert error < 0.35 * np.abs(of_others - wanted).mean(), (found, wanted, of_others)
    assert 0 < unexplained < 0.3, unexplained  # fraction of variance unexplained by the advantages


def test_fit_learns_what_an_action_is_worth():
    """Returns are three times the first coordinate of the action, which alone explains them."""
    actions, unit = some_critic(), jnp.float32(2.0)

    def draw(state, key, number):
        for_obs, for_action, for_other = jax.random.split(key, 3)
        obs = jax.random.normal(for_obs, (number, 3))
        action, other = (jax.random.uniform(key, (number, 2), minval=-1) for key in (for_action, for_other))
        usual = Gaussian(jnp.zeros((number, 2)), jnp.zeros((number, 2)))
        return Labelled(obs, action, usual, other, 3 * action[:, 0], jnp.ones(number))

    fit = jax.jit(lambda state, key: actions.fit(state, unit, draw, jnp.int32(1_000), key))
    state, _ = fit(actions.init(jax.random.PRNGKey(0)), jax.random.PRNGKey(1))
    state, unexplained = fit(state, jax.random.PRNGKey(2))
    assert 0 < unexplained < 0.1
    obs, action = jnp.zeros((9, 3)), jnp.linspace(-0.8, 0.8, 9)[:, None] * jnp.float32([1, 0])
    found = actions.advantage(state, obs, action)
    np.testing.assert_allclose(found - found[4], 3 * action[:, 0], atol=0.3)


def test_changing_unit_preserves_predictions():
    actions, rng = some_critic(), np.random.default_rng(0)
    state = jax.jit(actions.init)(jax.random.PRNGKey(0))._replace(unit=jnp.float32(2.0))
    obs, action = jnp.float32(rng.normal(size=(5, 3))), jnp.float32(rng.normal(size=(5, 2)))

    nothing, ignored = jnp.zeros((64, 2)), jnp.zeros(64)
    blank = Labelled(jnp.zeros((64, 3)), nothing, Gaussian(nothing, nothing), nothing, ignored, ignored)
    other, _ = actions.fit(state, jnp.float32(7.0), lambda *_: blank, jnp.int32(0), jax.random.PRNGKey(0))
    assert other.unit == 7 and not np.array_equal(other.params, state.params)
    np.testing.assert_allclose(actions.value(other, obs), actions.value(state, obs), rtol=1e-5)
    np.testing.assert_allclose(actions.advantage(other, obs, action), actions.advantage(state, obs, action), rtol=1e-5)


def test_labels_are_drawn_with_the_rescaled_critic():
    """Predictions are unchanged when the first minibatches are drawn, before the first gradient step."""
    actions, asked = some_critic(), []
    state = actions.init(jax.random.PRNGKey(0))._replace(unit=jnp.float32(2.0))
    obs = jnp.float32(np.random.default_rng(0).normal(size=(64, 3)))

    def draw(now, key, number):
        worth = actions.value(now, obs)
        jax.debug.callback(lambda unit, worth: asked.append((unit, worth)), now.unit, worth)
        nothing = jnp.zeros((number, 2))
        rows = jnp.resize(obs, (number, 3)), jnp.resize(worth, number)
        return Labelled(rows[0], nothing, Gaussian(nothing, nothing), nothing, rows[1], jnp.ones(number))

    actions.fit(state, jnp.float32(7.0), draw, jnp.int32(1), jax.random.PRNGKey(0))
    jax.effects_barrier()
    ((unit, worth),) = asked
    assert unit == 7
    np.testing.assert_allclose(worth, actions.value(state, obs), rtol=1e-5)


def wrong(actions, state):
    """Surrogate of a confidently wrong critic, which is largest at the opposite of the best action."""
    return lambda new, samples: -jnp.sum((-new.mean - 0.5 * samples.obs[:, :1]) ** 2, axis=-1)


# ---- one update


@functools.cache
def learning(critic=None, count: int = 1, per_env: float = 0.125, words=None, surrogate=None):
    """Returns a function from a batch to (state before, with the batch in its buffer; state after; info).

    Its argument `change` modifies the state before the update.
    """
    words = words or trpo_replay(
        replay=1000, minibatch_size=16, minibatch_per_env=per_env, hidden=(8,), value_hidden=(8,), cg_iterations=4
    )
    made = learner_of(
        words, gaussian_policy(3, 2, hidden=(8,)), critic or mlp_critic(3, hidden=(8,), epochs=1, minibatch_size=16),
        segment_steps=12, segment_length=3, actions=SPACE, surrogate=surrogate,
    )  # fmt: skip
    insert = actors(count).map(functools.partial(inserted, made.replay))
    learn, init = actors(count).map(made.learn), jax.jit(made.init)

    def once(batch, change=lambda state: state):
        key = jax.random.PRNGKey(1)
        dealt = deal_batch(batch, count)
        begun = init(key, key)
        # Observation moments are known, because policies do not learn from the first batch of a run.
        begun = begun._replace(obs_moments=Moments(jnp.float32(50), jnp.zeros(3), jnp.ones(3)))
        state = change(insert(spread(begun, count), dealt))
        hyperparameters = {"max_kl": np.full(count, 0.02, np.float32)}
        after, info = learn(state, dealt, hyperparameters, spread(key, count))
        return first(jax.device_get(state)), first(after), first(info)

    return once


def same(one, two) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


@pytest.mark.parametrize(
    "most_flops", [jaxtrpo.parallel.collectives.MOST_FLOPS_ALONE, 0.0], ids=["split up", "together"]
)
def test_update_does_not_depend_on_number_of_actors(most_flops, monkeypatch):
    monkeypatch.setattr(jaxtrpo.parallel.collectives, "MOST_FLOPS_ALONE", most_flops)
    batch = random_batch(0)
    # With one actor, there is nothing to split up.
    (_, one, info), (_, two, info_of_two) = learning()(batch), learning.__wrapped__(count=2)(batch)
    close = functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4)
    jax.tree.map(close, two._replace(memory=(), actions=()), one._replace(memory=(), actions=()))
    # Adam amplifies rounding differences where a gradient is close to zero.
    assert np.mean(np.abs(two.actions.params - one.actions.params) > 1e-4) < 0.05
    for name in ("kl", "critic_explained_variance", "critic_weight", "advantage_std", "explained_variance"):
        close(info_of_two[name], info[name], err_msg=name)


def test_smaller_advantages_than_usual_shrink_trust_region():
    """Half the advantages have a quarter of the variance; larger ones change nothing."""
    batch = random_batch(0, broken=0)
    variance = learning()(batch)[2]["advantage_std"] ** 2

    def usual(times: float):
        # After this many updates, one more hardly changes the mean.
        mean = RunningMean(np.full(1, times * variance, np.float32), np.full(1, 10**6, np.int32))
        return lambda state: state._replace(memory=state.memory._replace(advantage_variance=mean))

    kl, larger, smaller = (learning()(batch, usual(times))[2]["kl"] for times in (1.0, 0.25, 4.0))
    np.testing.assert_allclose(larger, kl, rtol=1e-5)
    np.testing.assert_allclose(smaller, kl / 4, rtol=0.1)


def test_value_critic_is_fitted_to_returns_without_the_effect_of_known_actions(monkeypatch):
    """Compares with loops over future steps; the rate is 1, since no rule changes the critic's learning rate."""
    monkeypatch.setattr(sys.modules[trpo_replay.__module__], "advantage_over", lambda *_: known_of_actions)
    batch = random_batch(0)
    recorder = KNOWN_CRITIC._replace(
        init=lambda key: (jnp.asarray(STATE), jnp.zeros(batch.steps.reward.shape), jnp.zeros(())),
        value=lambda state, obs, elapsed: KNOWN_CRITIC.value(state[0], obs, elapsed),
        fit=lambda state, targets, key, rate: (state[0], targets.value, rate),
    )
    once = learning.__wrapped__(recorder)
    _, after, _ = once(batch, lambda state: state._replace(obs_moments=spread(OF_ADVANTAGES, 1)))
    _, fitted_to, rate = after.critic
    advantage, value, weight = plain(batch, discount=0.99, gae_lambda=0.95, known=known_of_actions)
    counts = weight > 0
    np.testing.assert_allclose(fitted_to[counts], (advantage + value)[counts], rtol=1e-4, atol=1e-4)
    without = sum(plain(batch, discount=0.99, gae_lambda=0.95)[:2])
    assert np.mean(np.abs(without - fitted_to)[counts]) > 0.1
    assert rate == 1


@pytest.mark.parametrize("num_segments", [1, 3])
def test_critic_gradient_steps_are_proportional_to_new_steps(num_segments):
    """There is one gradient step per two environment steps, of both copies together; a segment has twelve."""
    _, after, _ = learning()(random_batch(0, num_segments=num_segments))
    assert optax.tree.get(after.actions.optimizer, "count") == 3 * num_segments


def test_larger_minibatches_of_many_environments_mean_fewer_gradient_steps():
    """Eight steps of each of four environments are twice the usual minibatch."""
    _, after, _ = learning(per_env=8.0)(random_batch(0, num_segments=4))
    assert optax.tree.get(after.actions.optimizer, "count") == 6


@pytest.mark.parametrize("count", [1, 2])
def test_critic_is_the_mean_of_two_copies_that_draw_differently(count, monkeypatch):
    """Each copy gets a random number in place of a fit, so that copies with the same key would be found out."""
    module, seen = sys.modules[trpo_replay.__module__], []
    make = module.action_critic

    def drawing(*arguments, **settings):
        def fit(state, unit, draw, number, key):
            jax.debug.callback(lambda value: seen.append(float(value)), value := jax.random.normal(key))
            return state._replace(params=jnp.full_like(state.params, value)), value

        return make(*arguments, **settings)._replace(fit=fit)

    monkeypatch.setattr(module, "action_critic", drawing)
    _, after, info = learning.__wrapped__(count=count)(random_batch(0))
    jax.effects_barrier()
    assert len(seen) == len(set(seen)) == 2
    np.testing.assert_allclose(after.actions.params, np.mean(seen), rtol=1e-5)
    np.testing.assert_allclose(info["critic_explained_variance"], 1 - np.mean(seen), rtol=1e-5)


def test_settings_reach_what_they_are_of(monkeypatch):
    """Both kinds of damping, of lambda, and the surrogate are passed to other functions, and must not be exchanged."""
    module, seen = sys.modules[trpo_replay.__module__], {}
    draw, combine = module.draw_labelled, module.combined_direction

    def drawing(buffer, replay, actions, moments, params, gae_lambda, spec):
        seen["critic_lambda"] = gae_lambda
        return draw(buffer, replay, actions, moments, params, gae_lambda, spec)

    def combining(*parts, **keywords):
        seen.update(keywords)
        return combine(*parts, **keywords)

    monkeypatch.setattr(module, "draw_labelled", drawing)
    monkeypatch.setattr(module, "combined_direction", combining)
    words = trpo_replay(
        replay=1000, minibatch_size=16, hidden=(8,), value_hidden=(8,), cg_iterations=3, fisher_samples=7,
        gae_lambda=0.9, critic_lambda=0.3, cg_damping=0.4, critic_cg_damping=0.07,
    )  # fmt: skip
    mine = lambda new, samples: -jnp.sum(new.mean**2, axis=-1)  # noqa: E731
    learning.__wrapped__(words=words, surrogate=mine)(random_batch(0))
    assert seen["critic_lambda"] == 0.3 and seen["cg_damping"] == (0.4, 0.07) and seen["surrogates"][0] is mine
    assert (seen["cg_iterations"], seen["fisher_samples"]) == (3, 7)


def test_next_update_remembers_this_one():
    """The rule compares the step with what it promised, and the bound, the advantages with the usual ones."""
    before, after, info = learning()(random_batch(0, broken=0))
    steps = jax.tree.leaves(jax.tree.map(np.subtract, after.policy, before.policy))
    followed = jax.tree.leaves(after.memory.path.steps)
    np.testing.assert_allclose(np.concatenate([np.ravel(leaf) for leaf in followed]),
                               np.concatenate([np.ravel(leaf) for leaf in steps]), atol=1e-6)  # fmt: skip
    np.testing.assert_allclose(after.memory.path.predicted, info["predicted_gain"], rtol=1e-5)
    usual = after.memory.advantage_variance
    assert usual.count == 1
    np.testing.assert_allclose(usual.mean, info["advantage_std"] ** 2, rtol=1e-4)


def test_critic_unit_is_that_of_all_rewards_so_far():
    """A batch without rewards does not make it 0."""
    batch = random_batch(0)
    _, first_update, _ = learning()(batch)
    nothing = batch._replace(steps=batch.steps._replace(reward=np.zeros_like(batch.steps.reward)))
    _, second, _ = learning()(nothing, lambda state: state._replace(rewards=spread(first_update.rewards, 1)))
    np.testing.assert_allclose(second.actions.unit, first_update.actions.unit / np.sqrt(2), rtol=1e-4)


def test_critic_unit_is_proportional_to_rewards():
    """The unit is that of the current batch, even in the first update."""
    batch = random_batch(0)
    larger = batch._replace(steps=batch.steps._replace(reward=1000 * batch.steps.reward))
    units = [learning()(each)[1].actions.unit for each in (batch, larger)]
    np.testing.assert_allclose(units[1] / units[0], 1000, rtol=1e-4)


def test_non_finite_action_value_critic_is_discarded():
    """The buffer holds only NaN, but the batch is sound, and the policy and the value critic learn from it."""
    before, after, info = learning()(
        random_batch(0, broken=0),
        lambda state: state._replace(replay=state.replay._replace(rows=state.replay.rows * np.nan)),
    )
    assert same(after.actions, before.actions) and np.all(np.isfinite(after.actions.params))
    assert info["accepted"] and not same(after.policy, before.policy) and not same(after.critic, before.critic)


def test_non_finite_value_critic_is_discarded():
    sound = mlp_critic(3, hidden=(8,), epochs=1, minibatch_size=16)

    def fit(state, targets, key, rate):
        return jax.tree.map(lambda leaf: (leaf * jnp.nan).astype(leaf.dtype), state)

    broken = sound._replace(fit=fit)
    before, after, info = learning(broken)(random_batch(0))
    assert same(after.critic, before.critic)
    assert info["accepted"] and not same(after.policy, before.policy) and not same(after.actions, before.actions)


# ---- learning


WORDS = "trpo_replay(max_kl=0.02, replay=1000, minibatch_size=32, hidden=(8,))"
SETTINGS = {
    "num_envs": 16,
    "steps_per_update": 128, "total_steps": 10_000, "adapt": "fixed", "critic": "mlp(hidden=(8,), epochs=2)",
}  # fmt: skip


def test_wrong_critic_loses_its_weight_and_training_succeeds(monkeypatch):
    monkeypatch.setattr(sys.modules[trpo_replay.__module__], "critic_surrogate", wrong)
    misled = train(WORDS, **SETTINGS)
    plain = train("trpo(max_kl=0.02)", **SETTINGS)
    share = misled.metrics["critic_weight"]
    np.testing.assert_allclose(share[: WARMUP_BATCHES - 1], 0.5)
    assert np.mean(share[40:]) < 0.05, share
    # One-step episodes: the best return without noise is 0, and the untrained policy gets about -0.6.
    ends = [np.nanmean(run.metrics["mean_return"][-20:]) for run in (misled, plain)]
    assert ends[0] > ends[1] - 0.05 and ends[1] > -0.3, ends


def right(actions, state):
    """Surrogate that equals the true reward up to noise; normalised observations keep the sign of the raw ones."""
    return lambda new, samples: -jnp.sum((new.mean - 0.5 * jnp.sign(samples.obs[:, :1])) ** 2, axis=-1)


def test_right_critic_is_confirmed_and_keeps_weight(monkeypatch):
    """The batch's own direction is equally good here, so the two share the weight."""
    monkeypatch.setattr(sys.modules[trpo_replay.__module__], "critic_surrogate", right)
    metrics = train(WORDS.replace("0.02", "0.0005"), **{**SETTINGS, "total_steps": 5_000}).metrics
    assert np.all(metrics["critic_gain"][20:] > 3 * metrics["critic_gain_error"][20:])
    assert np.mean(metrics["critic_weight"][20:]) > 0.1


def test_critic_explains_variance_during_a_run():
    result = train(WORDS, **{**SETTINGS, "total_steps": 5_000})
    # Later the policy is nearly optimal, and actions make little difference.
    explained = result.metrics["critic_explained_variance"]
    assert 0.5 < np.mean(explained[5:15]) < 1, explained
    assert np.nanmean(result.metrics["mean_return"][-10:]) > -0.4


def test_replay_trains_with_discrete_actions():
    result = train_cartpole(total_steps=3_000)
    assert np.all(np.isfinite(result.metrics["critic_gain"])) and np.all(
        result.metrics["kl"] <= result.metrics["max_kl"]
    )


def train_cartpole(**changed):
    return jaxtrpo.train(
        "CartPole-v1", algorithm="trpo_replay(hidden=(8,))", policy="mlp(hidden=(8,))", progress=False, **changed
    )


def test_too_few_environments_are_refused():
    with pytest.raises(ValueError, match="^num_envs=2: trpo_replay needs at least 4 environments, or"):
        prepare(ActingProbe(), **{**tiny("trpo_replay"), "num_envs": 2})


class Plain(Acting):
    """User-defined normal distribution without `expected_value`."""

    entropy, kl_divergence, fisher_metric = Gaussian.entropy, Gaussian.kl_divergence, Gaussian.fisher_metric


class PlainPolicy(LinearPolicy):
    distribution: type = Plain


def test_policy_without_expected_value_is_refused():
    with pytest.raises(
        ValueError,
        match="^policy=custom:PlainPolicy: trpo_replay needs distributions with expected_value, which Plain lacks$",
    ):
        prepare(ActingProbe(), **{**tiny("trpo_replay"), "policy": PlainPolicy()})
    prepare(ActingProbe(), **{**tiny("trpo"), "policy": PlainPolicy()})


def test_replay_buffer_beyond_memory_is_refused(monkeypatch):
    monkeypatch.setattr("jaxtrpo.parallel.devices.memory", lambda: 1e3)
    with pytest.raises(ValueError, match="^replay: 256 steps need 3 x "):
        prepare(ActingProbe(), **tiny("trpo_replay"))
