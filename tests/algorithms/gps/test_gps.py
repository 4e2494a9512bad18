"""Guided policy search: an exactly solvable task, several actors, resuming, metrics and refused settings."""

from __future__ import annotations

import dataclasses
import sys
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from light_env import LightEnvironment
from support import actors, counted_compilations, deal_batch, first, random_batch
from test_algorithms import SECONDS, ActingProbe

import jaxtrpo
from jaxtrpo.adapt import model_accuracy
from jaxtrpo.algorithms.gps.bounded_lqr import bounded_response
from jaxtrpo.algorithms.gps.gps import examples_of, gps
from jaxtrpo.algorithms.gps.local_models import (
    clipped_mean,
    local_models,
    samples_of,
    shared_model,
    unclipped_mean,
)
from jaxtrpo.algorithms.gps.quadratic_regression import no_sums
from jaxtrpo.envs.abilities import masks_actions, observation_space
from jaxtrpo.envs.base import ActionSpace, EnvState, Transition, action_space, advance, start
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.ops.moments import Moments, normalize, weighted_moments
from jaxtrpo.parallel.collectives import sum_over_actors
from jaxtrpo.policies.networks import LAST, gaussian_policy
from jaxtrpo.training.train import prepare

WORDS = "gps(conditions=2, samples=3, horizon=8, imitation_steps=50, minibatch_size=16)"
POLICY = "mlp(hidden=(8,))"


class Physics(NamedTuple):
    x: jax.Array


class LinearQuadratic:
    """Deterministic x' = F x + B u with a quadratic reward (see `jaxtrpo.envs.base.Environment`)."""

    name = "linear-quadratic"
    observation_size, action_size = 2, 1
    action_low, action_high = np.float32([-np.inf]), np.float32([np.inf])
    episode_length = 10
    F, B = np.float32([[1.0, 0.2], [-0.1, 0.9]]), np.float32([[0.0], [0.3]])
    Q, R = np.float32([[1.0, 0.2], [0.2, 0.5]]), 0.1
    is_program = True

    def __init__(self, falls: bool = False):
        self.falls = falls

    def reset(self, key, num_envs: int) -> EnvState:
        return start(key, num_envs, self._reset_rows, Physics(jnp.zeros((num_envs, 2))))

    def step(self, state: EnvState, action) -> EnvState:
        x = state.physics.x
        reward = -jnp.einsum("ni,ij,nj->n", x, self.Q, x) - self.R * action[:, 0] ** 2
        moved = Physics(x @ self.F.T + action @ self.B.T)
        terminated = (state.elapsed >= 3) & (action[:, 0] > 0) if self.falls else jnp.zeros(len(x), bool)
        return advance(state, Transition(moved, moved.x, reward, terminated, jnp.ones(len(x), bool)),
                       self._reset_rows, self.episode_length)  # fmt: skip

    def _reset_rows(self, keys, mask, physics):
        x = jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys)
        x = jnp.where(mask[:, None], x, physics.x)
        return Physics(x), x


def optimal_gains() -> list[np.ndarray]:
    """Computes finite-horizon LQR gains by the textbook recursion in float64."""
    env, value, gains = LinearQuadratic, np.zeros((2, 2)), []
    f, b = np.float64(env.F), np.float64(env.B)
    for _ in range(env.episode_length):
        gain = np.linalg.solve(env.R + b.T @ value @ b, b.T @ value @ f)
        gains.append(gain)
        value = env.Q + f.T @ value @ (f - b @ gain)
    return gains[::-1]


def optimal_return(x: np.ndarray) -> float:
    env, total = LinearQuadratic, 0.0
    for gain in optimal_gains():
        u = -gain @ x
        total -= x @ env.Q @ x + env.R * float(u @ u)
        x = env.F @ x + env.B @ u
    return total


WIDE = "gps(conditions=4, samples=8, max_kl=1000.0, imitation_steps=2000, prior_samples=1.0)"


