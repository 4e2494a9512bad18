"""The trust-region step: its KL recomputed in NumPy, its direction against dense linear algebra."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from light_env import LightEnvironment
from support import actors, counted_compilations, deal, first, random_batch, spread

from jaxtrpo.algorithms import fisher_states
from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.algorithms.natural_gradient import NaturalGradient, damping_for, make_direction
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.algorithms.trust_region import Path, make_policy_step, no_path, step_to_bound
from jaxtrpo.critics.critic import Targets
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace, as_observed, flat_space
from jaxtrpo.policies.cnn import cnn
from jaxtrpo.policies.making import policy_for
from jaxtrpo.policies.networks import gaussian_policy, mlp
from jaxtrpo.policies.recurrent import gru, lstm
from jaxtrpo.training.train import prepare

SEGMENTS, LENGTH, ENVS = 4, 3, 4
SHAPES = [(3, 2, (8,)), (2, 1, ())]  # observation size, action size, hidden layers
ALL, FEW = 10**6, 2 * ENVS  # samples for the Fisher matrix
# Few iterations: in float32 each amplifies rounding differences, as between one and two actors, up to tenfold.
OPTIONS = {"fisher_samples": ALL, "cg_iterations": 5, "cg_damping": 0.01}


class Problem(NamedTuple):
    """Inputs of one policy step, for all environments together."""

    params: dict
    action: np.ndarray
    obs: np.ndarray
    advantage: np.ndarray
    weight: np.ndarray
    num_segments: int


@functools.cache
def structure_of(shape) -> dict:
    obs_size, action_size, hidden = shape
    return jax.eval_shape(gaussian_policy(obs_size, action_size, hidden=hidden).init, jax.random.PRNGKey(0))


def make_problem(
    seed: int, shape=SHAPES[0], *, weights: float = 0.5, advantages: float = 1.0, num_segments: int = SEGMENTS
) -> Problem:
    """Returns a policy with random weights, its actions at random observations, and random advantages."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: (weights * rng.normal(size=leaf.shape)).astype(np.float32), structure_of(shape))
    steps = random_batch(
        seed, segments=SEGMENTS, length=LENGTH, envs=ENVS, obs_size=shape[0], action_size=shape[1], broken=0.15
    ).steps
    mean, log_std = plain_policy(params, steps.obs)
    action = (mean + np.exp(log_std) * rng.normal(size=mean.shape)).astype(np.float32)
    weight = (~steps.invalid & (np.arange(SEGMENTS) < num_segments)[:, None, None]).astype(np.float32)
    advantage = rng.normal(size=weight.shape)
    advantage = advantages * weight * (advantage - advantage[weight > 0].mean()) / advantage[weight > 0].std()
    return Problem(params, action, steps.obs, advantage.astype(np.float32), weight, num_segments)


