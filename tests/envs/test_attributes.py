"""Attributes of simulators set during a training, and the global generators of worker processes."""

import functools
import math
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting_env import Paying, Unseeded, generous
from probe import ProbeEnvironment
from test_info import SETTINGS

import jaxtrpo
from jaxtrpo.envs.base import Transition, advance, start
from jaxtrpo.envs.gymnasium.attributes import set_attributes
from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.envs.registry import environment_for, make_env

ACTION = np.zeros((4, 2), np.float32)
KEY = jax.random.PRNGKey(0)


ENVS = {
    "here": functools.partial(make_env, generous, processes=0),
    "workers": functools.partial(make_env, generous, processes=2),
    "vector": functools.partial(make_env, "GenerousVector-v0", processes=0),
    "vectors in workers": functools.partial(make_env, "GenerousVector-v0", processes=2),
}


@pytest.mark.parametrize("name", ENVS)
def test_attributes_reach_every_simulator_and_stay(name):
    env = ENVS[name]()
    state = env.reset(KEY, 4)
    state = env.step(state, ACTION)
    np.testing.assert_array_equal(state.reward, [1.0] * 4)
    jaxtrpo.set_env(state, bonus=2.5)
    state = env.step(state, ACTION)
    np.testing.assert_array_equal(state.reward, [2.5] * 4)
    jaxtrpo.set_env(env, bonus=3.5)
    np.testing.assert_array_equal(env.step(state, ACTION).reward, [3.5] * 4)
    state = env.reset(KEY, 4)
    np.testing.assert_array_equal(env.step(state, ACTION).reward, [3.5] * 4)
    other = env.copy()
    np.testing.assert_array_equal(other.step(other.reset(KEY, 4), ACTION).reward, [1.0] * 4)
    with pytest.raises(SimulatorError, match="has no attribute bonsu to set"):
        jaxtrpo.set_env(env, bonsu=1)
    for each in (env, other):
        each.close()


@pytest.mark.parametrize("algorithm", ["pg", "a3c"])
def test_on_update_may_return_what_set_env_returns(algorithm):
    """The state itself, for simulators that are changed in place."""
    seen = []

    def changed(row, state):
        found = jaxtrpo.set_env(state, bonus=2.0)
        seen.append(found is state)
        return found

    settings = {**SETTINGS, "algorithm": algorithm, "critic": "mlp(hidden=(8,))", "total_steps": 640, "actors": 1}
    jaxtrpo.train(generous, on_update=changed, **settings)
    assert len(seen) > 1 and all(seen)


def test_state_that_reports_info_finds_its_simulators():
    env, close = environment_for(functools.partial(generous), 1, info=("x",))
    state = env.reset(KEY, 4)
    jaxtrpo.set_env(state, bonus=4.0)
    np.testing.assert_array_equal(env.step(state, ACTION).reward, [4.0] * 4)
    close()


@pytest.mark.parametrize("actors", [1, 2])
def test_curriculum_changes_what_a_training_sees(actors):
    env = make_env(generous, processes=2)

    def harder(row, state):
        jaxtrpo.set_env(state, bonus=10.0 * row["update"])

    metrics = jaxtrpo.train(env, on_update=harder, actors=actors, **SETTINGS).metrics
    env.close()
    # Episodes of five steps, some of which began before the change.
    lowest, highest = 50 * (metrics["update"] - 2), 50 * (metrics["update"] - 1)
    returns = metrics["mean_return"]
    assert np.all((returns > lowest)[2:] & (returns <= highest)[2:]) and len(returns) >= 4


@pytest.mark.parametrize("where", [None, ProbeEnvironment(), np.zeros((2, 4), np.uint32), {"physics": 3}])
def test_other_states_are_refused(where):
    state = where.reset(KEY, 2) if isinstance(where, ProbeEnvironment) else where
    with pytest.raises(
        ValueError,
        match="^set_env needs the state of a Gymnasium environment or of a JAX environment",
    ):
        jaxtrpo.set_env(state, gravity=1.0)