def test_linear_quadratic_task_is_solved_in_one_update():
    """With an inactive KL bound, the local controllers earn the optimal LQR return in the real environment."""
    run = prepare(LinearQuadratic(), algorithm=WIDE, actors=1, total_steps=1, seed=1)
    _, batch = run.update.lower(run.state).compile_collect()(run.state)

    def controllers(batch, learner):
        frame = weighted_moments(batch.steps.obs, jnp.ones_like(batch.steps.reward), sum_over_actors)
        samples = samples_of(batch, frame, 8, action_space(run.env))
        _, shared = shared_model(samples, no_sums(3, 3))
        models = local_models(
            samples, shared.quadratic, run.update.policy, learner.policy, learner.obs_moments, frame,
            action_space(run.env), strength=1.0, window=2,
        )  # fmt: skip
        unit = jnp.float32(1.0)
        bound = jnp.full(4, 1e4)
        found, info = jax.vmap(lambda *of_one: bounded_response(*of_one, unit))(
            models.dynamics, models.reward, models.reference, bound
        )
        return frame, models.centre, found, info, shared.unexplained, samples.state

    made = run.actors.map(controllers)(batch, run.state.learner)
    frame, centre, found, info, unexplained, state = jax.tree.map(np.float64, first(made))
    assert np.all(unexplained < 1e-4) and np.all(info.found == 1) and np.all(info.indefinite == 0)
    begun = state[:, 0, 0] * np.sqrt(frame.variance) + frame.mean
    for number, x in enumerate(begun):
        best, total = optimal_return(x), 0.0
        for t in range(LinearQuadratic.episode_length):
            away = (x - frame.mean) / np.sqrt(frame.variance) - centre[number, t, :2]
            u = found.gain[number, t] @ away + found.offset[number, t] + centre[number, t, 2:]
            total -= x @ LinearQuadratic.Q @ x + LinearQuadratic.R * float(u @ u)
            x = LinearQuadratic.F @ x + LinearQuadratic.B @ u
        assert best - 0.01 * abs(best) <= total <= best + 1e-6


@pytest.mark.parametrize("ends", [(-1.0, 1.0), (-np.inf, 0.5), (0.0, np.inf), (-np.inf, np.inf)])
@pytest.mark.parametrize(("mean", "std"), [(0.2, 0.7), (3.0, 0.5), (-2.0, 2.0)])
def test_mean_of_clipped_actions_against_sampling(mean, std, ends):
    drawn = np.random.default_rng(0).normal(mean, std, 1_000_000)
    low, high = map(jnp.float32, ends)
    found, slope = jax.value_and_grad(clipped_mean)(jnp.float32(mean), jnp.float32(std), low, high)
    np.testing.assert_allclose(found, np.clip(drawn, *ends).mean(), atol=0.01)
    np.testing.assert_allclose(slope, np.mean((drawn > ends[0]) & (drawn < ends[1])), atol=0.005)


def test_mean_of_clipped_actions_is_differentiable_far_outside():
    slope = jax.vmap(jax.grad(clipped_mean), (0, None, None, None))
    found = slope(jnp.float32([-1e4, -50.0, 50.0, 1e4]), jnp.float32(1e-3), jnp.float32(-1.0), jnp.float32(1.0))
    np.testing.assert_array_equal(found, 0.0)


@pytest.mark.parametrize("ends", [(-1.0, 1.0), (-np.inf, 0.5), (0.0, np.inf), (-np.inf, np.inf), (-0.05, 0.05)])
@pytest.mark.parametrize("std", [0.01, 0.5, 3.0])
def test_mean_before_clipping_is_found_again(ends, std):
    low, high = map(jnp.float32, ends)
    least, most = max(ends[0] - 1.9 * std, -5.0), min(ends[1] + 1.9 * std, 5.0)
    mean = jnp.linspace(least, most, 41, dtype=jnp.float32)
    found = unclipped_mean(clipped_mean(mean, jnp.float32(std), low, high), jnp.float32(std), low, high)
    np.testing.assert_allclose(found, mean, atol=0.02 * std + 1e-5)


def test_mean_that_no_clipped_actions_have_is_just_outside_the_bounds():
    found = unclipped_mean(jnp.float32([-7.0, -1.0, 1.0, 7.0]), jnp.float32(0.5), jnp.float32(-1.0), jnp.float32(1.0))
    np.testing.assert_allclose(found, [-2.0, -2.0, 2.0, 2.0], rtol=1e-6)


class Narrow(LinearQuadratic):
    """The same with actions bounded by 1."""

    action_low, action_high = np.float32([-1.0]), np.float32([1.0])


