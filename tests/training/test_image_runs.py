"""Training with images and with stacked frames: what holds for other runs holds for these."""

from __future__ import annotations

import importlib
import itertools

import gymnasium
import jax
import numpy as np
import pytest
from camera_env import Camera
from flax import linen as nn
from light_env import LightEnvironment

import jaxtrpo
from jaxtrpo.ops.minibatches import Parts
from jaxtrpo.parallel.collectives import num_actors
from jaxtrpo.policies.distributions import Categorical
from jaxtrpo.training.prepare import prepare

SMALL = "cnn(channels=(4,), hidden=16)"
SMALL_WITH_MEMORY = "gru(hidden=8, encoder=(16,), channels=(4,), bptt_steps=8)"
SIZES = {"num_envs": 8, "steps_per_update": 256, "actors": 1, "progress": False}
FAST = {"policy": SMALL, **SIZES}
# Steps to learn the lit pixel, and settings of the algorithm.
ALGORITHMS = {
    "trpo": ("trpo(max_kl=0.05)", 8_000),
    "npg": ("npg(max_kl=0.02)", 4_000),
    "trpo_penalty": ("trpo_penalty(target_kl=0.05)", 8_000),
    "ppo": ("ppo(learning_rate=0.003)", 8_000),
    "pg": ("pg(learning_rate=0.02)", 12_000),
    "a2c": ("a2c(learning_rate=0.01)", 12_000),
    "a3c": ("a3c(learning_rate=0.01)", 12_000),
}


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


class OwnNetwork(nn.Module):
    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Conv(4, (3, 3))(obs["image"] / 255.0))
        x = nn.relu(nn.Dense(16)(x.reshape(len(x), -1)))
        return Categorical((nn.Dense(4)(x),))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_from_an_image(name):
    algorithm, steps = ALGORITHMS[name]
    sizes = SIZES if name not in ("a2c", "a3c") else {"num_envs": 16, "actors": 1, "progress": False}
    settings = {"policy": SMALL, **sizes, "total_steps": steps, "algorithm": algorithm, "seed": 100}
    result = jaxtrpo.train(LightEnvironment(), stop_at_return=5.1, **settings)
    assert result.config.critic.startswith(SMALL.removesuffix(")"))
    assert np.nanmax(result.metrics["return_100"]) > 5  # of 8; a guess gets 2


def test_one_network_for_policy_and_values_learns_from_an_image():
    settings = {
        **SIZES,
        "policy": "cnn(channels=(4,), hidden=16, shared=True)",
        "total_steps": 8_000,
        "seed": 100,
        "stop_at_return": 5.1,
    }
    result = jaxtrpo.train(LightEnvironment(), algorithm="ppo(learning_rate=0.003)", **settings)
    assert result.config.critic == "shared"
    assert np.nanmax(result.metrics["return_100"]) > 5


@pytest.mark.parametrize(
    "env",
    [
        LightEnvironment(continuous=True),
        LightEnvironment(with_vector=True),
        LightEnvironment(masks_actions=True),
        LightEnvironment(dtype="bool"),
    ],
    ids=["continuous", "vector", "masked", "bool"],
)
def test_trpo_learns_from_every_kind_of_observation(env):
    settings = {**FAST, "total_steps": 8_000, "algorithm": "trpo(max_kl=0.05)", "seed": 100}
    result = jaxtrpo.train(env, stop_at_return=7.2, **settings)
    assert jaxtrpo.evaluate(result.policy, env, episodes=8).mean > 7
    moments = result.state.learner.obs_moments
    assert moments.mean.shape[-1] == (2 if env.with_vector else 0)
    if env.with_vector:  # the step of an episode times 100, and a constant
        np.testing.assert_allclose(np.ravel(moments.mean)[-2:], [350, 7], rtol=0.05)


