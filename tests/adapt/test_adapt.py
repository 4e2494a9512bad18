"""Adaptation rules against plain Python loops, compiled and eager."""

from __future__ import annotations

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe import ProbeEnvironment
from support import actors, counted_compilations, first, random_batch

import jaxtrpo
from jaxtrpo.adapt import Rule, chain, exponential, fixed, improvement, linear, margin, trust, updated
from jaxtrpo.config import Sizes
from jaxtrpo.config.specs import parse
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.training.make_update import segments_of_run
from jaxtrpo.training.metrics import no_episodes, report
from jaxtrpo.training.prepare import prepare

FIRST = {"max_kl": jnp.float32(0.004), "steps_per_update": jnp.int32(2000)}


def follow(rule: Rule, returns, first=FIRST, *, compiled=True) -> list[tuple[float, int]]:
    """Returns max KL and steps per update after each update, given the mean return of each."""
    update = jax.jit(rule.update) if compiled else rule.update
    state, now, found, done = rule.init(first), first, [], 0
    for value in returns:
        done += int(now["steps_per_update"])
        metrics = {"mean_return": jnp.float32(value), "env_steps": jnp.float32(done)}
        state, now = update(state, now, metrics)
        found.append((float(now["max_kl"]), int(now["steps_per_update"])))
    return found


def plain_improvement(returns, window, required, steps_delta, steps_bounds, kl_delta, kl_bounds):
    kl, steps = float(FIRST["max_kl"]), int(FIRST["steps_per_update"])
    current, before, found = [], None, []
    for value in returns:
        if not math.isnan(value):
            current.append(value)
        if len(current) == window:
            if before is not None:
                improved = sum(current) > before + required * abs(before)
                steps = min(max(steps + (-steps_delta if improved else steps_delta), steps_bounds[0]), steps_bounds[1])
                kl = min(max(kl + (kl_delta if improved else -kl_delta), kl_bounds[0]), kl_bounds[1])
            before, current = sum(current), []
        found.append((kl, steps))
    return found


@settings(deadline=None, max_examples=50)
@given(
    # Sums of integers are exact, so both implementations see the same improvements.
    st.lists(st.one_of(st.integers(-100, 100).map(float), st.just(math.nan)), max_size=60),
    st.integers(1, 10),
    st.sampled_from([0.0, 0.5]),
)
def test_improvement_matches_plain_loop(returns, window, required):
    options = {
        "window": window,
        "required": required,
        "steps_delta": 300,
        "steps_bounds": (1_200, 2_500),
        "kl_delta": 0.0005,
        "kl_bounds": (0.003, 0.005),
    }
    found = follow(improvement(**options), returns)
    expected = plain_improvement(returns, **options)
    np.testing.assert_allclose(np.reshape(found, (-1, 2)), np.reshape(expected, (-1, 2)), rtol=1e-5)


def test_improvement_takes_larger_steps_while_returns_rise_and_smaller_ones_while_they_fall():
    rise, fall = follow(improvement(), range(100)), follow(improvement(), range(100, 0, -1))
    assert [steps for _, steps in rise[::10]] == [2000, 2000, 1700, 1400] + 6 * [1200]
    assert [steps for _, steps in fall[::10]] == [2000, 2000, *range(2300, 4700, 300)]
    np.testing.assert_allclose([kl for kl, _ in rise[10::10]], np.linspace(0.004, 0.008, 9), rtol=1e-5)
    expected = np.maximum(np.linspace(0.004, 0.0, 9), 0.001)
    np.testing.assert_allclose([kl for kl, _ in fall[10::10]], expected, rtol=1e-5)


def test_margin_requires_five_percent_improvement():
    def steps_after(ratio):
        return follow(margin(), [-100.0] * 10 + [-100.0 * ratio] * 10)[-1][1]

    assert steps_after(0.94) == 1700
    assert steps_after(0.96) == 2300
    assert margin().max_steps_per_update == 10_000
    assert improvement().max_steps_per_update == 20_000


