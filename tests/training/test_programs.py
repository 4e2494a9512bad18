"""Programs that later runs of the same process use again, compared with newly compiled ones."""

from __future__ import annotations

import functools
import gc
import weakref

import jax
import numpy as np
import pytest
from support import counted_compilations

import jaxtrpo
from jaxtrpo.config import Config, Sizes
from jaxtrpo.envs.registry import make_env
from jaxtrpo.parallel.actors import Actors
from jaxtrpo.policies.distributions import log_prob
from jaxtrpo.training import programs
from jaxtrpo.training.programs import DATA, MOST_RUNS, Programs, forget_programs, kind_of_run, programs_of

BASE = {
    "algorithm": "pg",
    "critic": "none",
    "num_envs": 4,
    "segment_length": 8,
    "steps_per_update": 64,
    "total_steps": 128,
    "policy": "mlp(hidden=(8,))",
    "actors": 1,
    "progress": False,
}


def train(**settings):
    return jaxtrpo.train("InvertedPendulum-v5", **{**BASE, **settings})


def leaves(result):
    columns = (column for name, column in result.metrics.items() if not name.endswith("seconds"))
    return [*jax.tree.leaves(jax.device_get(result.state)), *columns]


DIFFERENT_DATA = {
    "seed": {"seed": 5},
    "total_steps": {"total_steps": 320},
    "max_kl": {"max_kl": 0.1, "algorithm": "trpo"},
    "eval_every": {"eval_every": 64},
    "stop_at_return": {"stop_at_return": 1.0, "eval_every": 64},
    "stop_after_evaluations": {"stop_after_evaluations": 1, "eval_every": 64},
    "stop_after_seconds": {"stop_after_seconds": 1e6},
}


def test_every_setting_that_counts_as_data_is_tried():
    assert {*DIFFERENT_DATA, "start_from"} == set(DATA)


@pytest.mark.parametrize("algorithm", ["pg", "trpo"])
def test_a_run_is_to_the_bit_what_it_is_without_the_programs_of_another(algorithm):
    every = [{"algorithm": "pg", **settings} for settings in DIFFERENT_DATA.values()]
    different = [settings for settings in every if settings["algorithm"] == algorithm]
    train(algorithm=algorithm, eval_every=128)
    with counted_compilations() as compiled:
        after = [train(**settings) for settings in different]
    assert different and not compiled
    for settings, result in zip(different, after, strict=True):
        forget_programs()
        for found, wanted in zip(leaves(result), leaves(train(**settings)), strict=True):
            np.testing.assert_array_equal(found, wanted)


def kind_of(env="InvertedPendulum-v5", actors=1, made=None, **settings):
    chosen = {kind: settings.get(kind) for kind in ("algorithm", "policy", "critic", "adapt")}
    parts = {kind: part for kind, part in settings.items() if kind not in chosen or isinstance(part, str)}
    sizes = Sizes(settings.get("num_envs", 4), 8, 4)
    devices = Actors(tuple(jax.devices("cpu")[:actors]))
    return kind_of_run(env, made, chosen, Config(**parts), sizes, devices)


OTHER_PROGRAMS = [
    {"env": "InvertedDoublePendulum-v5"},
    {"actors": 2},
    {"steps_per_update": 96},
    {"num_envs": 8},
    {"discount": 0.5},
    {"noise_correlation": 0.5},
    {"select": "last"},
    {"normalize_observations": False},
    {"max_episode_steps": 3},
    {"eval_episodes": 3},
    {"algorithm": "npg"},
    {"algorithm": "trpo(cg_iterations=1)"},
    {"policy": "mlp(hidden=(4,))"},
    {"critic": "linear"},
    {"adapt": "fixed"},
]


@pytest.mark.parametrize("change", OTHER_PROGRAMS, ids=str)
def test_runs_that_compile_other_functions_are_of_other_kinds(change):
    assert kind_of() == kind_of(seed=3) and kind_of() is not None
    assert kind_of(**change) not in (None, kind_of())


def test_what_jax_is_told_counts():
    before = kind_of()
    jax.config.update("jax_debug_nans", True)
    try:
        assert kind_of() != before
    finally:
        jax.config.update("jax_debug_nans", False)
    assert kind_of() == before


@pytest.mark.parametrize(
    "change",
    [
        {"env": "CartPole-v1"},  # its simulators are those of one run
        {"env": lambda: None},
        {"env": "file.py:make"},
        {"policy": "file.py:network"},
        {"algorithm": jaxtrpo.ppo()},
    ],
    ids=["simulators", "function", "function in a file", "network", "object"],
)
def test_what_may_differ_unseen_has_no_kind(change):
    assert kind_of(**change) is None


def test_only_environments_that_are_built_in_have_a_kind():
    """Others may be registered under the same name again."""
    name, fast = "jaxtrpo-mine", type(make_env("brax:fast").env)
    from brax import envs

    class Mine(fast):
        pass

    try:
        for kind, known in ((fast, True), (functools.partial(fast), False), (Mine, False)):
            envs.register_environment(name, kind)
            assert (kind_of(env=f"brax:{name}", made=make_env(f"brax:{name}")) is not None) == known, kind
    finally:
        del envs._envs[name]
    assert kind_of(env="brax:fast", made=make_env("brax:fast")) is not None


@pytest.mark.parametrize("algorithm", ["pg", "a2c", "a3c", "naf(replay=512)", "naf(replay=512, asynchronous=True)"])
def test_a_second_run_compiles_nothing(algorithm):
    critic = {"critic": "mlp(hidden=(8,))"} if algorithm in ("a2c", "a3c") else {}
    settings = {"algorithm": algorithm, "eval_every": 64, **critic}
    train(**settings)
    with counted_compilations() as compiled:
        train(**settings, seed=1, total_steps=256)
    assert not compiled


def test_states_are_not_kept_with_the_programs():
    result = train(algorithm="naf(replay=512)", eval_every=64)
    alive = [weakref.ref(leaf) for leaf in jax.tree.leaves(result.state)]
    del result
    gc.collect()
    assert programs._kept and not any(leaf() is not None for leaf in alive)


def test_an_objective_of_ones_own_is_compiled_anew():
    scale = 1.0

    def surrogate(new, samples):
        return scale * log_prob(new, samples.action) * samples.advantage

    settings = {"surrogate": surrogate, "algorithm": "ppo(minibatch_size=16)"}
    first = train(**settings)
    scale = -1.0
    second = train(**settings)
    parameters = (jax.tree.leaves(result.policy.params) for result in (first, second))
    assert any((one != other).any() for one, other in zip(*parameters, strict=True))


def test_programs_of_few_runs_are_kept():
    kinds = [programs_of(number) for number in range(MOST_RUNS)]
    assert programs_of(0) is kinds[0]  # used last
    programs_of("another")
    assert programs_of(0) is kinds[0] and programs_of(1) is not kinds[1]
    assert programs_of(None) is not programs_of(None)


def test_programs_are_made_once():
    kept, made = Programs(), []
    for _ in range(2):
        assert kept.get("name", lambda: made.append(0) or "program") == "program"
    assert made == [0] and kept.get("other", lambda: 1) == 1
