"""Policy files, and the compilation cache."""

import copy
import os
import pickle

import chex
import jax
import numpy as np
import pytest
from flax import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.networks import mlp
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs import compilation_cache as compilation
from jaxtrpo.runs import directory, policy_file
from jaxtrpo.runs.msgpack_file import content_of, write_msgpack


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


@pytest.mark.parametrize("copied", [lambda policy: pickle.loads(pickle.dumps(policy)), copy.deepcopy])
def test_copies_of_a_policy_act_alike(copied):
    policy, obs = make_policy(), np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    actions = policy(obs)  # which makes the network
    found = copied(policy)
    np.testing.assert_array_equal(found(obs), actions)
    assert repr(found) == repr(policy) and found.maker.spec_string == policy.maker.spec_string


@pytest.mark.parametrize("key", [0, np.int64(7)])
def test_number_in_place_of_a_random_key_is_refused(key):
    policy = make_policy()
    with pytest.raises(ValueError, match=rf"^key={key} must be a random key of JAX, such as jax.random.key\({key}\)$"):
        policy(np.zeros(policy.observation_size), key=key)


def test_directory_is_found_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    policy_file.save_policy("~/here", make_policy())
    assert (tmp_path / "here" / directory.POLICY_FILE).is_file()
    with pytest.raises(FileNotFoundError, match=f"no such directory: {tmp_path}/there$"):
        policy_file.save_policy("~/there", make_policy())


def test_failed_write_leaves_the_old_policy(tmp_path, monkeypatch):
    policy_file.save_policy(tmp_path, make_policy(seed=0))
    before = (tmp_path / directory.POLICY_FILE).read_bytes()

    def broken(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        policy_file.save_policy(tmp_path, make_policy(seed=1))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [(directory.POLICY_FILE, before)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (lambda place: (make_policy(), place), "directory=.* must be the path of a directory"),
        (lambda place: (place, "policy"), "policy='policy' must be a trained policy"),
    ],
)
def test_what_cannot_be_saved_is_refused(arguments, told, tmp_path):
    with pytest.raises(ValueError, match=told) as error:
        policy_file.save_policy(*arguments(tmp_path))
    assert len(str(error.value)) < 200 and not list(tmp_path.iterdir())


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


@settings(deadline=None)  # disks can be slow
@given(st.data())
def test_one_changed_bit_is_noticed(saved, data):
    place, content = saved
    changed = bytearray(content)
    changed[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (place / directory.POLICY_FILE).write_bytes(bytes(changed))
    with pytest.raises(ValueError, match=r"is damaged or is not a file of jaxtrpo$"):
        policy_file.load_policy(place)


def test_files_without_a_checksum_are_read(saved):
    """Versions before 0.1.0 wrote none."""
    place, content = saved
    (place / directory.POLICY_FILE).write_bytes(content_of(content))
    assert policy_file.load_policy(place).env_name == make_policy().env_name


DAMAGES = {
    "no name": {"env_name": 3},
    "a list in place of actions": {"actions": []},
    "no bounds": {"actions": {"low": None, "high": None, "counts": [], "shape": None}},
    "bounds of two sizes": {
        "actions": {"low": np.zeros(1, np.float32), "high": np.zeros(2, np.float32), "counts": [], "shape": None}
    },
    "words as choices": {
        "actions": {"low": np.zeros(1, np.float32), "high": np.ones(1, np.float32), "counts": "ab", "shape": None}
    },
    "size of observations": {"observation_size": "four"},
    "negative size": {"observation_size": -1},
    "moments": {"moments": {"count": 0.0}},
    "moments of another size": {
        "moments": {"count": np.float32(1), "mean": np.zeros(9, np.float32), "variance": np.ones(9, np.float32)}
    },
    "parameters": {"params": {"params": "none"}},
    "time limit": {"max_episode_steps": "long"},
    "observations": {"observations": {"parts": 3}},
    "network": {"network": None},
}


def with_content(place, **changes):
    """Writes a policy file with a right checksum and other content."""
    path = place / directory.POLICY_FILE
    content = serialization.msgpack_restore(content_of(path.read_bytes()))
    content.pop("format")
    write_msgpack(path, policy_file.FORMAT, {**content, **changes})


@pytest.mark.parametrize("changes", DAMAGES.values(), ids=DAMAGES)
def test_content_of_the_wrong_kind_is_rejected(tmp_path, changes):
    policy_file.save_policy(tmp_path, make_policy())
    with_content(tmp_path, **changes)
    with pytest.raises(ValueError, match=r"is damaged or is not a file of jaxtrpo$"):
        policy_file.load_policy(tmp_path)


def test_parameters_of_another_network_are_rejected(tmp_path):
    policy_file.save_policy(tmp_path, make_policy())
    with_content(tmp_path, network="mlp(hidden=(3, 3, 3))")
    with pytest.raises(
        ValueError, match=r"is damaged: its parameters are not those of the network mlp\(hidden=\(3, 3, 3\)\)$"
    ):
        policy_file.load_policy(tmp_path)


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
