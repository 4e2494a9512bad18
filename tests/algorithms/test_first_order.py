"""Gradients of first-order algorithms against finite differences in float64, and the steps made from them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support import actors, counted_compilations, deal_batch, first, learner_of, random_batch, spread, step_of
from test_policy_step import SHAPES, arguments, assert_untouched, make_problem, plain_kl, plain_policy

from jaxtrpo.algorithms.policy_gradient import policy_gradient
from jaxtrpo.algorithms.ppo import _Rows, clipped_surrogate
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.config.specs import parse
from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.networks import categorical_policy, gaussian_policy

SHAPE = SHAPES[0]
COUNTS = (2, 3)  # choices of two discrete coordinates
POLICIES = {
    "gaussian": gaussian_policy(*SHAPE[:2], hidden=SHAPE[2]),
    "categorical": categorical_policy(SHAPE[0], COUNTS, hidden=SHAPE[2]),
}


# ---- float64 references


def plain_choices(params: dict, obs: np.ndarray) -> list[np.ndarray]:
    """Returns the log probabilities of the choices of each coordinate."""
    layers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), next(iter(params["params"].values())))
    x = np.tanh(obs.astype(np.float64) @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
    logits = np.split(x @ layers["last"]["kernel"] + layers["last"]["bias"], np.cumsum(COUNTS)[:-1], axis=-1)
    return [each - np.log(np.sum(np.exp(each), axis=-1, keepdims=True)) for each in logits]


def plain_log_prob_and_entropy(kind: str, params: dict, obs: np.ndarray, action: np.ndarray):
    if kind == "gaussian":
        mean, log_std = plain_policy(params, obs)
        z = (action - mean) / np.exp(log_std)
        log_prob = np.sum(-(z**2) / 2 - log_std - np.log(2 * np.pi) / 2, axis=-1)
        return log_prob, np.sum(log_std + np.log(2 * np.pi * np.e) / 2, axis=-1)
    logs = plain_choices(params, obs)
    log_prob = sum(np.take_along_axis(each, action[..., i, None], -1)[..., 0] for i, each in enumerate(logs))
    return log_prob, sum(-np.sum(np.exp(each) * each, axis=-1) for each in logs)


def differences(function, params: dict, small: float = 1e-5) -> np.ndarray:
    """Returns the gradient of a function of parameters by central differences."""
    flat, unravel = ravel_pytree(params)
    flat = np.asarray(flat, np.float64)

    def at(x):
        leaves, structure = jax.tree.flatten(params)
        parts = np.split(x, np.cumsum([leaf.size for leaf in leaves])[:-1])
        parts = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        return function(jax.tree.unflatten(structure, parts))

    steps = small * np.eye(flat.size)
    return np.array([(at(flat + step) - at(flat - step)) / (2 * small) for step in steps])


@functools.cache
def make(kind: str):
    """Returns a problem for the given kind of policy."""
    problem = make_problem(3, SHAPE, num_segments=3)
    if kind == "categorical":
        rng = np.random.default_rng(0)
        structure = jax.eval_shape(POLICIES[kind].init, jax.random.PRNGKey(0))
        params = jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32), structure)
        action = np.stack([rng.integers(0, count, problem.weight.shape) for count in COUNTS], -1).astype(np.int32)
        problem = problem._replace(params=params, action=action)
    return problem


def dealt(problem, count: int = 1):
    params, _, action, found, _, key = arguments(problem, 1.0, count)
    return params, action, found, key


# ---- the policy gradient


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("entropy_bonus", [0.0, 0.3])
def test_policy_gradient_matches_finite_differences(kind, count, entropy_bonus):
    problem = make(kind)
    params, action, found, _ = dealt(problem, count)
    mapped = actors(count).map(lambda *a: policy_gradient(POLICIES[kind], *a, entropy_bonus))
    batch = mapped(params, action, found)
    counts = problem.weight > 0

    def objective(params):
        log_prob, entropy = plain_log_prob_and_entropy(kind, params, problem.obs, problem.action)
        return np.mean((log_prob * problem.advantage + entropy_bonus * entropy)[counts])

    expected = differences(objective, problem.params)
    assert np.linalg.norm(expected) > 0.05
    for of_actor in np.asarray(batch.gradient):
        np.testing.assert_allclose(of_actor, expected, rtol=1e-3, atol=1e-5)
    entropy = plain_log_prob_and_entropy(kind, problem.params, problem.obs, problem.action)[1][counts].mean()
    np.testing.assert_allclose(first(batch).entropy, entropy, rtol=1e-5)


def test_policy_gradient_of_single_step_matches_finite_differences():
    problem = make("gaussian")
    weight = np.zeros_like(problem.weight)
    weight[0, 1, 2] = 1.0
    single = problem._replace(weight=weight)
    params, action, found, _ = dealt(single)
    batch = first(actors(1).map(lambda *a: policy_gradient(POLICIES["gaussian"], *a, 0.0))(params, action, found))

    def objective(params):
        log_prob, _ = plain_log_prob_and_entropy("gaussian", params, single.obs, single.action)
        return (log_prob * single.advantage)[0, 1, 2]

    np.testing.assert_allclose(batch.gradient, differences(objective, single.params), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("words", ["pg(learning_rate=0.5)", "ppo(epochs=2, minibatch_size=12)"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_advantage_leaves_policy_and_optimiser_unchanged(words, bad):
    problem = make("gaussian")
    advantage = problem.advantage.copy()
    advantage[np.nonzero(problem.weight)[0][0], 0, 0] = bad
    new, memory, start, _ = take_step(words, problem._replace(advantage=advantage, weight=np.ones_like(advantage)))
    assert_untouched(new, problem.params)
    jax.tree.map(np.testing.assert_array_equal, memory, start)


def take_step(words: str, problem, *, count: int = 1, surrogate=None, seed: int = 0, **hyperparameters):
    """Returns new parameters, memory after and before the step, and info."""
    mapped, no_memory, starts = compiled(words, count, surrogate)
    params, action, found, _ = dealt(problem, count)
    start = jax.device_get(no_memory(problem.params))
    now = {name: np.full(count, value, np.float32) for name, value in {**starts, **hyperparameters}.items()}
    key = spread(jax.random.PRNGKey(seed), count)
    params, memory, info = map(first, mapped(params, spread(start, count), action, found, now, key))
    return params, memory, start, info


@functools.cache
def compiled(words: str, count: int, surrogate):
    step, no_memory = step_of(words, POLICIES["gaussian"], surrogate)
    return actors(count).map(step), no_memory, dict(parse("algorithm", words).hyperparameters)


def test_first_step_of_pg_is_adam_ascent():
    """The step is learning rate x sign of the gradient."""
    problem = make("gaussian")
    params, action, found, _ = dealt(problem)
    gradient = actors(1).map(lambda *a: policy_gradient(POLICIES["gaussian"], *a, 0.0).gradient)
    slope = first(gradient(params, action, found))
    new, _, _, info = take_step("pg", problem, learning_rate=0.125)
    taken = ravel_pytree(new)[0] - ravel_pytree(problem.params)[0]
    clear = np.abs(slope) > 1e-4
    assert clear.mean() > 0.9
    np.testing.assert_allclose(taken[clear], 0.125 * np.sign(slope)[clear], rtol=1e-3)
    np.testing.assert_allclose(info["gradient_norm"], np.linalg.norm(slope), rtol=1e-5)


# ---- ppo


def test_clipped_surrogate_matches_numpy():
    rng = np.random.default_rng(0)
    old, new = (rng.normal(size=(2, 200, 3)) for _ in range(2))
    action, advantage = rng.normal(size=(200, 3)), rng.normal(size=200)

    def log_density(mean, log_std):
        return np.sum(-(((action - mean) / np.exp(log_std)) ** 2) / 2 - log_std, axis=-1)

    new = old + 0.1 * new
    ratio = np.exp(log_density(*new) - log_density(*old))
    expected = [a * (min(r, 1.2) if a > 0 else max(r, 0.8)) for r, a in zip(ratio, advantage, strict=True)]
    rows = _Rows(*map(jnp.float32, (np.zeros((200, 1)), action, advantage, np.ones(200))), Gaussian(*jnp.float32(old)))
    found = clipped_surrogate(Gaussian(*jnp.float32(new)), rows, jnp.float32(0.2))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert 0.1 < np.mean(np.abs(ratio - 1) > 0.2) < 0.9


def adam_s_gradient(memory, before=None) -> np.ndarray:
    """Recovers the last gradient from Adam's first moment (and the one before it)."""
    mean = [m.mu for m in jax.tree.leaves(memory, is_leaf=lambda x: hasattr(x, "mu")) if hasattr(m, "mu")][0]
    return 10 * mean if before is None else 10 * (mean - 0.9 * adam_s_gradient(before) / 10)


