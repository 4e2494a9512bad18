"""One torso for actor and critic: gradients, steps and targets against plain float64 loops, and whole runs."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from masked_env import DoorsEnvironment
from plain_recurrent import plain_unroll
from recall_env import RecallEnvironment
from support import TWO_NUMBERS, actors, deal, deal_batch, first, learner_of, random_batch, spread, step_of
from test_algorithms import ActingProbe
from test_first_order import differences
from test_train_many import Program

import jaxtrpo
from jaxtrpo.algorithms import sequences
from jaxtrpo.algorithms.advantages import Advantages, valid_weight
from jaxtrpo.algorithms.policy_gradient import policy_gradient
from jaxtrpo.algorithms.ppo import value_loss
from jaxtrpo.algorithms.shared_torso import joint_batch
from jaxtrpo.config.specs import parse
from jaxtrpo.critics.critic import Targets
from jaxtrpo.critics.shared import SharedState, shared_critic
from jaxtrpo.ops.moments import Moments, no_moments
from jaxtrpo.parallel.collectives import without_collectives
from jaxtrpo.rollout.types import Batch, Carries, LearnerState
from jaxtrpo.training.train import prepare

SEGMENTS, LENGTH, ENVS, FILLED, BPTT = 4, 3, 4, 3, 5
STRETCHES = -(-SEGMENTS * LENGTH // BPTT)
KINDS = {
    "mlp": "mlp(hidden=(5,), shared=True)",
    "gru": f"gru(hidden=3, encoder=(4,), bptt_steps={BPTT}, shared=True)",
    "lstm": f"lstm(hidden=3, encoder=(4,), bptt_steps={BPTT}, shared=True)",
}
MOMENTS = Moments(jnp.float32(10), jnp.float32([0.1, 0.2, -0.1]), jnp.float32([0.9, 1.3, 1.1]))
RETURNS = Moments(jnp.float32(20), jnp.float32(1.5), jnp.float32(4.0))
every_kind = pytest.mark.parametrize("kind", KINDS)


# ---- float64 references


class Problem(NamedTuple):
    """One batch with a policy, for all environments together, in NumPy."""

    kind: str
    params: dict
    batch: Batch
    carry: tuple  # of the policy at the start of each stretch
    advantage: np.ndarray
    target: np.ndarray  # in the units of the value head
    weight: np.ndarray


@functools.cache
def policy_of(kind: str):
    return parse("policy", KINDS[kind]).make(3, TWO_NUMBERS)


@functools.cache
def make(kind: str) -> Problem:
    rng = np.random.default_rng(1)
    batch = random_batch(0, segments=SEGMENTS, length=LENGTH, envs=ENVS, num_segments=FILLED)
    shapes = jax.eval_shape(policy_of(kind).init, jax.random.PRNGKey(0))
    params = jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)
    parts = {"mlp": 0, "gru": 1, "lstm": 2}[kind]
    carry = tuple(rng.normal(size=(parts, STRETCHES, ENVS, 3)).astype(np.float32))
    weight = np.asarray(valid_weight(batch))
    advantage, target = (weight * rng.normal(size=(2, *weight.shape))).astype(np.float32)
    return Problem(kind, params, batch, carry, advantage, target, weight)


def outputs_of(problem: Problem, params: dict, moments: Moments | None = None):
    """Returns means, log standard deviations and values of the filled steps, [time, env, ...], and the carries."""
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    layers = next(value for value in tree.values() if isinstance(value, dict))
    obs = flat(problem.batch.steps.obs).astype(np.float64)
    if moments is not None:
        obs = (obs - np.asarray(moments.mean)) / np.sqrt(np.asarray(moments.variance))
    carries = None
    if problem.kind == "mlp":
        x = np.tanh(obs @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
        found = x @ layers["last"]["kernel"] + layers["last"]["bias"]
    else:
        begins, pieces = flat(problem.batch.steps.elapsed) == 0, []
        for number in range(-(-len(obs) // BPTT)):
            part = slice(number * BPTT, (number + 1) * BPTT)
            carry = tuple(part[number] for part in problem.carry)
            pieces.append(plain_unroll(layers, problem.kind, carry, obs[part], begins[part])[0])
        found = np.concatenate(pieces)
    return found[..., :2], np.broadcast_to(tree["log_std"], found[..., :2].shape), found[..., 2], carries


def flat(leaf) -> np.ndarray:
    return np.asarray(leaf)[:FILLED].reshape(FILLED * LENGTH, *np.shape(leaf)[2:])


def log_prob(problem: Problem, mean, log_std) -> np.ndarray:
    z = (flat(problem.batch.steps.action) - mean) / np.exp(log_std)
    return np.sum(-(z**2) / 2 - log_std - np.log(2 * np.pi) / 2, axis=-1)


def entropy(log_std) -> np.ndarray:
    return np.sum(log_std + np.log(2 * np.pi * np.e) / 2, axis=-1)


def as_learned(problem: Problem, count: int) -> tuple:
    """Returns actions and advantages of each actor, as the policy learns from them."""
    part = functools.partial(deal, count=count)
    steps = jax.tree.map(part, problem.batch.steps)
    targets = Targets(
        steps.obs, steps.elapsed, part(problem.target), part(problem.weight), np.full(count, FILLED, np.int32)
    )
    found = Advantages(part(problem.advantage), targets, np.zeros(count), np.ones(count))
    carry = jax.tree.map(lambda leaf: np.stack(np.split(leaf, count, axis=1)), problem.carry)
    arrange = functools.partial(sequences.for_policy, policy_of(problem.kind))
    return jax.vmap(lambda action, found, carry: arrange(action, (), found, carry))(steps.action, found, carry)


# ---- gradients and steps


@every_kind
@pytest.mark.parametrize("count", [1, 2])
def test_joint_gradient_matches_finite_differences(kind, count):
    problem = make(kind)
    mapped = actors(count).map(lambda *given: policy_gradient(policy_of(kind), *given, 0.3, 0.7))
    found = mapped(spread(problem.params, count), *as_learned(problem, count))
    counts = flat(problem.weight) > 0

    def objective(params):
        mean, log_std, value, _ = outputs_of(problem, params)
        gain = log_prob(problem, mean, log_std) * flat(problem.advantage) + 0.3 * entropy(log_std)
        return np.mean((gain - 0.7 * (value - flat(problem.target)) ** 2)[counts])

    expected = differences(objective, problem.params)
    assert np.linalg.norm(expected) > 0.1
    for of_actor in np.asarray(found.gradient):
        np.testing.assert_allclose(of_actor, expected, rtol=1e-3, atol=2e-5)


@every_kind
@pytest.mark.parametrize("value_clip", [None, 0.02])
def test_ppo_steps_match_a_plain_loop(kind, value_clip):
    """Two passes of one minibatch each, so that values in the second differ from those when acting."""
    problem = make(kind)
    settings = "epochs=2, minibatch_size=64, minibatch_per_env=0.0, entropy_bonus=0.1, value_weight=0.7"
    step, no_memory = step_of(f"ppo({settings}, value_clip={value_clip})", policy_of(kind))
    action, found = first(as_learned(problem, 1))
    now = {"learning_rate": jnp.float32(0.05), "clip": jnp.float32(0.1)}
    key = jax.random.PRNGKey(0)
    given = jax.tree.map(jnp.asarray, (problem.params, no_memory(problem.params), action, found))
    params, _, info = jax.jit(lambda *a: without_collectives(lambda: step(*a, now, key))())(*given)

    counts, target = flat(problem.weight) > 0, flat(problem.target)
    old_mean, old_log_std, old_value, _ = outputs_of(problem, problem.params)
    old_log_prob = log_prob(problem, old_mean, old_log_std)
    clipped = []

    def loss(params):
        mean, log_std, value, _ = outputs_of(problem, params)
        ratio = np.exp(log_prob(problem, mean, log_std) - old_log_prob)
        advantage = flat(problem.advantage)
        gain = np.minimum(ratio * advantage, np.clip(ratio, 0.9, 1.1) * advantage) + 0.1 * entropy(log_std)
        error = (value - target) ** 2
        if value_clip is not None:
            limited = old_value + value_clip * np.sign(value - old_value)
            near = np.where(np.abs(value - old_value) <= value_clip, value, limited)
            clipped.append(np.mean((near - target) ** 2 > error))
            error = np.maximum(error, (near - target) ** 2)
        return np.mean((0.7 * error - gain)[counts])

    start, unravel = ravel_pytree(problem.params)
    at, first_moment, second_moment = np.asarray(start, np.float64), 0.0, 0.0
    small = np.zeros(at.shape, bool)
    for number in (1, 2):
        gradient = differences(loss, jax.tree.map(np.asarray, unravel(jnp.asarray(at))))
        small |= np.abs(gradient) < 3e-4  # Adam makes steps of any size of rounding
        gradient *= min(1.0, 0.5 / np.linalg.norm(gradient))
        first_moment = 0.9 * first_moment + 0.1 * gradient
        second_moment = 0.999 * second_moment + 0.001 * gradient**2
        direction = first_moment / (1 - 0.9**number)
        at = at - 0.05 * direction / (np.sqrt(second_moment / (1 - 0.999**number)) + 1e-5)
    assert np.mean(small) < 0.3 and (value_clip is None or np.max(clipped) > 0.3)
    np.testing.assert_allclose(ravel_pytree(params)[0][~small], at[~small], atol=5e-4)
    assert info["accepted"] and np.abs(at - start).max() > 0.05


@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_value_loss_matches_plain_formula(value_clip):
    rng = np.random.default_rng(0)
    value, target, old = rng.normal(size=(3, 500))
    found = value_loss(*jnp.float32(np.stack([value, target, old])), value_clip)
    expected = []
    for v, r, o in zip(value, target, old, strict=True):
        error = (v - r) ** 2
        if value_clip is not None:
            error = max(error, (min(max(v, o - 0.2), o + 0.2) - r) ** 2)
        expected.append(error)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert value_clip is None or np.mean(expected > (value - target) ** 2) > 0.2


# ---- targets


@every_kind
def test_targets_and_advantages_match_a_plain_loop(kind):
    problem, policy = make(kind), policy_of(kind)
    problem = problem._replace(params=jax.tree.map(jnp.asarray, problem.params))
    if kind != "mlp":  # carries as they were when acting, so that values do not depend on where stretches start
        problem = problem._replace(carry=consistent_carry(problem))
    spec_critic = shared_critic(policy)
    learner = LearnerState(problem.params, SharedState((), RETURNS), MOMENTS, ())
    spec = captured_spec(policy, spec_critic)
    batch = problem.batch._replace(carries=Carries(problem.carry, ()))
    joint = jax.jit(lambda batch: without_collectives(lambda: joint_batch(spec, learner, batch, 0.8))())(batch)

    _, _, raw, _ = outputs_of(problem, problem.params, MOMENTS)
    value, further = 1.5 + 2 * raw, 1.5 + 2 * final_values(problem)
    steps = jax.tree.map(flat, problem.batch.steps)
    number, advantage = len(value), np.zeros_like(value)
    for t in reversed(range(number)):
        for env in range(ENVS):
            ends = steps.terminated[t, env] or steps.truncated[t, env] or t == number - 1
            following = 0.0 if steps.terminated[t, env] else further[t, env] if ends else value[t + 1, env]
            delta = steps.reward[t, env] + 0.9 * following - value[t, env]
            advantage[t, env] = delta + (0.0 if ends else 0.9 * 0.8 * advantage[t + 1, env])
            if steps.invalid[t, env]:
                advantage[t, env] = 0.0
    counts = flat(problem.weight) > 0
    returns = (value + advantage)[counts]
    every = 20 + len(returns)
    mean = (20 * 1.5 + returns.sum()) / every
    variance = (20 * (4.0 + 1.5**2) + np.sum(returns**2)) / every - mean**2
    np.testing.assert_allclose(joint.state.returns, (every, mean, variance), rtol=1e-4)
    standardised = (advantage - advantage[counts].mean()) / advantage[counts].std()
    np.testing.assert_allclose(flat(joint.found.advantage)[counts], standardised[counts], rtol=1e-3, atol=1e-4)
    targets = (value + advantage - mean) / np.sqrt(variance)
    followed, weight = (np.asarray(leaf).reshape(-1, ENVS)[:number] for leaf in joint.to_follow.targets[2:4])
    np.testing.assert_allclose(followed[counts], targets[counts], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(weight > 0, counts)
    # The head is rescaled so that it predicts the same.
    _, _, rescaled, _ = outputs_of(problem, joint.state.params, MOMENTS)
    np.testing.assert_allclose(mean + np.sqrt(variance) * rescaled, value, rtol=1e-4, atol=1e-5)


def captured_spec(policy, critic):
    """Returns the spec that a run with this policy would give its algorithm."""
    kept = []
    algorithm = parse("algorithm", "ppo")
    learner_of(algorithm._replace(make=lambda spec: kept.append(spec)), policy, critic, discount=0.9)
    return kept[0]


def consistent_carry(problem: Problem) -> tuple:
    """Returns the carries at the starts of stretches that follow from the first one."""
    layers, steps = layers_of(problem), problem.batch.steps
    carry, starts = tuple(part[0] for part in problem.carry), []
    for t in range(STRETCHES * BPTT):
        if t % BPTT == 0:
            starts.append(carry)
        if t < FILLED * LENGTH:
            obs, begins = normalised(flat(steps.obs)[t]), flat(steps.elapsed)[t] == 0
            carry = plain_unroll(layers, problem.kind, carry, obs[None], begins[None])[1][0]
    return tuple(np.stack(parts).astype(np.float32) for parts in zip(*starts, strict=True))


def final_values(problem: Problem) -> np.ndarray:
    """Returns what the head predicts for the observations after each step."""
    layers, steps = layers_of(problem), problem.batch.steps
    final = normalised(flat(steps.final_obs))
    if problem.kind == "mlp":
        x = np.tanh(final @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
        return (x @ layers["last"]["kernel"] + layers["last"]["bias"])[..., 2]
    carry, found = tuple(part[0] for part in problem.carry), []
    for t in range(FILLED * LENGTH):
        obs, begins = normalised(flat(steps.obs)[t]), flat(steps.elapsed)[t] == 0
        carry = plain_unroll(layers, problem.kind, carry, obs[None], begins[None])[1][0]
        found.append(plain_unroll(layers, problem.kind, carry, final[t][None], np.zeros((1, ENVS), bool))[0][0, :, 2])
    return np.stack(found)


def layers_of(problem: Problem) -> dict:
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problem.params["params"])
    return next(value for value in tree.values() if isinstance(value, dict))


def normalised(obs: np.ndarray) -> np.ndarray:
    return (obs - np.asarray(MOMENTS.mean)) / np.sqrt(np.asarray(MOMENTS.variance))


# ---- learners

PPO = "ppo(epochs=3, minibatch_size=64, minibatch_per_env=0.0, entropy_bonus=0.1{})"
A2C = "a2c({})"
OF_VALUES = {PPO: ", value_weight={}", A2C: "value_weight={}"}
both = pytest.mark.parametrize("algorithm", [PPO, A2C], ids=["ppo", "a2c"])
PLAIN = parse("policy", "mlp(hidden=(5,))").make(3, TWO_NUMBERS), parse("critic", "mlp(hidden=(5,))").make(3)


def learned(
    algorithm: str, weight: float | None = 0.5, *, params=None, moments=MOMENTS, returns=RETURNS, batch=None, count=1
) -> tuple[LearnerState, LearnerState]:
    """Returns a learner's state before a batch, and after; `weight`: of the value loss, None without a value head."""
    policy, critic = (policy_of("mlp"), shared_critic(policy_of("mlp"))) if weight is not None else PLAIN
    words = algorithm.format("" if weight is None else OF_VALUES[algorithm].format(weight))
    sizes = {"segment_steps": LENGTH * ENVS, "segment_length": LENGTH}
    learner = learner_of(parse("algorithm", words), policy, critic, **sizes)
    state = learner.init(jax.random.PRNGKey(0), jax.random.PRNGKey(1))
    state = state._replace(policy=make("mlp").params if params is None else params, obs_moments=moments)
    if weight is not None:
        state = state._replace(critic=SharedState((), returns))
    now = {"learning_rate": np.full(count, 0.01, np.float32), "clip": np.full(count, 0.2, np.float32)}
    dealt = deal_batch(make("mlp").batch if batch is None else batch, count)
    after, _ = actors(count).map(learner.learn)(spread(state, count), dealt, now, spread(np.zeros(2, np.uint32), count))
    return jax.device_get(state), first(after)