def plain_policy(params: dict, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes mean and log standard deviation in float64 NumPy."""
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    layers = next(value for name, value in tree.items() if name != "log_std")
    x = np.asarray(obs, np.float64)
    for name in sorted(layers):
        x = x @ layers[name]["kernel"] + layers[name]["bias"]
        if name != "last":
            x = np.tanh(x)
    return x, np.broadcast_to(tree["log_std"], x.shape)


def plain_kl(problem: Problem, new_params: dict) -> float:
    """Computes the mean KL(old || new) over the steps that count, in float64."""
    (m, s), (n, t) = plain_policy(problem.params, problem.obs), plain_policy(new_params, problem.obs)
    each = np.sum(t - s + (np.exp(2 * s) + (m - n) ** 2) / (2 * np.exp(2 * t)) - 0.5, axis=-1)
    return float(np.mean(each[problem.weight > 0]))


def plain_surrogate(problem: Problem, new_params: dict) -> float:
    """Computes the mean importance-weighted advantage over the steps that count, in float64."""
    (m, s), (n, t) = plain_policy(problem.params, problem.obs), plain_policy(new_params, problem.obs)
    a = problem.action.astype(np.float64)
    log_ratio = np.sum(((a - m) / np.exp(s)) ** 2 / 2 - ((a - n) / np.exp(t)) ** 2 / 2 + s - t, axis=-1)
    counts = problem.weight > 0
    return float(np.mean(np.exp(log_ratio[counts]) * problem.advantage[counts]))


def mapped_step(shape=SHAPES[0], count=1, surrogate=importance_weighted_advantage, **options):
    return _mapped_step(shape, count, surrogate, tuple(sorted({**OPTIONS, **options}.items())))


@functools.cache
def _mapped_step(shape, count, surrogate, options):
    obs_size, action_size, hidden = shape
    policy_step = make_policy_step(
        make_direction(gaussian_policy(obs_size, action_size, hidden=hidden), surrogate, **dict(options)),
        line_search_shrink=0.8,
        line_search_steps=10,
    )
    mapped = actors(count).map(policy_step)

    def new_params_and_info(*arguments) -> tuple:
        params, path, info = mapped(*arguments)
        before, walked = arguments[:2]
        for new, old, now, then in zip(*map(jax.tree.leaves, (params, before, path.steps, walked.steps)), strict=True):
            np.testing.assert_allclose(now, 0.9 * then + (np.asarray(new) - old), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(path.predicted, 0.9 * walked.predicted + info.predicted_gain, rtol=1e-5)
        return params, info

    return new_params_and_info


def arguments(problem: Problem, max_kl: float, count: int = 1, seed: int = 0, path: Path | None = None) -> tuple:
    """Returns the arguments of a step, divided among actors."""
    path = no_path(problem.params) if path is None else path
    part = functools.partial(deal, count=count)
    found = Advantages(
        advantage=part(problem.advantage),
        targets=Targets(
            obs=part(problem.obs),
            elapsed=part(np.zeros(problem.weight.shape, np.int32)),
            value=part(np.zeros_like(problem.weight)),
            weight=part(problem.weight),
            num_segments=np.full(count, problem.num_segments, np.int32),
        ),
        explained_variance=np.zeros(count, np.float32),
        variance=np.ones(count, np.float32),
    )
    key = spread(jax.random.PRNGKey(seed), count)
    max_kls = np.full(count, max_kl, np.float32)
    return spread(problem.params, count), spread(path, count), part(problem.action), found, max_kls, key


def assert_untouched(params: dict, before: dict) -> None:
    jax.tree.map(
        lambda new, old: np.testing.assert_array_equal(new.view(np.uint32), np.asarray(old).view(np.uint32)),
        params,
        before,
    )


@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    weights=st.sampled_from([0.1, 0.5, 1.0]),
    advantages=st.sampled_from([0.1, 1.0, 100.0]),
    max_kl=st.sampled_from([1e-4, 1e-2, 0.1, 1.0]),
    num_segments=st.integers(1, SEGMENTS),
)
def test_kl_never_exceeds_bound_and_surrogate_improves(shape, seed, weights, advantages, max_kl, num_segments):
    problem = make_problem(seed, shape, weights=weights, advantages=advantages, num_segments=num_segments)
    params, info = map(first, mapped_step(shape)(*arguments(problem, max_kl)))
    if not info.accepted:
        assert_untouched(params, problem.params)
        assert info.kl == info.improvement == 0
        return
    kl, rise = plain_kl(problem, params), plain_surrogate(problem, params) - plain_surrogate(problem, problem.params)
    assert kl <= max_kl * 1.001 + 1e-7
    assert rise > -1e-6 * advantages
    np.testing.assert_allclose(info.kl, kl, rtol=1e-2, atol=1e-6)
    np.testing.assert_allclose(info.improvement, rise, rtol=1e-2, atol=1e-5 * advantages)


def test_full_step_is_accepted_on_ordinary_problems():
    accepted = []
    for seed in range(20):
        _, info = mapped_step()(*arguments(make_problem(seed), 1e-3))
        accepted.append(first(info).accepted and first(info).line_search_steps <= 2)
    assert np.mean(accepted) > 0.9


class Dense(NamedTuple):
    """Natural gradient in float64 by dense linear algebra; parameters are one flat vector."""

    params: np.ndarray
    gradient: np.ndarray
    direction: np.ndarray
    curvature: float  # along the direction
    fisher: np.ndarray


def dense(problem: Problem, shape, damping: float) -> Dense:
    """Solves (F + damping I)^-1 g with F the Hessian of the KL, g the surrogate's gradient and relative damping."""
    with jax.enable_x64(True):
        policy = gaussian_policy(*shape[:2], hidden=shape[2])
        flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), problem.params))
        counts = problem.weight > 0
        obs, action, advantage = (
            jnp.asarray(leaf[counts], jnp.float64) for leaf in (problem.obs, problem.action, problem.advantage)
        )
        old = policy.apply(unravel(flat), obs)

        def kl(x):
            d = policy.apply(unravel(x), obs)
            moved = (jnp.exp(2 * old.log_std) + (old.mean - d.mean) ** 2) / (2 * jnp.exp(2 * d.log_std))
            return jnp.mean(jnp.sum(d.log_std - old.log_std + moved - 0.5, axis=-1))

        def surrogate(x):
            d = policy.apply(unravel(x), obs)
            log_density = -(((action - d.mean) / jnp.exp(d.log_std)) ** 2) / 2 - d.log_std
            log_before = -(((action - old.mean) / jnp.exp(old.log_std)) ** 2) / 2 - old.log_std
            return jnp.mean(jnp.exp(jnp.sum(log_density - log_before, axis=-1)) * advantage)

        fisher = np.asarray(jax.jit(jax.hessian(kl))(flat))
        gradient = np.asarray(jax.jit(jax.grad(surrogate))(flat))
        relative = damping * (gradient @ fisher @ gradient) / (gradient @ gradient)
        direction = np.linalg.solve(fisher + relative * np.eye(flat.size), gradient)
        return Dense(np.asarray(flat), gradient, direction, direction @ fisher @ direction, fisher)


