"""Every algorithm in whole runs: it trains, compiles once, resumes exactly and does not depend on the actors."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probe import BOTH, ProbeEnvironment
from support import (
    DRAWS,
    TWO_NUMBERS,
    Acting,
    LinearPolicy,
    actors,
    assert_no_key_is_used_twice,
    counted_compilations,
    deal_batch,
    learner_of,
    random_batch,
    recorded_keys,
    spread,
)

import jaxtrpo
from jaxtrpo.algorithms.algorithm import Algorithm, Learner
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.config.specs import KINDS, parse
from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.critics.none import none
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace, as_observed
from jaxtrpo.ops.moments import Moments, no_moments, normalize
from jaxtrpo.parallel.collectives import sum_over_actors
from jaxtrpo.policies.distributions import Comparable, Distribution
from jaxtrpo.policies.making import distribution_of, policy_for
from jaxtrpo.policies.networks import gaussian_policy
from jaxtrpo.policies.squashed import squashed
from jaxtrpo.rollout.replay import inserted
from jaxtrpo.training.prepare import plan
from jaxtrpo.training.train import prepare
from jaxtrpo.training.update import first_hyperparameters

TINY = {
    "segment_length": 4, "num_envs": 4, "steps_per_update": 32, "policy": "mlp(hidden=(8,))",
    "critic": "mlp(hidden=(8,), epochs=1)",
}  # fmt: skip
# gps determines its own batch sizes, and dqn takes discrete actions; they have the same tests in files of their own.
ALGORITHMS = tuple(name for name in KINDS["algorithm"] if name not in ("gps", "dqn"))
# Spec strings for algorithms whose defaults do not suit batches this small.
SMALL = {
    "ppo": "ppo(minibatch_size=16)",
    "naf": "naf(hidden=(8,), replay=250, minibatch_size=16)",
    "sac": "sac(hidden=(8,), replay=250, minibatch_size=16, learning_rate=0.003)",
    "trpo_replay": "trpo_replay(replay=250, minibatch_size=16, hidden=(8,))",
}
WAIT_FOR_EACH_OTHER = tuple(name for name in ALGORITHMS if name != "a3c")
SECONDS = ("wall_seconds", "collect_seconds", "learn_seconds")
COMMON = (
    "update", "env_steps", *SECONDS, "steps_per_update", "episodes", "mean_return", "return_100", "mean_length",
    "invalid_steps", "policy_std", "eval_return",
)  # fmt: skip
OF_A_CRITIC = ("entropy", "explained_variance", "advantage_std")  # reported by all but naf and sac
# Parts other than those of `TINY`.
OWN = {"naf": {"critic": "none"}, "sac": {"critic": "none", "policy": "squashed(hidden=(8,))"}}
# A rule that varies the batch size and works with any algorithm.
VARYING = "improvement(window=1, steps_delta=16, steps_bounds=(16, 64), kl_delta=None)"
# One algorithm for each driver, and for each way in which a batch reaches it.
DRIVERS = ("trpo", "a2c", "a3c", "naf", "trpo_replay")


class ActingProbe(ProbeEnvironment):
    """One-step episodes in which the best action is half the observed sign; compiles quickly."""

    def reset(self, key, num_envs):
        state = super().reset(key, num_envs)
        return state._replace(physics=state.physics._replace(kind=jnp.full(num_envs, BOTH, jnp.int32)))


def tiny(algorithm) -> dict:
    """Returns settings for short runs of an algorithm."""
    name = algorithm if isinstance(algorithm, str) else ""
    return {**TINY, "algorithm": SMALL.get(name, algorithm), **OWN.get(name, {})}


def varying(algorithm: str) -> dict:
    """Returns settings for runs whose batches vary; conjugate gradient makes few iterations, which amplify rounding."""
    if "trpo" in algorithm or algorithm == "npg":
        algorithm = SMALL.get(algorithm, f"{algorithm}()").replace("(", "(cg_iterations=4, ", 1)
    own = OWN.get(algorithm, {})
    return {**TINY, "algorithm": SMALL.get(algorithm, algorithm), **own, "adapt": VARYING, "actors": 2}


def train(algorithm, out=None, **settings) -> jaxtrpo.Result:
    return prepare(ActingProbe(), out=out, **{**tiny(algorithm), **settings}).run(progress=False)


def train_varying(algorithm: str, out=None, **settings) -> jaxtrpo.Result:
    return prepare(ActingProbe(), out=out, **{**varying(algorithm), **settings}).run(progress=False)


def assert_trained(algorithm: str, result: jaxtrpo.Result, out: Path) -> None:
    """Asserts that the run reports finite metrics, and that its policy is saved."""
    metrics = result.metrics
    assert set(metrics) >= {*COMMON, *(() if algorithm in OWN else OF_A_CRITIC)}
    # These may be NaN: without a finished episode, a previous step, an evaluation or a separate collection phase.
    may_be_blank = {"mean_return", "return_100", "mean_length", "gain_ratio", "eval_return", "collect_seconds"}
    for name in set(metrics) - may_be_blank:
        assert np.all(np.isfinite(metrics[name])), name
    assert np.all(np.diff(metrics["wall_seconds"]) > 0)
    obs = np.random.default_rng(0).normal(size=(5, result.policy.observation_size))
    loaded = jaxtrpo.load_policy(out)(obs)
    np.testing.assert_array_equal(loaded, result.policy(obs))
    assert np.all(np.isfinite(loaded)) and np.ptp(loaded) > 0


@pytest.mark.parametrize("algorithm", DRIVERS)
def test_every_driver_trains_on_mujoco_and_saves_the_policy(algorithm, tmp_path):
    threads = threading.active_count()
    result = jaxtrpo.train(
        "InvertedPendulum-v5", **tiny(algorithm), total_steps=96, out=tmp_path / "run", progress=True
    )
    assert_trained(algorithm, result, tmp_path / "run")
    assert len(result.metrics["update"]) >= 3 and result.metrics["env_steps"][-1] >= 96
    # The first batch is only used to estimate the scale of observations.
    assert np.all(result.metrics.get("accepted", np.ones(2))[1:] == 1)
    assert result.config.algorithm == parse("algorithm", SMALL.get(algorithm, algorithm)).spec_string
    assert threading.active_count() == threads


@pytest.mark.shared_programs
@pytest.mark.parametrize("algorithm", WAIT_FOR_EACH_OTHER)
def test_nothing_is_compiled_after_the_first_update(algorithm):
    run = prepare(ActingProbe(), **varying(algorithm), total_steps=2500)
    updates = run._updates()
    next(updates)
    with counted_compilations() as compiled:
        steps = [row["steps_per_update"] for _, rows in updates for row in rows]
    assert not compiled and len(steps) > 20 and set(steps) == {16, 32, 48, 64}


# That the number of steps is not compiled in is checked with a2c, which counts them in its program.
@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=pytest.mark.shared_programs(name != "a2c")) for name in WAIT_FOR_EACH_OTHER],
)
def test_resumed_run_equals_uninterrupted_run(algorithm, tmp_path):
    whole = train_varying(algorithm, tmp_path / "whole", total_steps=2000)
    part = train_varying(algorithm, tmp_path / "parts", total_steps=700)
    resumed = train_varying(algorithm, tmp_path / "parts", total_steps=2000, resume=True)
    assert 0 < len(part.metrics["update"]) < len(whole.metrics["update"])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))
    assert list(resumed.metrics) == list(whole.metrics)
    for name in set(whole.metrics) - set(SECONDS):
        np.testing.assert_array_equal(resumed.metrics[name], whole.metrics[name], err_msg=name)
    assert_trained(algorithm, whole, tmp_path / "whole")


@pytest.mark.shared_programs
@pytest.mark.parametrize("algorithm", WAIT_FOR_EACH_OTHER)
def test_training_does_not_depend_on_number_of_actors(algorithm):
    one, two = (train_varying(algorithm, actors=count, total_steps=160) for count in (1, 2))
    for leaf in jax.tree.leaves(two.state._replace(actors=None)):
        np.testing.assert_array_equal(leaf[0], leaf[1])
    assert list(one.metrics) == list(two.metrics)
    for name in set(one.metrics) - {*SECONDS, "gain_ratio", "cg_residual", "improvement"}:
        np.testing.assert_allclose(two.metrics[name], one.metrics[name], rtol=2e-3, atol=1e-4, err_msg=name)
    params = (jax.tree.leaves(result.policy.params) for result in (one, two))
    for alone, both in zip(*params, strict=True):
        np.testing.assert_allclose(both, alone, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("algorithm", WAIT_FOR_EACH_OTHER)
def test_no_key_is_used_twice(algorithm):
    """Fails if two draws, two passes over the samples, or two updates share a key."""
    critic = none().make(3) if algorithm in OWN else mlp_critic(3, hidden=(8,), epochs=2, minibatch_size=16)
    is_squashed = "policy" in OWN.get(algorithm, {})
    learner = learner_of(
        parse("algorithm", SMALL.get(algorithm, algorithm)),
        squashed(hidden=(8,)).make(3, TWO_NUMBERS) if is_squashed else gaussian_policy(3, 2, hidden=(8,)),
        critic,
        segment_steps=12,
        segment_length=3,
    )

    def learn(state, batch, hyperparameters, key):
        if learner.replay is not None:
            state = inserted(learner.replay, state, batch)
        return learner.learn(state, batch, hyperparameters, key)

    key = jax.random.PRNGKey(0)
    state = spread(jax.jit(learner.init)(*jax.random.split(key)), 1)
    hyperparameters = spread(first_hyperparameters(parse("algorithm", SMALL.get(algorithm, algorithm))), 1)
    keys = [spread(jax.random.fold_in(key, segments), 1) for segments in (4, 8)]
    with recorded_keys() as used:
        mapped = actors(1).map(learn)
        for number, each in enumerate(keys):
            state, _ = mapped(state, deal_batch(random_batch(number, broken=0), 1), hyperparameters, each)
    assert_no_key_is_used_twice(used)
    if algorithm not in ("pg", "a2c"):
        assert {use.use for use in used} & set(DRAWS)


# ---- algorithms and rules


@pytest.mark.parametrize(
    ("algorithm", "rule", "missing"),
    [
        ("ppo", "trust", "max_kl"),
        ("trpo", "linear(learning_rate=0)", "learning_rate"),
        ("pg", "linear(clip=0.1, learning_rate=0)", "clip"),
        ("a2c", "chain(fixed, improvement)", "max_kl"),
        ("trpo_penalty", "exponential(penalty=1)", "penalty"),
        ("trpo_penalty(penalty=2.0)", "linear(target_kl=1)", "target_kl"),
    ],
)
def test_rule_for_missing_setting_is_refused(algorithm, rule, missing):
    with pytest.raises(ValueError) as error:
        prepare(ActingProbe(), algorithm=algorithm, adapt=rule, **TINY)
    message = str(error.value)
    assert message.startswith(
        f"adapt={rule} changes {missing}, which {algorithm} does not have; its adaptable settings are "
    )
    assert "steps_per_update" in message and "\n" not in message


@pytest.mark.parametrize("algorithm", ["ppo", "pg", "a2c", "a3c"])
def test_run_setting_that_the_algorithm_lacks_is_refused(algorithm):
    spec = re.escape(parse("algorithm", algorithm).spec_string)
    with pytest.raises(ValueError, match=f"^max_kl=0.1: {spec} has no max_kl; its adaptable settings are "):
        prepare(ActingProbe(), algorithm=algorithm, max_kl=0.1, **TINY)


def test_minibatch_larger_than_batch_is_refused():
    with pytest.raises(ValueError, match="^minibatch_size=64 of ppo must be at most steps_per_update=32$"):
        prepare(ActingProbe(), algorithm="ppo(minibatch_size=64)", **TINY)


@pytest.mark.shared_programs
@pytest.mark.parametrize(
    "algorithm, rule",
    [("ppo", "linear(learning_rate=0)"), ("pg", None), ("a2c", None), ("a3c", None)],  # the default of the last three
)
def test_linearly_decaying_learning_rate_ends_at_zero(algorithm, rule):
    result = train(algorithm, adapt=rule, total_steps=1024)
    rate, steps = result.metrics["learning_rate"], result.metrics["env_steps"]
    before = np.concatenate([[0], steps[:-1]])
    assert rate[0] > 0 and steps[-1] >= 1024
    if algorithm != "a3c":  # rows of a3c are in the order in which gradients were applied, which is not deterministic
        np.testing.assert_allclose(rate, rate[0] * (1 - before / 1024), rtol=1e-4, atol=1e-9)
        assert np.all(np.asarray(result.state.hyperparameters["learning_rate"]) == 0)
    else:
        assert np.all(np.diff(rate) <= 0) and rate[-1] < rate[0] / 2


# ---- user-defined parts


def only_up(new, samples):
    """Surrogate that is largest if every action is 1, and ignores advantages."""
    return -jnp.sum((new.mean - 1) ** 2, axis=-1)


@pytest.mark.parametrize(
    "algorithm",
    [
        "trpo(max_kl=0.1)",
        "npg(max_kl=0.003)",
        "trpo_penalty(target_kl=0.1)",
        "ppo(learning_rate=0.01, minibatch_size=16)",
    ],
    ids=lambda words: words.partition("(")[0],
)
def test_user_surrogate_is_maximised(algorithm):
    result = train(algorithm, surrogate=only_up, total_steps=4000)
    obs = np.float32([[1, 0], [-1, 0]])
    np.testing.assert_allclose(result.policy(obs), 1.0, atol=0.15)


def with_bonus(new, samples):
    return importance_weighted_advantage(new, samples) + new.entropy()


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("trpo", {"surrogate": with_bonus}),
        ("ppo(minibatch_size=16)", {"surrogate": with_bonus}),
        ("trpo_replay", {"surrogate": with_bonus}),
        ("pg(entropy_bonus=1.0)", {}),
        ("a2c(entropy_bonus=1.0)", {}),
        ("a2c(entropy_bonus=1.0)", {"policy": "mlp(hidden=(8,), shared=True)", "critic": None}),
        ("ppo(entropy_bonus=1.0, minibatch_size=16)", {"policy": "mlp(hidden=(8,), shared=True)", "critic": None}),
    ],
)
def test_nothing_is_learned_from_the_batch_whose_observations_look_alike(algorithm, settings):
    """Neither from its advantages nor from whatever does not depend on them."""
    after, accepted = [], []
    for total_steps in (1, 64):
        run = prepare(ActingProbe(), **{**tiny(algorithm), **settings, "total_steps": total_steps})
        begun = jax.device_get(run.state.learner.policy)
        result = run.run(progress=False)
        after.append(jax.device_get(result.state.learner.policy))
        accepted.append(result.metrics.get("accepted", np.zeros(1))[0])
    assert not any(accepted)
    if run.update.policy.value_head is None:  # which may learn values
        jax.tree.map(np.testing.assert_array_equal, after[0], begun)
    assert any(np.any(one != other) for one, other in zip(*map(jax.tree.leaves, (begun, after[1])), strict=True))


@pytest.mark.parametrize("algorithm", ["trpo", "ppo"])
@pytest.mark.parametrize("words", [{"policy": "gru(hidden=4)", "critic": "gru(hidden=4)"}, {"frame_stack": 2}])
def test_surrogate_sees_one_axis_of_steps_also_in_sequences(algorithm, words):
    """An entry of another step would be used without an error where axes are of time and environment."""
    shapes = set()

    def mine(new, samples):
        steps = len(samples.advantage)
        shapes.add((samples.obs.shape, samples.action.shape, samples.old.mean.shape, new.mean.shape, steps))
        return importance_weighted_advantage(new, samples) + 0.01 * samples.obs[:, 0] * samples.action[:, 0]

    train(algorithm, surrogate=mine, total_steps=64, **words)
    assert {shape[:-1] for shape in shapes} == {((steps, 2), *3 * ((steps, 1),)) for *_, steps in shapes}


@pytest.mark.parametrize("algorithm", ["trpo", "trpo_penalty", "ppo", "trpo_replay"])
@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda x: x[:, None], r"float32\[\d+, 1\]"),
        (jnp.mean, r"float32\[\]"),
        (lambda x: x > 0, r"bool\[\d+\]"),
        (lambda x: None, "NoneType"),
    ],  # fmt: skip
)
def test_surrogate_of_another_shape_is_refused(algorithm, change, given):
    def mine(new, samples):
        return change(importance_weighted_advantage(new, samples))

    with pytest.raises(
        ValueError, match=rf"^surrogate must return one real number per step, float32.*, not {given}(\n|$)"
    ):
        train(algorithm, surrogate=mine, total_steps=64)


@pytest.mark.parametrize("algorithm", ["pg", "a2c", "naf"])
def test_user_surrogate_is_refused_by_algorithms_without_one(algorithm):
    with pytest.raises(ValueError, match=f"^surrogate: {algorithm} does not use a surrogate; trpo, .* do$"):
        prepare(ActingProbe(), algorithm=algorithm, surrogate=importance_weighted_advantage, **TINY)


class Weights(NamedTuple):
    """Minimal learner state with one extra field."""

    policy: object
    obs_moments: Moments
    best: jax.Array


def reward_weighted(*, rate: float) -> Algorithm:
    """User-defined algorithm: makes actions with above-average reward more likely."""

    def make(spec) -> Learner:
        def init(for_policy, for_critic):
            return Weights(spec.policy.init(for_policy), no_moments((spec.observation_size,)), jnp.float32(-1e9))

        def learn(learner, batch, hyperparameters, key):
            steps = batch.steps
            filled = (jnp.arange(steps.reward.shape[0]) < batch.num_segments)[:, None, None] & ~steps.invalid
            count = sum_over_actors(jnp.sum(filled))
            mean = sum_over_actors(jnp.sum(filled * steps.reward)) / count

            def gain(params):
                distribution = spec.policy.apply(params, steps.obs)
                return jnp.sum(filled * (steps.reward - mean) * distribution.log_prob(steps.action)) / count

            slope = sum_over_actors(jax.grad(gain)(learner.policy))
            params = jax.tree.map(lambda p, g: p + hyperparameters["rate"] * g, learner.policy, slope)
            best = jnp.maximum(learner.best, mean)
            return Weights(params, learner.obs_moments, best), {"mean_reward": mean, "best": best}

        return Learner(init, learn)

    return Algorithm(f"reward_weighted(rate={rate})", {"rate": rate, "steps_per_update": 64}, make)


def test_user_algorithm_refuses_a_surrogate_unless_it_says_that_it_uses_one():
    mine = reward_weighted(rate=1.0)
    settings = {**TINY, "steps_per_update": None, "surrogate": importance_weighted_advantage}
    with pytest.raises(ValueError, match="^surrogate: reward_weighted does not use a surrogate; trpo, "):
        prepare(ActingProbe(), algorithm=mine, **settings)
    prepare(ActingProbe(), algorithm=mine._replace(uses_surrogate=True), **settings)


def test_user_algorithm_can_be_trained_adapted_saved_and_resumed(tmp_path):
    settings = {**TINY, "steps_per_update": None, "adapt": "exponential(over=20_000, rate=0.1)"}
    mine = reward_weighted(rate=1.0)
    whole = train(mine, tmp_path / "whole", total_steps=20_000, **settings)
    train(mine, tmp_path / "parts", total_steps=6_400, **settings)
    resumed = train(mine, tmp_path / "parts", total_steps=20_000, resume=True, **settings)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))
    metrics = whole.metrics
    assert set(metrics) >= {"mean_reward", "best", "rate"} and np.all(metrics["steps_per_update"] == 64)
    np.testing.assert_allclose(metrics["best"], np.maximum.accumulate(metrics["mean_reward"]))
    np.testing.assert_allclose(whole.state.hyperparameters["rate"], 0.1, rtol=1e-5)
    assert np.mean(metrics["mean_reward"][-20:]) > np.mean(metrics["mean_reward"][:20]) + 0.1
    loaded = jaxtrpo.load_policy(tmp_path / "whole")
    np.testing.assert_allclose(loaded(np.float32([[1, 0], [-1, 0]]))[:, 0], [0.5, -0.5], atol=0.2)
    assert whole.config.algorithm == "reward_weighted(rate=1.0)"


class ActingPolicy(LinearPolicy):
    distribution: type = Acting


@pytest.mark.parametrize("algorithm", ["trpo", "npg", "trpo_penalty", "trpo_replay", "ppo", "pg", "a2c"])
def test_distribution_that_cannot_be_compared_is_refused(algorithm):
    message = f"^policy=custom:ActingPolicy: {algorithm} needs distributions with entropy, kl_divergence, fisher_metric"
    with pytest.raises(ValueError, match=message):
        prepare(ActingProbe(), **{**tiny(algorithm), "policy": ActingPolicy()})


def test_distribution_that_cannot_be_compared_suffices_where_nothing_is_compared():
    result = train("naf", policy=ActingPolicy(), total_steps=256)
    example = Acting(jnp.zeros(1), jnp.zeros(1))
    assert isinstance(example, Distribution) and not isinstance(example, Comparable)
    assert np.isfinite(result.metrics["policy_std"][-1]) and result.metrics["policy_std"][-1] == 1


@pytest.mark.parametrize("kind", KINDS["policy"])
def test_distributions_of_built_in_policies_can_be_compared(kind):
    """`make_update` takes this for granted."""
    leaf = Leaf("image", (16, 16, 3), "uint8") if kind == "cnn" else Leaf("vector", (3,))
    space = as_observed(ObservationSpace((leaf,)))
    policy = policy_for(parse("policy", kind), space, TWO_NUMBERS, masked=False)
    found = distribution_of(policy, space, TWO_NUMBERS)
    assert isinstance(found, Comparable) and found.noise_size == 2


@pytest.mark.parametrize("wrong", [3, jaxtrpo.training.train, ("trpo",)])
@pytest.mark.parametrize(
    ("setting", "kind"), [("algorithm", "Algorithm"), ("critic", "CriticMaker"), ("adapt", "Rule")]
)
def test_part_of_wrong_type_is_refused(setting, kind, wrong):
    with pytest.raises(ValueError, match=f"^{setting}=.* must be a spec string or a value of type {kind}$"):
        prepare(ActingProbe(), **{**TINY, setting: wrong})


# ---- several updates in one program


@pytest.mark.shared_programs
def test_run_ends_with_the_update_that_reaches_total_steps():
    metrics = train("a2c", total_steps=32 * 16 + 33).metrics
    # The first update has one segment of 16 steps; 545 steps are 35 segments.
    np.testing.assert_array_equal(metrics["env_steps"], 16 + 32 * np.arange(18))
    np.testing.assert_allclose(metrics["learning_rate"][-1], 0.003 * (1 - (16 + 16 * 32) / (35 * 16)), atol=1e-9)


@pytest.mark.shared_programs
def test_evaluation_uses_policies_between_programs():
    metrics = train("a2c", total_steps=16 + 32 * 19, eval_every=32, eval_episodes=2).metrics
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(metrics["eval_return"])), [15, 19])


def test_default_batch_grows_with_number_of_environments():
    def steps(algorithm, **settings):
        return plan(ActingProbe(), {"algorithm": algorithm, **settings}).config.steps_per_update

    assert (steps("a2c"), steps("a2c", num_envs=8), steps("a2c", num_envs=64)) == (80, 80, 320)
    assert (steps("a3c"), steps("a3c", num_envs=64)) == (80, 320)
    assert (steps("a2c", num_envs=64, steps_per_update=64), steps("trpo", num_envs=64)) == (64, 1024)


def test_example_of_the_readme_learns():
    result = jaxtrpo.train("CartPole-v1", algorithm="a2c", stop_at_return=475, progress=False)
    assert result.metrics["env_steps"][-1] <= 400_000


@pytest.mark.parametrize("count", [1, 2])
def test_policy_std_is_mean_over_states_and_equal_on_all_actors(count):
    policy = "mlp(hidden=(8,), state_dependent_std=True)"
    run = prepare(ActingProbe(), **{**TINY, "policy": policy, "algorithm": "pg", "actors": count})
    lowered = run.update.lower(run.state)
    collect = lowered.compile_collect()
    learn = lowered.compile_learn()
    begun, _ = learn(*collect(run.state))  # knows the scale of observations
    state, batch = collect(begun)
    state, measured = learn(state, batch)
    reported = np.asarray(measured.values)[:, [column.name for column in measured.columns].index("policy_std")]
    assert len(reported) == count and len(set(reported)) == 1
    params, moments = (
        jax.tree.map(lambda leaf: leaf[0], part) for part in (state.learner.policy, begun.learner.obs_moments)
    )
    obs = np.asarray(batch.steps.obs)[:, 0].reshape(-1, 2)
    std = np.exp(jax.jit(run.update.policy.apply)(params, normalize(jnp.asarray(obs), moments)).log_std)
    assert np.ptp(std) > 1e-4
    np.testing.assert_allclose(reported[0], np.mean(std), rtol=1e-5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"gae_lambda": 0.9}, "unknown setting 'gae_lambda'; write algorithm=\"trpo(gae_lambda=0.9)\""),
        ({"critic_epochs": 3}, "unknown setting 'critic_epochs'; write critic=\"mlp(epochs=3)\""),
        ({"policy_hidden": (3,)}, "unknown setting 'policy_hidden'; write policy=\"mlp(hidden=(3,))\""),
        ({"total_step": 3}, "unknown setting 'total_step'; did you mean total_steps"),
        ({"clip": 0.1}, "unknown setting 'clip'; write algorithm=\"ppo(clip=0.1)\" (trpo has no clip)"),
    ],
)
def test_unknown_setting_is_refused_with_its_new_place(setting, message):
    with pytest.raises(TypeError) as error:
        jaxtrpo.train("InvertedPendulum-v5", **setting)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_default_parts_depend_on_the_algorithm():
    config = plan(ActingProbe(), {"algorithm": "ppo(epochs=3)"}).config
    assert (config.adapt, config.critic) == ("fixed", "mlp(epochs=3, minibatch_size=64, learning_rate=0.0003)")
    assert (config.steps_per_update, config.num_envs, config.max_kl) == (2048, 16, None)
    config = plan(ActingProbe(), {}).config
    assert (config.algorithm, config.adapt, config.critic, config.policy) == ("trpo", "trust", "mlp", "mlp")
    assert (config.steps_per_update, config.max_kl) == (1024, 0.01)