def test_reference_uses_clipped_actions():
    """If the network outputs a hundred times the bound, the action is the bound in every state."""
    run = prepare(Narrow(), algorithm=WIDE, actors=1, total_steps=1, seed=1)
    _, batch = run.update.lower(run.state).compile_collect()(run.state)

    def ask(path, leaf):
        return leaf + 100.0 if jax.tree_util.keystr(path).endswith(f"['{LAST}']['bias']") else leaf

    def reference(batch, learner):
        asking = jax.tree_util.tree_map_with_path(ask, learner.policy)
        frame = weighted_moments(batch.steps.obs, jnp.ones_like(batch.steps.reward), sum_over_actors)
        space = action_space(run.env)
        samples = samples_of(batch, frame, 8, space)
        _, shared = shared_model(samples, no_sums(3, 3))
        models = local_models(
            samples, shared.quadratic, run.update.policy, asking, learner.obs_moments, frame, space,
            strength=1.0, window=2,
        )  # fmt: skip
        return models.reference, models.centre[..., 2:]

    found, taken = first(run.actors.map(reference)(batch, run.state.learner))
    np.testing.assert_array_equal(found.gain, 0.0)
    np.testing.assert_allclose(found.offset + taken, 1.0, atol=1e-6)


def test_controllers_that_are_the_policy_leave_it_as_it_is():
    """Without a step, the network learns its own mean again, not the mean of its clipped actions."""
    env = Narrow()
    run = prepare(env, algorithm=WIDE, actors=1, total_steps=1, seed=1)
    _, batch = run.update.lower(run.state).compile_collect()(run.state)
    policy, space = run.update.policy, action_space(env)

    def means(batch, learner):
        frame = weighted_moments(batch.steps.obs, jnp.ones_like(batch.steps.reward), sum_over_actors)
        samples = samples_of(batch, frame, 8, space)
        _, shared = shared_model(samples, no_sums(3, 3))
        models = local_models(
            samples, shared.quadratic, policy, learner.policy, learner.obs_moments, frame, space,
            strength=1.0, window=2,
        )  # fmt: skip
        wanted = examples_of(models.reference, models, samples, learner.obs_moments, space).mean
        acted = policy.apply(learner.policy, normalize(samples.obs, learner.obs_moments)).mean
        return wanted, jnp.swapaxes(acted, 0, 1)

    def shifted(path, leaf):  # so that half of the actions are clipped
        return leaf + 1.0 if jax.tree_util.keystr(path).endswith(f"['{LAST}']['bias']") else leaf

    learner = run.state.learner._replace(policy=jax.tree_util.tree_map_with_path(shifted, run.state.learner.policy))
    wanted, acted = first(run.actors.map(means)(batch, learner))
    assert np.all(acted > 0.8)
    np.testing.assert_allclose(wanted, acted, atol=0.02)


class Recorded(LinearQuadratic):
    """An environment that observes the action it received."""

    def __init__(self, low: float, high: float):
        super().__init__()
        self.action_low, self.action_high = np.float32([low]), np.float32([high])

    def step(self, state: EnvState, action) -> EnvState:
        return super().step(state._replace(physics=Physics(jnp.zeros_like(state.physics.x))), action / self.B[1])


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, np.inf), (-np.inf, 0.25), (float(np.finfo(np.float32).min), 0.25), (-0.5, 0.5)]
)
def test_models_are_fitted_to_clipped_actions(low, high):
    """Holds for all kinds of bounds; the limits of a dtype do not count as bounds."""
    env = Recorded(low, high)
    run = prepare(env, algorithm=WIDE, actors=1, total_steps=1, seed=1)
    _, batch = run.update.lower(run.state).compile_collect()(run.state)

    def samples(batch):
        frame = weighted_moments(batch.steps.obs, jnp.ones_like(batch.steps.reward), sum_over_actors)
        found = samples_of(batch, frame, 8, action_space(env))
        return found.action[..., 0], frame.mean[1] + found.after[..., 1] * frame.std[1]

    known, taken = map(np.asarray, first(run.actors.map(samples)(batch)))
    unit, ends = (0.5, (-1, 1)) if low == -high else (1.0, (low, high))  # a policy unit in simulator units
    np.testing.assert_allclose(known, taken / unit, atol=1e-5)
    assert np.all((known >= ends[0]) & (known <= ends[1])) and np.any((known == ends[0]) | (known == ends[1]))


def test_network_nearly_solves_linear_quadratic_task():
    """The network is not given the time and starts from its own samples."""
    result = jaxtrpo.train(LinearQuadratic(), algorithm=WIDE, actors=1, total_steps=1600, seed=1, progress=False)
    begun = np.asarray(result.state.actors.env.physics.first_obs, np.float64).reshape(-1, 2)[::8]
    best = np.mean([optimal_return(x) for x in begun])
    x, total = begun, np.zeros(4)
    for _ in range(LinearQuadratic.episode_length):
        u = np.float64(result.policy(np.float32(x)))
        total -= np.einsum("ni,ij,nj->n", x, LinearQuadratic.Q, x) + LinearQuadratic.R * u[:, 0] ** 2
        x = x @ LinearQuadratic.F.T + u @ LinearQuadratic.B.T
    nothing = result.metrics["mean_return"][0]
    assert (best - total.mean()) / (best - nothing) < 0.1