@pytest.mark.parametrize("make", [improvement, margin])
def test_delta_of_none_leaves_setting_unchanged(make):
    for _, steps in follow(make(steps_delta=None), range(40)):
        assert steps == 2000
    for kl, _ in follow(make(kl_delta=None), range(40)):
        np.testing.assert_allclose(kl, 0.004)
    assert make(steps_delta=None).max_steps_per_update is None


def test_initial_settings_outside_bounds_are_kept_until_first_comparison():
    first = {"max_kl": jnp.float32(0.05), "steps_per_update": jnp.int32(600)}
    found = follow(improvement(), range(20), first)
    np.testing.assert_allclose(found[18], (0.05, 600))
    np.testing.assert_allclose(found[19], (0.01, 1200))


def test_schedules_reach_final_values_and_stay_there():
    for make, halfway in ((linear, (0.0025, 3000)), (exponential, (0.002, 2828))):
        found = follow(make(over=200_000, max_kl=0.001, steps_per_update=4000), [0.0] * 200)
        steps = np.cumsum([2000] + [steps for _, steps in found[:-1]])
        middle = np.argmin(np.abs(steps - 100_000))
        np.testing.assert_allclose(found[middle], halfway, rtol=0.02)
        np.testing.assert_allclose(found[-1], (0.001, 4000), rtol=1e-5)
        assert np.all(np.diff([kl for kl, _ in found]) <= 0)
        assert make(over=1, steps_per_update=4000).max_steps_per_update == 4000


def test_schedules_work_for_a_hundred_billion_steps():
    begun = {"max_kl": jnp.float32(0.004), "learning_rate": jnp.float32(1.0)}
    rule = linear(over=10**11, learning_rate=0)
    for done, left in ((2.5e10, 0.75), (9e10, 0.1), (10**11, 0.0), (3 * 10**11, 0.0)):
        _, now = jax.jit(rule.update)(rule.init(begun), begun, {"env_steps": jnp.float32(done)})
        np.testing.assert_allclose(now["learning_rate"], left, atol=1e-6)


@pytest.mark.parametrize("steps", [10**6, 10**11])
def test_segments_of_run_are_counted_exactly(steps):
    """Step counts passed to rules are correct up to rounding, and the run ends with exactly the right segment."""
    sizes = Sizes(num_envs=16, segment_length=16, max_segments=40)
    total = segments_of_run(steps, sizes, 1)
    assert (total - 1) * 256 < steps <= total * 256

    read = ("env_steps", "steps_left", "progress")

    def keep(state, hyperparameters, metrics):
        return {name: metrics[name] for name in read}, hyperparameters

    def after_three(segments):
        nothing = dict.fromkeys(read, jnp.zeros(()))
        state = TrainState(None, None, no_episodes(), {}, nothing, jnp.zeros(2, jnp.uint32), segments, jnp.int32(total))
        batch = jax.tree.map(jnp.asarray, random_batch(0, num_segments=3))
        return report(state, batch, None, {}, Rule(lambda _: nothing, keep), sizes)[0]

    after = first(actors(1).map(after_three)(np.full(1, total - 4, np.int32)))
    assert after.segments == total - 1
    np.testing.assert_allclose(after.adapt["env_steps"], (total - 1) * 256, rtol=1e-6)
    assert after.adapt["steps_left"] == 256 and after.adapt["progress"] <= 1.0


def test_too_many_segments_to_count_are_refused():
    sizes = Sizes(num_envs=1, segment_length=16, max_segments=4)
    assert segments_of_run(2**31 * 16 - 16, sizes, 1) == 2**31 - 1
    for steps, parts in ((2**31 * 16, 1), (2**30 * 16, 2)):
        with pytest.raises(ValueError, match=f"^total_steps={steps} .*num_envs.*segment_length"):
            segments_of_run(steps, sizes, parts)


def test_schedule_leaves_other_settings_unchanged():
    found = np.array(follow(linear(over=10_000, max_kl=0.002), [0.0] * 9))
    np.testing.assert_array_equal(found[:, 1], 2000)
    np.testing.assert_allclose(found[:4, 0], [0.0036, 0.0032, 0.0028, 0.0024], rtol=1e-5)