def test_network_of_the_user_has_a_critic_that_takes_images():
    result = jaxtrpo.train(
        LightEnvironment(),
        algorithm="ppo(learning_rate=0.003, epochs=9)",
        policy=OwnNetwork(),
        total_steps=8_000,
        seed=100,
        stop_at_return=5.1,
        **SIZES,
    )
    assert result.config.critic == "cnn(epochs=9, minibatch_size=64, learning_rate=0.003)"
    assert np.nanmax(result.metrics["return_100"]) > 5
    run = prepare(LightEnvironment(), policy=OwnNetwork(), critic="cnn(hidden=7)", actors=1)
    assert run.config.critic == "cnn(hidden=7)"
    with pytest.raises(ValueError, match="critic=linear takes no images"):
        prepare(LightEnvironment(), policy=OwnNetwork(), critic="linear", actors=1)


def test_convolutional_networks_are_chosen_for_images_only():
    sizes = {name: value for name, value in SIZES.items() if name != "progress"}
    run = prepare(LightEnvironment(), algorithm="ppo", **sizes)
    assert run.config.policy == "cnn" and run.config.critic == "cnn(minibatch_size=64, learning_rate=0.0003)"
    assert prepare("CartPole-v1", actors=1).config.policy == "mlp"
    mixed = prepare(LightEnvironment(with_vector=True), critic=SMALL, **sizes)
    assert (mixed.config.policy, mixed.config.critic) == ("cnn", SMALL)


@pytest.mark.parametrize(
    ("algorithm", "policy", "frames"),
    [*itertools.product(("trpo", "ppo"), (SMALL,), (1, 3)), ("trpo", SMALL_WITH_MEMORY, 1)],
)
def test_resumed_run_is_bit_identical(tmp_path, algorithm, policy, frames):
    settings = {**FAST, "algorithm": algorithm, "policy": policy, "seed": 3, "frame_stack": frames}
    env = LightEnvironment(with_vector=True)
    whole = jaxtrpo.train(env, total_steps=1024, **settings)
    jaxtrpo.train(env, total_steps=512, out=tmp_path, **settings)
    resumed = jaxtrpo.train(env, total_steps=1024, out=tmp_path, resume=True, **settings)
    same(whole.state.learner, resumed.state.learner)
    same(whole.state.actors, resumed.state.actors)
    loaded = jaxtrpo.load_policy(tmp_path)
    same(loaded.params, resumed.policy.params)
    obs = {"image": np.full((2, 6, 6, 2), 200, np.uint8), "vector": np.ones((2, 2), np.float32)}
    for _ in range(2):  # with memory, the second depends on the first
        np.testing.assert_array_equal(loaded(obs), resumed.policy(obs))
    assert loaded.observation_space == resumed.policy.observation_space
    assert loaded.observation_space.frames == frames


@pytest.mark.parametrize(
    ("algorithm", "policy", "frames"),
    [*itertools.product(("trpo", "ppo", "a2c"), (SMALL,), (2,)), ("ppo", SMALL_WITH_MEMORY, 1)],
)
def test_two_actors_learn_the_same_as_one(algorithm, policy, frames):
    settings = {**FAST, "policy": policy, "frame_stack": frames, "algorithm": algorithm, "seed": 3, "adapt": "fixed"}
    env = LightEnvironment(with_vector=True)
    one, two = (jaxtrpo.train(env, total_steps=512, **{**settings, "actors": actors}) for actors in (1, 2))
    np.testing.assert_allclose(one.metrics["return_100"], two.metrics["return_100"], rtol=1e-5)
    leaves = [jax.tree.leaves(result.policy.params) for result in (one, two)]
    for ours, theirs in zip(*leaves, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        ("trpo", "cnn(channels=(4,), hidden=15)"),
        ("ppo(kl_stop=0.001)", "cnn(channels=(4,), hidden=15)"),
        ("ppo", "cnn(channels=(4,), hidden=15, shared=True)"),
        ("ppo", "gru(hidden=8, encoder=(15,), channels=(4,), bptt_steps=8)"),
    ],
)
def test_gradients_in_parts_are_those_of_whole_minibatches(monkeypatch, algorithm, policy):
    env, settings = LightEnvironment(), {**FAST, "policy": policy, "algorithm": algorithm, "seed": 3, "adapt": "fixed"}
    whole = jaxtrpo.train(env, total_steps=768, **settings)
    chosen = []

    def in_parts(multiply_adds, params, steps, may_share=True):
        assert multiply_adds(params) > 1_000 and steps in (64, 128) and may_share
        chosen.append(Parts(each=3, shared=num_actors() > 1))
        return chosen[-1]

    for name in ("jaxtrpo.critics.network", "jaxtrpo.algorithms.ppo"):
        monkeypatch.setattr(importlib.import_module(name), "parts_for", in_parts)
    # With another discount, nothing that was compiled for whole minibatches is used again.
    for actors in (1, 2):
        result = jaxtrpo.train(env, total_steps=768, **{**settings, "actors": actors, "discount": 0.99 + 1e-9 * actors})
        for ours, theirs in zip(
            jax.tree.leaves(result.policy.params), jax.tree.leaves(whole.policy.params), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, atol=2e-3)
        for name in ("kl", "entropy", "clip_fraction", "epochs"):
            if name in whole.metrics:
                np.testing.assert_allclose(result.metrics[name], whole.metrics[name], rtol=0.02, atol=2e-4)
    assert Parts(3, True) in chosen and Parts(3, False) in chosen