def tiny(words=WORDS, **settings):
    return prepare(LinearQuadratic(), **{"algorithm": words, "policy": POLICY, "total_steps": 200, **settings}).run(
        progress=False
    )


@pytest.mark.shared_programs
def test_batch_is_whole_episodes_from_same_initial_states():
    seen = []
    run = prepare(LinearQuadratic(), algorithm=WORDS, policy=POLICY, actors=1, total_steps=150)
    lowered = run.update.lower(run.state)
    collect, learn = lowered.compile_collect(), lowered.compile_learn()
    state = run.state
    for _ in range(3):
        state, batch = collect(state)
        seen.append(first(batch.steps))
        state, _ = learn(state, batch)
    for steps in seen:
        assert steps.reward.shape == (1, 8, 6)
        np.testing.assert_array_equal(steps.elapsed[0], np.arange(8)[:, None].repeat(6, 1))
        np.testing.assert_array_equal(steps.obs[0, 0], seen[0].obs[0, 0])
        assert steps.truncated[0, -1].all() and not steps.truncated[0, :-1].any() and not steps.invalid.any()
    first_obs = seen[0].obs[0, 0]
    np.testing.assert_array_equal(first_obs, first_obs[[0, 0, 0, 3, 3, 3]])
    assert np.all(first_obs[0] != first_obs[3]) and np.ptp(seen[0].action[0, 0]) > 0


@pytest.mark.shared_programs
def test_steps_after_early_termination_do_not_count():
    run = prepare(LinearQuadratic(falls=True), algorithm=WORDS, policy=POLICY, actors=1, total_steps=150)
    lowered = run.update.lower(run.state)
    state, batch = lowered.compile_collect()(run.state)
    steps = first(batch.steps)
    ends = steps.terminated[0].argmax(axis=0)
    ended = steps.terminated[0].any(axis=0)
    assert ended.any()
    for env in np.flatnonzero(ended):
        assert steps.invalid[0, ends[env] + 1 :, env].all() and not steps.invalid[0, : ends[env] + 1, env].any()
    assert np.sum(~np.isnan(steps.episode_return)) == 6  # one per environment
    _, again = lowered.compile_collect()(state)
    np.testing.assert_array_equal(first(again.steps).obs[0, 0], steps.obs[0, 0])
    metrics = run.run(progress=False).metrics
    assert np.all(np.isfinite(metrics["kl"])) and np.all(metrics["episodes"] == 6)