def test_chain_applies_rules_in_order():
    returns = [3.0, 1.0, 2.0] * 20
    both = follow(chain(linear(over=50_000, max_kl=0.002), improvement(kl_delta=None, window=3)), returns)
    steps_only = follow(improvement(kl_delta=None, window=3), returns)
    assert [steps for _, steps in both] == [steps for _, steps in steps_only]
    assert both[-1][0] == pytest.approx(0.002)
    assert chain(margin(), improvement()).max_steps_per_update == 20_000
    assert chain(fixed(), linear(over=1, max_kl=0.1)).max_steps_per_update is None


RULES = [
    fixed(),
    linear(over=9000, max_kl=0.001, steps_per_update=1300),
    exponential(over=9000, max_kl=0.001),
    improvement(window=2),
    margin(window=2),
    chain(margin(window=2, kl_delta=None), linear(over=9000, max_kl=0.02)),
]


@pytest.mark.parametrize("rule", RULES)
def test_compiled_rule_matches_eager_and_compiles_once(rule):
    returns = np.float32([1, 2, 3, 2, math.nan, 1, 0, 5, 9, 9, math.nan, 9])
    np.testing.assert_allclose(follow(rule, returns), follow(rule, returns, compiled=False), rtol=1e-6)
    update = jax.jit(rule.update)
    metrics = {"mean_return": jnp.float32(1), "env_steps": jnp.float32(5)}
    state = update(rule.init(FIRST), FIRST, metrics)
    with counted_compilations() as programs:
        for _ in range(3):
            state = update(*state, metrics)
    assert not programs


@pytest.mark.parametrize("rule", RULES)
def test_update_keeps_shapes_and_dtypes(rule):
    """Otherwise the run would recompile."""
    metrics = {"mean_return": jnp.float32(1), "env_steps": jnp.float32(5)}
    before = rule.init(FIRST), FIRST
    after = rule.update(*before, metrics)
    shapes = [jax.tree.map(lambda leaf: (jnp.shape(leaf), leaf.dtype), tree) for tree in (before, after)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("make", "options", "name"),
    [
        (linear, {"over": 0, "max_kl": 0.1}, "over"),
        (exponential, {"over": 10, "max_kl": 0.0}, "max_kl"),
        (linear, {"over": 10, "steps_per_update": -1}, "steps_per_update"),
        (improvement, {"window": 0}, "window"),
        (improvement, {"steps_delta": -300}, "steps_delta"),
        (margin, {"kl_delta": math.nan}, "kl_delta"),
        (margin, {"steps_bounds": (100, 50)}, "steps_bounds"),
        (margin, {"kl_bounds": (0.0, 0.1)}, "kl_bounds"),
        (improvement, {"required": -0.1}, "required"),
        (improvement, {"steps_bounds": (100, 2**30 + 1)}, "steps_bounds"),
    ],
)
def test_error_names_the_invalid_setting(make, options, name):
    with pytest.raises(ValueError, match=f"^{name}="):
        make(**options)


