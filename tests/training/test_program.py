"""What must not be in the compiled program of an update, because an accelerator would wait for it."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import pytest
from probe import ProbeEnvironment

from jaxtrpo.training.train import prepare

ENVS = 97  # no other size of the program
STEPS = 8 * ENVS  # of an update
HOST = ("custom_call", "infeed", "outfeed", "stablehlo.send", "stablehlo.recv")
SORT = re.compile(r'"stablehlo\.sort".*?\}\) : \((.*?)\) ->', re.DOTALL)
LOOP = re.compile(r"stablehlo\.while.*?cond \{(.*?)\} do \{", re.DOTALL)
SHAPE = re.compile(r"tensor<([\dx]*?)x?[a-z]\w*>")


def host_transfers(program: str) -> list[str]:
    return [name for name in HOST if name in program]


def sorted_numbers(program: str) -> list[int]:
    """Sizes of all arrays that are sorted."""
    shapes = [SHAPE.findall(types) for types in SORT.findall(program)]
    return [math.prod(int(size) for size in shape.split("x") if size) for some in shapes for shape in some]


def loop_lengths(program: str) -> list[int]:
    """Lengths of all loops whose length is a constant."""
    return [int(bound) for cond in LOOP.findall(program) for bound in re.findall(r"dense<(\d+)> : tensor<i32>", cond)]


@pytest.fixture(
    scope="module",
    # The probe is quick to trace, and learning is the same in any environment.
    params=[
        ("brax:inverted_pendulum/spring", "trpo"),
        (ProbeEnvironment(), "ppo"),
        (ProbeEnvironment(), "trpo_replay"),
    ],
    ids=["trpo", "ppo", "trpo_replay"],
)
def program(request):
    env, algorithm = request.param
    settings = {"num_envs": ENVS, "segment_length": 4, "steps_per_update": STEPS, "actors": 1}
    return prepare(env, algorithm=algorithm, **settings).update.program()


def test_nothing_is_sent_to_the_host(program):
    assert not host_transfers(program)


def test_everything_is_in_single_precision(program):
    assert "xf64>" not in program and "<f64>" not in program


def test_batch_is_not_sorted(program):
    assert all(size < STEPS for size in sorted_numbers(program))


def test_no_loop_is_over_environments(program):
    assert loop_lengths(program) and ENVS not in loop_lengths(program)


def test_faults_would_be_seen():
    """Otherwise the tests above could pass because they read nothing."""

    def lowered(function):
        return jax.jit(function).lower(jnp.zeros((ENVS, 8))).as_text()

    result = jax.ShapeDtypeStruct((ENVS, 8), jnp.float32)
    assert host_transfers(lowered(lambda x: jax.pure_callback(lambda x: x, result, x)))
    assert sorted_numbers(lowered(lambda x: jnp.sort(x.ravel()))) == [STEPS]
    assert loop_lengths(lowered(lambda x: jax.lax.map(jnp.cumsum, x))) == [ENVS]
