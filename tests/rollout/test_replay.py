"""The replay buffer matches plain Python lists."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params
from support import actors, deal_batch, first, random_batch, spread
from test_algorithms import ActingProbe, tiny
from test_train_many import Program

from jaxtrpo import train_many
from jaxtrpo.ops.minibatches import over_drawn_minibatches
from jaxtrpo.parallel.devices import memory_of
from jaxtrpo.parallel.machine import available_cores, memory
from jaxtrpo.rollout.replay import Replay, Ring, Transitions, make_replay
from jaxtrpo.training.train import prepare

OBS, ACTION, LENGTH, ENVS = 3, 2, 3, 4
SEGMENT_STEPS = LENGTH * ENVS


def replay(capacity: int) -> Replay:
    return make_replay(
        capacity, segment_steps=SEGMENT_STEPS, segment_length=LENGTH, observation_size=OBS, action_size=ACTION
    )


@functools.cache
def inserting(capacity: int, count: int):
    return actors(count).map(replay(capacity).insert)


def filled(capacity: int, batches, count: int = 1) -> Ring:
    """Returns the ring after these batches, which is the same on all actors."""
    ring = spread(replay(capacity).empty(), count)
    for batch in batches:
        ring = inserting(capacity, count)(ring, deal_batch(batch, count))
    for leaf in jax.tree.leaves(ring):
        np.testing.assert_array_equal(leaf[0], leaf[-1])
    return first(ring)


def plain_rows(batches) -> list[np.ndarray]:
    """Returns a row of numbers for every step, oldest first."""
    rows = []
    for batch in batches:
        steps = batch.steps
        for segment in range(int(batch.num_segments)):
            for time in range(LENGTH):
                for env in range(ENVS):
                    index = segment, time, env
                    numbers = (
                        steps.obs[index], steps.action[index], steps.reward[index], steps.terminated[index],
                        steps.final_obs[index], steps.elapsed[index], not steps.invalid[index],
                    )  # fmt: skip
                    rows.append(np.concatenate([np.ravel(number).astype(np.float32) for number in numbers]))
    return rows


@pytest.mark.parametrize("count", [1, 2])
@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_ring_holds_the_last_steps(count, sizes):
    """Fails if `final_obs` is replaced with the observation after a reset, or if padding is inserted."""
    capacity = 5 * SEGMENT_STEPS
    batches = [random_batch(seed, num_segments=num, padding=9.0) for seed, num in enumerate(sizes)]
    ring = filled(capacity, batches, count)
    taken = sum(sizes) * SEGMENT_STEPS
    assert ring.filled == min(taken, capacity) and ring.next_row == taken % capacity
    held = np.roll(ring.rows, -(ring.next_row if taken > capacity else 0), axis=0)[: ring.filled]
    np.testing.assert_array_equal(held, plain_rows(batches)[-ring.filled :])


def test_larger_parts_of_fewer_actors_replace_the_oldest_steps():
    parts = [random_batch(0, segments=1, envs=2), *(random_batch(seed, segments=1) for seed in range(1, 9))]
    ring = spread(replay(4 * SEGMENT_STEPS).empty(), 1)
    for number, part in enumerate(parts):
        ring = inserting(4 * SEGMENT_STEPS, 1)(ring, deal_batch(part, 1))
        assert first(ring).filled == min(max(number, 0.5), 4) * SEGMENT_STEPS
    assert first(ring).next_row == 0
    np.testing.assert_array_equal(first(ring).rows, plain_rows(parts[-4:]))


def test_draws_from_empty_buffer_have_weight_zero():
    buffer = replay(5 * SEGMENT_STEPS)
    ring, key = buffer.empty(), jax.random.PRNGKey(0)
    assert ring.filled == ring.next_row == 0
    for drawn in (buffer.draw(ring, key, 7), buffer.draw_stretches(ring, key, 7)):
        assert not np.any(drawn.weight)


def test_rows_are_drawn_uniformly():
    batches = [random_batch(seed, num_segments=2) for seed in range(2)]
    ring, rows = filled(10 * SEGMENT_STEPS, batches), np.stack(plain_rows(batches))
    drawn = jax.jit(replay(10 * SEGMENT_STEPS).draw, static_argnums=2)(ring, jax.random.PRNGKey(0), 40_000)
    flat = np.concatenate([np.reshape(leaf, (40_000, -1)) for leaf in drawn], axis=1)
    distinct, counts = np.unique(flat, axis=0, return_counts=True)
    np.testing.assert_array_equal(distinct, np.unique(rows, axis=0))
    expected = 40_000 / len(rows)
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))


@pytest.mark.parametrize("number", [3, 7, 9])  # segments inserted into a ring of five
def test_windows_are_consecutive_steps_of_one_environment_and_drawn_uniformly(number):
    """Also across segments and the end of the ring, but never from the newest step to the oldest."""
    capacity, length, draws = 5 * SEGMENT_STEPS, 4, 20_000
    batches = [random_batch(seed, segments=1, num_segments=1) for seed in range(number)]
    drawn = jax.jit(replay(capacity).draw_windows, static_argnums=(2, 3))(
        filled(capacity, batches), jax.random.PRNGKey(0), draws, length
    )
    held = plain_rows(batches)[-capacity:]  # those of an environment are `ENVS` rows apart
    windows = {
        np.concatenate(held[first : first + length * ENVS : ENVS]).tobytes(): 0
        for first in range(len(held) - (length - 1) * ENVS)
    }
    flat = np.concatenate([np.reshape(leaf, (draws, length, -1)) for leaf in drawn], axis=-1)
    for window in flat.reshape(draws, -1):
        windows[window.tobytes()] += 1  # a KeyError for any other
    expected = draws / len(windows)
    assert np.all(np.abs(np.array(list(windows.values())) - expected) < 5 * np.sqrt(expected))


@pytest.mark.parametrize("capacity", [1, 5])  # segments; where it is one, the ring is full
def test_windows_of_a_ring_with_few_steps_begin_anywhere_and_have_weight_zero_beyond_them(capacity):
    """Fails if all of them are the oldest one, or continue with steps of another environment or time."""
    batch = random_batch(0, num_segments=1, broken=0.0)
    ring = filled(capacity * SEGMENT_STEPS, [batch])
    drawn = replay(capacity * SEGMENT_STEPS).draw_windows(ring, jax.random.PRNGKey(0), 2000, 10)
    held = {row[:3].tobytes(): place for place, row in enumerate(plain_rows([batch]))}
    places = np.array([held[row[:3].tobytes()] for row in np.asarray(drawn.obs[:, 0])])
    assert {*places} == {*range(SEGMENT_STEPS)}
    left = LENGTH - places // ENVS  # steps of the environment from there on
    np.testing.assert_array_equal(drawn.weight, np.arange(10) < left[:, None])


def test_stretches_are_segments_of_one_environment_and_drawn_uniformly():
    """Fails if a stretch contains steps of two environments or of two segments."""
    capacity, batches = 4 * SEGMENT_STEPS, [random_batch(seed, num_segments=3) for seed in range(2)]
    number = 8_000
    drawn = jax.jit(replay(capacity).draw_stretches, static_argnums=2)(
        filled(capacity, batches), jax.random.PRNGKey(0), number
    )
    segments = [jax.tree.map(lambda leaf, i=i: leaf[i], batch.steps) for batch in batches for i in range(3)]
    held = {
        segment.reward[:, env].tobytes(): (segment.obs[:, env], segment.final_obs[:, env], segment.elapsed[:, env])
        for segment in segments[-4:]
        for env in range(ENVS)
    }
    counts = dict.fromkeys(held, 0)
    for reward, *rest in zip(*map(np.asarray, (drawn.reward, drawn.obs, drawn.final_obs, drawn.elapsed)), strict=True):
        counts[reward.tobytes()] += 1
        for found, expected in zip(rest, held[reward.tobytes()], strict=True):
            np.testing.assert_array_equal(found, expected)
    expected = number / len(held)
    assert len(held) == 4 * ENVS and all(abs(count - expected) < 5 * np.sqrt(expected) for count in counts.values())


def gathers(program, in_loop: bool = False) -> list[bool]:
    """Returns, for every all-gather of a program, whether it is inside of a loop."""
    found = []
    for equation in program.eqns:
        found += [in_loop] if equation.primitive.name.startswith("all_gather") else []
        for inner in jaxprs_in_params(equation.params):
            found += gathers(inner, in_loop or equation.primitive.name in ("while", "scan"))
    return found


def test_no_collective_is_inside_of_a_loop():
    """Programs from the compilation cache do not keep the order of collectives in loops, which causes deadlocks."""
    capacity, batch = 5 * SEGMENT_STEPS, random_batch(0)
    ring = spread(replay(capacity).empty(), 2)
    program = jax.make_jaxpr(inserting(capacity, 2))(ring, deal_batch(batch, 2))
    found = gathers(program.jaxpr)
    assert found and not any(found)


def test_number_of_minibatches_is_traced_and_each_is_drawn_independently():
    size, ring = 128, jax.tree.map(jnp.asarray, filled(5 * SEGMENT_STEPS, [random_batch(0)]))

    @jax.jit
    @chex.assert_max_traces(n=1)
    def rewards(number, key):
        def step(carry, rows: Transitions):
            index, seen = carry
            return index + 1, seen.at[index].set(rows.reward)

        start = jnp.int32(0), jnp.full((20, size), jnp.nan)
        draw = functools.partial(replay(5 * SEGMENT_STEPS).draw, ring)
        return over_drawn_minibatches(step, start, lambda _, *which: draw(*which), key, number=number, size=size)

    for number in (1, 3, 8, 13):
        count, seen = rewards(jnp.int32(number), jax.random.PRNGKey(3))
        assert count == number and np.all(np.isfinite(seen[:number])) and np.all(np.isnan(seen[number:]))
        assert len(np.unique(seen[:number], axis=0)) == number
        _, other = rewards(jnp.int32(number), jax.random.PRNGKey(40))
        assert len(np.unique(np.concatenate([seen[:number], other[:number]]), axis=0)) == 2 * number


def test_capacity_is_rounded_up_to_whole_segments():
    made = replay(3 * SEGMENT_STEPS + 1)
    assert made.capacity == 4 * SEGMENT_STEPS
    assert made.nbytes == made.empty().rows.nbytes


def test_buffer_beyond_available_memory_is_rejected(monkeypatch):
    needed = 2 * 3 * prepare(ActingProbe(), **tiny("naf"), actors=2).update.learner.replay.nbytes
    monkeypatch.setattr("jaxtrpo.parallel.devices.memory", lambda: float(needed))
    prepare(ActingProbe(), **tiny("naf"), actors=2)
    monkeypatch.setattr("jaxtrpo.parallel.devices.memory", lambda: float(needed - 1))
    message = "^replay: 256 steps need 3 x {} x 0 MiB, but only 0 MiB of memory is available"
    with pytest.raises(ValueError, match=message.format(2)):
        prepare(ActingProbe(), **tiny("naf"), actors=2)
    with pytest.raises(ValueError, match=message.format(4)):
        train_many(Program(), **tiny("naf"), seeds=range(4), progress=False)


def test_memory_of_accelerators_is_summed():
    def device(**stats):
        return SimpleNamespace(platform="gpu", memory_stats=lambda: stats or None)

    assert memory_of([device(bytes_limit=3), device(bytes_limit=4)]) == 7
    assert memory_of([device(bytes_limit=3), device()]) == memory_of(jax.devices("cpu")) == memory() > 1e8


def test_memory_respects_limit_of_container(tmp_path, monkeypatch):
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("1000000\n")
    whole = memory()
    monkeypatch.setattr("jaxtrpo.parallel.machine._LIMITS", (str(tmp_path / "max"), str(tmp_path / "none")))
    assert memory() >= whole
    monkeypatch.setattr("jaxtrpo.parallel.machine._LIMITS", (str(tmp_path / "max"), str(tmp_path / "limit")))
    assert memory() == 1e6


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"max": "150000 100000\n"}, 2),
        ({"max": "20000 100000\n"}, 1),
        ({"max": "max 100000\n"}, 64),
        ({"max": "6400000 100000\n"}, 64),
        ({"quota": "300000\n", "period": "100000\n"}, 3),
        ({"quota": "-1\n", "period": "100000\n"}, 64),
        ({}, 64),
    ],
)
def test_cores_respect_quota_of_container(files, most, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    places = tuple(tuple(str(tmp_path / name) for name in names) for names in (("max",), ("quota", "period")))
    monkeypatch.setattr("jaxtrpo.parallel.machine._QUOTAS", places)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(64))
    assert available_cores() == most


@pytest.mark.parametrize("settings", [{}, {"adapt": "trust"}])  # a rule other than the default is checked earlier
def test_capacity_beyond_32_bit_indices_is_rejected(settings):
    with pytest.raises(ValueError, match=r"^replay=2147483647 must be a number of steps below 2\^31"):
        prepare(ActingProbe(), **{**tiny("trpo_replay"), "algorithm": "trpo_replay(replay=2147483647)"}, **settings)


def test_size_of_buffer_is_printed_before_the_run_starts(capsys):
    prepare(ActingProbe(), **tiny("naf"), total_steps=32).run()
    assert "replay buffer: the last 256 steps, 0 MiB per actor\n" in capsys.readouterr().err