def follow_strengths(rule: Rule, strengths, total_steps=0, first=FIRST) -> tuple[np.ndarray, np.ndarray]:
    """Returns max KL and steps per update after each update, given the strength (as defined in `trust`) of each."""
    update = jax.jit(rule.update)
    state, now, found, left = rule.init(first), first, [], float(total_steps)
    for slope, strength in zip(itertools.cycle([0.1, 0.05, 0.2]), strengths, strict=False):
        kl, left = 0.1 * slope, left - float(now["steps_per_update"])
        # A step of length sqrt(2 KL) along a gradient of length slope / sqrt(2 KL); the fraction gain_ratio is true.
        metrics = {
            "gain_ratio": strength / (slope**2 / (2 * kl)),
            "predicted_gain": slope,
            "kl": kl,
            "steps_left": left,
        }
        state, now = update(state, now, jax.tree.map(jnp.float32, metrics))
        found.append((float(now["max_kl"]), int(now["steps_per_update"])))
    kl, steps = zip(*found, strict=True)
    return np.array(kl), np.array(steps)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.sampled_from([-0.5, -0.01, 0.0, math.nan, 0.02, 0.7]), min_size=1, max_size=120),
    st.integers(30_000, 300_000),
)
def test_trust_matches_plain_loop(strengths, total_steps):
    """log radius += gain * (strength - 0.03) / (root mean square of about the last 50); below the bound, batches grow.

    Batches grow only during the last 100,000 steps of the run.
    """
    radius, mean_square, seen, expected, left = math.log(0.004), 0.0, 0, [], total_steps
    for strength in strengths:
        left -= round(expected[-1][1]) if expected else 2000
        if not math.isnan(strength):
            seen += 1
            mean_square += (strength**2 - mean_square) / min(seen, 50)
            change = min(max((strength - 0.03) / (math.sqrt(mean_square) or 1.0), -3), 3)
            radius += 0.2 * change
        least = 0.003 if left > 100_000 else 0.003 * 2000 / 8000
        radius = min(max(radius, math.log(least)), math.log(0.02))
        kl = max(math.exp(radius), 0.003)
        expected.append((kl, 2000 * kl / math.exp(radius)))
    rule = trust(strength=0.03, gain=0.2, kl_range=(0.75, 5.0), max_steps_per_update=8000, settle_steps=100_000)
    kl, steps = follow_strengths(rule, strengths, total_steps)
    np.testing.assert_allclose(kl, [each[0] for each in expected], rtol=1e-4)
    np.testing.assert_allclose(steps, [each[1] for each in expected], rtol=1e-3)


def test_trust_grows_region_while_gradient_is_strong_and_batches_once_it_is_gone():
    rule = trust(max_steps_per_update=16_000)
    kl, steps = follow_strengths(rule, [1.0] * 100 + [-1.0] * 300)
    assert np.all(np.diff(kl[:100]) >= 0) and kl[99] == pytest.approx(5 * 0.004)
    assert np.all(np.diff(kl[100:]) <= 0) and kl[-1] == pytest.approx(0.5 * 0.004)
    assert np.all(steps[:100] == FIRST["steps_per_update"]) and steps[-1] == 16_000
    assert np.all(steps[kl > 0.00201] == FIRST["steps_per_update"])


def test_trust_keeps_first_batches_that_are_larger_than_its_largest():
    kl, steps = follow_strengths(trust(max_steps_per_update=1000), [-1.0] * 300)
    assert np.all(steps == FIRST["steps_per_update"]) and kl[-1] == pytest.approx(0.5 * 0.004)


def test_trust_keeps_batches_small_until_last_million_steps():
    kl, steps = follow_strengths(trust(), [-1.0] * 1500, total_steps=3_000_000)
    before = np.arange(1, 1501) * 2000 < 2_000_000
    assert np.all(steps[before] == FIRST["steps_per_update"]) and kl[before][-1] == pytest.approx(0.5 * 0.004)
    assert np.all(np.diff(steps[~before]) >= 0) and steps[-1] == 10_240


def test_trust_keeps_max_kl_while_strength_averages_its_target():
    kl, _ = follow_strengths(trust(strength=0.02), [0.32, -0.28] * 500)
    assert np.all(np.abs(np.log(kl / 0.004)) < 0.15)


def test_a_change_beyond_32_bits_goes_to_the_bound():
    """Where returns fall, batches become larger, however large the change is."""
    rule = improvement(window=1, steps_delta=2**31 - 1, kl_bounds=(10**-3, 10**10))
    assert [steps for _, steps in follow(rule, [3.0, 2.0, 3.0])] == [2000, 20_000, 1200]


def test_batches_may_grow_as_early_as_in_the_longest_run():
    """That the run settles within its last steps is told in more of them than 32 bits count."""
    few, many = (follow_strengths(trust(settle_steps=steps), [-0.5] * 200, 10**9)[1] for steps in (1, 10**11))
    assert max(many) > 2000 >= max(few)