@pytest.mark.parametrize(("entropy_bonus", "rows"), [(0.0, None), (0.2, None), (0.2, 1)])
def test_ppo_minibatch_gradient_matches_finite_differences(entropy_bonus, rows):
    """For the batch as one minibatch, at the policy that acted and after a long step that makes many ratios clip."""
    problem, clip = make("gaussian"), 0.1
    if rows is not None:
        weight = np.zeros_like(problem.weight)
        weight[tuple(np.argwhere(problem.weight)[0])] = 1
        problem = problem._replace(weight=weight)
    options = f"minibatch_size=1000, max_gradient_norm=1000000.0, learning_rate=0.03, entropy_bonus={entropy_bonus}"
    counts = problem.weight > 0
    old, _ = plain_log_prob_and_entropy("gaussian", problem.params, problem.obs, problem.action)

    def loss(params):
        log_prob, entropy = plain_log_prob_and_entropy("gaussian", params, problem.obs, problem.action)
        ratio, advantage = np.exp(log_prob - old), problem.advantage
        gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
        return -np.mean((gain + entropy_bonus * entropy)[counts])

    once, memory, _, _ = take_step(f"ppo(epochs=1, {options})", problem, clip=clip)
    np.testing.assert_allclose(adam_s_gradient(memory), differences(loss, problem.params), rtol=1e-3, atol=1e-5)
    _, later, _, info = take_step(f"ppo(epochs=2, {options})", problem, clip=clip)
    np.testing.assert_allclose(adam_s_gradient(later, memory), differences(loss, once), rtol=2e-3, atol=5e-5)
    log_prob, entropy = plain_log_prob_and_entropy("gaussian", once, problem.obs, problem.action)
    clipped = np.mean((np.abs(np.exp(log_prob - old) - 1) > clip)[counts])
    _, _, _, info = take_step(f"ppo(epochs=1, {options})", problem, clip=clip)
    assert clipped > 0.2 or rows == 1
    np.testing.assert_allclose(info["clip_fraction"], clipped, atol=1e-6)
    np.testing.assert_allclose(info["kl"], plain_kl(problem, once), rtol=1e-3)
    assert info["epochs"] == 1 and info["accepted"]