def test_global_generators_of_workers_are_seeded():
    def observed(key):
        env = make_env(Unseeded, processes=2)
        first = env.reset(key, 4)
        second = env.step(first, ACTION)
        env.close()
        return np.stack([first.obs, second.obs])

    one, again, other = observed(KEY), observed(KEY), observed(jax.random.PRNGKey(1))
    np.testing.assert_array_equal(one, again)
    assert np.all(one != other)
    assert len(np.unique(one)) == one.size  # neither the workers nor the steps repeat each other


# ---- parameters of JAX environments


class Bonus(NamedTuple):
    """State of an environment whose reward is a parameter."""

    parameters: dict


class BonusEnvironment:
    """Every reward is the parameter `bonus`, whatever one does; episodes have five steps."""

    name = "bonus"
    observation_size = action_size = 1
    action_low, action_high = np.float32([-1.0]), np.float32([1.0])
    episode_length = 5
    is_program = True

    def reset(self, key, num_envs):
        return start(key, num_envs, self._reset_rows, Bonus({"bonus": jnp.ones(num_envs)}))

    def step(self, state, action):
        bonus, healthy = state.physics.parameters["bonus"], jnp.ones(len(action), bool)
        moved = Transition(state.physics, jnp.zeros((len(action), 1)), bonus, ~healthy, healthy)
        return advance(state, moved, self._reset_rows, self.episode_length)

    def _reset_rows(self, keys, mask, now):
        return now, jnp.zeros((len(keys), 1))


@pytest.mark.parametrize(("actors", "algorithm"), [(1, "trpo"), (2, "trpo"), (2, "a2c")])
def test_parameters_of_a_jax_environment_follow_what_is_returned(actors, algorithm):
    """Also where one program makes several updates, all with the parameters before it."""

    def raised(row, state):
        before.append(set(np.ravel(state.actors.env.physics.parameters["bonus"])))
        return jaxtrpo.set_env(state, bonus=row["update"] + 1)

    before = []
    settings = {
        **SETTINGS,
        "critic": None,
        "algorithm": algorithm,
        "total_steps": 3200,
        "steps_per_update": 80,
        "segment_length": 20,
    }
    metrics = jaxtrpo.train(BonusEnvironment(), on_update=raised, actors=actors, **settings).metrics
    at_once = 16 if algorithm == "a2c" else 1
    in_use = 1 + (metrics["update"] - 1) // at_once * at_once
    assert before == [{value} for value in in_use] and len(set(in_use)) > 2
    returns = metrics["mean_return"] / 5  # per step, of episodes some of which began in the update before
    assert np.all(returns <= in_use) and np.all(returns[1:] >= in_use[:-1] + 0.5 * np.diff(in_use))


def test_parameters_of_each_environment():
    env = BonusEnvironment()
    state = jaxtrpo.set_env(env.reset(KEY, 4), bonus=[1, 2, 3, 4])
    np.testing.assert_array_equal(env.step(state, ACTION).reward, [1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"^set_env: bonus=\[1, 2\] must be a number, or an array of 4 numbers"):
        jaxtrpo.set_env(state, bonus=[1, 2])
    with pytest.raises(ValueError, match="^set_env: there is no parameter bonsu; choose from bonus$"):
        jaxtrpo.set_env(state, bonsu=1)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e300, [1.0, 2.0, math.nan, 4.0]])
def test_parameters_that_are_not_finite_are_refused(wrong):
    with pytest.raises(ValueError, match="^set_env: bonus=.* must be a number, .* all of them finite"):
        jaxtrpo.set_env(BonusEnvironment().reset(KEY, 4), bonus=wrong)


def test_rows_of_a_parameter_keep_their_shape():
    """Also where environments are dealt out to actors, but never a transposed array."""
    wind = {"wind": jnp.zeros((4, 3), jnp.float32)}
    state = BonusEnvironment().reset(KEY, 4)._replace(physics=Bonus(wind))
    rows = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(jaxtrpo.set_env(state, wind=rows).physics.parameters["wind"], rows)
    dealt = state._replace(physics=Bonus(jax.tree.map(lambda leaf: leaf.reshape(2, 2, 3), wind)))
    changed = jaxtrpo.set_env(dealt, wind=rows).physics.parameters["wind"]
    np.testing.assert_array_equal(changed, rows.reshape(2, 2, 3))
    for wrong in (rows.T, np.arange(3.0)):
        with pytest.raises(ValueError, match="^set_env: wind=.* must be a number, or an array of 12 numbers"):
            jaxtrpo.set_env(state, wind=wrong)


