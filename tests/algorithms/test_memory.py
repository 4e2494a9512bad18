"""Learning through time: values, gradients and Fisher products of networks with memory, against plain loops."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from plain_recurrent import network_of, plain_step
from recall_env import RecallEnvironment
from support import TWO_NUMBERS, actors, deal_batch, first, learner_of, random_batch, spread, step_of

import jaxtrpo
from jaxtrpo.algorithms import sequences
from jaxtrpo.algorithms.advantages import Advantages, estimate_advantages, valid_weight
from jaxtrpo.algorithms.natural_gradient import evaluate_batch
from jaxtrpo.algorithms.policy_gradient import policy_gradient
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.config.specs import parse
from jaxtrpo.critics.critic import Targets
from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.collectives import without_collectives
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.rollout.types import Batch, Carries
from jaxtrpo.training.update import first_hyperparameters

SEGMENTS, LENGTH, ENVS, FILLED = 4, 3, 4, 3
HIDDEN, BPTT = 4, 5  # 9 steps of data: a whole stretch, and four steps of another
MOMENTS = Moments(jnp.float32(10), jnp.float32([0.1, 0.2, -0.1]), jnp.float32([0.9, 1.3, 1.1]))
STRETCHES = -(-SEGMENTS * LENGTH // BPTT)


class Problem(NamedTuple):
    """One batch, for all environments together."""

    params: dict
    batch: Batch
    found: Advantages  # in segments
    carry: tuple  # of the policy at the start of each stretch


def alone(function):
    """Returns a function that computes as the only actor."""
    return lambda *args, **kwargs: without_collectives(lambda: function(*args, **kwargs))()


def random_like(tree, seed: int, scale: float = 0.5):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32), tree)


@functools.cache
def policy_of(cell: str):
    return parse("policy", f"{cell}(hidden={HIDDEN}, encoder=(4,), bptt_steps={BPTT})").make(3, TWO_NUMBERS)


@functools.cache
def compiled(function):
    return jax.jit(function)


@functools.cache
def problem_of(cell: str, seed: int = 0) -> Problem:
    policy = policy_of(cell)
    params = random_like(jax.eval_shape(policy.init, jax.random.PRNGKey(0)), seed)
    batch = random_batch(seed, segments=SEGMENTS, length=LENGTH, envs=ENVS, num_segments=FILLED)
    carry = random_like([jnp.zeros((STRETCHES, ENVS, HIDDEN))] * len(policy.recurrence.start(1)), seed + 1)
    weight = np.asarray(valid_weight(batch))
    advantage = weight * np.random.default_rng(seed).normal(size=weight.shape).astype(np.float32)
    targets = Targets(batch.steps.obs, batch.steps.elapsed, advantage, weight, batch.num_segments)
    return Problem(params, batch, Advantages(advantage, targets, jnp.zeros(()), jnp.ones(())), tuple(carry))


class Step(NamedTuple):
    """One time step of the data, as it stands in the batch."""

    distribution: Gaussian
    action: jax.Array
    advantage: jax.Array
    weight: jax.Array


def steps_of(policy, params, problem: Problem, stretches=None) -> list[Step]:
    """Steps through the data one step at a time, beginning anew from the stored carry where a stretch starts."""
    flat = jax.tree.map(
        lambda leaf: np.asarray(leaf).reshape(SEGMENTS * LENGTH, ENVS, *np.shape(leaf)[3:]),
        (problem.batch.steps.obs, problem.batch.steps.elapsed, problem.batch.steps.action, problem.found.advantage),
    )
    weight = np.asarray(problem.found.targets.weight).reshape(SEGMENTS * LENGTH, ENVS)
    made, carry = [], None
    for t in range(FILLED * LENGTH):
        if t % BPTT == 0:
            carry = tuple(part[t // BPTT] for part in problem.carry)
        obs, elapsed, action, advantage = (leaf[t] for leaf in flat)
        distribution, carry = compiled(policy.recurrence.step)(params, carry, obs, elapsed == 0)
        if stretches is None or t // BPTT in stretches:
            made.append(Step(distribution, *map(jnp.asarray, (action, advantage, weight[t]))))
    return made


def mean_over_steps(steps: list[Step], each) -> jax.Array:
    return sum(jnp.sum(step.weight * each(step)) for step in steps) / sum(jnp.sum(step.weight) for step in steps)


def total_kl(old: list[Step], new: list[Step]) -> float:
    pairs = zip(old, new, strict=True)
    return sum(np.sum(a.weight * a.distribution.kl_divergence(b.distribution)) for a, b in pairs)


def as_learned(policy, problem: Problem):
    """Returns actions and advantages as the policy learns from them."""
    action, found, carry = jax.tree.map(jnp.asarray, (problem.batch.steps.action, problem.found, problem.carry))
    return sequences.for_policy(policy, action, (), found, carry)


def test_there_is_an_episode_that_begins_within_a_stretch():
    elapsed = problem_of("gru").batch.steps.elapsed[:FILLED].reshape(-1, ENVS)
    assert (elapsed[1:BPTT] == 0).any() and (elapsed[BPTT + 1 :] == 0).any() and (elapsed > 0).any()


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_values_match_a_plain_loop(cell):
    critic = parse("critic", f"{cell}(hidden={HIDDEN}, bptt_steps={BPTT})").make(3)
    state = jax.jit(critic.init)(jax.random.PRNGKey(0))
    state = state._replace(
        params=random_like(state.params, 3), returns=Moments(jnp.float32(5), jnp.float32(2.0), jnp.float32(9.0))
    )
    batch = random_batch(1, segments=SEGMENTS, length=LENGTH, envs=ENVS, num_segments=FILLED, padding=np.nan)
    carry = random_like([jnp.zeros((STRETCHES, ENVS, HIDDEN))] * len(critic.recurrence.start(1)), 4)
    found = jax.jit(lambda batch: estimate_advantages(critic, state, MOMENTS, batch, discount=0.9, gae_lambda=0.8))(
        batch._replace(carries=Carries((), tuple(carry)))
    )

    steps = jax.tree.map(lambda leaf: np.asarray(leaf[:FILLED]).reshape(-1, ENVS, *leaf.shape[3:]), batch.steps)
    layers, number = network_of(state.params), FILLED * LENGTH
    normalise = lambda obs: (obs - np.asarray(MOMENTS.mean)) / np.sqrt(np.asarray(MOMENTS.variance))  # noqa: E731
    value, further, now = np.zeros((number, ENVS)), np.zeros((number, ENVS)), tuple(np.asarray(c[0]) for c in carry)
    for t in range(number):
        output, now = plain_step(layers, cell, now, normalise(steps.obs[t]), steps.elapsed[t] == 0)
        after, _ = plain_step(layers, cell, now, normalise(steps.final_obs[t]), np.zeros(ENVS, bool))
        value[t], further[t] = 2 + 3 * output[:, 0], 2 + 3 * after[:, 0]
    advantage = np.zeros((number, ENVS))
    for t in reversed(range(number)):
        for env in range(ENVS):
            ends = steps.terminated[t, env] or steps.truncated[t, env] or t == number - 1
            following = 0.0 if steps.terminated[t, env] else further[t, env] if ends else value[t + 1, env]
            delta = steps.reward[t, env] + 0.9 * following - value[t, env]
            advantage[t, env] = delta + (0.0 if ends else 0.9 * 0.8 * advantage[t + 1, env])
            if steps.invalid[t, env]:
                advantage[t, env] = 0.0
    assert steps.truncated[:-1].any() and steps.terminated.any()
    np.testing.assert_allclose(found.advantage[:FILLED].reshape(-1, ENVS), advantage, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(found.targets.value[:FILLED].reshape(-1, ENVS), value + advantage, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_policy_gradient_matches_a_plain_loop(cell):
    policy, problem = policy_of(cell), problem_of(cell)
    action, found = as_learned(policy, problem)
    gradient = jax.jit(alone(lambda params: policy_gradient(policy, params, action, found, 0.3)))(problem.params)

    def objective(params):
        return mean_over_steps(
            steps_of(policy, params, problem),
            lambda step: step.distribution.log_prob(step.action) * step.advantage + 0.3 * step.distribution.entropy(),
        )

    wanted, _ = ravel_pytree(jax.jit(jax.grad(objective))(problem.params))
    np.testing.assert_allclose(gradient.gradient, wanted, rtol=2e-4, atol=2e-5)


def evaluated(policy, problem: Problem, action, found, key, fisher_samples: int):
    """Returns `evaluate_batch` of one actor, whose functions are called without others."""
    batch = alone(evaluate_batch)(
        policy,
        problem.params,
        action,
        found,
        key,
        surrogates=(importance_weighted_advantage,),
        fisher_samples=fisher_samples,
    )
    return batch._replace(fisher=alone(batch.fisher), evaluate=alone(batch.evaluate))


def dense_fisher(policy, problem: Problem, stretches=None) -> np.ndarray:
    """Computes the mean of J^T M J over the steps that count, with the Jacobian of a loop over single steps."""
    flat, unravel = ravel_pytree(problem.params)

    def parameters(flat):
        steps = steps_of(policy, unravel(flat), problem, stretches)
        return jnp.stack([jnp.concatenate(step.distribution, axis=-1) for step in steps])

    jacobian = np.asarray(
        jax.jit(jax.jacobian(parameters))(flat), np.float64
    )  # [step, env, mean and log std, parameter]
    steps = steps_of(policy, problem.params, problem, stretches)
    fisher, weights = np.zeros((flat.size, flat.size)), 0.0
    for t, step in enumerate(steps):
        variance = np.exp(2 * np.asarray(step.distribution.log_std, np.float64))
        for env in range(ENVS):
            metric = np.concatenate([1 / variance[env], np.full(2, 2.0)])
            fisher += step.weight[env] * jacobian[t, env].T @ (metric[:, None] * jacobian[t, env])
            weights += step.weight[env]
    return fisher / weights


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_fisher_products_match_a_dense_matrix_of_the_unrolled_network(cell):
    policy, problem = policy_of(cell), problem_of(cell)
    action, found = as_learned(policy, problem)
    batch = evaluated(policy, problem, action, found, jax.random.PRNGKey(0), 10**6)
    fisher = dense_fisher(policy, problem)
    vectors = np.random.default_rng(0).normal(size=(3, len(fisher))).astype(np.float32)
    for vector in vectors:
        np.testing.assert_allclose(batch.fisher(vector), fisher @ vector, rtol=2e-3, atol=2e-3)

    # Surrogate and KL of another policy, with the stretches begun from the same carries.
    flat, unravel = ravel_pytree(problem.params)
    candidate = flat + 0.1 * vectors[0]
    old, new = (steps_of(policy, unravel(each), problem) for each in (flat, candidate))
    total = sum(np.sum(step.weight) for step in old)
    kl = (
        sum(np.sum(a.weight * a.distribution.kl_divergence(b.distribution)) for a, b in zip(old, new, strict=True))
        / total
    )
    gain = sum(
        np.sum(a.weight * a.advantage * np.exp(b.distribution.log_prob(a.action) - a.distribution.log_prob(a.action)))
        for a, b in zip(old, new, strict=True)
    )
    (surrogate,), found_kl = batch.evaluate(candidate)
    np.testing.assert_allclose(found_kl, kl, rtol=1e-3)
    np.testing.assert_allclose(surrogate, gain / total, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(batch.entropy, mean_over_steps(old, lambda s: s.distribution.entropy()), rtol=1e-4)


def test_few_fisher_states_are_one_whole_stretch():
    policy, problem = policy_of("gru"), problem_of("gru")
    action, found = as_learned(policy, problem)
    vector = np.random.default_rng(0).normal(size=ravel_pytree(problem.params)[0].size).astype(np.float32)
    candidates = [dense_fisher(policy, problem, stretches={i}) @ vector for i in range(2)]
    seen = set()
    for seed in range(6):
        batch = evaluated(policy, problem, action, found, jax.random.PRNGKey(seed), 1)
        errors = [np.abs(batch.fisher(vector) - wanted).max() for wanted in candidates]
        seen.add(int(np.argmin(errors)))
        assert min(errors) < 2e-3 * np.abs(vector).max() * 10
    assert seen == {0, 1}


def test_ppo_step_matches_a_plain_loop():
    """With one minibatch of everything, PPO's first step is that of Adam along the gradient of its loss."""
    policy, problem = policy_of("gru"), problem_of("gru")
    step, no_memory = step_of("ppo(epochs=1, minibatch_size=64, minibatch_per_env=0.0, entropy_bonus=0.1)", policy)
    action, found = as_learned(policy, problem)
    hyperparameters = first_hyperparameters(parse("algorithm", "ppo"))
    params, _, info = alone(step)(
        problem.params, no_memory(problem.params), action, found, hyperparameters, jax.random.PRNGKey(0)
    )

    def objective(candidate):
        old, new = (steps_of(policy, each, problem) for each in (problem.params, candidate))
        total = 0.0
        for a, b in zip(old, new, strict=True):
            ratio = jnp.exp(b.distribution.log_prob(a.action) - a.distribution.log_prob(a.action))
            clipped = jnp.minimum(ratio * a.advantage, jnp.clip(ratio, 0.8, 1.2) * a.advantage)
            total += jnp.sum(a.weight * (clipped + 0.1 * b.distribution.entropy()))
        return total / sum(jnp.sum(a.weight) for a in old)

    gradient, _ = ravel_pytree(jax.jit(jax.grad(objective))(problem.params))
    gradient *= jnp.minimum(1.0, 0.5 / jnp.linalg.norm(gradient))
    flat, unravel = ravel_pytree(problem.params)
    wanted = flat + 3e-4 * gradient / (jnp.abs(gradient) + 1e-5)
    large = np.abs(gradient) > 1e-4  # Adam turns smaller ones, which are rounding, into steps of any size
    np.testing.assert_allclose(ravel_pytree(params)[0][large], wanted[large], atol=2e-6)
    old, new = steps_of(policy, problem.params, problem), steps_of(policy, params, problem)
    total = sum(np.sum(a.weight) for a in old)
    kl = (
        sum(np.sum(a.weight * a.distribution.kl_divergence(b.distribution)) for a, b in zip(old, new, strict=True))
        / total
    )
    np.testing.assert_allclose(info["kl"], kl, rtol=1e-2)