def as_vector(params: dict) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params))[0])


@pytest.mark.parametrize("num_segments", [2, SEGMENTS])
def test_step_is_natural_gradient_scaled_to_the_bound(num_segments):
    shape, damping, max_kl = SHAPES[1], 0.05, 1e-4
    problem = make_problem(7, shape, num_segments=num_segments)
    new, info = mapped_step(shape, cg_iterations=40, cg_damping=damping)(*arguments(problem, max_kl))
    new, info = first(new), first(info)
    expected = dense(problem, shape, damping)
    full_step = np.sqrt(2 * max_kl / expected.curvature) * expected.direction
    taken = as_vector(new) - expected.params
    assert info.accepted
    np.testing.assert_allclose(taken, 0.8 ** (info.line_search_steps - 1) * full_step, rtol=5e-3, atol=2e-6)
    np.testing.assert_allclose(info.gradient_norm, np.linalg.norm(expected.gradient), rtol=1e-4)
    assert info.cg_residual < 1e-3
    entropy = np.sum(problem.params["params"]["log_std"] + 0.5 * np.log(2 * np.pi * np.e))
    np.testing.assert_allclose(info.entropy, entropy, rtol=1e-5)


@pytest.mark.parametrize("fisher_samples", [ALL, FEW])
def test_padding_does_not_matter(fisher_samples):
    step = mapped_step(fisher_samples=fisher_samples)
    problem = make_problem(0, num_segments=2)
    expected = step(*arguments(problem, 0.01))
    assert first(expected[1]).accepted
    for garbage in (np.nan, -1e30):
        dirty = [leaf.copy() for leaf in problem[1:4]]
        for leaf in dirty:
            leaf[2:] = garbage
        found = step(*arguments(Problem(problem.params, *dirty, *problem[4:]), 0.01))
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("fisher_samples", [ALL, FEW])
def test_invalid_steps_do_not_matter(fisher_samples):
    step = mapped_step(fisher_samples=fisher_samples)
    problem = make_problem(3)
    expected = step(*arguments(problem, 0.01))
    assert np.any(problem.weight == 0)
    assert first(expected[1]).accepted
    rng = np.random.default_rng(0)
    dirty = []
    for leaf, size in zip(problem[1:4], (3.0, 10.0, 100.0), strict=True):
        wrong = (problem.weight == 0).reshape(problem.weight.shape + (1,) * (leaf.ndim - 3))
        dirty.append(np.where(wrong, size * rng.normal(size=leaf.shape).astype(np.float32), leaf))
    found = step(*arguments(Problem(problem.params, *dirty, *problem[4:]), 0.01))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("few", [fisher_states.FEW_STATES, 0], ids=["states gathered", "products summed"])