def test_early_termination_costs_mean_reward_of_remaining_steps():
    """Two samples of one condition over five steps: one terminates in its second step, the other in its fourth.

    The six steps that count earn 1, 2 and 3, 4, 5, 6: 3.5 per step. Three steps and one step remain.
    """
    batch = random_batch(0, segments=1, length=5, envs=2, obs_size=2, action_size=1)
    reward = np.float32([[1, 3], [2, 4], [90, 5], [90, 6], [90, 90]])
    terminated, invalid = np.zeros((5, 2), bool), reward == 90
    terminated[1, 0] = terminated[3, 1] = True
    steps = batch.steps._replace(reward=reward[None], terminated=terminated[None], invalid=invalid[None])
    spec = ActionSpace(np.float32([-1]), np.float32([1]))
    policy = gaussian_policy(2, 1, hidden=(8,))
    params = policy.init(jax.random.PRNGKey(0))
    frame = Moments(jnp.float32(1), jnp.zeros(2), jnp.ones(2))

    def found(batch):
        samples = samples_of(batch, frame, 2, spec)
        _, shared = shared_model(samples, no_sums(3, 3))
        of_policy = policy, params, frame, frame, spec
        return samples, local_models(samples, shared.quadratic, *of_policy, strength=1.0, window=1)

    samples, models = map(first, actors(1).map(found)(deal_batch(batch._replace(steps=steps), 1)))
    np.testing.assert_allclose(samples.reward[0, :, 0], [1, 2 - 3 * 3.5, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(samples.reward[0, :, 1], [3, 4, 5, 6 - 3.5, 0], rtol=1e-6)
    np.testing.assert_allclose(samples.return_[0], [3, 18], rtol=1e-6)  # actual rewards
    np.testing.assert_array_equal(samples.weight[0], ~invalid)
    np.testing.assert_array_equal(models.seen[0], [1, 1, 1, 1, 0])
    for part in (models.dynamics.slope, models.dynamics.offset, models.reward.curvature):
        assert not np.any(part[0, 4]) and np.all(np.isfinite(part))


@pytest.mark.shared_programs
def test_nothing_is_compiled_after_the_first_update():
    run = prepare(LinearQuadratic(), algorithm=WORDS, policy=POLICY, total_steps=400)
    updates = run._updates()
    next(updates)
    with counted_compilations() as compiled:
        rows = [row for _, rows in updates for row in rows]
    assert not compiled and len(rows) > 3 and {row["steps_per_update"] for row in rows} == {48}


@pytest.mark.shared_programs
def test_resumed_run_equals_uninterrupted_run(tmp_path):
    whole = tiny(out=tmp_path / "whole")
    tiny(out=tmp_path / "parts", total_steps=90)
    resumed = tiny(out=tmp_path / "parts", resume=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))
    for name in set(whole.metrics) - set(SECONDS):
        np.testing.assert_array_equal(resumed.metrics[name], whole.metrics[name], err_msg=name)


@pytest.mark.shared_programs
def test_training_does_not_depend_on_number_of_actors():
    one, two = (tiny(actors=count, total_steps=140) for count in (1, 2))
    for leaf in jax.tree.leaves(two.state._replace(actors=None)):
        np.testing.assert_array_equal(leaf[0], leaf[1])
    assert list(one.metrics) == list(two.metrics)
    for name in ("mean_return", "kl", "local_kl", "predicted_gain", "actual_gain", "imitation_kl", "policy_std"):
        np.testing.assert_allclose(two.metrics[name], one.metrics[name], rtol=2e-2, atol=1e-3, err_msg=name)


@pytest.mark.parametrize(("memory", "counts"), [(1.0, 48), (4.0, 48 + 36 + 27)])
def test_shared_model_fades_old_updates(memory, counts):
    """An update has 48 samples; each update shrinks the remembered sums by 1/memory."""
    words = WORDS.replace("gps(", f"gps(model_memory={memory}, ")
    run = prepare(LinearQuadratic(), algorithm=words, policy=POLICY, actors=1, total_steps=3 * 48)
    result = run.run(progress=False)
    assert len(result.metrics["update"]) == 3
    sums = first(result.state.learner).sums
    np.testing.assert_allclose(sums.count, counts, rtol=1e-6)
    np.testing.assert_allclose(sums.outer[0, 0], counts, rtol=1e-6)  # of the constant feature


@pytest.mark.shared_programs
def test_actual_gain_is_reported_with_the_previous_prediction():
    run = prepare(LinearQuadratic(), algorithm=WORDS, policy=POLICY, actors=1, total_steps=3 * 48)
    metrics = run.run(progress=False).metrics
    np.testing.assert_allclose(metrics["actual_gain"][1:], np.diff(metrics["mean_return"]), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(metrics["previous_predicted_gain"][1:], metrics["predicted_gain"][:-1])
    assert np.isnan(metrics["actual_gain"][0]) and np.isnan(metrics["previous_predicted_gain"][0])


@pytest.mark.parametrize("count", [1, 2])
def test_indefinite_trials_of_all_conditions_are_added_up(count, monkeypatch):
    module = sys.modules[gps.__module__]
    search_of = module.controllers_of

    def some_are_indefinite(*arguments):
        controllers, search = search_of(*arguments)
        return controllers, search._replace(indefinite=jnp.full_like(search.indefinite, 3))

    monkeypatch.setattr(module, "controllers_of", some_are_indefinite)
    run = prepare(LinearQuadratic(), algorithm=WORDS, policy=POLICY, actors=count, total_steps=48)
    (found,) = run.run(progress=False).metrics["indefinite_trials"]
    assert found == 3 * 2  # conditions


@pytest.mark.shared_programs
def test_states_are_standardised_by_first_batch_and_observations_by_all():
    first_of, last = (
        first(
            prepare(LinearQuadratic(), algorithm=WORDS, policy=POLICY, actors=1, total_steps=steps)
            .run(progress=False)
            .state.learner
        )
        for steps in (48, 144)
    )
    jax.tree.map(np.testing.assert_array_equal, last.frame, first_of.frame)
    jax.tree.map(np.testing.assert_array_equal, first_of.frame, first_of.obs_moments)
    assert last.obs_moments.count == 144 and last.frame.count == 48


def first_update(spoil=lambda state: state, count: int = 1, **settings):
    """Returns policy, state before, batch, state after and metrics of a first update with early terminations."""
    run = prepare(LinearQuadratic(falls=True), algorithm=WORDS, policy=POLICY, actors=count, total_steps=1, seed=3)
    lowered = run.update.lower(run.state)
    state, batch = lowered.compile_collect()(run.state)
    learn = lowered.compile_learn()
    state = spoil(state)
    after, measured = learn(state, batch)
    names = [column.name for column in measured.columns]
    return run.update.policy, state, batch, after, dict(zip(names, np.asarray(measured.values)[0], strict=True))


@pytest.mark.shared_programs
@pytest.mark.parametrize("count", [1, 2])
def test_metrics_match_numpy(count):
    """Means are over the steps that count, of all actors."""
    policy, before, batch, after, columns = first_update(count=count)
    learners = [jax.tree.map(lambda leaf: leaf[0], state.learner) for state in (before, after)]
    counts = ~np.asarray(batch.steps.invalid)
    assert 0 < counts.sum() < counts.size
    obs = jnp.asarray(batch.steps.obs)[counts]
    old, new = (policy.apply(each.policy, normalize(obs, each.obs_moments)) for each in learners)
    log_stds = np.float64(old.log_std), np.float64(new.log_std)
    entropy = np.mean(log_stds[0] + 0.5 * np.log(2 * np.pi * np.e))
    spread = np.exp(2 * log_stds[0]) + (np.float64(old.mean) - np.float64(new.mean)) ** 2
    kl = np.mean(log_stds[1] - log_stds[0] + spread / (2 * np.exp(2 * log_stds[1])) - 0.5)
    np.testing.assert_allclose(columns["entropy"], entropy, rtol=1e-4)
    np.testing.assert_allclose(columns["kl"], kl, rtol=1e-3)
    assert columns["unsolved_conditions"] == columns["indefinite_trials"] == 0 and columns["accepted"] == 1
    assert kl > 0.01 and 0 < columns["local_kl"] <= columns["max_kl"]
    assert columns["dynamics_explained_variance"] > 1 - 1e-3 > columns["reward_explained_variance"]


@pytest.mark.shared_programs
def test_non_finite_network_is_discarded():
    def spoil(state):
        rate = jnp.full_like(state.hyperparameters["learning_rate"], jnp.nan)
        return state._replace(hyperparameters={**state.hyperparameters, "learning_rate": rate})

    _, before, _, after, columns = first_update(spoil)
    assert columns["accepted"] == 0 and columns["kl"] < 1e-3
    for part in ("policy", "optimizer"):
        jax.tree.map(np.testing.assert_array_equal, getattr(after.learner, part), getattr(before.learner, part))


def test_local_controllers_keep_the_kl_bound():
    metrics = tiny("gps(conditions=2, samples=3, max_kl=0.05, imitation_steps=50)", total_steps=300).metrics
    assert np.all(metrics["local_kl"] <= 1.001 * metrics["max_kl"]) and np.all(metrics["local_kl"] > 0)


@pytest.mark.parametrize(
    ("predicted", "actual", "factor"),
    [
        (1.0, 1.0, 2.0),
        (1.0, 3.0, 2.0),
        (1.0, 0.5, 1.0),
        (1.0, 0.25, 2 / 3),
        (1.0, -5.0, 0.5),
        (np.nan, np.nan, 1.0),
        (1.0, np.nan, 1.0),
        (0.0, 1.0, 1.0),
        (0.0, -1.0, 1.0),
        (-1.0, 1.0, 1.0),
    ],  # fmt: skip
)
def test_model_accuracy_adapts_max_kl_to_actual_gain(predicted, actual, factor):
    rule, settings = model_accuracy(), {"max_kl": jnp.float32(0.1)}
    state = rule.init(settings)
    _, after = rule.update(
        state, settings, {"previous_predicted_gain": jnp.float32(predicted), "actual_gain": jnp.float32(actual)}
    )
    np.testing.assert_allclose(after["max_kl"], 0.1 * factor, rtol=1e-6)


@pytest.mark.parametrize("first", [0.25, 1.0, 1.9, 7.0])
def test_max_kl_finds_the_best_one(first):
    """For steps that gain kl - kl^2 / 2, of which kl is predicted; each is measured one update later."""
    rule, now = model_accuracy(), {"max_kl": jnp.float32(first)}
    state, measured, seen = rule.init(now), np.nan, []
    for _ in range(12):
        gains = {"previous_predicted_gain": measured, "actual_gain": measured - measured**2 / 2}
        measured = now["max_kl"]
        state, now = rule.update(state, now, gains)
        seen.append(float(now["max_kl"]))
    np.testing.assert_allclose(seen[-3:], 1.0, rtol=1e-5)


def test_max_kl_vanishes_without_actual_gain():
    rule, now = model_accuracy(), {"max_kl": jnp.float32(0.5)}
    state = rule.init(now)
    for _ in range(24):
        state, now = rule.update(
            state, now, {"previous_predicted_gain": jnp.float32(1.0), "actual_gain": jnp.float32(0.0)}
        )
    np.testing.assert_allclose(now["max_kl"], 0.0005, rtol=1e-5)


def test_model_accuracy_keeps_kl_range():
    rule, settings = model_accuracy(kl_range=(0.5, 1.5)), {"max_kl": jnp.float32(0.1)}
    state = rule.init(settings)
    for gained, end in ((1.0, 0.15), (-9.0, 0.05)):
        now = settings
        for _ in range(5):
            metrics = {"previous_predicted_gain": jnp.float32(1.0), "actual_gain": jnp.float32(gained)}
            state, now = rule.update(state, now, metrics)
        np.testing.assert_allclose(now["max_kl"], end, rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ("gps(samples=1)", {}, "samples=1 must be at least 2 per condition"),
        ("gps(conditions=3)", {"actors": 2}, "conditions=3 must be a multiple of the 2 actors"),
        ("gps(horizon=11)", {}, "horizon=11 must be at most 10, the episode length of linear-quadratic"),
        ("gps", {"num_envs": 4}, "num_envs=4 is less than conditions=8"),
        ("gps", {"num_envs": 60}, "num_envs=60 must be 40: an update of algorithm=gps is one episode of 10 steps"),
        ("gps", {"steps_per_update": 100}, "steps_per_update=100 must be 400: "),
        ("gps(model_memory=0.5)", {}, "model_memory=0.5 must be at least 1"),
        ("gps(max_kl=0.0)", {}, "max_kl=0.0 must be positive"),
    ],
)
def test_unsuitable_settings_are_refused_with_one_line(words, settings, message):
    with counted_compilations() as compiled, pytest.raises(ValueError, match=message) as error:
        prepare(LinearQuadratic(), algorithm=words, **{"actors": 1, **settings})
    assert not compiled and "\n" not in str(error.value)


def test_products_that_overflow_are_forgotten():
    """Observations are measured in standard deviations of the first batch, which may have been tiny."""
    run = prepare(LinearQuadratic(), algorithm=WORDS, policy=POLICY, actors=1, total_steps=96)
    learner = run.state.learner
    frame = learner.frame._replace(count=learner.frame.count + 1, variance=learner.frame.variance + 1e-30)
    state = run.state._replace(learner=learner._replace(frame=frame))
    result = dataclasses.replace(run, state=state).run(progress=False)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state.learner.sums))