@pytest.mark.parametrize("algorithm", ["trpo", "ppo(minibatch_size=4, minibatch_per_env=0.0)", "a2c"])
def test_learning_does_not_depend_on_the_number_of_actors(algorithm):
    policy = policy_of("gru")
    critic = parse("critic", f"gru(hidden={HIDDEN}, bptt_steps=2, minibatch_size=4, minibatch_per_env=0.0)").make(3)
    made = parse("algorithm", algorithm)
    learner = learner_of(made, policy, critic, segment_steps=LENGTH * ENVS, segment_length=LENGTH)
    state = jax.jit(learner.init)(jax.random.PRNGKey(0), jax.random.PRNGKey(1))._replace(obs_moments=MOMENTS)
    batch = problem_of("gru").batch
    of_critic = random_like([jnp.zeros((-(-SEGMENTS * LENGTH // 2), ENVS, HIDDEN))], 9)
    carries = Carries(problem_of("gru").carry, tuple(of_critic))
    results = []
    for count in (1, 2):
        dealt = deal_batch(batch, count)._replace(
            carries=jax.tree.map(lambda leaf, n=count: np.stack(np.split(np.asarray(leaf), n, axis=1)), carries)
        )
        learn = actors(count).map(learner.learn)
        learned, _ = learn(
            spread(state, count),
            dealt,
            spread(first_hyperparameters(made), count),
            spread(np.zeros(2, np.uint32), count),
        )
        results.append(first(learned))
    (one, two), start = results, ravel_pytree(state.policy)[0]
    changed = np.abs(ravel_pytree(one.policy)[0] - start).max()
    assert changed > 1e-5
    np.testing.assert_allclose(ravel_pytree(one.policy)[0], ravel_pytree(two.policy)[0], atol=0.02 * changed)
    np.testing.assert_allclose(ravel_pytree(one.critic)[0], ravel_pytree(two.critic)[0], rtol=2e-3, atol=2e-3)


def test_critic_learns_values_that_depend_on_the_past():
    """The return to predict is the first observation of the episode, which only memory knows."""
    critic = parse("critic", "gru(hidden=16, bptt_steps=6, epochs=40, minibatch_size=24, learning_rate=0.01)").make(1)
    rng, stretches, length, envs = np.random.default_rng(0), 6, 6, 8
    begun = rng.normal(size=(stretches, 1, envs, 1)).astype(np.float32)
    obs = np.concatenate([begun, np.zeros((stretches, length - 1, envs, 1), np.float32)], axis=1)
    value = np.broadcast_to(begun[..., 0], (stretches, length, envs))
    elapsed = np.broadcast_to(np.arange(length)[:, None], value.shape).astype(np.int32)
    flat = Targets(obs, elapsed, value, np.ones(value.shape, np.float32), np.int32(stretches))
    carry = tuple(np.ones((stretches, envs, 16), np.float32) for _ in range(1))
    targets = sequences.targets_in_sequence(critic.recurrence, *jax.tree.map(jnp.asarray, (flat, carry)))
    state = jax.jit(critic.init)(jax.random.PRNGKey(0))
    fit = jax.jit(alone(critic.fit))
    for i in range(4):
        state = fit(state, targets, jax.random.PRNGKey(i), jnp.float32(1))
    found, _ = critic.recurrence.unroll(state, jax.tree.map(lambda leaf: leaf[2], targets.obs))
    assert np.mean((found - value[2]) ** 2) < 0.05 * np.var(value)


@pytest.mark.parametrize(
    ("algorithm", "policy", "least", "most"),
    [
        ("trpo", "gru(hidden=16, encoder=(16,), bptt_steps=8)", 0.9, 1.0),
        ("ppo(learning_rate=0.003)", "gru(hidden=16, encoder=(16,), bptt_steps=8)", 0.9, 1.0),
        ("trpo", "mlp(hidden=(16,))", 0.0, 0.7),
    ],
)
def test_memory_solves_what_a_policy_without_cannot(algorithm, policy, least, most):
    """The cue is shown two to five steps before it counts: without memory, half of the choices are right."""
    result = jaxtrpo.train(
        RecallEnvironment(),
        algorithm=algorithm,
        policy=policy,
        total_steps=100_000,
        seed=100,
        progress=False,
        actors=1,
    )
    assert least < result.metrics["return_100"][-1] <= most