def test_every_epoch_visits_all_samples_once_in_new_order():
    problem = make("gaussian")
    counts = np.unique(np.nonzero(problem.weight)[0])
    seen = []

    def surrogate(new, samples):
        jax.debug.callback(lambda obs: seen.append(obs[:, 0]), samples.obs, ordered=False)
        return importance_weighted_advantage(new, samples)

    take_step("ppo(epochs=5, minibatch_size=6)", problem, surrogate=surrogate)
    jax.effects_barrier()
    passes = np.reshape(seen, (5, -1))
    rows = problem.obs[counts][..., 0].ravel()
    for one in passes:
        np.testing.assert_array_equal(np.sort(one), np.sort(rows))
    assert len(np.unique(passes, axis=0)) == 5


@pytest.mark.parametrize("per_env", [1.0, 3.0])
def test_minibatch_of_ppo_has_steps_of_all_environments(per_env):
    """Adam counts the gradient steps."""
    problem = make("gaussian")
    rows = max(7, round(per_env * problem.weight.shape[2]))
    _, memory, _, _ = take_step(f"ppo(epochs=2, minibatch_size=7, minibatch_per_env={per_env})", problem)
    (steps,) = {int(leaf) for leaf in jax.tree.leaves(memory) if jnp.ndim(leaf) == 0}
    assert per_env == 1 or rows > 7
    assert steps == 2 * (int(problem.num_segments) * problem.weight[0].size // rows)


@pytest.mark.parametrize("words", ["pg(learning_rate=0.5)", "ppo(epochs=2, minibatch_size=12, kl_stop=0.1)"])
def test_batch_without_valid_steps_changes_nothing(words):
    problem = make("gaussian")
    new, _, _, info = take_step(words, problem._replace(weight=np.zeros_like(problem.weight)))
    assert_untouched(new, problem.params)
    assert all(np.isfinite(value) for value in info.values())


def test_gradient_norm_is_clipped():
    problem = make("gaussian")
    _, memory, _, _ = take_step("ppo(epochs=1, minibatch_size=1000, max_gradient_norm=0.125)", problem)
    np.testing.assert_allclose(np.linalg.norm(adam_s_gradient(memory)), 0.125, rtol=1e-4)


def test_kl_stop_ends_after_first_epoch_that_exceeds_it():
    problem, stop = make("gaussian"), 0.02
    options = "minibatch_size=6, learning_rate=0.003"
    _, _, _, info = take_step(f"ppo(epochs=40, kl_stop={stop}, {options})", problem)
    epochs = int(info["epochs"])
    assert 1 < epochs < 40 and info["kl"] > stop
    stopped, _, _, _ = take_step(f"ppo(epochs=40, kl_stop={stop}, {options})", problem)
    same, _, _, _ = take_step(f"ppo(epochs={epochs}, {options})", problem)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), stopped, same)
    before, _, _, info = take_step(f"ppo(epochs={epochs - 1}, {options})", problem)
    assert plain_kl(problem, before) <= stop and info["epochs"] == epochs - 1
    _, _, _, info = take_step(f"ppo(epochs=3, kl_stop=1000.0, {options})", problem)
    assert info["epochs"] == 3