def test_rules_of_the_batch_size_are_refused():
    with pytest.raises(ValueError, match="changes steps_per_update, but an update of algorithm=gps is always one"):
        prepare(LinearQuadratic(), algorithm="gps", adapt="linear(steps_per_update=800)", actors=1)


def test_model_accuracy_remembers_the_max_kl_that_a_step_used():
    """Not what an earlier rule of a chain has made of it since."""
    rule, settings = model_accuracy(), {"max_kl": jnp.float32(0.6)}
    metrics = {"previous_predicted_gain": jnp.float32(1), "actual_gain": jnp.float32(0.5), "max_kl": jnp.float32(0.5)}
    state, _ = rule.update(rule.init(settings), settings, metrics)
    assert state.measured == np.float32(0.5)


def test_conditions_are_shared_by_as_many_actors_as_can():
    made = [prepare(LinearQuadratic(), algorithm=f"gps(conditions={number})") for number in (3, 4)]
    assert [run.actors.count for run in made] == [1, 2]


@pytest.mark.parametrize(
    ("words", "rule", "missing"),
    [
        (WORDS, "trust", "gain_ratio"),
        ("trpo", "model_accuracy", "previous_predicted_gain and actual_gain"),
    ],
)
def test_rule_that_reads_missing_metric_is_refused(words, rule, missing):
    with pytest.raises(ValueError) as error:
        prepare(LinearQuadratic(), algorithm=words, adapt=rule, policy=POLICY, actors=1, total_steps=100)
    assert str(error.value) == f"adapt={rule} reads {missing}, which this algorithm does not report; use adapt=fixed"