def without_values(params: dict) -> dict:
    """Returns the parameters without those of the value head."""

    def cut(path, leaf):
        return leaf[..., :-1] if any(getattr(part, "key", "") == "last" for part in path) else leaf

    return jax.tree_util.tree_map_with_path(cut, params)


@both
def test_without_value_loss_the_torso_moves_as_without_value_head(algorithm):
    """Advantages do not depend on the values here, which are the same everywhere while every episode ends at once."""
    batch, params = make("mlp").batch, jax.tree.map(np.copy, make("mlp").params)
    params["params"]["MLP_0"]["last"]["kernel"][:, -1] = 0.0
    ends = np.ones_like(batch.steps.terminated)
    batch = batch._replace(steps=batch.steps._replace(terminated=ends, truncated=~ends, invalid=~ends))
    _, shared = learned(algorithm, 0.0, params=params, batch=batch)
    _, separate = learned(algorithm, None, params=without_values(params), batch=batch)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, without_values(shared.policy), separate.policy)

    def moved(state: LearnerState) -> dict:
        return jax.tree.map(
            lambda new, old: np.abs(new - old).max(), without_values(state.policy), without_values(params)
        )

    assert min(jax.tree.leaves(moved(shared))) > 1e-4
    _, weighted = learned(algorithm, 0.5, params=make("mlp").params, batch=batch)
    with pytest.raises(AssertionError):
        jax.tree.map(close, without_values(weighted.policy), separate.policy)


