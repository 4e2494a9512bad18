"""gymnax environments obey the environment protocol; without gymnax, only the error message is tested."""

import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtrpo
from jaxtrpo.envs import base
from jaxtrpo.envs.registry import make_env

THERE = importlib.util.find_spec("gymnax") is not None
needs_gymnax = pytest.mark.skipif(not THERE, reason="gymnax is not installed")


def test_missing_package_error_names_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)  # pretends that it is not installed
    with pytest.raises(ValueError, match=r"^gymnax:CartPole-v1 needs the package gymnax: pip install 'gymnax>=1.0'$"):
        make_env("gymnax:CartPole-v1")


@needs_gymnax
def test_unknown_name_or_parameter_is_rejected():
    with pytest.raises(ValueError, match="did you mean gymnax:CartPole-v1"):
        make_env("gymnax:CartPole")
    with pytest.raises(ValueError, match=r"gymnax:CartPole-v1 has no parameter gravitation; it has .*gravity, "):
        make_env("gymnax:CartPole-v1", gravitation=1.0)


@needs_gymnax
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_steps_in_episode": 0}, "max_steps_in_episode=0 must be a whole number of at least 1"),
        ({"max_steps_in_episode": 2.7}, "max_steps_in_episode=2.7 must be a whole number of at least 1"),
        ({"max_steps_in_episode": "abc"}, "max_steps_in_episode='abc' must be a whole number of at least 1"),
        ({"gravity": "strong"}, "gravity='strong' must be a number"),
        ({"gravity": None}, "gravity=None must be a number"),
        ({"gravity": float("nan")}, "gravity=nan must be a number"),
        ({"gravity": True}, "gravity=True must be a number"),
    ],
    ids=str,
)
def test_parameters_of_wrong_types_are_rejected(options, told):
    with pytest.raises(ValueError, match=f"^gymnax:CartPole-v1: {told}$"):
        make_env("gymnax:CartPole-v1", **options)


@needs_gymnax
@pytest.mark.parametrize(
    ("name", "observations", "counts", "length"),
    [
        ("CartPole-v1", 4, (2,), 500),
        ("Pendulum-v1", 3, (), 200),
        ("Breakout-MinAtar", 400, (3,), 1000),
        ("FrozenLake-misc", 16, (4,), 100),
        ("Reacher-misc", 8, (), 100),
    ],
)
def test_environment_implements_protocol(name, observations, counts, length):
    env = make_env(f"gymnax:{name}")
    assert isinstance(env, base.Environment) and env.is_program
    assert (env.name, env.observation_size, env.action_counts) == (f"gymnax:{name}", observations, counts)
    assert env.episode_length == length
    state = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), 3)
    after = jax.jit(env.step)(state, jnp.zeros((3, env.action_size)))
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, state)
    if name == "Breakout-MinAtar":
        return
    assert after.obs.dtype == jnp.float32 and np.isfinite(after.obs).all()
    if name == "FrozenLake-misc":
        np.testing.assert_array_equal(np.sort(after.obs, axis=1)[:, -1], 1.0)
        np.testing.assert_array_equal(after.obs.sum(axis=1), 1.0)


@needs_gymnax
@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("Breakout-MinAtar", (10, 10, 4), "bool"),
        ("Seaquest-MinAtar", (10, 10, 10), "bool"),
        ("Freeway-MinAtar", (10, 10, 7), "bool"),
        ("Catch-bsuite", None, "float32"),
        ("Pong-misc", None, "float32"),
    ],
)
def test_observations_of_minatar_are_images_of_bool(name, shape, dtype):
    import gymnax

    theirs, params = gymnax.make(name)
    env = make_env(f"gymnax:{name}")
    (leaf,) = env.observation_space.leaves
    if shape is None:
        assert env.observation_space.is_flat
        return
    assert leaf == ("image", shape, dtype)
    state, step = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(1), 4), jax.jit(env.step)
    for number in range(30):
        state = step(state, jnp.full((4, 1), number % 3, jnp.int32))
        seen = jax.vmap(lambda inner: theirs.get_obs(inner, params))(state.physics.state)
        assert state.obs["image"].dtype == dtype
        np.testing.assert_array_equal(state.obs["image"], seen)
    assert np.asarray(state.obs["image"]).any()
    flat = env.observations.flatten(np.asarray(state.obs["image"]))
    np.testing.assert_array_equal(flat["image"], state.obs["image"])


@needs_gymnax
def test_steps_match_gymnax():
    import gymnax

    theirs, params = gymnax.make("CartPole-v1")
    env = make_env("gymnax:CartPole-v1", max_steps_in_episode=30)
    state = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(1), 4)
    step, their_step = jax.jit(env.step), jax.jit(jax.vmap(theirs.step_env, (None, 0, 0, None)))
    ended = {"terminated": 0, "truncated": 0}
    for number in range(80):
        action = (
            jnp.full((4, 1), float(number % 2)).at[0].set(1.0)
        )  # the first pole falls, the others balance for a while
        obs, _, reward, terminated, _ = their_step(
            jax.random.PRNGKey(0), state.physics.state, action[:, 0].astype(jnp.int32), params
        )
        after = step(state, action)
        np.testing.assert_allclose(after.final_obs, obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(after.reward, reward)
        np.testing.assert_array_equal(after.terminated, terminated)
        np.testing.assert_array_equal(after.truncated, (state.elapsed + 1 >= 30) & ~np.asarray(terminated))
        over = np.asarray(after.terminated | after.truncated)
        assert (np.asarray(after.elapsed)[over] == 0).all() and (np.abs(np.asarray(after.obs)[over]) <= 0.05).all()
        ended = {name: ended[name] + int(getattr(after, name).sum()) for name in ended}
        state = after
    assert ended["terminated"] > 0 and ended["truncated"] > 0


@needs_gymnax
def test_environment_does_not_depend_on_number_of_environments():
    env = make_env("gymnax:Catch-bsuite")
    reset = jax.jit(env.reset, static_argnums=1)
    few, many = reset(jax.random.PRNGKey(3), 2), reset(jax.random.PRNGKey(3), 5)
    for _ in range(12):
        few, many = jax.jit(env.step)(few, jnp.ones((2, 1))), jax.jit(env.step)(many, jnp.ones((5, 1)))
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:2]), few, many)


@needs_gymnax
def test_training_solves_cart_pole():
    results = jaxtrpo.train_many("gymnax:CartPole-v1", seeds=range(4), total_steps=60_000, progress=False)
    assert min(result.metrics["return_100"][-1] for result in results) > 150
    assert jaxtrpo.evaluate(results[0].policy, episodes=5).mean > 300


@needs_gymnax
def test_parameters_are_part_of_the_state():
    """A force of 0 moves no cart, and stays through resets; the other environment has its own."""
    env = make_env("gymnax:CartPole-v1", force_mag=20.0)
    state = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), 2)
    assert set(state.physics.parameters["force_mag"].tolist()) == {20.0}
    assert "max_steps_in_episode" not in state.physics.parameters
    state, step = jaxtrpo.set_env(state, force_mag=[0.0, 20.0]), jax.jit(env.step)
    speeds = []
    for _ in range(300):
        state = step(state, jnp.ones((2, 1)))
        speeds.append(state.final_obs[:, 1])
    assert np.sum(state.elapsed < 300) == 2  # both have begun again
    lowest, highest = np.percentile(np.abs(speeds), [0, 100], axis=0)
    assert highest[0] < 0.6 < 1.0 < highest[1]