def test_critic_that_gps_would_not_fit_is_refused():
    with pytest.raises(ValueError, match="^critic: gps learns no values; use critic=none$"):
        prepare(LinearQuadratic(), algorithm="gps", policy=POLICY, critic="mlp", actors=1)


def test_discrete_actions_are_refused():
    with pytest.raises(
        ValueError, match="^algorithm: gps needs continuous actions, but these are discrete; use trpo or ppo$"
    ):
        prepare(Choosing(), algorithm="gps", actors=1)


class Choosing(ActingProbe):
    """A probe with discrete actions."""

    action_low, action_high, action_counts = np.float32([0]), np.float32([1]), (2,)
    episode_length = 8


class Unsaved(LinearQuadratic):
    """An environment whose states are mere handles to a simulator."""

    saves_state = False


def test_simulators_that_cannot_restore_states_are_refused():
    with pytest.raises(
        ValueError, match="linear-quadratic: fixed initial states need an environment whose state can be saved"
    ):
        prepare(Unsaved(), algorithm="gps", actors=1)


def test_environment_without_time_limit_needs_horizon():
    endless = LinearQuadratic()
    endless.episode_length = np.iinfo(np.int32).max
    with pytest.raises(ValueError, match="algorithm=gps without a horizon: .* has no time limit"):
        prepare(endless, algorithm="gps", actors=1)


