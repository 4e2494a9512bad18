"""Observations after truncated steps, of which a batch with images holds only those that are needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from light_env import LightEnvironment

from jaxtrpo.envs.base import action_space
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace
from jaxtrpo.ops.moments import unknown_moments
from jaxtrpo.policies.cnn import cnn
from jaxtrpo.rollout.collect import make_collect, start_actors
from jaxtrpo.rollout.ends import ends_of, final_values, slots_for
from jaxtrpo.rollout.staggering import TimeLimits, next_time_limits
from jaxtrpo.rollout.types import Ends, LearnerState, Steps

TIME, ENVS = 7, 5


def random_steps(rng, often=0.4):
    flags = rng.random((3, TIME, ENVS)) < often
    obs = {"image": rng.integers(0, 255, (TIME, ENVS, 2, 2, 1), np.uint8), "vector": rng.normal(size=(TIME, ENVS, 3))}
    zero = np.zeros((TIME, ENVS), np.float32)
    return Steps(
        obs,
        zero,
        zero,
        flags[0] & ~flags[1],
        flags[1],
        flags[1] & (flags[2] > 0) & (rng.random((TIME, ENVS)) < 0.5),
        obs,
        zero,
        zero,
    )


@pytest.mark.parametrize("slots", [1, 2])
def test_slots_hold_the_first_truncated_steps(slots):
    steps = random_steps(np.random.default_rng(slots), often=0.8)
    short, (obs, step) = ends_of(steps, slots)
    assert short.final_obs == () and short.obs is steps.obs
    overflow = 0
    for env in range(ENVS):
        truncated = [t for t in range(TIME) if steps.truncated[t, env] and not steps.invalid[t, env]]
        assert step[:, env].tolist() == (truncated + [TIME] * slots)[:slots]
        for slot, t in enumerate(truncated[:slots]):
            np.testing.assert_array_equal(obs["image"][slot, env], steps.final_obs["image"][t, env])
            np.testing.assert_allclose(obs["vector"][slot, env], steps.final_obs["vector"][t, env])
        np.testing.assert_array_equal(short.invalid[:, env], steps.invalid[:, env])
        overflow += len(truncated[slots:])
    assert overflow
    assert obs["image"].dtype == np.uint8


@pytest.mark.parametrize("is_last", [False, True])
def test_final_values_are_those_of_the_observations_that_steps_led_to(is_last):
    rng = np.random.default_rng(7)
    steps = random_steps(rng)
    value = lambda obs, step: obs["vector"].sum(axis=-1) + 10 * step  # noqa: E731
    after = {"image": np.zeros((ENVS, 2, 2, 1), np.uint8), "vector": rng.normal(size=(ENVS, 3))}
    short, (obs, step) = ends_of(steps, 2)
    before = rng.normal(size=(TIME, ENVS)).astype(np.float32)
    found = np.asarray(final_values(short, before, Ends(obs, step, after), np.array(is_last), value))
    checked = left_out = 0
    for t in range(TIME):
        for env in range(ENVS):
            truncated = steps.truncated[:, env] & ~steps.invalid[:, env]
            if truncated[t] and truncated[:t].sum() >= 2:
                left_out += 1
                assert found[t, env] == before[t, env]
            elif truncated[t]:
                checked += 1
                assert found[t, env] == pytest.approx(steps.final_obs["vector"][t, env].sum() + 10 * t, abs=1e-4)
            elif t == TIME - 1 and is_last and not steps.truncated[t, env]:
                assert found[t, env] == pytest.approx(after["vector"][env].sum() + 10 * t, abs=1e-4)
            elif not steps.truncated[t, env]:
                assert found[t, env] == 0
    assert checked > 5 and left_out > 1


def most_truncations(segment_length: int, episode_length: int) -> int:
    """The largest number in any window, over all shares of the limit and times of failure: by trying them."""
    most = 0
    for share in range(1, episode_length + 1):
        for fails_after in range(1, 4):
            limits = TimeLimits(np.array([episode_length]), np.array([share]), np.array([False]))
            truncated, elapsed, fails = [], 0, False
            for _ in range(6 * (segment_length + episode_length)):
                elapsed += 1
                failed = fails and elapsed == fails_after and elapsed < int(limits.limit[0])
                survived = elapsed >= int(limits.limit[0])
                if survived or failed:
                    elapsed = 0
                    # Fails as soon as the short episode is over, which brings the next one closest.
                    fails = survived and bool(limits.spread[0])
                limits = next_time_limits(limits, jnp.array([survived]), jnp.array([failed]), episode_length)
                truncated.append(survived)
            window = np.convolve(truncated, np.ones(segment_length, int))
            most = max(most, int(window.max()))
    return most


@pytest.mark.parametrize("segment_length", [1, 4, 16])
def test_slots_suffice_for_staggered_time_limits(segment_length):
    for episode_length in (1, 2, 3, 5, 8, 14, 16, 20):
        assert most_truncations(segment_length, episode_length) <= slots_for(segment_length, episode_length)
    assert slots_for(16, 2**31 - 1) == 2


def collected(env, segments=6, length=4, num_envs=6):
    policy = cnn(channels=(2,), hidden=4).make(env.observation_space, action_space(env))
    collect = make_collect(env, policy, segment_length=length, max_segments=segments)
    actor = start_actors(env, jnp.array([0, 3], jnp.uint32), num_envs)
    learner = LearnerState(policy.init(jnp.array([0, 1], jnp.uint32)), (), unknown_moments((0,)), ())
    return collect(actor, learner, jnp.int32(segments))


def test_ends_of_a_batch_are_what_its_steps_led_to():
    """The next row of the batch is what a step led to, unless the step ended an episode."""
    env = LightEnvironment(episode_length=5)
    actor, batch = collected(env)
    steps, ends = batch.steps, batch.ends
    assert steps.final_obs == () and steps.obs["image"].dtype == np.uint8
    np.testing.assert_array_equal(ends.after["image"], actor.env.obs["image"])
    seen = 0
    for segment, slot, i in np.ndindex(*ends.step.shape):
        t = int(ends.step[segment, slot, i])
        if t == steps.reward.shape[1]:
            continue
        assert steps.truncated[segment, t, i]
        seen += 1
        assert ends.obs["image"][segment, slot, i].max() == 255  # a pixel is lit
    assert seen == int(np.sum(np.asarray(steps.truncated) & ~np.asarray(steps.invalid)))
    assert not np.asarray(steps.invalid).any()


def test_bytes_of_a_step_with_frames_of_atari():
    """84 x 84 x 4 in uint8 is 28,224 bytes; as float32, stored twice, a step was 226 kB."""
    space = ObservationSpace((Leaf("image", (84, 84, 4), "uint8"),))

    class Screen(LightEnvironment):
        def _obs(self, physics):
            return {"image": jnp.zeros((len(physics.step), 84, 84, 4), jnp.uint8)}

        def __init__(self):
            super().__init__()
            self.observation_space, self.observation_size = space, space.size

    env = Screen()
    policy = cnn(channels=(2,), hidden=4).make(space, action_space(env))
    collect = make_collect(env, policy, segment_length=16, max_segments=8)
    actor = jax.eval_shape(lambda key: start_actors(env, key, 4), jax.ShapeDtypeStruct((2,), np.uint32))
    params = jax.eval_shape(policy.init, jax.ShapeDtypeStruct((2,), np.uint32))
    learner = LearnerState(params, (), unknown_moments((0,)), ())
    _, batch = jax.eval_shape(collect, actor, learner, jax.ShapeDtypeStruct((), np.int32))
    of_obs = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((batch.steps.obs, batch.steps.final_obs)))
    of_ends = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch.ends.obs))
    steps = 16 * 8 * 4
    assert of_obs / steps == 28_224
    assert of_ends / of_obs == slots_for(16, env.episode_length) / 16