def test_trust_changes_nothing_after_update_without_step():
    """If the line search fails, slope and KL are zero."""
    rule = trust()
    nothing = {
        "gain_ratio": jnp.float32(0.5),
        "predicted_gain": jnp.float32(0),
        "kl": jnp.float32(0),
        "steps_left": jnp.float32(0),
    }
    _, now = rule.update(rule.init(FIRST), FIRST, nothing)
    assert (float(now["max_kl"]), int(now["steps_per_update"])) == (pytest.approx(0.004), 2000)


@pytest.mark.parametrize(
    "wrong",
    [{"strength": 0.0}, {"gain": 0.0}, {"kl_range": (5.0, 0.5)}, {"max_steps_per_update": -1}, {"settle_steps": 0}],
)
def test_trust_refuses_invalid_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        trust(**wrong)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fixed", fixed()),
        ("margin", margin()),
        (" margin() ", margin()),
        ("improvement(window=2, kl_delta=None)", improvement(window=2, kl_delta=None)),
        ("improvement(window=1, steps_bounds=(1800, 2300))", improvement(window=1, steps_bounds=(1800, 2300))),
        ("linear(over=20_000, max_kl=0.01)", linear(over=20_000, max_kl=0.01)),
        (
            "chain(exponential(over=9_000, steps_per_update=900), improvement(window=3, steps_delta=None))",
            chain(exponential(over=9_000, steps_per_update=900), improvement(window=3, steps_delta=None)),
        ),
    ],
)
def test_spec_string_makes_the_same_rule_as_the_call(text, rule):
    returns = [1.0, 5.0, 2.0, 8.0, 7.0, 1.0, 3.0, 9.0]
    assert follow(parse("adapt", text), returns) == follow(rule, returns)
    assert parse("adapt", text).max_steps_per_update == rule.max_steps_per_update


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mragin", "margin"),
        ("", "trust(setting=value)"),
        ("margin(", "margin"),
        ("margin()()", "margin"),
        ("a.margin", "margin"),
        ("margin(widow=3)", "widow"),
        ("trust(target=0.1)", "trust takes strength, gain"),
        ("fixed(target=0.1)", "fixed takes none"),
        ("margin(window=0)", "window=0"),
        ("margin(window='x')", "window"),
        ("margin(window=print(1))", "window"),
        ("margin(steps_bounds=3)", "steps_bounds"),
        ("margin(steps_bounds=(3, 2))", "steps_bounds"),
        ("margin(fixed)", "argument"),
        ("margin(**{})", "margin"),
        ("linear", "linear needs at least one setting"),
        ("chain(linear(over=-1))", "over=-1"),
        ("improvement(steps_delta=300.0)", "steps_delta=300.0"),
        ("improvement(window=2.5)", "window=2.5"),
        ("improvement(steps_bounds=(1200.0, 20000))", "steps_bounds=(1200.0, 20000)"),
        ("trust(max_steps_per_update=4096.5)", "max_steps_per_update=4096.5"),
        ("trust(settle_steps=1e6)", "settle_steps=1000000.0"),
        ("linear(over=100, steps_per_update=10.5)", "steps_per_update=10.5"),
    ],
)
def test_invalid_spec_string_is_refused_with_one_line(text, expected):
    with pytest.raises(ValueError, match="adapt=") as caught:
        parse("adapt", text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- rules of the user


def halving(name: str) -> Rule:
    """Rule that reads a metric or setting of this name."""

    def update(state, hyperparameters, metrics):
        return state, {**hyperparameters, "steps_per_update": hyperparameters["steps_per_update"] + 0 * metrics[name]}

    return Rule(init=lambda hyperparameters: (), update=update)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (halving("epochs"), r"^adapt=custom reads epochs, which this algorithm does not report; it reports steps"),
        (halving("mean_retur"), r"^adapt=custom reads mean_retur, .*; did you mean mean_return\?$"),
        (chain(halving("epochs"), fixed()), r"^adapt=chain\(custom, fixed\) reads epochs"),
        (
            Rule(lambda settings: (), lambda state, settings, metrics: (state, {**settings, "max_kl": 0.0})),
            r"^adapt=custom must return all settings that it was given and no others; max_kl is missing or new$",
        ),
        (
            Rule(lambda settings: (), lambda state, settings, metrics: (state, {})),
            "; learning_rate, .* missing or new$",
        ),
    ],
)
def test_rule_that_does_not_fit_the_algorithm_is_refused_before_training(rule, told):
    with pytest.raises(ValueError) as error:
        prepare(ProbeEnvironment(), algorithm="pg", adapt=rule, policy="mlp(hidden=(2,))", actors=1)
    assert re.search(told, str(error.value))
    assert len(str(error.value)) <= 200 and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (lambda state, h, m: {**h}, "must return a state and the settings, not dict"),
        (lambda state, h, m: (state, None), "must return a state and the settings, not tuple"),
        (
            lambda state, h, m: (state, {**h, "steps_per_update": h["steps_per_update"] * 0.5}),
            r"must return steps_per_update as int32\[\], as it was given, not as float32\[\]",
        ),
        (
            lambda state, h, m: (state, {**h, "max_kl": h["max_kl"] * jnp.ones(2)}),
            r"must return max_kl as float32\[\], as it was given, not as float32\[2\]",
        ),
        (
            lambda state, h, m: ((m["kl"],), h),
            r"must return a state of the same types as that of its init, nothing at \[0\], not \[0\] float32\[\]",
        ),
    ],
)
def test_rule_that_returns_something_else_is_refused_before_training(update, told):
    with pytest.raises(ValueError, match=rf"^adapt=custom {told}(\n|$)"):
        jaxtrpo.train("CartPole-v1", adapt=Rule(lambda h: (), update), total_steps=256, actors=1, progress=False)