def values_of(state: LearnerState, obs) -> np.ndarray:
    critic = shared_critic(policy_of("mlp"))
    return np.asarray(
        critic.value(state.critic._replace(params=state.policy), jnp.asarray(obs), jnp.zeros(obs.shape[:-1], int))
    )


@both
def test_nothing_is_learned_while_observations_are_normalised_to_zero(algorithm):
    unknown = Moments(np.float32(0), np.zeros(3, np.float32), np.zeros(3, np.float32))
    before, after = learned(algorithm, moments=unknown, returns=no_moments(()))
    jax.tree.map(np.testing.assert_array_equal, after.policy, before.policy)
    returns = after.critic.returns
    assert returns.count > 0 and after.obs_moments.count > 0
    # What is predicted without knowing any return stands in units of these from now on.
    obs = make("mlp").batch.steps.obs
    expected = returns.mean + returns.std * values_of(before, obs)
    np.testing.assert_allclose(values_of(after, obs), expected, rtol=1e-4, atol=1e-4)


@both
def test_reward_that_is_not_finite_leaves_policy_and_moments_of_returns_unchanged(algorithm):
    batch = make("mlp").batch
    reward = batch.steps.reward.copy()
    reward[0, 0, 0] = np.nan
    steps = batch.steps._replace(reward=reward, invalid=np.zeros_like(batch.steps.invalid))
    before, after = learned(algorithm, batch=batch._replace(steps=steps))
    for part in ("policy", "critic", "memory"):
        jax.tree.map(np.testing.assert_array_equal, getattr(after, part), getattr(before, part))


