"""What actors share inside a mapped function."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import weakref
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import actors, spread

from jaxtrpo.parallel.actors import Actors
from jaxtrpo.parallel.collectives import (
    AXIS,
    Copies,
    Work,
    from_shares,
    gather_envs,
    num_actors,
    share_of,
    share_of_sum,
    side_by_side,
    sum_over_actors,
    worth_side_by_side,
)

VALUES = {
    "float": np.float32([1.5, np.nan, -np.inf, -0.1]),
    "counts": np.int32([2**31 - 1, -(2**31)]),
    "bits": np.uint32([2**32 - 1, 7]),
    "truth": np.array([True, False, True]),
    "scalar": np.float32(3e38),
    "none": np.zeros((0, 2), np.float32),
}


def run(count: int, function, *arguments):
    """Each actor's result of a function of arguments that all share."""
    return jax.device_get(actors(count).map(function)(*(spread(argument, count) for argument in arguments)))


def assert_everyone_has(found, expected):
    for leaf, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == value.dtype
        for of_actor in leaf:
            np.testing.assert_array_equal(of_actor, value)


@pytest.mark.parametrize(
    ("processes", "cores", "envs", "found"),
    [(1, 12, 16, 8), (1, 2, 16, 2), (1, 6, 7, 1), (1, 12, 18, 9), (2, 6, 16, 8), (2, 12, 18, 18), (2, 3, 7, 6)],
)
def test_environments_are_shared_by_as_many_actors_as_can(processes, cores, envs, found):
    """As many in each process; all of them, who then refuse, where not even one in each can."""
    here = SimpleNamespace(process_index=lambda: processes - 1)
    of_all = [SimpleNamespace(process_index=own, client=here) for own in range(processes) for _ in range(cores)]
    chosen = Actors(tuple(of_all)).for_envs(envs)
    assert [device.process_index for device in chosen.devices] == sorted([*range(processes)] * (found // processes))


def test_what_was_compiled_goes_with_the_function():
    """A script may train as often as it likes; a process has 65,530 memory maps, and a program takes hundreds."""

    def plus_one(value):
        return value + 1

    gone = weakref.ref(plus_one)
    assert run(2, plus_one, 1.0).tolist() == [2.0, 2.0]
    del plus_one
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("count", [1, 2])
def test_everyone_gets_every_task_s_result_as_it_is(count):
    changed = jax.tree.map(lambda leaf: leaf[..., ::-1] if leaf.ndim else leaf / 2, VALUES)
    found = run(count, lambda a, b: side_by_side(lambda: a, lambda: (b, {})), VALUES, changed)
    assert_everyone_has(found, (VALUES, (changed, {})))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_everyone_gets_every_copy_s_result(number, count):
    """A copy's bits are those of the task, whichever actor it falls to, and other tasks may come before and after."""

    def shifted(values, copy):
        return jax.tree.map(lambda leaf: jnp.roll(leaf, copy), {**values, "copy": copy})

    def together(values):
        return side_by_side(lambda: values, Copies(number, functools.partial(shifted, values)), lambda: num_actors())

    alone = [shifted(VALUES, np.int32(copy)) for copy in range(number)]
    expected = VALUES, jax.tree.map(lambda *leaves: np.stack(leaves), *alone), np.int32(1)
    assert_everyone_has(run(count, together, VALUES), expected)


@pytest.mark.parametrize(("actors_", "faster"), [(1, False), (2, True), (3, True)])
def test_work_is_split_where_the_busiest_actor_finishes_sooner(actors_, faster):
    """With two actors, the first gets the first and third task: 6 + 1, where all of it takes 6 + 6 + 1/2 together."""
    found = []

    def ask(value):
        copies = [[Work(6.0, shared=False)]] * 2
        found.append(worth_side_by_side(*copies, [Work(1.0, shared=True)]))
        return value

    jax.eval_shape(jax.vmap(ask, axis_name=AXIS), jnp.zeros(actors_))
    assert found == [faster]


@pytest.mark.parametrize("count", [1, 2])
def test_everyone_gets_all_environments_as_they_are(count):
    """Numbers of all kinds, and leaves of other shapes than their neighbours."""
    envs = {
        "float": np.float32([[1.5, np.nan, -np.inf, -0.0], [0.1, 1e-40, 3e38, 2]]),
        "counts": np.int32([[2**31 - 1, -(2**31), 0, 1]]),
        "bits": np.uint32([[2**32 - 1, 7, 0, 3]]),
        "small": np.int8([[-128, 127, 0, 3]]),
        "truth": np.array([[True, False, True, False]]),
        "vectors": np.arange(24, dtype=np.float32).reshape(2, 4, 3),
        "none": np.zeros((1, 4, 0), np.float32),
    }

    def deal(leaf):
        return np.stack(np.split(leaf, count, axis=1))

    found = jax.device_get(actors(count).map(lambda tree: gather_envs(tree, axis=1))(jax.tree.map(deal, envs)))
    assert_everyone_has(found, envs)


def test_the_sum_of_a_tree_is_that_of_its_leaves():
    def total(value):
        return sum_over_actors({"one": value, "many": jnp.arange(6).reshape(2, 3), "nothing": jnp.zeros((0, 2))})

    found = jax.device_get(actors(2).map(total)(np.float32([1.5, -0.25])))
    wanted = {
        "one": np.float32(1.25),
        "many": 2 * np.arange(6, dtype=np.int32).reshape(2, 3),
        "nothing": np.zeros((0, 2), np.float32),
    }
    assert_everyone_has(found, wanted)


def test_shares_of_actors_make_up_whole_vectors():
    def of_actor(vector):
        share, summed = share_of(vector), share_of_sum(vector)
        return share, summed, from_shares({"one": share, "sum": summed})

    vectors = np.arange(12, dtype=np.float32).reshape(2, 6) ** 2
    shares, sums, together = jax.device_get(actors(2).map(of_actor)(vectors))
    np.testing.assert_array_equal(shares, [vectors[0, :3], vectors[1, 3:]])
    np.testing.assert_array_equal(sums, vectors.sum(0).reshape(2, 3))
    own = np.concatenate([vectors[0, :3], vectors[1, 3:]])
    assert_everyone_has(together, {"one": own, "sum": vectors.sum(0)})


def test_an_actor_that_works_alone_has_the_only_share():
    def of_actor(vector):
        everyone = sum_over_actors(vector)

        def task():
            return share_of(everyone), share_of_sum(everyone), from_shares({"one": everyone})

        return side_by_side(task, task)

    found = jax.device_get(actors(2).map(of_actor)(np.ones((2, 6), np.float32)))
    whole = np.full(6, 2, np.float32)
    assert_everyone_has(found, 2 * ((whole, whole, {"one": whole}),))


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_a_task_is_done_by_one_actor(tasks):
    def who(_):
        return side_by_side(*tasks * [lambda: jax.lax.axis_index(AXIS)])

    done_by = np.stack(run(2, who, 0.0))
    np.testing.assert_array_equal(done_by, [[i % 2, i % 2] for i in range(tasks)])


@pytest.mark.parametrize("count", [1, 2])
def test_a_task_runs_as_if_its_actor_was_the_only_one(count):
    """Sums and gathered environments are everyone's when the task begins, and not counted twice in it."""

    def of_all(envs):
        everyone = gather_envs(envs, axis=0)

        def total():
            return sum_over_actors(jnp.sum(everyone)), jnp.int32(num_actors()), gather_envs(everyone, axis=0)

        before = jnp.int32(num_actors())
        return side_by_side(total, total), before, jnp.int32(num_actors()), sum_over_actors(jnp.sum(envs))

    envs = np.arange(4, dtype=np.float32)
    both, before, after, total = jax.device_get(actors(count).map(of_all)(envs.reshape(count, -1)))
    assert_everyone_has(both, 2 * ((np.float32(6), np.int32(1), envs),))
    assert_everyone_has((before, after, total), (np.int32(count), np.int32(count), np.float32(6)))


def test_a_task_that_fails_leaves_the_others_their_actors():
    def fails():
        raise ArithmeticError("no")

    def tries(value):
        with pytest.raises(ArithmeticError):
            side_by_side(fails, fails)
        return sum_over_actors(value)

    np.testing.assert_array_equal(run(2, tries, np.float32(1)), [2, 2])


@pytest.mark.parametrize(("asked", "devices"), [("1, for_good=True", 1), ("1", "all"), ("", "all")])
def test_a_process_that_needs_only_one_actor_has_one_device_and_thread(asked, devices):
    program = (
        "import os, jax; from jaxtrpo.parallel.devices import choose_actors; "
        "from jaxtrpo.parallel.machine import available_cores; "
        f"choose_actors({asked}); found = len(jax.devices()); assert os.environ['NPROC'] == str(found); "
        f"wanted = available_cores() if {devices!r} == 'all' else {devices!r}; assert found == wanted, (found, wanted)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "NPROC")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("lapack", [None, False])
def test_a_process_for_jax_programs_has_threads_to_wait_on_where_lapack_does(lapack):
    program = (
        f"import os, jax; from jaxtrpo.parallel.devices import *; choose_actors(1, program=True, lapack={lapack}); "
        f"old, own = {lapack is None} and jax.__version_info__ < (0, 11, 2), str(len(jax.devices())); "
        "assert os.environ['NPROC'] == ('64' if old else own); "
        f"assert threads_may_run_out() == ({lapack is not None} and jax.__version_info__ < (0, 11, 2))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "NPROC")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
