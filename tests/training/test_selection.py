"""The policy that a run hands out: of the best evaluation, the last with about the highest returns, or the last."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting_env import generous
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jaxtyping import PyTree
from test_algorithms import OWN, TINY
from test_attributes import BonusEnvironment

import jaxtrpo
from jaxtrpo.envs.base import Transition, advance, start
from jaxtrpo.envs.registry import make_env
from jaxtrpo.rollout.evaluation import Evaluation
from jaxtrpo.rollout.types import Best
from jaxtrpo.runs.checkpoint import FORMAT, load_checkpoint
from jaxtrpo.runs.directory import CHECKPOINT_FILE
from jaxtrpo.runs.msgpack_file import write_msgpack
from jaxtrpo.training import defaults
from jaxtrpo.training.prepare import plan
from jaxtrpo.training.selection import EPISODES, earlier_best, no_best, selected, with_update
from jaxtrpo.training.train import prepare


class Learned(NamedTuple):
    policy: Any
    obs_moments: Any


class Clock(NamedTuple):
    steps: jax.Array  # of each environment, which go on when an episode ends


class TideEnvironment(BonusEnvironment):
    """Rewards rise for the first 400 steps of four environments together and then fall, besides what actions do."""

    name = "tide"
    episode_length = 2

    def reset(self, key, num_envs):
        return start(key, num_envs, self._reset_rows, Clock(jnp.zeros(num_envs)))

    def step(self, state, action):
        steps, healthy = state.physics.steps, jnp.ones(len(action), bool)
        reward = -jnp.abs(steps - 100) / 20 - (action[:, 0] - 0.5) ** 2
        moved = Transition(Clock(steps + 1), jnp.zeros((len(action), 1)), reward, ~healthy, healthy)
        return advance(state, moved, self._reset_rows, self.episode_length)


SPECS = {
    "trpo": "trpo(max_kl=0.1)",
    "trpo_replay": "trpo_replay(replay=250, minibatch_size=16, hidden=(8,))",
    "a3c": "a3c(learning_rate=0.01)",
    "naf": "naf(hidden=(8,), replay=512, minibatch_size=16, asynchronous=True, learning_rate=0.005)",
}


def index_of_best(windows: Sequence[Sequence[float]], episodes: Sequence[int]) -> int | None:
    """Returns the index of the update whose policy is to be selected, by a plain loop; None if there is none.

    Args:
      windows: returns of the last 100 episodes, after each update.
      episodes: number of episodes that finished in each update.
    """
    total, highest, of_highest, found = 0, -math.inf, 0.0, None
    for number, (returns, finished) in enumerate(zip(windows, episodes, strict=True)):
        total += finished
        if total < EPISODES:
            continue
        mean = statistics.fmean(returns)
        variance = statistics.variance(returns) / EPISODES
        if mean > highest:
            highest, of_highest = mean, variance
        if mean >= highest - 2 * math.sqrt(of_highest + variance):
            found = number
    return found


class Kept:
    """What `on_update` saw: rows of metrics, and the policy after each of them."""

    def __init__(self):
        self.rows, self.policies, self.windows = [], [], []

    def __call__(self, row, state):
        self.rows.append(row)
        self.policies.append(last_of(state))
        self.windows.append(np.float64(state.episodes.returns[0]))

    def best(self, since: int = 0) -> int | None:
        """Returns the index of the update to select from those after `since`."""
        found = index_of_best(self.windows[since:], [row["episodes"] for row in self.rows[since:]])
        return None if found is None else since + found


def last_of(state) -> tuple[PyTree, PyTree]:
    return jax.tree.map(lambda leaf: np.array(leaf[0]), (state.learner.policy, state.learner.obs_moments))


def assert_agrees(best: Best, metrics: dict[str, np.ndarray], *, segment_steps: int = 16) -> None:
    """Asserts that what was selected is what the metrics say; the policies themselves are unknown."""
    returns = np.where(np.cumsum(metrics["episodes"]) >= EPISODES, metrics["return_100"], -np.inf)
    np.testing.assert_allclose(best.highest, returns.max(), rtol=1e-6)
    taken = np.flatnonzero(metrics["env_steps"] == best.segments * segment_steps)[0]
    np.testing.assert_allclose(best.return_100, returns[taken], rtol=1e-6)
    assert taken < len(returns) - 10
    # Whatever the standard errors of later means, these are lower by two of the highest.
    assert np.all(returns[taken + 1 :] < best.highest - 2 * best.standard_error)


def assert_is(policy, wanted):
    for found, expected in zip(jax.tree.leaves((policy.params, policy.moments)), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(found, expected)


def train(algorithm="trpo", **settings) -> tuple[jaxtrpo.Result, Kept]:
    kept = Kept()
    parts = {**TINY, **OWN.get(algorithm, {}), "algorithm": SPECS.get(algorithm, algorithm), "adapt": "fixed"}
    run = prepare(TideEnvironment(), **{**parts, "total_steps": 1000, "on_update": kept, **settings})
    return run.run(progress=False), kept


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-20, 20), max_size=70), min_size=1, max_size=12))
@example([[0] * 100, [10, -10] * 50, [-1] * 100])  # an equal mean is no new highest, whose error would be larger
def test_the_policy_is_the_last_one_whose_returns_are_not_significantly_lower_than_the_highest(updates):
    def acting(number):
        return Learned({"w": jnp.full(2, number)}, jnp.float32(10 * number))

    best, update = no_best(acting(-1)), jax.jit(with_update)
    window, windows = [math.nan] * EPISODES, []
    for number, returns in enumerate(updates):
        window = [*window, *returns][-EPISODES:]
        windows.append(window)
        now = jnp.float32(window), jnp.int32(len(returns)), jnp.int32(100 + number)
        best = update(best, *now, acting(number))
    found = index_of_best(windows, [len(returns) for returns in updates])
    params, moments = selected(jax.device_get(best), "last parameters", "last moments")
    if found is None:
        assert (params, moments) == ("last parameters", "last moments")
        assert best.episodes == sum(map(len, updates))
    else:
        assert best.segments == 100 + found and set(params["w"]) == {found} and moments == 10 * found
        np.testing.assert_allclose(best.return_100, np.mean(windows[found]), atol=1e-5)
        assert best.episodes == EPISODES


def test_an_infinite_return_is_no_record():
    """It would never be reached again, so that nothing could be selected until the end of the run."""

    def acting(number):
        return Learned({"w": jnp.full(2, number)}, jnp.float32(number))

    best, finite = no_best(acting(-1)), np.arange(EPISODES, dtype=np.float32)
    for number, returns in enumerate((finite, np.append(finite[1:], np.float32(np.inf)), finite + 100)):
        best = with_update(best, returns, jnp.int32(EPISODES), jnp.int32(number), acting(number))
        assert best.segments == (0, 0, 2)[number] and np.isfinite(best.highest)


@pytest.mark.shared_programs
@pytest.mark.parametrize(("algorithm", "actors"), [("trpo", 1), ("trpo", 2), ("trpo_replay", 1), ("a3c", 2)])
def test_runs_hand_out_the_policy_that_a_plain_loop_selects(algorithm, actors, tmp_path):
    result, kept = train(algorithm, actors=actors, out=tmp_path)
    best = kept.best()
    assert best is not None
    assert 5 < best < len(kept.rows) - 5
    for policy in (result.policy, jaxtrpo.load_policy(tmp_path)):
        assert_is(policy, kept.policies[best])
    for found, expected in zip(jax.tree.leaves(last_of(result.state)), jax.tree.leaves(kept.policies[-1]), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.shared_programs
@pytest.mark.parametrize("actors", [1, 2])
def test_each_batch_of_actors_that_never_wait_is_compared(actors):
    """The state is only seen after all batches that have arrived meanwhile."""
    result, kept = train("naf", actors=actors)
    best = jax.tree.map(lambda leaf: leaf[0], result.state.best)
    assert_agrees(best, result.metrics, segment_steps=16 // actors)
    taken = [row["env_steps"] for row in kept.rows].index(best.segments * (16 // actors))
    assert_is(result.policy, kept.policies[taken])
    assert_is(result.policy, (best.policy, best.obs_moments))


@pytest.mark.shared_programs
def test_several_updates_of_one_program_are_compared_one_by_one():
    result, _ = train("a2c(learning_rate=0.01)", actors=1)
    best = jax.tree.map(lambda leaf: leaf[0], result.state.best)
    assert_agrees(best, result.metrics)
    assert best.segments < result.state.segments[0] - 20


@pytest.mark.shared_programs
def test_the_last_policy_is_handed_out_where_that_is_wanted_or_too_few_episodes_have_finished():
    result, kept = train(actors=1, select="last")
    assert kept.best() < len(kept.rows) - 1 and result.state.best == ()
    assert_is(result.policy, kept.policies[-1])
    result, kept = train(actors=1, total_steps=EPISODES - 20)
    assert kept.best() is None
    assert_is(result.policy, kept.policies[-1])


@pytest.mark.shared_programs
def test_a_resumed_run_hands_out_what_an_uninterrupted_one_does(tmp_path):
    whole, kept = train(actors=1)
    for steps in (600, 1000):
        resumed, _ = train(actors=1, out=tmp_path, total_steps=steps, resume=True)
    assert 0 < kept.best() < len(kept.rows) - 1
    assert_is(resumed.policy, kept.policies[kept.best()])
    for one, two in zip(jax.tree.leaves(whole.state.best), jax.tree.leaves(resumed.state.best), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.shared_programs
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_actors_that_count_their_own_steps_may_be_others_when_a_run_is_resumed(before, after, tmp_path):
    """What is selected lies in the first part of the run, and is counted in the unit of the second."""
    train("a3c", actors=before, out=tmp_path, total_steps=800)
    resumed, _ = train("a3c", actors=after, out=tmp_path, total_steps=1000, resume=True)
    metrics, (best, segments) = resumed.metrics, jax.device_get((resumed.state.best, resumed.state.segments))
    steps = metrics["env_steps"][-1]
    found = earlier_best(resumed.state, int(steps))
    assert found is not None and np.all(best.segments < segments)
    near = np.abs(metrics["env_steps"] - found[0]) <= 16
    assert np.any(np.isclose(metrics["return_100"][near], found[1], rtol=1e-6)) and found[0] < 800


@pytest.mark.shared_programs
def test_a_run_of_an_earlier_version_is_resumed_and_compares_from_there_on(tmp_path):
    train(actors=1, out=tmp_path, total_steps=600)
    saved = load_checkpoint(tmp_path)
    without = {name: leaf for name, leaf in saved.state.items() if not name.startswith(".best")}
    config = {name: value for name, value in saved.config.items() if name != "select"}
    assert len(saved.state) > len(without) and len(config) == len(saved.config) - 1
    content = {**saved._asdict(), "state": without, "config": config, "columns": list(saved.metrics)}
    write_msgpack(tmp_path / CHECKPOINT_FILE, FORMAT, content)
    resumed, after = train(actors=1, out=tmp_path, total_steps=1000, resume=True)
    assert after.best() is not None
    assert_is(resumed.policy, after.policies[after.best()])


@pytest.mark.shared_programs
def test_a_resumed_run_may_hand_out_another_policy(tmp_path):
    """First the selected one, then the last, then one of those since the run goes on; learning is the same."""
    whole, _ = train(actors=1, total_steps=1300)
    _, kept = train(actors=1, out=tmp_path)
    assert kept.best() not in (None, len(kept.policies) - 1)
    assert_is(jaxtrpo.load_policy(tmp_path), kept.policies[kept.best()])
    last, _ = train(actors=1, out=tmp_path, select="last", resume=True)
    assert_is(jaxtrpo.load_policy(tmp_path), kept.policies[-1])
    assert_is(last.policy, kept.policies[-1])
    train(actors=1, out=tmp_path, total_steps=1200, select="last", resume=True)
    again, after = train(actors=1, out=tmp_path, total_steps=1300, resume=True)
    assert after.rows[0]["env_steps"] > 1200 and after.best() is None
    assert_is(again.policy, after.policies[-1])
    for one, two in zip(jax.tree.leaves(whole.state.learner), jax.tree.leaves(again.state.learner), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.shared_programs
def test_a_snapshot_has_the_policy_of_its_update(tmp_path):
    _, kept = train(actors=1, out=tmp_path, keep_every=200)
    places = sorted(tmp_path.glob("step-*"))
    assert len(places) == 5
    for place in places:
        steps = int(place.name.removeprefix("step-"))
        number = [row["env_steps"] for row in kept.rows].index(steps)
        assert_is(jaxtrpo.load_policy(place), kept.policies[number])


def test_trainings_of_one_program_each_hand_out_their_own(tmp_path):
    settings = {**TINY, "algorithm": SPECS["trpo"], "adapt": "fixed", "total_steps": 1000, "progress": False}
    many = jaxtrpo.train_many(TideEnvironment(), seeds=(3, 4), actors=1, out=tmp_path, **settings)
    for seed, result in zip((3, 4), many, strict=True):
        best = jax.tree.map(lambda leaf: leaf[0], result.state.best)
        assert_agrees(best, result.metrics)
        assert_is(result.policy, (best.policy, best.obs_moments))
        assert_is(jaxtrpo.load_policy(tmp_path / f"seed-{seed}"), (best.policy, best.obs_moments))


# ---- environments that change in the course of a run

CURRICULUM = {**TINY, "adapt": "fixed", "actors": 1, "total_steps": 4000, "progress": False}
CHANGE = 1500  # environment steps


def lowered(row, state, *, seen: Kept, bonus: float, returned: bool):
    """Changes the reward once, in the middle of the run."""
    seen(row, state)
    before = row["env_steps"] - row["steps_per_update"]
    changed = jaxtrpo.set_env(state, bonus=bonus) if before < CHANGE <= row["env_steps"] else None
    return changed if returned else None


@pytest.mark.parametrize("kind", ["JAX", "simulators", "simulators in place", "a3c in place", "naf in place"])
def test_returns_before_and_after_a_change_of_the_environment_are_not_compared(kind):
    """Returns are higher before the change than after it."""
    algorithm, seen = kind.split()[0], Kept()
    parts = {"algorithm": SPECS[algorithm], **OWN.get(algorithm, {})} if algorithm in SPECS else {}
    env = BonusEnvironment() if kind == "JAX" else make_env(generous, processes=0)
    change = functools.partial(lowered, seen=seen, bonus=-3.0, returned="in place" not in kind)
    result = jaxtrpo.train(env, on_update=change, **{**CURRICULUM, **parts})
    if kind != "JAX":
        env.close()
    changed = next(number for number, row in enumerate(seen.rows) if row["env_steps"] >= CHANGE)
    # An episode of five steps now returns -15, and only a few were in progress at the change.
    assert result.state.best.highest[0] < -10
    if algorithm in SPECS:  # actors were ahead when the change came
        assert 16 * result.state.best.segments[0] > seen.rows[changed]["env_steps"] + 300
        return
    # Without a new beginning, a policy from before some of the last hundred episodes felt the change.
    assert seen.best() < changed + 10
    after = seen.best(changed + 1)
    assert after is not None and after > changed + 10
    assert_is(result.policy, seen.policies[after])


def test_a_change_before_a_checkpoint_is_known_to_the_resumed_run(tmp_path):
    """The first part ends with the update in which the environment is changed."""

    def run(**settings) -> jaxtrpo.Result:
        change = functools.partial(lowered, seen=Kept(), bonus=-3.0, returned=True)
        return jaxtrpo.train(BonusEnvironment(), on_update=change, **{**CURRICULUM, **settings})

    whole = run()
    first_part = run(total_steps=CHANGE, out=tmp_path)
    assert np.all(np.isneginf(first_part.state.best.highest))
    resumed = run(out=tmp_path, resume=True)
    for one, two in zip(jax.tree.leaves(whole.state.best), jax.tree.leaves(resumed.state.best), strict=True):
        np.testing.assert_array_equal(one, two)


def test_an_environment_that_always_changes_has_no_best_policy():
    seen = Kept()

    def change(row, state):
        seen(row, state)
        return jaxtrpo.set_env(state, bonus=-float(row["update"]))

    result = jaxtrpo.train(BonusEnvironment(), on_update=change, **CURRICULUM)
    assert seen.best() is not None
    assert_is(result.policy, seen.policies[-1])


# ---- by evaluations


def best_evaluated(kept: Kept) -> int:
    """Returns the index of the last update with the highest evaluation, by a plain loop."""
    found, highest = -1, -math.inf
    for number, row in enumerate(kept.rows):
        if not math.isnan(row["eval_return"]) and row["eval_return"] >= highest:
            found, highest = number, row["eval_return"]
    return found


@pytest.mark.shared_programs
@pytest.mark.parametrize(("algorithm", "actors"), [("trpo", 2), ("a2c(learning_rate=0.01)", 1), ("a3c", 2), ("naf", 1)])
def test_runs_with_evaluations_hand_out_the_policy_of_the_best_one(algorithm, actors, tmp_path):
    result, kept = train(algorithm, actors=actors, eval_every=48, eval_episodes=2, out=tmp_path)
    evaluated = [row["eval_return"] for row in kept.rows if not math.isnan(row["eval_return"])]
    found = best_evaluated(kept)
    assert len({*evaluated}) > 1
    assert_is(result.policy, kept.policies[found])
    assert_is(jaxtrpo.load_policy(tmp_path), kept.policies[found])
    best, segments = jax.device_get((result.state.best, result.state.segments))
    assert np.all(best.highest == np.float32(max(evaluated)))
    if algorithm == "trpo":
        assert len(evaluated) > 10 and found < len(kept.rows) - 3 and found != kept.best()
        share = kept.rows[found]["env_steps"] / kept.rows[-1]["env_steps"]
        np.testing.assert_allclose(best.segments / segments, share)
        assert earlier_best(result.state, kept.rows[-1]["env_steps"])[1] == np.float32(max(evaluated))


@pytest.mark.shared_programs
def test_learning_does_not_depend_on_evaluations():
    """The last policies are the same, whatever was handed out."""
    _, without = train(actors=1, eval_every=0)
    _, with_them = train(actors=1, eval_every=48, eval_episodes=2)
    for one, two in zip(*(jax.tree.leaves(kept.policies[-1]) for kept in (without, with_them)), strict=True):
        np.testing.assert_array_equal(one, two)
    last, kept = train(actors=1, eval_every=48, eval_episodes=2, select="last")
    assert_is(last.policy, kept.policies[-1])
    assert last.state.best == ()


@pytest.mark.shared_programs
def test_a_resumed_run_knows_the_best_evaluation(tmp_path):
    """That of its first part is handed out by the second, unless there is a better one; without asking for it again."""
    settings = {"actors": 1, "eval_every": 48, "eval_episodes": 2}
    whole, kept = train(**settings)
    first = train(**settings, total_steps=600, out=tmp_path)[1]
    assert_is(jaxtrpo.load_policy(tmp_path), first.policies[best_evaluated(first)])
    resumed, after = train(actors=1, eval_episodes=2, out=tmp_path, resume=True)
    assert_is(resumed.policy, kept.policies[best_evaluated(kept)])
    assert resumed.config.eval_every == 48 and len(after.rows) + len(first.rows) == len(kept.rows)
    for one, two in zip(jax.tree.leaves(whole.state.best), jax.tree.leaves(resumed.state.best), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.shared_programs
def test_on_update_sees_the_policy_of_the_best_evaluation():
    seen = []

    def look(row, state):
        seen.append((row["eval_return"], float(state.best.highest[0])))

    train(actors=1, eval_every=48, eval_episodes=2, on_update=look)
    evaluated = [(value, best) for value, best in seen if not math.isnan(value)]
    highest = np.maximum.accumulate(np.float32([value for value, _ in evaluated]))
    np.testing.assert_array_equal([best for _, best in evaluated], highest)


def test_trainings_of_one_program_each_hand_out_the_policy_of_their_best_evaluation(tmp_path):
    settings = {**TINY, "algorithm": SPECS["trpo"], "adapt": "fixed", "total_steps": 1000, "progress": False}
    settings |= {"eval_every": 48, "eval_episodes": 2, "actors": 1}
    found = jaxtrpo.train_many(TideEnvironment(), seeds=(0, 1), out=tmp_path, **settings)
    for seed, result in enumerate(found):
        alone, kept = train(seed=seed, eval_every=48, eval_episodes=2, actors=1)
        np.testing.assert_allclose(result.metrics["eval_return"], alone.metrics["eval_return"], rtol=1e-4, atol=1e-4)
        obs = np.ones((3, 1))
        np.testing.assert_allclose(result.policy(obs), alone.policy(obs), rtol=1e-3, atol=1e-4)
        assert_is(jaxtrpo.load_policy(tmp_path / f"seed-{seed}"), (result.policy.params, result.policy.moments))


LONG = {"total_steps": 1_000_000}


@pytest.mark.parametrize(
    ("env", "words", "number"),
    [
        ("Hopper-v5", LONG, 10),
        ("Hopper-v5", {"total_steps": 500_000}, 10),
        ("Hopper-v5", {"total_steps": 499_999}, 0),
        ("Hopper-v5", {"total_steps": None, "stop_after_seconds": 60}, 10),
        ("Hopper-v5", {"total_steps": None, "stop_after_seconds": 59}, 0),
        ("Hopper-v5", {"total_steps": 1000, "stop_after_seconds": 60}, 0),
        ("Hopper-v5", {**LONG, "max_episode_steps": 2500}, 10),
        ("Hopper-v5", {**LONG, "max_episode_steps": 2501}, 0),  # would take more than a quarter of the steps
        ("Hopper-v5", {**LONG, "eval_episodes": 26}, 0),
        ("Hopper-v5", {**LONG, "eval_every": 0}, 0),
        ("Hopper-v5", {**LONG, "eval_every": 1000}, 0),
        ("Hopper-v5", {**LONG, "select": "last"}, 0),
        ("HalfCheetah-v5", LONG, 0),  # whose episodes never end early
        ("gymnasium:CartPole-v1", LONG, 0),
    ],
)
def test_long_runs_evaluate_by_default_where_episodes_may_end_early(env, words, number):
    """And where that takes hardly any time."""
    found = plan(env, {"policy": "mlp(hidden=())", "actors": 1, **words})
    found.close()
    assert found.evaluations == number and (found.evaluator() is not None) == bool(number or words.get("eval_every"))


@pytest.mark.parametrize("words", [{"total_steps": 2000}, {"total_steps": None, "stop_after_seconds": 4}])
def test_evaluations_by_default_are_in_equal_parts_of_the_run(words, monkeypatch):
    """Of its steps or, as far as they can be foreseen, of its time; the last shortly before its end."""
    for name, value in (("LONG_ENOUGH_STEPS", 1), ("LONG_ENOUGH_SECONDS", 1), ("MOST_OF_STEPS", math.inf)):
        monkeypatch.setattr(defaults, name, value)
    settings = {**TINY, "max_episode_steps": 20, "eval_episodes": 2, "actors": 1, "progress": False, **words}
    metrics = jaxtrpo.train("InvertedPendulum-v5", **settings).metrics
    due = np.isfinite(metrics["eval_return"])
    if words["total_steps"] is None:
        done = metrics["wall_seconds"][due] / metrics["wall_seconds"][-1]
        assert 3 <= due.sum() <= 10 and np.all(np.diff(done) < 0.35) and 0.85 < done[-1] <= 1
    else:
        steps = metrics["env_steps"]
        lines = np.arange(1, 11) * 0.99 * 200
        np.testing.assert_array_equal(np.flatnonzero(due), [np.argmax(steps >= line) for line in lines])


def test_no_evaluation_is_left_out_or_repeated_where_the_forecast_of_the_end_changes():
    """An update of a run of a given time may move the next evaluation to before or after itself."""
    found = plan("Hopper-v5", {"policy": "mlp(hidden=())", "actors": 1, "total_steps": None, "stop_after_seconds": 60})
    found.close()
    rng, state = np.random.default_rng(0), SimpleNamespace(learner=SimpleNamespace(policy=(), obs_moments=()))
    evaluate = found.evaluation(lambda *_: Evaluation(1.0, 0.0, np.zeros(0)), lambda text: None)
    updates = 500
    expected = updates * (1 + rng.uniform(-0.2, 0.2, updates) * np.linspace(1, 0, updates))
    made = [not math.isnan(evaluate(lambda: state, n, n + 1, int(expected[n]))) for n in range(updates)]
    at = np.flatnonzero(made)
    assert len(at) == 10 and at[-1] >= 0.98 * updates
    np.testing.assert_allclose(at, np.arange(1, 11) * 0.099 * updates, atol=0.1 * updates)


# ---- the command


@pytest.mark.shared_programs
def test_the_command_names_the_update_of_the_best_evaluation(capsys):
    from jaxtrpo.cli.train import Train

    result, kept = train(actors=1, eval_every=48, eval_episodes=2)
    Train(env="any")._report(result)
    row = kept.rows[best_evaluated(kept)]
    wanted = f"; policy of step {row['env_steps']:,}, evaluation {row['eval_return']:.1f}\n"
    assert capsys.readouterr().out.endswith(wanted)


@pytest.mark.shared_programs
def test_the_command_names_the_update_whose_policy_is_kept(capsys):
    from jaxtrpo.cli.train import Train

    result, kept = train(actors=1)
    Train(env="any")._report(result)
    row = kept.rows[kept.best()]
    wanted = f"; policy of step {row['env_steps']:,}, return_100 {row['return_100']:.1f}\n"
    assert capsys.readouterr().out.endswith(f"not saved (no --out){wanted}")
    for others in ({"select": "last"}, {"total_steps": 400}):  # returns rise as long as that
        result, kept = train(actors=1, **others)
        Train(env="any")._report(result)
        assert capsys.readouterr().out.endswith("not saved (no --out)\n")


@pytest.mark.shared_programs
def test_the_command_counts_seeds_whose_policy_is_of_an_earlier_step(capsys):
    from jaxtrpo.cli.train import Train

    (falling, _), (rising, _) = train(actors=1), train(actors=1, total_steps=400)
    for results, wanted in (
        ([falling, rising, falling], "; 2 of 3 policies are of an earlier step\n"),
        ([rising], "(no --out)\n"),
    ):
        Train(env="any")._report_many(results)
        assert capsys.readouterr().out.endswith(wanted)