def test_several_seeds_in_one_program_are_those_of_single_runs():
    settings = {**FAST, "algorithm": "trpo", "total_steps": 768}
    env = LightEnvironment()
    many = jaxtrpo.train_many(env, seeds=[1, 2], **settings)
    for seed, result in zip([1, 2], many, strict=True):
        alone = jaxtrpo.train(env, seed=seed, **settings)
        np.testing.assert_allclose(result.metrics["return_100"], alone.metrics["return_100"], rtol=1e-5)


def test_policy_takes_observations_in_the_simulators_form(tmp_path):
    settings = {**FAST, "total_steps": 256, "frame_stack": 2}

    def make():
        return Camera("dict")

    policy = jaxtrpo.train(make, out=tmp_path, **settings).policy
    loaded = jaxtrpo.load_policy(tmp_path)
    env = gymnasium.wrappers.TimeLimit(make(), 3)
    obs, _ = env.reset(seed=0)
    for _ in range(2):
        seen = policy.flatten(obs)
        assert seen["rgb"].dtype == np.uint8 and seen["vector"].shape == (5,)
        (action, state), (again, _) = policy.step(None, obs), loaded.step(None, seen)
        assert action == again and state is not None
        in_jax = policy.step(None, jax.tree.map(jax.numpy.asarray, obs))[0]
        assert int(in_jax) == action
        obs = env.step(action)[0]
    with pytest.raises(ValueError, match=r"observation\['rgb'\] has shape \(8, 9, 3\), but its space"):
        policy({**obs, "rgb": np.zeros((8, 9, 3), np.uint8)})