def test_ppo_step_does_not_depend_on_number_of_actors():
    problem = make("gaussian")
    one, two = (take_step("ppo(epochs=3, minibatch_size=8)", problem, count=count) for count in (1, 2))
    for alone, both in zip(jax.tree.leaves(one[:2]), jax.tree.leaves(two[:2]), strict=True):
        np.testing.assert_allclose(both, alone, rtol=1e-3, atol=1e-5)


def test_ppo_ignores_invalid_rows():
    problem, words = make("gaussian"), "ppo(epochs=3, minibatch_size=8)"
    expected = take_step(words, problem)[:2]
    rng = np.random.default_rng(0)
    dirty = []
    for leaf, size in zip(problem[1:4], (3.0, 10.0, 100.0), strict=True):
        wrong = (problem.weight == 0).reshape(problem.weight.shape + (1,) * (leaf.ndim - 3))
        dirty.append(np.where(wrong, size * rng.normal(size=leaf.shape).astype(np.float32), leaf))
    found = take_step(words, type(problem)(problem.params, *dirty, *problem[4:]))[:2]
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_adaptable_settings_of_ppo_are_traced():
    words, problem = "ppo(epochs=2, minibatch_size=8)", make("gaussian")
    take_step(words, problem)
    mapped, no_memory, _ = compiled(words, 1, None)
    given = []
    for segments, rate, clip in ((1, 0.01, 0.1), (2, 0.001, 0.3), (4, 0.1, 0.2)):
        params, action, found, key = dealt(make_problem(5, SHAPE, num_segments=segments))
        now = {"learning_rate": np.float32([rate]), "clip": np.float32([clip]), "steps_per_update": np.float32([0])}
        given.append((params, spread(jax.device_get(no_memory(first(params))), 1), action, found, now, key))
    with counted_compilations() as programs:
        for each in given:
            mapped(*each)
    assert not programs


