"""Settings and the sentences about wrong ones."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrpo.config import Config, make_config, resolve_sizes

NAMES = [field.name for field in dataclasses.fields(Config)]
WHOLE = ["total_steps", "segment_length", "steps_per_update", "critic_epochs", "critic_minibatch_size",
         "fisher_samples", "cg_iterations", "line_search_steps", "eval_episodes", "actors", "num_envs",
         "max_steps_per_update"]  # fmt: skip
BAD = [
    *((name, value) for name in WHOLE for value in (0, -1, 1.5, "3", True, math.nan)),
    *((name, value) for name in ("seed", "eval_every", "advantage_memory") for value in (-1, 0.5, None, True)),
    ("seed", 2**32),
    *((name, value) for name in ("max_kl", "critic_learning_rate") for value in (0, -1.0, math.nan, math.inf, None)),
    *((name, value) for name in ("discount", "gae_lambda") for value in (-0.01, 1.01, math.nan, "1", None)),
    *(("line_search_shrink", value) for value in (0, 1, -0.5, 1.5, math.nan)),
    *(("cg_damping", value) for value in (-1e-9, math.inf, None, "x")),
    *(("initial_log_std", value) for value in (-11, 6, math.nan, -math.inf)),
    *((name, value) for name in ("critic_hidden", "policy_hidden") for value in ((0,), (64, -1), (1.5,), ("a",))),
    *((name, value) for name in ("critic_hidden", "policy_hidden") for value in (64, None, "64")),
    *((name, value) for name in ("normalize_observations", "normalize_returns") for value in (1, None, "no")),
    *((name, value) for name in ("critic", "advantages") for value in ("MLP", "", None, 1)),
]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=3),
    st.tuples(st.floats()), st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
)  # fmt: skip


def test_defaults_are_valid():
    assert make_config({}) == Config()


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_setting_gets_one_sentence_that_names_it_and_the_value(name, value):
    with pytest.raises(ValueError) as error:
        make_config({name: value})
    message = str(error.value)
    assert message.startswith(name) and "\n" not in message
    shown = value[-1] if isinstance(value, tuple) else value
    assert repr(shown) in message or repr(value) in message


@given(st.sampled_from(NAMES), JUNK)
def test_any_value_is_taken_or_refused_by_name(name, value):
    try:
        config = make_config({name: value})
    except ValueError as error:
        assert name in str(error) and "\n" not in str(error)
    else:
        hash(config)  # sizes are static arguments of compiled functions


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("gamma", None),
        ("total_step", "total_steps"),
        ("gea_lambda", "gae_lambda"),
        ("hidden", None),
        ("maxkl", "max_kl"),
    ],
)
def test_unknown_setting_offers_near_names(wrong, right):
    with pytest.raises(TypeError, match=f"unknown setting '{wrong}'") as error:
        make_config({wrong: 1})
    assert "\n" not in str(error.value)
    if right is not None:
        assert f"did you mean {right}" in str(error.value)


def test_largest_batch_may_not_be_below_the_first():
    with pytest.raises(ValueError, match="max_steps_per_update=100 is below steps_per_update=1024"):
        make_config({"max_steps_per_update": 100})


@given(
    num_actors=st.integers(1, 9),
    num_envs=st.none() | st.integers(1, 64),
    segment_length=st.integers(1, 64),
    steps_per_update=st.integers(1, 10_000),
    more=st.none() | st.integers(0, 10_000),
)
def test_sizes_fit_together_or_the_error_names_the_setting(
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
        sizes = resolve_sizes(config, num_actors)
    except ValueError as error:
        if num_envs is not None and num_envs % num_actors:
            assert str(error).startswith(f"num_envs={num_envs} ")
        else:
            assert str(error).startswith(f"steps_per_update={steps_per_update} ")
            envs = num_envs or num_actors * math.ceil(16 / num_actors)
            assert steps_per_update < envs * segment_length
        return
    assert sizes.num_envs % num_actors == 0
    assert sizes.num_envs == num_envs or (num_envs is None and 16 <= sizes.num_envs < 16 + num_actors)
    assert sizes.segment_steps == segment_length * sizes.num_envs
    assert 1 <= steps_per_update // sizes.segment_steps <= sizes.max_segments
    assert sizes.max_segments * sizes.segment_steps <= (largest or steps_per_update)