def test_step_does_not_depend_on_number_of_actors(few, monkeypatch):
    monkeypatch.setattr(fisher_states, "FEW_STATES", few)
    _mapped_step.cache_clear()
    problem = make_problem(5, num_segments=3)
    (alone, info_alone), (both, info_both) = (
        mapped_step(count=count, fisher_samples=FEW)(*arguments(problem, 0.01, count)) for count in (1, 2)
    )
    _mapped_step.cache_clear()
    for leaf in jax.tree.leaves(both):
        np.testing.assert_array_equal(leaf[0], leaf[1])
    jax.tree.map(
        lambda a, b, old: np.testing.assert_allclose(b - old, a - old, rtol=1e-4, atol=1e-6),
        first(alone),
        first(both),
        problem.params,
    )
    for name in ("kl", "improvement", "gradient_norm", "predicted_gain", "entropy", "accepted", "line_search_steps"):
        np.testing.assert_allclose(getattr(info_both, name)[0], getattr(info_alone, name)[0], rtol=1e-4, err_msg=name)


def test_predicted_gain_and_gain_ratio_match_slopes_of_surrogate():
    problem, small = make_problem(8), 1e-4
    rng = np.random.default_rng(0)
    walked = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), problem.params)
    path = Path(walked, np.float32(0.5))
    params, info = map(first, mapped_step()(*arguments(problem, 0.01, path=path)))
    taken = jax.tree.map(np.subtract, params, problem.params)

    def at(distance: float, direction: dict) -> float:
        moved = jax.tree.map(lambda p, d: np.float64(p) + distance * d, problem.params, direction)
        return plain_surrogate(problem, moved)

    def slope(direction: dict) -> float:  # central difference in float64
        return (at(small, direction) - at(-small, direction)) / (2 * small)

    np.testing.assert_allclose(info.predicted_gain, slope(taken), rtol=1e-3)
    np.testing.assert_allclose(info.gain_ratio, slope(walked) / 0.5, rtol=1e-3)
    assert info.predicted_gain > 0


@pytest.mark.parametrize(("curvature", "length"), [(4.0, 0.1), (0.0, 0.0), (-1e-9, 0.0), (-4.0, 0.0), (np.nan, 0.0)])
def test_step_to_bound_is_zero_without_curvature(curvature, length):
    """With positive curvature, the step is sqrt(2 * 0.02 / 4) = 0.1 times the direction."""
    nothing = jnp.zeros(3)
    natural = NaturalGradient(nothing, nothing, 0.0, jnp.ones(3), jnp.float32(curvature), None, 0.0, 0.0, None)
    np.testing.assert_allclose(step_to_bound(natural, jnp.float32(0.02)), np.full(3, length), rtol=1e-6)


def test_number_of_segments_and_kl_bound_are_traced():
    step = mapped_step()
    step(*arguments(make_problem(0), 0.01))
    others = [arguments(make_problem(1, num_segments=n), max_kl) for n, max_kl in ((1, 0.01), (2, 0.5), (4, 1e-5))]
    with counted_compilations() as compiled:
        kls = [float(first(step(*other)[1]).kl) for other in others]
    assert not compiled
    assert kls[1] > kls[0] > kls[2] > 0