def test_rule_whose_state_changes_its_type_is_refused_before_training():
    rule = Rule(lambda h: 0, lambda state, h, m: (state + m["kl"], h))
    with pytest.raises(ValueError, match=r"^adapt=custom must return a state .*, int32\[\], not float32\[\](\n|$)"):
        prepare(ProbeEnvironment(), adapt=rule, policy="mlp(hidden=(2,))", actors=1)


def test_rules_of_a_chain_are_checked_like_others():
    for wrong in ("linear(max_kl=0.001)", [fixed()], fixed):
        with pytest.raises(ValueError, match=r"^chain takes rules, such as .*, not "):
            chain(fixed(), wrong)
    forgotten = Rule(lambda h: (), lambda state, h, m: {**h}, spec_string="mine")
    with pytest.raises(ValueError, match="^adapt=mine must return a state and the settings, not dict"):
        chain(fixed(), forgotten).update(((), ()), FIRST, {})


def test_exponential_schedule_from_zero_is_refused():
    settings = {"algorithm": "dqn(epsilon=0.0, replay=1000)", "total_steps": 256, "actors": 1, "progress": False}
    with pytest.raises(
        ValueError, match=r"^adapt=exponential\(epsilon=0.01\) multiplies epsilon, which must then begin"
    ):
        jaxtrpo.train("CartPole-v1", adapt="exponential(epsilon=0.01)", **settings)
    with pytest.raises(ValueError, match="multiplies epsilon"):
        jaxtrpo.train("CartPole-v1", adapt="chain(exponential(epsilon=0.01))", **settings)


@pytest.mark.parametrize("rules", [("margin()", "linear(max_kl=0.1)"), ("trust()", "margin(steps_delta=None)")])
def test_rule_whose_changes_would_be_overwritten_is_refused(rules):
    for text in (f"chain({', '.join(rules)})", f"chain({', '.join(reversed(rules))})"):
        with pytest.raises(ValueError, match="both set max_kl, the latter in every update, whatever it was"):
            parse("adapt", text)


def test_chain_in_a_chain_is_checked_for_settings_that_are_overwritten():
    with pytest.raises(ValueError, match="both set max_kl, the latter in every update"):
        parse("adapt", "chain(chain(linear(max_kl=0.1)), margin())")


def test_other_key_errors_of_a_rule_stay_as_they_are():
    rule = Rule(lambda settings: (), lambda state, settings, metrics: ({}[("own", 1)], settings))
    with pytest.raises(KeyError, match="own"):
        updated(rule, (), FIRST, {})