# ---- a2c, a3c and the critic's gradient

CRITIC = mlp_critic(SHAPE[0], hidden=(8,), epochs=1, minibatch_size=10**6, learning_rate=1e-3)


def a2c_learner(name: str):
    return learner_of(parse("algorithm", name), POLICIES["gaussian"], CRITIC)


def given_to_learner(name: str, count: int, **options):
    state = jax.device_get(a2c_learner(name).init(jax.random.PRNGKey(0), jax.random.PRNGKey(1)))
    # Otherwise nothing is learned from the batch, and values begin at the mean return, where rounding moves a bias that
    # has no gradient.
    known = Moments(np.float32(20), np.float32(0.3), np.float32(2.0))
    observed = Moments(np.float32(9), np.zeros(3, np.float32), np.ones(3, np.float32))
    state = state._replace(critic=state.critic._replace(returns=known), obs_moments=observed)
    batch = random_batch(4, num_segments=3, **options)
    hyperparameters = {"learning_rate": np.full(count, 0.01, np.float32)}
    return spread(state, count), deal_batch(batch, count), hyperparameters, spread(jax.random.PRNGKey(0), count)


def test_gradient_does_not_depend_on_number_of_actors():
    gradient = a2c_learner("a3c").asynchronous.gradient
    one, two = (actors(count).map(gradient)(*given_to_learner("a3c", count)) for count in (1, 2))
    for alone, both in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(both, np.stack([alone[0]] * 2), rtol=1e-4, atol=1e-5)


def test_a2c_update_does_not_depend_on_actors_and_equals_gradient_then_apply():
    learn, halves = a2c_learner("a2c").learn, a2c_learner("a3c").asynchronous
    one, two = (actors(count).map(learn)(*given_to_learner("a2c", count))[0] for count in (1, 2))

    def both_halves(learner, batch, hyperparameters, key):
        return halves.apply(learner, halves.gradient(learner, batch, hyperparameters, key)[0], hyperparameters)

    apart = actors(1).map(both_halves)(*given_to_learner("a3c", 1))
    for alone, both, in_halves in zip(*map(jax.tree.leaves, (one, two, apart)), strict=True):
        np.testing.assert_allclose(both, np.stack([alone[0]] * 2), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(in_halves, alone, rtol=1e-5, atol=1e-6)
    start = first(given_to_learner("a2c", 1)[0])
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (first(one).policy, start.policy)), strict=True))


@pytest.mark.parametrize("size", [3.0, 1e-5])
def test_a2c_step_is_rmsprop_on_clipped_gradient(size):
    """Two steps against NumPy, with decay 0.99 and epsilon 1e-5 (Tieleman & Hinton 2012; Mnih et al. 2016)."""
    halves = a2c_learner("a3c").asynchronous
    state, batch, _, key = map(first, given_to_learner("a3c", 1))
    found, _ = map(first, actors(1).map(halves.gradient)(*given_to_learner("a3c", 1)))
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=found.policy.shape)
    gradient *= size / np.linalg.norm(gradient)
    cut = gradient * min(1.0, 0.5 / size)
    square, start = 0.0, np.asarray(ravel_pytree(state.policy)[0], np.float64)
    for _ in range(2):
        state = halves.apply(state, found._replace(policy=jnp.float32(gradient)), {"learning_rate": jnp.float32(0.01)})
        square = 0.99 * square + 0.01 * cut**2
        start = start + 0.01 * cut / np.sqrt(square + 1e-5)
    np.testing.assert_allclose(ravel_pytree(state.policy)[0], start, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["a2c", "a3c"])
