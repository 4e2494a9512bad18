"""Validation of settings and its error messages."""

import dataclasses
import functools
import inspect
import json
import math
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtrpo
from jaxtrpo.config import Config, for_batch, make_config, resolve_sizes
from jaxtrpo.config.specs import KINDS, factory, parse
from jaxtrpo.training.options import Options
from jaxtrpo.training.prepare import prepare

NAMES = [field.name for field in dataclasses.fields(Config)]
WHOLE = ["total_steps", "segment_length", "steps_per_update", "eval_episodes", "actors", "num_envs",
         "max_steps_per_update"]  # fmt: skip
BAD = [
    *((name, value) for name in WHOLE for value in (0, -1, 1.5, "3", True, math.nan)),
    ("eval_episodes", None),
    *((name, value) for name in ("seed", "eval_every") for value in (-1, 0.5, True)),
    ("seed", None),
    ("seed", 2**32),
    *(("max_kl", value) for value in (0, -1.0, math.nan, math.inf)),
    *(("discount", value) for value in (-0.01, 1.01, math.nan, "1", True)),
    *(("normalize_observations", value) for value in (1, None, "no")),
    *((name, value) for name in ("algorithm", "policy", "critic", "adapt") for value in (1, ("trpo",), True)),
    *(("frame_stack", value) for value in (0, -1, 1.5, "4", True, None, 257)),
    *(("noise_correlation", value) for value in (-0.01, 1, 1.5, math.nan, "0.5", True)),
    *(("select", value) for value in ("first", "", None, True, 1)),
    *((name, value) for name in ("env_options", "log_info") for value in (1, True, math.nan, (3,))),
    *(("start_from", value) for value in ("", 1, True)),
    *(("stop_at_return", value) for value in (math.nan, math.inf, "1", True)),
    *(("stop_after_evaluations", value) for value in (0, -1, 1.5, "3", True)),
    *(("stop_after_seconds", value) for value in (0, -1.5, "3", True, math.nan, math.inf)),
]
# Invalid values of settings that belong to spec strings: (kind, name, setting, value).
TRUST_REGION = [("algorithm", name) for name in ("trpo", "npg", "trpo_penalty", "trpo_replay")]
LINE_SEARCH = [("algorithm", name) for name in ("trpo", "trpo_penalty", "trpo_replay")]
REPLAY = ("algorithm", "trpo_replay")
FIRST_ORDER = [("algorithm", name) for name in ("ppo", "pg", "a2c", "a3c")]
ALGORITHMS = [*TRUST_REGION, *FIRST_ORDER]
CLIPPED = [("algorithm", name) for name in ("ppo", "a2c", "a3c")]
GPS = "algorithm", "gps"
PPO, NAF, DQN, SAC = (("algorithm", name) for name in ("ppo", "naf", "dqn", "sac"))
SQUASHED = ("policy", "squashed")
POLICY, CRITIC = ("policy", "mlp"), ("critic", "mlp")
NOT_WHOLE, NOT_POSITIVE = (0, -1, 1.5, "3", True, math.nan), (0, -1.0, math.nan, math.inf, "1", True)
MEMORY = ("gru", "lstm")
CNNS = [(kind, "cnn") for kind in ("policy", "critic")]
RECURRENT = [(kind, name) for kind in ("policy", "critic") for name in MEMORY]
BAD_OF_PARTS = [
    *((*part, name, value) for part in (PPO, CRITIC) for name in ("epochs", "minibatch_size") for value in NOT_WHOLE),
    *((*CRITIC, "shared_from", value) for value in NOT_WHOLE),
    *((*part, "minibatch_per_env", -1.0) for part in (PPO, CRITIC, NAF, DQN, SAC, REPLAY)),
    *((*part, name, value) for part in (NAF, DQN, SAC, REPLAY) for name in ("replay", "minibatch_size")
      for value in NOT_WHOLE),
    *((*part, "replay_ratio", value) for part in (NAF, DQN, SAC, REPLAY) for value in (*NOT_POSITIVE, None)),
    *((*part, "target_rate", value) for part in (NAF, DQN, SAC, REPLAY)
      for value in (-0.01, 1.01, math.nan, "1", None)),
    *((*SAC, "temperature", value) for value in (*NOT_POSITIVE, None)),
    *((*SAC, "target_entropy", value) for value in (math.nan, math.inf, "1")),
    *((*part, name, value) for part in TRUST_REGION for name in ("fisher_samples", "cg_iterations")
      for value in NOT_WHOLE),
    *((*part, "line_search_steps", value) for part in LINE_SEARCH for value in NOT_WHOLE),
    *((*REPLAY, "critic_lambda", value) for value in (-0.01, 1.01, math.nan, "1", None)),
    *(("algorithm", name, "advantage_memory", value) for name in ("trpo", "trpo_replay")
      for value in (-1, 0.5, None, True)),
    *(("algorithm", name, "max_kl", value) for name in ("trpo", "npg", "trpo_replay")
      for value in (*NOT_POSITIVE, None)),
    *(("algorithm", "trpo_penalty", "target_kl", value) for value in (*NOT_POSITIVE, None)),
    *(("algorithm", "trpo_penalty", "penalty", value) for value in NOT_POSITIVE),
    *((*part, "learning_rate", value) for part in (CRITIC, NAF, DQN, SAC, REPLAY, *FIRST_ORDER)
      for value in (*NOT_POSITIVE, None)),
    *((*part, "max_gradient_norm", value) for part in CLIPPED for value in (*NOT_POSITIVE, None)),
    *((*DQN, "epsilon", value) for value in (-0.01, 1.01, math.nan, "1", None)),
    *((*DQN, "n_step", value) for value in (0, -1, 1.5, "3", True)),
    *((*DQN, "double", value) for value in (1, None, "no")),
    *((*PPO, "clip", value) for value in (*NOT_POSITIVE, None)),
    *((*PPO, name, value) for name in ("kl_stop", "value_clip") for value in NOT_POSITIVE),
    *((*part, "value_weight", value) for part in CLIPPED for value in (-1e-9, math.inf, None, "x")),
    *((*part, "entropy_bonus", value) for part in FIRST_ORDER for value in (-1e-9, math.inf, None, "x")),
    *((*part, "gae_lambda", value) for part in ALGORITHMS for value in (-0.01, 1.01, math.nan, "1", None)),
    *((*part, "line_search_shrink", value) for part in LINE_SEARCH for value in (0, 1, -0.5, 1.5, math.nan)),
    *((*part, "cg_damping", value) for part in TRUST_REGION for value in (-1e-9, math.inf, "x")),
    *((*REPLAY, "critic_cg_damping", value) for value in (-1e-9, math.inf, None, "x")),
    *((*part, "initial_log_std", value) for part in (POLICY, SQUASHED) for value in (-11, 6, math.nan, -math.inf)),
    *((*part, "hidden", value) for part in (POLICY, SQUASHED, CRITIC, NAF, SAC, REPLAY)
      for value in ((0,), (64, -1), (1.5,), ("a",), 64, None, "64")),
    *((*part, name, value) for part in RECURRENT for name in ("hidden", "bptt_steps") for value in NOT_WHOLE),
    *((*part, "bptt_steps", 10_001) for part in RECURRENT),
    *((*part, "encoder", value) for part in RECURRENT for value in ((0,), (1.5,), 64)),
    *((*part, "kind", value) for part in (*CNNS, *RECURRENT) for value in ("resnet", 1, None)),
    *((*part, "pixel_scale", value) for part in (*CNNS, *RECURRENT) for value in (0, -1.0, math.inf, "10", None, True)),
    *((*part, "channels", value) for part in (*CNNS, *RECURRENT) for value in ((0,), (1.5,), 64, ())),
    *((*part, "hidden", value) for part in CNNS for value in NOT_WHOLE),
    *(("policy", name, "initial_log_std", value) for name in (*MEMORY, "cnn") for value in (-11, 6, math.nan)),
    *(("policy", name, "state_dependent_std", value) for name in (*MEMORY, "cnn") for value in (1, None, "no")),
    *(("policy", name, "shared", value) for name in (*MEMORY, "cnn") for value in (1, None, "no")),
    *(("critic", name, "normalize_returns", value) for name in (*MEMORY, "cnn") for value in (1, None, "no")),
    *(("critic", name, setting, value) for name in (*MEMORY, "cnn")
      for setting in ("epochs", "minibatch_size", "shared_from")
      for value in NOT_WHOLE),
    *(("critic", name, "minibatch_per_env", -1.0) for name in (*MEMORY, "cnn")),
    *(("critic", name, "learning_rate", value) for name in (*MEMORY, "cnn") for value in (*NOT_POSITIVE, None)),
    *((*REPLAY, "value_hidden", value) for value in ((0,), (1.5,), ("a",), 64, None, "64")),
    *((*POLICY, setting, value) for setting in ("state_dependent_std", "shared") for value in (1, None, "no")),
    *((*CRITIC, "normalize_returns", value) for value in (1, None, "no")),
    *((*part, "asynchronous", value) for part in (NAF, DQN, SAC, ("algorithm", "a2c")) for value in (1, None, "no")),
    *(("critic", "linear", "ridge", value) for value in (*NOT_POSITIVE, None)),
    *((*GPS, name, value) for name in ("conditions", "samples", "imitation_steps", "minibatch_size")
      for value in NOT_WHOLE),
    *((*GPS, "samples", value) for value in (1, None)),
    *((*GPS, "horizon", value) for value in (0, 1, 2.5, "3", True)),
    *((*GPS, "window", value) for value in (-1, 0.5, None, True)),
    *((*GPS, "model_memory", value) for value in (0.5, math.nan, math.inf, "3", None)),
    *((*GPS, name, value) for name in ("max_kl", "learning_rate", "prior_samples") for value in (*NOT_POSITIVE, None)),
]  # fmt: skip
PARTS = [(kind, name) for kind in ("algorithm", "policy", "critic") for name in KINDS[kind]]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=3),
    st.tuples(st.floats()), st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
)  # fmt: skip