def test_evaluation_records_images():
    result = jaxtrpo.train(LightEnvironment(with_vector=True), total_steps=256, **FAST)
    recording = jaxtrpo.evaluate(result.policy, LightEnvironment(with_vector=True), episodes=3, record=True).recording
    assert recording.observations["image"].shape == (24, 6, 6, 2) and recording.observations["image"].dtype == np.uint8
    with pytest.raises(ValueError, match=r"has observations image uint8\[6, 6, 2\], vector float32\[2\], but those of"):
        other = LightEnvironment(with_vector=True, dtype="bool")
        jaxtrpo.evaluate(result.policy, other, episodes=1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": "mlp"}, "policy=mlp takes no images, but observations have image [6, 6, 2]; use policy=cnn, or"),
        ({"policy": "gru(encoder=())"}, "policy=gru: encoder=() must have at least one size where observations have"),
        ({"policy": "lstm(kind='nature')"}, "policy=lstm: the kernels need images of at least 36 x 36 pixels, but"),
        ({"critic": "linear"}, "critic=linear takes no images, but observations have image [6, 6, 2]; use critic=cnn"),
        ({"critic": "mlp"}, "critic=mlp takes no images"),
        ({"critic": "lstm(kind='nature')"}, "critic=lstm: the kernels need images of at least 36 x 36 pixels, but"),
        ({"critic": "gru", "frame_stack": 2}, "frame_stack=2: critic=gru does not stack frames; use critic=mlp or cnn"),
        ({"policy": "cnn(kind='nature')"}, "policy=cnn(kind='nature'): the kernels need images of at least 36 x 36"),
        ({"algorithm": "trpo_replay"}, "algorithm: trpo_replay cannot learn from images; trpo, npg, trpo_penalty, ppo"),
        ({"algorithm": "gps"}, "algorithm: gps cannot learn from images"),
        ({"algorithm": "naf", "critic": "none"}, "algorithm: naf cannot learn from images"),
        ({"frame_stack": 0}, "frame_stack=0 must be a whole number of at least 1"),
        (
            {"num_envs": 4096, "max_steps_per_update": 2**31 - 1},
            "num_envs=4096, max_steps_per_update=2147483647 need at least",
        ),
    ],
)
def test_bad_input_is_one_sentence(settings, said):
    with pytest.raises(ValueError) as error:
        prepare(LightEnvironment(), actors=1, **settings)
    assert str(error.value).startswith(said) and "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("env", "settings", "said"),
    [
        (
            "FrozenLake-v1",
            {},
            "frame_stack=4: observations of FrozenLake-v1 are choices (Discrete(16)), neither images",
        ),
        (
            "CartPole-v1",
            {"policy": "gru"},
            "frame_stack=4: a policy with memory remembers frames by itself; use frame_stack=1",
        ),
        (
            "CartPole-v1",
            {"critic": "linear"},
            "frame_stack=4: critic=linear does not stack frames; use critic=mlp or cnn",
        ),
        ("CartPole-v1", {"critic": "gru"}, "frame_stack=4: critic=gru does not stack frames; use critic=mlp or cnn"),
        (
            "Pendulum-v1",
            {"algorithm": "naf"},
            "frame_stack=4: naf cannot stack frames; trpo, npg, trpo_penalty, ppo, pg",
        ),
        ("CartPole-v1", {"algorithm": "trpo_replay"}, "frame_stack=4: trpo_replay cannot stack frames"),
    ],
)
def test_frames_that_cannot_be_stacked_are_refused(env, settings, said):
    with pytest.raises(ValueError) as error:
        prepare(env, actors=1, frame_stack=4, **settings)
    assert str(error.value).replace("gymnasium:", "").startswith(said) and len(str(error.value)) < 200


class Blink(gymnasium.Env):
    """The light is shown in every other step, and must be named in all of them."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, *, as_image=False):
        self.as_image = as_image
        numbers, pixels = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Box(0, 255, (5, 5), np.uint8)
        self.observation_space = pixels if as_image else numbers

    def _observe(self):
        if self.taken % 2 == 0:
            self.lit = self.np_random.integers(2)
        is_shown = self.taken % 2 == 0
        if not self.as_image:
            return np.array([(2 * self.lit - 1) * is_shown, self.taken % 2], np.float32)
        image = np.zeros((5, 5), np.uint8)
        image[:, 4 * self.lit] = 255 * is_shown
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self._observe(), {}

    def step(self, action):
        right = action == self.lit
        self.taken += 1
        return self._observe(), float(right), self.taken == 10, False, {}


def test_two_frames_show_what_one_does_not():
    def return_with(frames: int) -> float:
        settings = {"num_envs": 8, "steps_per_update": 400, "actors": 1, "seed": 100, "progress": False}
        result = jaxtrpo.train(
            Blink, total_steps=8_000, policy="mlp(hidden=(16,))", frame_stack=frames, env_options={}, **settings
        )
        assert result.policy.observed == 2 if frames == 1 else result.policy.observed.frames == 2
        return jaxtrpo.evaluate(result.policy, Blink, episodes=20).mean

    assert return_with(2) > 9.5
    assert return_with(1) < 8.5


def test_memory_knows_what_an_image_showed():
    settings = {**SIZES, "policy": SMALL_WITH_MEMORY, "algorithm": "ppo(learning_rate=0.003)", "seed": 100}
    of_images = {"env_options": {"as_image": True}}
    result = jaxtrpo.train(Blink, total_steps=10_000, stop_at_return=9.2, **of_images, **settings)
    assert result.config.critic.startswith(SMALL_WITH_MEMORY.removesuffix(")"))
    assert np.nanmax(result.metrics["return_100"]) > 9  # of 10; without memory, half of the blank images are guessed
    assert jaxtrpo.evaluate(result.policy, Blink, episodes=20, **of_images).mean > 9