@both
def test_learning_does_not_depend_on_the_number_of_actors(algorithm):
    (_, one), (_, two) = (learned(algorithm, count=count) for count in (1, 2))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4), one, two)


def test_fit_of_the_critic_counts_returns_and_keeps_predictions():
    critic, problem = shared_critic(policy_of("mlp")), make("mlp")
    obs, elapsed = (jnp.asarray(leaf) for leaf in (problem.batch.steps.obs, problem.batch.steps.elapsed))
    targets = Targets(obs, elapsed, jnp.asarray(problem.target), jnp.asarray(problem.weight), jnp.int32(FILLED))
    state = SharedState(problem.params, RETURNS)
    fitted = without_collectives(lambda: critic.fit(state, targets, jax.random.PRNGKey(0), jnp.ones(())))()
    assert fitted.returns.count == 20 + problem.weight.sum()
    predicted = critic.value(state, obs, elapsed)
    np.testing.assert_allclose(critic.value(fitted, obs, elapsed), predicted, rtol=1e-4, atol=1e-5)


# ---- whole runs

SMALL = {"num_envs": 4, "segment_length": 4, "steps_per_update": 32, "adapt": "fixed"}
RUNS = [
    ("ppo(minibatch_size=16, value_clip=0.2)", "mlp(hidden=(8,), shared=True)"),
    ("a2c", "mlp(hidden=(8,), shared=True)"),
    ("ppo(minibatch_size=16)", "gru(hidden=4, bptt_steps=3, shared=True)"),
    ("a2c", "gru(hidden=4, bptt_steps=3, shared=True)"),
]
every_run = pytest.mark.parametrize(("algorithm", "policy"), RUNS)


