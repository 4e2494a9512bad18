"""Training as a user starts it: `jaxtrpo.train` on real environments."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import counted_compilations

import jaxtrpo
from jaxtrpo.adapt import Rule, improvement
from jaxtrpo.losses import importance_weighted_advantage
from jaxtrpo.policies.distributions import entropy
from jaxtrpo.train import prepare

TINY = {"segment_length": 4, "num_envs": 4, "policy_hidden": (8,), "critic_hidden": (8,), "critic_epochs": 1}
PENDULUM = "InvertedPendulum-v5"


def tiny(env=PENDULUM, **settings) -> dict:
    """A few updates; the columns of their metrics."""
    return jaxtrpo.train(env, progress=False, **{**TINY, "steps_per_update": 32, "total_steps": 96, **settings}).metrics


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    result = jaxtrpo.train(PENDULUM, total_steps=120_000, eval_every=10_000, out=out, progress=False)
    return result, out


def test_learns_to_balance_the_pole(trained):
    result, _ = trained
    assert np.nanmax(result.metrics["eval_return"]) >= 950
    evaluation = jaxtrpo.evaluate(result.policy, episodes=10, seed=1)
    assert evaluation.returns.shape == (10,) and evaluation.mean >= 950


def test_metrics_hold_what_happened(trained):
    result, out = trained
    metrics = result.metrics
    np.testing.assert_array_equal(metrics["env_steps"], 1024 * np.arange(1, len(metrics["update"]) + 1))
    assert np.all(metrics["kl"] <= metrics["max_kl"]) and np.all(metrics["steps_per_update"] == 1024)
    assert np.all(metrics["collect_seconds"] + metrics["learn_seconds"] <= np.diff(metrics["wall_seconds"], prepend=0))
    assert (out / "metrics.csv").read_text().count("\n") == 1 + len(metrics["update"])


def test_policy_from_disk_acts_alike_on_numpy_and_jax(trained):
    result, out = trained
    loaded = jaxtrpo.load_policy(out)
    obs = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(loaded(obs), result.policy(obs))
    np.testing.assert_allclose(loaded(jnp.asarray(obs)), loaded(obs), rtol=1e-6)
    assert isinstance(loaded(obs[0]), np.ndarray) and loaded(obs[0]).shape == (1,)
    drawn = loaded(obs, key=jax.random.PRNGKey(0))
    assert np.all(np.abs(drawn) <= 3) and not np.allclose(drawn, loaded(obs))
    with pytest.raises(ValueError, match="last axis must be 4 long"):
        loaded(obs[:, :3])


def test_same_seed_same_run_and_another_seed_another():
    one, again, other = (tiny(seed=seed)["improvement"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.any(one == other)


def test_settings_that_change_while_training_compile_nothing():
    """Batches from one segment to the largest, and the trust region with them."""
    sizes = jnp.array([16, 64, 32, 48, 16])

    def update(state, hyperparameters, metrics):
        changed = hyperparameters._replace(max_kl=hyperparameters.max_kl * 1.1, steps_per_update=sizes[state % 5])
        return state + 1, changed

    rule = Rule(init=lambda hyperparameters: jnp.int32(0), update=update)
    run = prepare(PENDULUM, adapt=rule, **TINY, steps_per_update=32, max_steps_per_update=64, total_steps=200)
    updates, rows = run._updates(), []
    rows.append(next(updates)[1])
    with counted_compilations() as compiled:
        rows += [row for _, row in updates]
    assert not compiled
    assert [row["steps_per_update"] for row in rows] == [32, 16, 64, 32, 48, 16]
    np.testing.assert_allclose([row["max_kl"] for row in rows], 0.01 * 1.1 ** np.arange(6), rtol=1e-5)


def test_rule_gets_the_largest_batch_it_may_ask_for():
    # So much is required that nothing counts as an improvement: batches grow as far as they may, and max KL falls.
    words = (
        "improvement(window=1, required=1000000, steps_delta=16, steps_bounds=(16, 64), kl_delta=0.001, "
        "kl_bounds=(0.000001, 0.004))"
    )
    rule = improvement(
        window=1, required=1e6, steps_delta=16, steps_bounds=(16, 64), kl_delta=0.001, kl_bounds=(1e-6, 0.004)
    )
    metrics = tiny(adapt=rule, total_steps=600, max_kl=0.004)
    assert metrics["steps_per_update"].max() == 64
    assert metrics["max_kl"].min() < 0.003
    by_name = tiny(adapt=words, total_steps=600, max_kl=0.004)
    assert by_name["steps_per_update"].tolist() == metrics["steps_per_update"].tolist()
    limited = tiny(adapt=rule, total_steps=600, max_kl=0.004, max_steps_per_update=48)
    assert limited["steps_per_update"].max() == 48


@pytest.mark.parametrize(
    "settings",
    [
        {"critic": "linear", "advantages": "monte_carlo"},
        {"normalize_observations": False, "normalize_returns": False},
        {"surrogate": lambda new, samples: importance_weighted_advantage(new, samples) + 0.1 * entropy(new)},
    ],
    ids=["as in 2016", "no normalisation", "own surrogate"],
)
def test_variants_take_steps_within_the_trust_region(settings):
    metrics = tiny(**settings)
    assert len(metrics["update"]) == 3 and metrics["accepted"].all()
    assert np.all((metrics["kl"] > 0) & (metrics["kl"] <= 0.01))


def test_simulations_that_break_are_counted_and_not_learned_from():
    task = jaxtrpo.make_env(PENDULUM).task
    breaks = task._replace(reward=lambda model, data, action: jnp.where(data.qpos[0] < -0.01, jnp.nan, 1.0))
    metrics = tiny(jaxtrpo.MujocoEnvironment(breaks), total_steps=320)
    assert metrics["invalid_steps"].sum() > 0
    assert np.isfinite(metrics["kl"]).all() and metrics["accepted"].any()


def test_first_observation_that_is_not_finite_is_refused():
    task = jaxtrpo.make_env(PENDULUM).task
    broken = task._replace(observation=lambda model, data: jnp.append(data.qpos, jnp.nan))
    with pytest.raises(ValueError, match=r"first observation is not finite \(entries \[2\]\)"):
        tiny(jaxtrpo.MujocoEnvironment(broken))


def test_devices_that_jax_started_without_are_pointed_out():
    code = """if True:
        import jax
        jax.devices()
        from jaxtrpo import actors
        actors.available_cores = lambda: 64
        assert actors.choose_actors().count == 1
        actors.choose_actors(3)
    """
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stderr
    assert "JAX was already started with 1 CPU devices on 64 cores" in said and "JAX_NUM_CPU_DEVICES=64" in said
    assert said.endswith("before Python starts\n") and "ValueError: actors=3, but there are 1 CPU devices" in said


def test_interrupted_training_keeps_what_it_learned(tmp_path, monkeypatch):
    run = prepare(PENDULUM, out=tmp_path / "run", **{**TINY, "total_steps": 1000, "steps_per_update": 32})
    collect, calls = run.update.collect, []

    def interrupted(state):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return collect(state)

    result = run._replace(update=run.update._replace(collect=interrupted)).run(progress=False)
    assert list(result.metrics["update"]) == [1, 2]
    np.testing.assert_array_equal(jaxtrpo.load_policy(tmp_path / "run")(np.ones(4)), result.policy(np.ones(4)))
