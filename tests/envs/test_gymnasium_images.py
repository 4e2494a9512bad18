"""Images of Gymnasium's simulators reach compiled code as they are."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from camera_env import Camera, Cameras, Floats, Grid
from gymnasium import spaces

from jaxtrpo.envs.base import env_keys
from jaxtrpo.envs.gymnasium.make import make_gymnasium_env
from jaxtrpo.envs.gymnasium.observations import observations_of
from jaxtrpo.envs.observation_space import channels_last, image_axes

KEY = np.array([0, 5], np.uint32)
LAYOUTS = ("last", "first", "grey", "stack", "dict")


def plain(layout: str, length: int, seed: int, actions, terminates: bool):
    """A loop in Python: observations that actions see, and those that steps lead to."""
    env = Camera(layout, length, terminates)
    obs, _ = env.reset(seed=seed)
    found = []
    for action in actions:
        after, reward, terminated, truncated, _ = env.step(action)
        found.append((obs, after, reward, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else after
    return found


def as_seen(layout: str, obs):
    if layout == "dict":
        gear = np.eye(3)[obs["gear"]]
        return {"rgb": obs["rgb"], "vector": np.concatenate([gear, obs["speed"]])}
    return {"image": channels_last(obs, image_axes(obs.shape))}


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_observations_are_those_of_a_plain_loop(layout, processes):
    if processes and layout not in ("last", "dict"):
        pytest.skip("processes do the same with every layout")
    terminates = layout != "first"
    env = make_gymnasium_env(functools.partial(Camera, layout, 4, terminates), processes=processes)
    step = jax.jit(env.step)
    state = jax.jit(env.reset, static_argnums=1)(KEY, 2)
    actions = np.random.default_rng(1).integers(0, 3, (11, 2, 1)).astype(np.int32)
    seeds = [int(key[1]) & 0x7FFFFFFF for key in np.asarray(env_keys(KEY, 2))]
    wanted = [plain(layout, 4, seed, actions[:, i, 0], terminates) for i, seed in enumerate(seeds)]
    for t, action in enumerate(actions):
        before, state = state, step(state, jnp.asarray(action))
        for i in range(2):
            obs, after, reward, terminated, truncated = wanted[i][t]
            for found, plain_obs in ((before.obs, obs), (state.final_obs, after)):
                seen = as_seen(layout, plain_obs)
                assert found.keys() == seen.keys()
                for name, array in seen.items():
                    np.testing.assert_array_equal(found[name][i], array)
            assert (state.reward[i], state.terminated[i], state.truncated[i]) == (reward, terminated, truncated)
    image = state.obs["rgb" if layout == "dict" else "image"]
    assert image.dtype == np.uint8 and env.observation_space.images[0].shape == image.shape[1:]
    env.close()


def test_truth_values_are_images_of_bool():
    env = make_gymnasium_env(Grid, processes=0)
    state = jax.jit(env.reset, static_argnums=1)(KEY, 1)
    plain_env = Grid()
    np.testing.assert_array_equal(
        state.obs["image"][0], plain_env.reset(seed=int(env_keys(KEY, 1)[0, 1]) & 0x7FFFFFFF)[0]
    )
    assert state.obs["image"].dtype == bool


def test_masks_beside_images():
    env = make_gymnasium_env(functools.partial(Camera, "masked", 4), processes=0)
    state = jax.jit(env.reset, static_argnums=1)(KEY, 2)
    assert env.observation_space == env.observations.space
    assert state.obs.keys() == {"rgb", "vector"} and state.obs["vector"].shape == (2, 2)
    np.testing.assert_array_equal(state.mask, [[True, False, True]] * 2)
    state = jax.jit(env.step)(state, jnp.zeros((2, 1), jnp.int32))
    np.testing.assert_array_equal(state.mask, [[True, True, True]] * 2)
    np.testing.assert_array_equal(state.final_obs["vector"], [[1, -1]] * 2)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_vector_environments_show_images_in_every_mode(mode):
    env = make_gymnasium_env(functools.partial(Cameras, mode), processes=0)
    step = jax.jit(env.step)
    state = jax.jit(env.reset, static_argnums=1)(KEY, 2)
    ends = 0
    for _ in range(12):
        before, state = state, step(state, jnp.zeros((2, 1), jnp.int32))
        for obs in (state.obs, state.final_obs):
            assert obs["rgb"].shape == (2, 6, 8, 3) and obs["rgb"].dtype == np.uint8
            np.testing.assert_array_equal(obs["rgb"][:, 0, 0, 0], obs["vector"][:, 0])  # both count the steps
        for i in np.flatnonzero(state.terminated):
            ends += 1
            assert state.final_obs["rgb"][i, 0, 0, 0] == 4
            assert state.final_obs["rgb"][i, 5, 7, 2] == before.obs["rgb"][i, 5, 7, 2]
        for i in np.flatnonzero(state.invalid):
            np.testing.assert_array_equal(state.final_obs["rgb"][i], before.obs["rgb"][i])
    assert ends >= 4
    env.close()


def test_wider_integers_must_be_bytes():
    space = spaces.Dict({"image": spaces.Box(0, 255, (8, 8, 1), np.uint8)})
    for dtype, largest, least in ((np.int64, 255, 0), (np.uint16, 256, 0), (np.int8, 127, -1)):
        pixels = np.linspace(least, largest, 64).round().astype(dtype).reshape(8, 8, 1)
        if (least, largest) == (0, 255):
            np.testing.assert_array_equal(observations_of(space).flatten({"image": pixels})["image"], pixels)
        else:
            with pytest.raises(ValueError, match=f"has dtype {np.dtype(dtype)}, which does not match its space"):
                observations_of(space).flatten({"image": pixels})


def test_two_images_of_one_name_are_refused():
    image = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    with pytest.raises(ValueError, match="^two images have the name 'a.b'; rename an entry of the observation space$"):
        observations_of(spaces.Dict({"a": spaces.Dict({"b": image}), "a.b": image}))


def test_image_of_another_dtype_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"observation has dtype float64, which does not match its space Box\(0, 255"):
        make_gymnasium_env(Floats, processes=0)