def test_defaults_are_valid():
    assert make_config({}) == Config()


def assert_names_setting_and_value(message, name, value):
    assert message.startswith(name) and "\n" not in message
    shown = value[-1] if isinstance(value, tuple) and value else value
    assert repr(shown) in message or repr(value) in message


@pytest.mark.parametrize(("name", "value"), BAD)
def test_error_names_setting_and_value(name, value):
    with pytest.raises(ValueError) as error:
        make_config({name: value})
    assert_names_setting_and_value(str(error.value), name, value)


def without_type_checks(call: str) -> str:
    """Output of a call of this module in a Python process without the tests' run-time type checks, as users run it."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_config as t; t.{call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


def print_errors_of_parts():
    for kind, part, name, value in BAD_OF_PARTS:
        try:
            factory(kind, part)(**{name: value})
        except ValueError as error:
            print(json.dumps(str(error)))
        else:
            print(json.dumps("accepted"))


@functools.cache
def errors_of_parts() -> list[str]:
    return [json.loads(line) for line in without_type_checks("print_errors_of_parts()").splitlines()]


@pytest.mark.parametrize("number", range(len(BAD_OF_PARTS)), ids=lambda n: "-".join(map(str, BAD_OF_PARTS[n][1:])))
def test_error_in_spec_names_setting_and_value(number):
    assert_names_setting_and_value(errors_of_parts()[number], *BAD_OF_PARTS[number][2:])


def test_table_covers_every_setting_of_every_spec():
    tried = {(kind, part, name) for kind, part, name, _ in BAD_OF_PARTS}
    assert tried == {(*part, name) for part in PARTS for name in inspect.signature(factory(*part)).parameters}


@given(st.sampled_from(NAMES), JUNK)
def test_any_value_is_accepted_or_rejected_by_name(name, value):
    try:
        config = make_config({name: value})
    except ValueError as error:
        assert name in str(error) and "\n" not in str(error)
    else:
        hash(config)  # sizes are static arguments of compiled functions


@settings(deadline=None)  # the first import is slow
@given(
    st.sampled_from([part for part in PARTS if part not in (("critic", "none"), ("critic", "shared"))]), st.data(), JUNK
)
def check_any_value_in_any_spec(part, data, value):
    name = data.draw(st.sampled_from(list(inspect.signature(factory(*part)).parameters)))
    try:
        made = factory(*part)(**{name: value})
    except ValueError as error:
        assert name in str(error) and "\n" not in str(error)
    else:
        assert isinstance(made.spec_string, str)


def test_any_value_in_a_spec_is_accepted_or_rejected_by_name():
    without_type_checks("check_any_value_in_any_spec()")


@pytest.mark.parametrize(("kind", "words"), [("critic", "MLP"), ("critic", ""), ("policy", ""), ("algorithm", "TRPO")])
def test_unknown_spec_name_is_rejected_in_one_sentence(kind, words):
    with pytest.raises(ValueError) as error:
        parse(kind, words)
    assert_names_setting_and_value(str(error.value), kind, words)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("gama", None),
        ("total_step", "total_steps"),
        ("normalise_observations", "normalize_observations"),
        ("hiden", None),
        ("maxkl", "max_kl"),
    ],
)
def test_unknown_setting_suggests_similar_names(wrong, right):
    with pytest.raises(TypeError, match=f"unknown setting '{wrong}'") as error:
        make_config({wrong: 1})
    assert "\n" not in str(error.value)
    if right is not None:
        assert f"did you mean {right}" in str(error.value)


def test_steps_are_a_million_unless_given_or_a_time_is_given():
    assert Config().most_steps == 1_000_000 == Config(stop_at_return=1).most_steps
    assert Config(total_steps=7).most_steps == 7 == Config(total_steps=7, stop_after_seconds=1).most_steps
    assert Config(stop_after_seconds=1).most_steps == 10**10


@pytest.mark.parametrize("name", ["total_steps", "steps_per_update", "max_steps_per_update", "eval_every"])
def test_whole_float_is_taken_as_an_integer(name):
    value = getattr(Config(**{name: 1e6}), name)
    assert value == 1_000_000 and type(value) is int


def test_scalars_of_numpy_and_jax_are_taken_as_numbers():
    given = {"total_steps": np.int64(1000), "seed": np.int32(3), "max_kl": np.float64(0.02), "discount": np.array(0.5)}
    found = Config(**given, normalize_observations=np.False_, stop_at_return=jnp.float32(2.5), num_envs=np.uint8(8))
    usual = Config(total_steps=1000, seed=3, max_kl=0.02, discount=0.5, normalize_observations=False, num_envs=8)
    assert repr(found) == repr(dataclasses.replace(usual, stop_at_return=2.5))


def test_max_steps_per_update_must_not_be_below_steps_per_update():
    with pytest.raises(ValueError, match="max_steps_per_update=100 is below steps_per_update=1024"):
        make_config({"max_steps_per_update": 100, "steps_per_update": 1024})
    with pytest.raises(ValueError, match="max_steps_per_update=100 is below steps_per_update=1024"):
        resolve_sizes(Config(max_steps_per_update=100), 1, num_envs=16, steps_per_update=1024)


def test_train_takes_every_setting_with_its_default():
    """Written out, since editors and type checkers read the signature as it stands in the source."""
    taken = inspect.signature(jaxtrpo.train).parameters
    for field in dataclasses.fields(Config):
        assert taken[field.name].default == field.default, field.name
    others = set(Options._fields) - {field.name for field in dataclasses.fields(Config)}
    for name in others:
        assert taken[name].default == Options._field_defaults[name], name
    assert set(taken) == {"env", "progress", "unknown"} | {field.name for field in dataclasses.fields(Config)} | others


@given(
    num_actors=st.integers(1, 9),
    num_envs=st.none() | st.integers(1, 64),
    segment_length=st.none() | st.integers(1, 64),
    steps_per_update=st.integers(1, 10_000),
    more=st.none() | st.integers(0, 10_000),
)
def test_batch_sizes_are_consistent_or_error_names_the_setting(
    num_actors, num_envs, segment_length, steps_per_update, more
):
    largest = None if more is None else steps_per_update + more
    config = Config(
        num_envs=num_envs,
        segment_length=segment_length,
        steps_per_update=steps_per_update,
        max_steps_per_update=largest,
    )
    try:
        usual = for_batch(num_actors, 16)
        sizes = resolve_sizes(config, num_actors, num_envs=usual, steps_per_update=steps_per_update)
    except ValueError as error:
        if num_envs is not None and num_envs % num_actors:
            assert str(error).startswith(f"num_envs={num_envs} ")
        else:
            assert str(error).startswith(f"steps_per_update={steps_per_update} ")
            envs = num_envs or num_actors * math.ceil(16 / num_actors)
            assert steps_per_update < envs * (segment_length or 1)
        return
    assert sizes.num_envs % num_actors == 0
    assert sizes.num_envs == num_envs or (num_envs is None and 16 <= sizes.num_envs < 16 + num_actors)
    assert sizes.segment_length == (segment_length or min(16, steps_per_update // sizes.num_envs))
    assert sizes.segment_steps == sizes.segment_length * sizes.num_envs
    assert 1 <= steps_per_update // sizes.segment_steps <= sizes.max_segments
    assert sizes.max_segments * sizes.segment_steps <= (largest or steps_per_update)


@given(num_actors=st.integers(1, 300), usual=st.integers(1, 500), larger=st.floats(0.01, 1000))
def test_default_num_envs_follows_batch_size_and_actors(num_actors, usual, larger):
    found = for_batch(num_actors, usual, larger=larger)
    assert found % num_actors == 0 and found >= usual
    # Steps per environment never double unless the number of environments has reached its limit per core.
    if found + num_actors <= max(usual, 128 * num_actors):
        assert found > usual * larger / 2
    if larger < 2:
        assert found < usual + num_actors
    assert for_batch(num_actors, usual, larger=larger, accelerator=True) == 4096 * num_actors


@pytest.mark.parametrize(("words", "envs"), [("trpo", 256), ("ppo", 128)])
def test_larger_steps_per_update_uses_more_environments(words, envs):
    run = prepare("InvertedPendulum-v5", algorithm=words, steps_per_update=20_480, actors=2)
    assert run.config.num_envs == envs and run.config.segment_length == 16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"device": "gpu"}, r"device=gpu: Reacher-v5 runs on CPU cores; only environments that are JAX programs"),
        ({"device": "phone"}, r"device='phone' must be auto, cpu, gpu or tpu"),
        ({"env": "brax:inverted_pendulum", "device": "tpu"}, r"device=tpu: JAX finds no such device"),
    ],
)
def test_error_about_unavailable_device_names_it(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        prepare(**{"env": "Reacher-v5", **arguments})