def test_a2c_and_a3c_refuse_critic_without_gradient(name):
    from jaxtrpo.critics.linear import linear_critic

    message = "^critic: a2c takes single gradient steps and needs a network as critic, such as mlp$"
    for critic in (linear_critic(3), CRITIC._replace(apply=None), CRITIC._replace(gradient=None)):
        with pytest.raises(ValueError, match=message):
            learner_of(parse("algorithm", name), POLICIES["gaussian"], critic)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("normalize_returns", [True, False])
def test_applying_critic_gradient_is_one_step_of_its_fit(count, normalize_returns):
    """With the batch as one minibatch; if returns are normalised, both steps use the new moments."""
    from test_critics import dealt as deal_targets
    from test_critics import make_targets, with_random_last_layer

    critic = mlp_critic(3, hidden=(16,), epochs=1, minibatch_size=10**6, normalize_returns=normalize_returns)
    state, targets = with_random_last_layer(jax.device_get(critic.init(jax.random.PRNGKey(0)))), make_targets(5, 3)
    state, parts, rate = spread(state, count), deal_targets(targets, count), spread(np.float32(0.5), count)
    applied = actors(count).map(lambda state, targets, rate: critic.apply(state, critic.gradient(state, targets), rate))
    fitted = actors(count).map(critic.fit)(state, parts, spread(jax.random.PRNGKey(0), count), rate)
    found = applied(state, parts, rate)
    for leaf in jax.tree.leaves(found):
        np.testing.assert_array_equal(leaf[0], leaf[-1])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), found, fitted)
    changes = [
        np.abs(new - old).max() for new, old in zip(*map(jax.tree.leaves, (found.params, state.params)), strict=True)
    ]
    assert min(changes) > 1e-4


@pytest.mark.parametrize("words", ["ppo(epochs=2, minibatch_size=12, learning_rate=0.01)", "pg(learning_rate=0.01)",
                                   "a2c(learning_rate=0.01)"])  # fmt: skip
def test_critic_learning_rate_changes_in_proportion(words):
    """With a rate of 0 neither learns; with half the rate Adam's first step is half as long for both."""
    batch = random_batch(3, broken=0.0, num_segments=1, segments=1, length=3, envs=4)
    critic = mlp_critic(3, hidden=(8,), epochs=1, minibatch_size=10**6, normalize_returns=False)
    learner = learner_of(parse("algorithm", words), gaussian_policy(3, 2, hidden=(8,)), critic)
    key = jax.random.PRNGKey(0)
    state = learner.init(key, key)._replace(obs_moments=Moments(jnp.float32(9), jnp.zeros(3), jnp.ones(3)))
    learn = actors(1).map(learner.learn)
    changes = {}
    for share in (0.0, 0.5, 1.0):
        now = {"learning_rate": np.float32(0.01 * share), "clip": np.float32(0.2), "steps_per_update": np.int32(12)}
        after, _ = learn(*(spread(tree, 1) for tree in (jax.device_get(state), batch, now, key)))
        moved = jax.tree.map(
            lambda new, old: np.asarray(new[0]) - np.asarray(old), after.critic.params, state.critic.params
        )
        changes[share] = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(moved)])
        assert np.any(
            np.concatenate(
                [
                    np.ravel(new[0] - old)
                    for new, old in zip(jax.tree.leaves(after.policy), jax.tree.leaves(state.policy), strict=True)
                ]
            )
        ) == (share > 0)
    np.testing.assert_array_equal(changes[0.0], 0.0)
    np.testing.assert_allclose(changes[0.5], changes[1.0] / 2, rtol=1e-4, atol=1e-7)
    assert np.abs(changes[1.0]).max() > 1e-4
