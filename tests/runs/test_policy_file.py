"""Policy files, and the compilation cache."""

import os

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.networks import mlp
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs import compilation_cache as compilation
from jaxtrpo.runs import directory, policy_file


def make_policy(hidden=(5, 3), observation_size=4, action_size=2, seed=0):
    keys = jax.random.split(jax.random.PRNGKey(seed), 3)
    actions = ActionSpace(
        low=np.linspace(-1, -0.3, action_size, dtype=np.float32),
        high=np.linspace(0.1, 2, action_size, dtype=np.float32),
    )
    maker = mlp(hidden=hidden)
    params = maker.make(observation_size, actions).init(keys[0])
    mean, variance = jax.random.normal(keys[1], (2, observation_size))
    return TrainedPolicy(
        env_name="Some-v1",
        observation_size=observation_size,
        actions=actions,
        maker=maker,
        params=params,
        moments=Moments(jax.numpy.float32(1e6), mean, variance**2),
    )


@pytest.mark.parametrize("hidden", [(), (5, 3)])
def test_policy_round_trips_exactly(tmp_path, hidden):
    policy = make_policy(hidden)
    policy_file.save_policy(tmp_path, policy)
    loaded = policy_file.load_policy(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == [directory.POLICY_FILE]
    assert (loaded.env_name, loaded.observation_size, loaded.maker) == ("Some-v1", 4, policy.maker)
    assert loaded.actions[2:] == policy.actions[2:]
    for field in ("action_low", "action_high", "params", "moments"):
        chex.assert_trees_all_equal(getattr(loaded, field), getattr(policy, field))
        chex.assert_trees_all_equal_dtypes(getattr(loaded, field), getattr(policy, field))
    obs = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded(obs), policy(obs))
    key = jax.random.PRNGKey(1)
    np.testing.assert_array_equal(loaded(obs, key=key), policy(obs, key=key))


def test_failed_write_leaves_the_old_policy(tmp_path, monkeypatch):
    policy_file.save_policy(tmp_path, make_policy(seed=0))
    before = (tmp_path / directory.POLICY_FILE).read_bytes()

    def broken(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        policy_file.save_policy(tmp_path, make_policy(seed=1))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [(directory.POLICY_FILE, before)]


def test_errors_tell_missing_policies_apart(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such directory: .*missing"):
        policy_file.load_policy(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match=f"no {directory.POLICY_FILE} in"):
        policy_file.load_policy(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="file is not a directory"):
        policy_file.load_policy(tmp_path / "file")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("policy")
    policy_file.save_policy(place, make_policy())
    return place, (place / directory.POLICY_FILE).read_bytes()


@settings(deadline=None)  # disks can be slow
@given(st.data())
def test_truncated_policy_file_is_rejected(saved, data):
    place, content = saved
    (place / directory.POLICY_FILE).write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match=r"is damaged or is not a file of jaxtrpo$"):
        policy_file.load_policy(place)


@settings(deadline=None)  # disks can be slow
@given(st.binary(max_size=100))
def test_other_bytes_are_rejected(saved, garbage):
    place, _ = saved
    (place / directory.POLICY_FILE).write_bytes(garbage)
    with pytest.raises(ValueError, match=r"is damaged or is not a file of jaxtrpo$"):
        policy_file.load_policy(place)


def test_policy_with_other_format_version_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_file, "FORMAT", 99)
    policy_file.save_policy(tmp_path, make_policy())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 99"):
        policy_file.load_policy(tmp_path)


# ---- compilation cache


@pytest.fixture
def jax_cache(tmp_path, monkeypatch):
    """JAX without a configured cache, and a temporary user cache directory; restores JAX's settings afterwards."""
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", True)
    monkeypatch.setattr(compilation, "user_cache_path", lambda name: tmp_path / name)
    yield tmp_path / "jaxtrpo"
    for name, value in before.items():
        jax.config.update(name, value)


def test_cache_is_in_the_users_cache_directory(jax_cache):
    compilation.cache_compilations()
    place = jax.config.jax_compilation_cache_dir
    assert place.startswith(str(jax_cache)) and os.path.isdir(place)
    compilation.cache_compilations()
    assert jax.config.jax_compilation_cache_dir == place


def test_cache_configured_by_the_user_is_kept(jax_cache, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    seconds = jax.config.jax_persistent_cache_min_compile_time_secs
    compilation.cache_compilations()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == seconds
    assert not jax_cache.exists()


def test_cache_disabled_by_the_user_stays_disabled(jax_cache):
    jax.config.update("jax_enable_compilation_cache", False)
    compilation.cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None and not jax_cache.exists()


def test_unwritable_cache_directory_is_skipped_silently(jax_cache, recwarn):
    jax_cache.write_text("a file where the directory should be")
    compilation.cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None and not recwarn.list
