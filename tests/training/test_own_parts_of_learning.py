"""Algorithms, critics and rules of a user: what they may hold, and what is said if they return something else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict
from probe import ProbeEnvironment
from test_train import TINY

import jaxtrpo
from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.algorithm import Algorithm
from jaxtrpo.algorithms.policy_gradient import gradient_work
from jaxtrpo.critics.critic import Critic, CriticMaker
from jaxtrpo.parallel.actors import first
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


def critic(begin, update=lambda state: state) -> CriticMaker:
    """Predicts 0; `update` makes the state of the next fit."""
    made = Critic(
        init=lambda key: begin(),
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


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hyperparameters": {"rate": 1.0}}, "hyperparameters must have steps_per_update, the steps of a batch"),
        ({"hyperparameters": {"steps_per_update": 64, "env_steps": 5.0}}, "hyperparameters have env_steps, a name"),
        ({"hyperparameters": {"steps_per_update": 64, "progress": 5.0}}, "hyperparameters have progress, a name that"),
        (
            {"hyperparameters": {"steps_per_update": 64, "return_100": 0}},
            "hyperparameters have return_100, a name that",
        ),
        ({"hyperparameters": {"steps_per_update": 0}}, "steps_per_update=0 must be a whole number of at least 1"),
        ({"hyperparameters": {"steps_per_update": 64.5}}, "steps_per_update=64.5 must be a whole number"),
        ({"hyperparameters": {"steps_per_update": 64, "rate": np.nan}}, "rate=nan must be a number"),
        ({"hyperparameters": {"steps_per_update": 64, "rate": "fast"}}, "rate='fast' must be a number"),
        ({"num_envs": 0}, "num_envs=0 must be a whole number of at least 1"),
        ({"updates_at_once": 0}, "updates_at_once=0 must be a whole number of at least 1"),
        ({"steps_of_each": 1.5}, "steps_of_each=1.5 must be a whole number of at least 1"),
        ({"make": lambda spec: None}, "make must return a Learner, not NoneType"),
    ],
)
def test_algorithm_with_impossible_numbers_is_refused(changed, told):
    own = algorithm()._replace(**changed)
    with pytest.raises(ValueError, match=f"^algorithm=mine: its {told}"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=own, **SETTINGS)


def test_numbers_of_an_algorithm_may_be_those_of_numpy_and_jax():
    numbers = {"steps_per_update": np.float32(64), "rate": jnp.float32(0.5), "other": np.int64(3)}
    own = algorithm()._replace(hyperparameters=numbers)
    metrics = jaxtrpo.train(ProbeEnvironment(), algorithm=own, **SETTINGS).metrics
    assert set(metrics["rate"]) == {0.5} and set(metrics["other"]) == {3.0}
    assert metrics["steps_per_update"][-1] == 64


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (lambda state: {"count": state["count"] + 1.0}, r"\['count'\] int32\[\], not \['count'\] float32\[\]"),
        (lambda state: {"count": jnp.zeros(3, jnp.int32)}, r"\['count'\] int32\[\], not \['count'\] int32\[3\]"),
        (lambda state: {}, r"\['count'\] int32\[\], not nothing at \['count'\]"),
        (lambda state: {**state, "more": 1.0}, r"nothing at \['more'\], not \['more'\] float32\[\]"),
        (lambda state: (state["count"],), r"PyTreeDef\(\{'count': \*\}\), not PyTreeDef\(\(\*,\)\)"),
        (lambda state: FrozenDict(state), r"PyTreeDef\(\{'count': \*\}\), not PyTreeDef\(CustomNode\(FrozenDict"),
    ],
)
def test_critic_whose_state_changes_its_type_is_refused_before_it_is_compiled(update, told):
    counting = critic(lambda: {"count": jnp.int32(0)}, update)
    with pytest.raises(ValueError, match=f"^critic: its state must keep its shapes and types in a fit: {told}"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=algorithm(), **{**SETTINGS, "critic": counting})


def test_state_of_a_critic_may_be_a_number_of_python():
    counting = critic(lambda: {"count": jnp.float32(0)}, lambda state: {"count": 1.0})
    jaxtrpo.train(ProbeEnvironment(), algorithm=algorithm(), **{**SETTINGS, "critic": counting})


def with_step(change):
    """The algorithm whose step returns what `change` makes of parameters and memory."""

    def make(spec):
        def step(params, memory, action, found, hyperparameters, key):
            return change(params, memory)

        return actor_critic(spec, step=step, no_memory=lambda _: jnp.int32(0), work=gradient_work, gae_lambda=0.95)

    return Algorithm("mine", {"steps_per_update": 64}, make)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda params, memory: (params, memory + 1.0, {}),
            r"step must return memory with the shapes and types of those it got: int32\[\], not float32\[\]",
        ),
        (
            lambda params, memory: (params, (), {}),
            r"step must return memory with the shapes and types of those it got: int32\[\], not nothing at its root",
        ),
        (
            lambda params, memory: (jax.tree.map(lambda leaf: leaf[None], params), memory, {}),
            "step must return policy parameters with the shapes and types of those it got: ",
        ),
        (
            lambda params, memory: (params, memory),
            "step must return policy parameters, memory and metrics, not 2 values",
        ),
        (lambda params, memory: params, "step must return policy parameters, memory and metrics, not dict"),
        (lambda params, memory: (params, memory, None), "metrics that step returns must be a dictionary, not NoneType"),
    ],
)
def test_step_that_returns_something_else_is_refused(change, told):
    with pytest.raises(ValueError, match=f"^algorithm: (the )?{told}"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=with_step(change), **SETTINGS)


def test_learner_whose_state_changes_its_type_is_refused():
    def make(spec):
        learner = with_step(lambda params, memory: (params, memory, {})).make(spec)

        def learn(state, *given):
            state, info = learner.learn(state, *given)
            return state._replace(memory=state.memory + 1.0), info

        return learner._replace(learn=learn)

    own = Algorithm("mine", {"steps_per_update": 64}, make)
    with pytest.raises(ValueError, match=r"^algorithm: learn must return a state .*int32\[\], not .*float32\[\]"):
        jaxtrpo.train(ProbeEnvironment(), algorithm=own, **SETTINGS)


def test_step_that_is_not_finite_is_discarded_and_told(capsys):
    """Parameters that are NaN would act until the end of the run, and be saved."""

    def change(params, memory):
        broken = jnp.where(memory % 2 == 1, jnp.nan, 0.0)
        return jax.tree.map(lambda leaf: leaf + 1 + broken, params), memory + 1, {}

    settings = {**SETTINGS, "total_steps": 64 * 14, "progress": True}
    result = jaxtrpo.train("CartPole-v1", algorithm=with_step(change), **settings)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(result.state.learner.policy)))
    accepted = list(result.metrics["accepted"])
    # From the first batch, nothing is learned; the memory that makes it fail is kept, too.
    assert accepted[:2] == [0, 1] and not any(accepted[2:])
    assert int(first(result.state.learner.memory)) == 1
    assert "none of the last 10 updates has changed the policy (accepted is 0)" in capsys.readouterr().err


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


def broken_algorithm() -> Algorithm:
    return with_step(lambda params, memory: (params, memory, None))


@pytest.mark.parametrize(
    "own",
    [
        {"surrogate": lambda new, samples: 1.0},
        {"surrogate": lambda new, samples: undefined(new)},  # noqa: F821
        {"algorithm": broken_algorithm()},
        {"critic": critic(lambda: 0.0, lambda state: ())},
        {"adapt": Rule(lambda settings: (), lambda state, settings, metrics: None, spec_string="mine")},
    ],
)
def test_broken_part_is_refused_before_the_old_run_is_replaced(own, tmp_path):
    settings = {**TINY, "actors": 1, "total_steps": 192, "out": tmp_path}
    jaxtrpo.train(ProbeEnvironment(), progress=False, **settings)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises((ValueError, NameError)):
        jaxtrpo.train(ProbeEnvironment(), progress=False, overwrite=True, **{**settings, **own})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
