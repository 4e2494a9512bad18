"""Algorithms, critics and rules of a user: what they may hold, and what is said if they return something else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probe import ProbeEnvironment
from test_train import TINY

import jaxtrpo
from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.algorithm import Algorithm
from jaxtrpo.algorithms.policy_gradient import gradient_work
from jaxtrpo.critics.critic import Critic, CriticMaker
from jaxtrpo.parallel.collectives import Work

SETTINGS = {**TINY, "critic": "none", "adapt": "fixed", "actors": 1, "progress": False, "total_steps": 192}


class Program(ProbeEnvironment):
    is_program = True


def algorithm(**reported) -> Algorithm:
    """Learns nothing, and reports these functions of the policy's parameters."""

    def make(spec):
        def step(params, memory, action, found, hyperparameters, key):
            return params, memory, dict(reported)

        return actor_critic(spec, step=step, no_memory=lambda params: (), work=gradient_work, gae_lambda=0.95)

    return Algorithm("mine", {"rate": 1.0, "steps_per_update": 64}, make)


def critic(first, update=lambda state: state) -> CriticMaker:
    """Predicts 0; `update` makes the state of the next fit."""
    made = Critic(
        init=lambda key: first(),
        value=lambda state, obs, elapsed: jnp.zeros(obs.shape[:-1]),
        fit=lambda state, targets, key, rate: update(state),
        work=lambda state, samples: Work(1.0, shared=False),
    )
    return CriticMaker("mine", lambda observed: made)


@pytest.mark.parametrize(
    "name", ["env_steps", "update", "steps_per_update", "return_100", "eval_return", "wall_seconds", "progress", "rate"]
)
def test_metric_named_like_that_of_every_run_is_refused(name):
    """A step count of the algorithm's own would decide when the run ends."""
    with pytest.raises(ValueError, match=f"^algorithm: it reports {name}, a name that every run uses"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=algorithm(**{name: 1.0}), **SETTINGS)


@pytest.mark.parametrize(("value", "found"), [(np.ones(3), r"of shape \(3,\)"), (None, "a NoneType"), ({}, "a dict")])
def test_metric_that_is_not_a_scalar_is_refused(value, found):
    with pytest.raises(ValueError, match=f"^algorithm: its metric slopes must be a scalar, not {found}"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=algorithm(slopes=value), **SETTINGS)


def test_metrics_of_other_names_are_columns():
    metrics = jaxtrpo.train(ProbeEnvironment(), algorithm=algorithm(mine=3.0), **SETTINGS).metrics
    assert set(metrics["mine"]) == {3.0} and metrics["env_steps"][-1] >= 192


def test_algorithm_without_a_batch_size_is_refused():
    nameless = algorithm()._replace(hyperparameters={"rate": 1.0})
    with pytest.raises(ValueError, match="^algorithm=mine: its hyperparameters must have steps_per_update"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=nameless, **SETTINGS)


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (lambda state: {"count": state["count"] + 1.0}, r"\['count'\] int32\[\], not \['count'\] float32\[\]"),
        (lambda state: {"count": jnp.zeros(3, jnp.int32)}, r"\['count'\] int32\[\], not \['count'\] int32\[3\]"),
        (lambda state: {}, r"PyTreeDef\(\{'count': \*\}\), not PyTreeDef\(\{\}\)"),
    ],
)
def test_critic_whose_state_changes_its_type_is_refused_before_it_is_compiled(update, told):
    counting = critic(lambda: {"count": jnp.int32(0)}, update)
    with pytest.raises(ValueError, match=f"^critic: its state must keep its shapes and types in a fit: {told}"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=algorithm(), **{**SETTINGS, "critic": counting})


def test_state_of_a_critic_may_be_a_number_of_python():
    counting = critic(lambda: {"count": jnp.float32(0)}, lambda state: {"count": 1.0})
    jaxtrpo.train(ProbeEnvironment(), algorithm=algorithm(), **{**SETTINGS, "critic": counting})


def test_memory_of_an_algorithm_that_changes_its_type_is_refused():
    def make(spec):
        def step(params, memory, action, found, hyperparameters, key):
            return params, memory + 1.0, {}

        return actor_critic(spec, step=step, no_memory=lambda _: jnp.int32(0), work=gradient_work, gae_lambda=0.95)

    own = Algorithm("mine", {"steps_per_update": 64}, make)
    with pytest.raises(ValueError, match=r"^algorithm: learn must return a state .*int32\[\], not .*float32\[\]"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=own, **SETTINGS)


@pytest.mark.parametrize("env", [ProbeEnvironment(), Program()])
def test_state_of_a_critic_and_a_rule_may_hold_typed_keys(env, tmp_path):
    def draw(state, hyperparameters, metrics):
        state, key = jax.random.split(state)
        return state, {**hyperparameters, "rate": jax.random.uniform(key)}

    own = {
        "critic": critic(lambda: jax.random.key(0), lambda state: jax.random.split(state)[0]),
        "adapt": Rule(lambda hyperparameters: jax.random.key(1), draw),
        "algorithm": algorithm(),
    }
    settings = {**SETTINGS, **own, "total_steps": 384}
    whole = jaxtrpo.train(env, out=tmp_path / "whole", **settings)
    jaxtrpo.train(env, out=tmp_path / "part", **{**settings, "total_steps": 192})
    resumed = jaxtrpo.train(env, out=tmp_path / "part", resume=True, **settings)
    np.testing.assert_array_equal(resumed.metrics["rate"], whole.metrics["rate"])
    assert len(set(whole.metrics["rate"])) == len(whole.metrics["rate"])
    many = {"seeds": (0, 1), "out": tmp_path / "many"}
    jaxtrpo.train_many(env, **many, **{**settings, "total_steps": 192})
    assert [len(each.metrics["rate"]) for each in jaxtrpo.train_many(env, **many, **settings, resume=True)] == [
        len(whole.metrics["rate"])
    ] * 2