def train(algorithm: str, policy: str, out=None, **settings) -> jaxtrpo.Result:
    given = {**SMALL, "algorithm": algorithm, "policy": policy, **settings}
    return prepare(given.pop("env", None) or ActingProbe(), out=out, **given).run(progress=False)


@every_run
def test_resumed_run_is_bit_identical_and_its_policy_is_saved(algorithm, policy, tmp_path):
    whole = train(algorithm, policy, actors=2, total_steps=320)
    train(algorithm, policy, tmp_path / "run", actors=2, total_steps=160)
    resumed = train(algorithm, policy, tmp_path / "run", actors=2, total_steps=320, resume=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))
    assert whole.config.critic == "shared" and whole.config.policy == policy
    obs = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    loaded = jaxtrpo.load_policy(tmp_path / "run")
    np.testing.assert_array_equal(loaded(obs), resumed.policy(obs))
    assert np.isfinite(jaxtrpo.evaluate(loaded, ActingProbe(), episodes=4).mean)


@every_run
def test_run_does_not_depend_on_the_number_of_actors(algorithm, policy):
    one, two = (train(algorithm, policy, actors=count, total_steps=160) for count in (1, 2))
    for a, b in zip(jax.tree.leaves(one.policy.params), jax.tree.leaves(two.policy.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)
    assert list(one.metrics) == list(two.metrics) and np.isfinite(one.metrics["explained_variance"]).all()


@pytest.mark.parametrize(("algorithm", "policy"), RUNS[:1] + RUNS[3:])
def test_trainings_in_one_program_match_trainings_alone(algorithm, policy):
    settings = {**SMALL, "algorithm": algorithm, "policy": policy, "total_steps": 160}
    many = jaxtrpo.train_many(Program(), seeds=[5, 6], progress=False, **settings)
    for seed, one in zip((5, 6), many, strict=True):
        alone = jaxtrpo.train(Program(), seed=seed, actors=1, progress=False, **settings)
        for a, b in zip(jax.tree.leaves(one.policy.params), jax.tree.leaves(alone.policy.params), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("policy", ["mlp(hidden=(16,), shared=True)", "gru(hidden=8, bptt_steps=4, shared=True)"])
@pytest.mark.parametrize(
    ("algorithm", "updates"),
    [("ppo(learning_rate=0.005, minibatch_size=32, epochs=4)", 60), ("a2c(learning_rate=0.01)", 200),
     ("a3c(learning_rate=0.01)", 200)],
    ids=["ppo", "a2c", "a3c"],
)  # fmt: skip
def test_best_action_for_each_observation_is_found(algorithm, updates, policy):
    # Actors of a3c do not wait, so no two runs are equal; as the learning rate decays, all come to the same actions.
    settings = {"num_envs": 16, "steps_per_update": 128, "discount": 0.5, "adapt": "linear(learning_rate=0)"}
    found = train(algorithm, policy, total_steps=128 * updates, **settings).policy(np.float32([[1, 0], [-1, 0]]))
    np.testing.assert_allclose(found[:, 0], [0.5, -0.5], atol=0.1)


@pytest.mark.parametrize("algorithm", ["ppo(learning_rate=0.003)", "a2c(learning_rate=0.01)"])
def test_memory_is_learned(algorithm):
    """The choice must be what was shown up to four steps before; without memory, half of the choices are right."""
    steps_per_update, total_steps = (256, 12_000) if "ppo" in algorithm else (128, 40_000)
    result = train(
        algorithm, "gru(hidden=16, bptt_steps=8, shared=True)", env=RecallEnvironment(), num_envs=16, segment_length=8,
        steps_per_update=steps_per_update, total_steps=total_steps, seed=100,
    )  # fmt: skip
    assert result.metrics["return_100"][-1] > 0.9


def test_masked_policy_learns_without_an_illegal_move():
    result = train(
        "ppo(minibatch_size=64)", "mlp(hidden=(16,), shared=True)", env=DoorsEnvironment(), num_envs=16,
        steps_per_update=256, total_steps=10_000,
    )  # fmt: skip
    assert result.metrics["return_100"][-1] > 4 and np.nanmin(result.metrics["mean_return"]) >= 0


# ---- what is refused


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        *(
            ({"algorithm": name}, f"policy=mlp(shared=True): {name} cannot train a shared torso, because its step "
             "controls the KL of the policy, which the value loss would move, too; ppo, a2c, a3c and dqn can")
            for name in ("trpo", "npg", "trpo_penalty", "trpo_replay")
        ),
        ({"algorithm": "pg"}, "policy=mlp(shared=True): pg cannot train a shared torso, because it trains policy and "
         "critic separately; ppo, a2c, a3c and dqn can"),
        ({"algorithm": "naf", "critic": "none"}, "policy=mlp(shared=True): naf cannot train a shared torso, because it "
         "learns action values; ppo, a2c, a3c and dqn can"),
        ({"algorithm": "gps"}, "policy=mlp(shared=True): gps cannot train a shared torso, because it learns no values; "
         "ppo, a2c, a3c and dqn can"),
        ({"algorithm": "ppo", "critic": "mlp"}, "critic=mlp: policy=mlp(shared=True) predicts values itself; leave out "
         "the critic"),
        ({"algorithm": "a2c", "critic": "gru", "policy": "gru(shared=True)"}, "critic=gru: policy=gru(shared=True) "
         "predicts values itself; leave out the critic"),
        ({"algorithm": "ppo", "critic": "shared", "policy": "mlp"}, "critic=shared needs a policy that predicts "
         "values, such as policy='mlp(shared=True)'"),
        *(
            ({"algorithm": f"{name}({setting}=0.3)", "policy": "mlp"}, f"{setting}=0.3 of {name} needs a shared torso, "
             "such as policy='mlp(shared=True)'; otherwise the critic has a loss of its own")
            for name, setting in (("ppo", "value_weight"), ("ppo", "value_clip"), ("a2c", "value_weight"))
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_sentence(settings, told):
    with pytest.raises(ValueError) as error:
        prepare("Swimmer-v5", **{"policy": "mlp(shared=True)", "total_steps": 100, **settings})
    assert str(error.value) == told and len(told) < 200