# ---- the environment that repeats its initial states


def test_repeated_environment_always_restarts_in_its_initial_states():
    env = Repeated(LinearQuadratic(), 3, episode_length=4)
    state = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), 6)
    begun = np.asarray(state.obs)
    np.testing.assert_array_equal(begun, begun[[0, 0, 2, 2, 4, 4]])
    assert len(np.unique(begun[:, 0])) == 3
    step, rng = jax.jit(env.step), np.random.default_rng(0)
    for number in range(1, 13):
        state = step(state, jnp.asarray(rng.normal(size=(6, 1)), jnp.float32))
        over = number % 4 == 0
        assert np.all(np.asarray(state.truncated) == over)
        assert np.all(np.asarray(state.obs) == begun) == over
        assert np.any(np.asarray(state.final_obs) != begun)
    np.testing.assert_array_equal(env.reset(jax.random.PRNGKey(0), 12).obs[::2], begun)


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "Reacher-v5"])
def test_mujoco_episodes_from_repeated_state_are_identical(name):
    env = Repeated(jaxtrpo.make_env(name), 2, episode_length=3)
    state = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), 2)
    step, action = jax.jit(env.step), jnp.full((2, env.action_size), 0.3)
    seen = []
    for _ in range(6):
        state = step(state, action)
        seen.append(np.asarray(state.final_obs))
    np.testing.assert_array_equal(seen[:3], seen[3:])


@pytest.mark.parametrize("with_vector", [False, True])
def test_repeated_environment_shows_images_and_legal_choices_of_its_initial_states(with_vector):
    """Masks are those of the observation after a restart, too."""
    env = Repeated(LightEnvironment(with_vector=with_vector, masks_actions=True, episode_length=3), 2)
    assert masks_actions(env) and not observation_space(env).is_flat
    begun = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(3), 4)
    state, step = begun, jax.jit(env.step)
    differs = False
    for number in range(1, 7):
        state = step(state, jnp.zeros((4, 1)))
        if number % 3 == 0:
            chex.assert_trees_all_equal((state.obs, state.mask), (begun.obs, begun.mask))
        else:
            differs |= not np.array_equal(state.mask, begun.mask)
    assert differs


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"conditions": 0}, "conditions=0 must be a whole number of at least 1"),
        ({"conditions": 2.5}, "conditions=2.5 must be a whole number of at least 1"),
        ({"conditions": 2, "episode_length": 0}, "episode_length=0 must be a whole number of at least 1"),
        ({"conditions": 2, "episode_length": -3}, "episode_length=-3 must be a whole number of at least 1"),
    ],
)
def test_numbers_of_repeated_environments_are_checked(given, told):
    with pytest.raises(ValueError, match=f"^{told}"):
        Repeated(LinearQuadratic(), **given)


def test_repeated_environment_is_drawn_like_the_one_that_it_wraps(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "jaxtrpo.envs.mujoco.environment.render", lambda model, layout, states, *size: drawn.extend([*states, size])
    )
    env = jaxtrpo.make_env("InvertedPendulum-v5")
    repeated = Repeated(env, 2)
    assert repeated.seconds_per_step == env.seconds_per_step
    physics = jax.device_get(repeated.reset(jax.random.PRNGKey(0), 1).physics)
    repeated.render([physics], 64, 48)
    np.testing.assert_array_equal(drawn[0], physics.now)
    assert drawn[1] == (64, 48) and not hasattr(Repeated(LinearQuadratic(), 2), "render")