@pytest.mark.parametrize("advantage", [0.0, np.nan, np.inf])
def test_zero_or_non_finite_advantages_leave_policy_unchanged(advantage):
    problem = make_problem(2)
    problem = problem._replace(advantage=np.full_like(problem.advantage, advantage))
    params, info = map(first, mapped_step()(*arguments(problem, 0.01)))
    assert_untouched(params, problem.params)
    assert not info.accepted
    assert info.kl == info.improvement == 0


def test_single_nan_advantage_leaves_policy_unchanged():
    problem = make_problem(2)
    problem.advantage[np.nonzero(problem.weight)[0][0], 0, 0] = np.nan
    params, info = map(first, mapped_step()(*arguments(problem, 0.01)))
    assert_untouched(params, problem.params)
    assert not info.accepted


def test_batch_without_valid_steps_leaves_policy_unchanged():
    problem = make_problem(2)
    problem = problem._replace(weight=np.zeros_like(problem.weight))
    params, info = map(first, mapped_step()(*arguments(problem, 0.01)))
    assert_untouched(params, problem.params)
    assert not info.accepted


def towards_the_first_observation(new, samples):
    """Surrogate that is largest if the mean action is twice the first observation, and ignores advantages."""
    return -jnp.sum((new.mean - 2 * samples.obs[:, :1]) ** 2, axis=-1)


def test_surrogate_can_be_replaced():
    """Many steps on a surrogate without advantages end at its maximum."""
    shape = SHAPES[1]
    step = mapped_step(shape, surrogate=towards_the_first_observation)
    problem = make_problem(4, shape, weights=0.3)
    for _ in range(60):
        params, info = map(first, step(*arguments(problem, 0.02)))
        assert plain_kl(problem, params) <= 0.02 * 1.001
        problem = problem._replace(params=params)
    mean, _ = plain_policy(problem.params, problem.obs)
    counts = problem.weight > 0
    np.testing.assert_allclose(mean[counts], 2 * problem.obs[counts][:, :1], atol=0.05)


def test_scale_of_advantages_does_not_matter():
    small, large = (make_problem(6, SHAPES[1], advantages=size) for size in (0.3, 30.0))
    (one, _), (other, _) = (mapped_step(SHAPES[1])(*arguments(problem, 0.01)) for problem in (small, large))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-5), first(one), first(other))


IMAGE = Leaf("image", (8, 8, 1), "uint8")


@pytest.mark.parametrize(
    ("given", "make", "space", "damping"),
    [
        (None, mlp, flat_space(3), 0.03),
        (None, cnn, ObservationSpace((IMAGE, *flat_space(3).leaves)), 0.001),
        (None, gru, flat_space(3), 0.005),
        (None, lstm, ObservationSpace((IMAGE,)), 0.001),
        (None, mlp, flat_space(3)._replace(frames=4), 0.03),
        (None, cnn, ObservationSpace((IMAGE,), frames=4), 0.001),
        (0.5, cnn, ObservationSpace((IMAGE,)), 0.5),
        (0.0, gru, flat_space(3), 0.0),
    ],
)
def test_images_and_memory_are_damped_less_by_default(given, make, space, damping):
    actions = ActionSpace(np.array([-1.0]), np.array([1.0]))
    assert damping_for(given, policy_for(make(), as_observed(space), actions, masked=False), space) == damping


@pytest.mark.parametrize("algorithm", ["trpo", "npg", "trpo_penalty"])
def test_default_damping_is_that_of_the_observations(algorithm):
    """A run with images is the one with this damping, and not that with the damping of vectors."""
    parts = {"policy": "cnn(channels=(2,), hidden=4)", "critic": "none", "num_envs": 4, "steps_per_update": 64}
    params = {}
    for damping in (None, 0.001, 0.03):
        words = f"{algorithm}(cg_damping={damping}, cg_iterations=3)"
        run = prepare(LightEnvironment(), algorithm=words, actors=1, adapt="fixed", total_steps=128, seed=1, **parts)
        params[damping] = ravel_pytree(jax.device_get(run.run(progress=False).state.learner.policy))[0]
    np.testing.assert_array_equal(params[None], params[0.001])
    assert np.any(params[None] != params[0.03])