def test_states_that_a_run_cannot_go_on_from_are_refused():
    def other_key(row, state):
        return state._replace(key=state.key + 1)

    def other_shape(row, state):
        return state._replace(actors=jax.tree.map(lambda leaf: leaf[:, :1], state.actors))

    def other_bonus(row, state):
        return jaxtrpo.set_env(state, bonus=2.0)

    def only_actors(row, state):
        return jaxtrpo.set_env(state.actors, bonus=2.0)

    for change, settings, sentence in (
        (only_actors, {}, "on_update returned .*ActorState, which is not the state of the run"),
        (other_key, {}, "on_update returned a state with another key; only values of its environments may differ"),
        (other_shape, {}, "on_update returned a state with another shape"),
        (other_bonus, {"algorithm": "a3c"}, "on_update returned a state, .* not supported with asynchronous actors"),
    ):
        with pytest.raises(ValueError, match=sentence):
            jaxtrpo.train(BonusEnvironment(), on_update=change, actors=1, **{**SETTINGS, "critic": None, **settings})
    with pytest.raises(ValueError, match="on_update returned a state, .* runs compiled as one program"):
        jaxtrpo.train_many(BonusEnvironment(), seeds=range(2), on_update=other_bonus, **SETTINGS)


def test_checkpoints_contain_changed_parameters(tmp_path):
    """So a resumed run is bit-identical, and a run that has ended keeps its last change."""

    def raised(row, state):
        return jaxtrpo.set_env(state, bonus=row["update"])

    settings = {**SETTINGS, "critic": None, "actors": 1, "on_update": raised, "out": tmp_path / "run"}
    ended = jaxtrpo.train(BonusEnvironment(), **settings)
    assert set(np.ravel(ended.state.actors.env.physics.parameters["bonus"])) == {ended.metrics["update"][-1]}
    resumed = jaxtrpo.train(BonusEnvironment(), **{**settings, "resume": True, "total_steps": 600})
    whole = jaxtrpo.train(BonusEnvironment(), **{**settings, "out": None, "total_steps": 600})
    np.testing.assert_array_equal(resumed.metrics["mean_return"], whole.metrics["mean_return"])


def test_integers_are_not_rounded():
    parameters = {"count": jnp.ones(2, jnp.int32), "on": jnp.ones(2, bool)}
    state = BonusEnvironment().reset(KEY, 2)._replace(physics=Bonus(parameters))
    changed = jaxtrpo.set_env(state, count=[2, 3], on=False).physics.parameters
    assert changed["count"].tolist() == [2, 3] and changed["on"].tolist() == [False, False]
    for wrong in ({"count": 2.7}, {"count": "9"}, {"count": math.nan}, {"on": 2}, {"count": 2j}):
        with pytest.raises(ValueError, match="must be a number, or an array of 2 numbers, of type"):
            jaxtrpo.set_env(state, **wrong)


class Forwarding(gymnasium.Wrapper):
    """As wrappers before Gymnasium 1.0, it seems to have what its environment has."""

    def __getattr__(self, name):
        return getattr(self.env, name)


def test_attributes_are_set_where_they_are():
    env = Forwarding(generous())
    set_attributes("generous", env, {"bonus": 2.0})
    assert env.env.unwrapped.bonus == 2.0 and "bonus" not in vars(env)
    with pytest.raises(SimulatorError, match="has no attribute bonsu to set"):
        set_attributes("generous", env, {"bonsu": 2.0})


def test_attributes_that_were_set_before_a_run_are_those_of_its_simulators():
    """Also where it has others, because it logs entries of `info`."""

    env = make_env(Paying, processes=0)
    jaxtrpo.set_env(env, bonus=3.0)
    settings = {"num_envs": 2, "steps_per_update": 32, "total_steps": 64, "actors": 1, "progress": False}
    metrics = jaxtrpo.train(env, policy="mlp(hidden=())", critic="none", **settings).metrics
    assert "success_rate" in metrics
    ended = metrics["episodes"] > 0
    np.testing.assert_allclose(metrics["mean_return"][ended], 3 * metrics["mean_length"][ended])
