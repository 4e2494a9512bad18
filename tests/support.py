"""Test helpers: random batches, their distribution over actors, and counters of compilations and random keys."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import PyTree

import jaxtrpo.training.prepare
import jaxtrpo.training.run
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.config.specs import parse
from jaxtrpo.critics.critic import Critic
from jaxtrpo.critics.linear import linear_critic
from jaxtrpo.envs.base import ActionSpace, Environment
from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
from jaxtrpo.envs.observation_space import flat_space
from jaxtrpo.parallel.actors import Actors
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.evaluation import make_evaluator
from jaxtrpo.rollout.types import Batch, Steps
from jaxtrpo.training.drivers import asynchronous, replay
from jaxtrpo.training.parts import Parts
from jaxtrpo.training.update import Lowered, Update

TWO_NUMBERS = ActionSpace(np.full(2, -1.0), np.full(2, 1.0))
COMPILED = "/jax/core/compile/backend_compile_duration"
DRAWS = ("bits", "categorical", "choice", "gumbel", "normal", "permutation", "randint", "uniform")


@contextlib.contextmanager
def counted_compilations() -> Iterator[list[str]]:
    """Yields a list with an entry for each program that XLA compiles inside of the block."""
    compiled: list[str] = []

    def listen(name: str, seconds: float, **details: object) -> None:
        if name == COMPILED:
            compiled.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextlib.contextmanager
def shared_programs(made: dict | None = None) -> Iterator[None]:
    """Compiles equal runs inside of the block only once, because most of a short run is tracing and compiling.

    Runs are equal if they have the same environment, parts, sizes and actors, and states of the same shapes; seed,
    number of steps and the first values of adaptable settings may differ. A test that replaces something inside of
    compiled functions must not share.

    Args:
      made: dictionary that keeps the functions, for several blocks.
    """
    made = {} if made is None else made

    def get(env: Environment, kind: Hashable, make: Callable[[], Any]) -> Any:
        of_env = kind_of(env)
        if of_env is None:
            return make()
        if (of_env, kind) not in made:
            made[of_env, kind] = make()
        return made[of_env, kind]

    def once(name: str, make: Callable) -> Callable:
        def made_once(update: Any, example: PyTree, *rest: Any) -> Any:
            kind = name, update.parts, update.sizes, update.actors, update.trainings, shapes_of(example)
            return get(update.env, kind, lambda: make(update, example, *rest))

        return made_once

    def make_update(env: Environment, parts: Parts, *rest: Any, **programs: Any) -> Update:
        update = MAKE_UPDATE(env, parts, *rest, **programs)
        object.__setattr__(update, "parts", kind_of_parts(parts))
        return update

    def start(update: Update, seed: int) -> PyTree:
        with update.actors.on_first():
            begun = first_state(update, update.shapes())(jax.random.PRNGKey(seed), update.hyperparameters())
        return update.place(begun._replace(total_segments=np.int32(update.total_segments)))

    def lower(update: Update, state: PyTree) -> Lowered:
        return Lowered(*map(functools.cache, LOWER(update, state)))

    def evaluator(env: Environment, policy: Policy, actors: Actors, episodes: int, **how: Any) -> Any:
        shapes = shapes_of(jax.eval_shape(policy.init, jax.random.PRNGKey(0)))
        make = functools.partial(MAKE_EVALUATOR, env, policy, actors, episodes, **how)
        return get(env, ("evaluator", shapes, actors, episodes, *sorted(how.items())), make)

    first_state = once("start", lambda update, _: jax.jit(update.first_state))
    with contextlib.ExitStack() as stack:
        for target, name, replacement in (
            (jaxtrpo.training.prepare, "make_update", make_update),
            (Update, "start", start),
            (Update, "lower", once("lower", lower)),
            (Update, "compile_updates", once("compile_updates", Update.compile_updates)),
            (asynchronous, "_compile", once("asynchronous", asynchronous._compile)),
            (replay, "_compile", once("replay", replay._compile)),
            (jaxtrpo.training.run, "make_evaluator", evaluator),
            (sys.modules["jaxtrpo.rollout.evaluation"], "make_evaluator", evaluator),
        ):
            stack.enter_context(mock.patch.object(target, name, replacement))
        yield


LOWER, MAKE_UPDATE, MAKE_EVALUATOR = Update.lower, jaxtrpo.training.prepare.make_update, make_evaluator


def kind_of(env: Environment) -> Hashable:
    """Returns what is equal for equal environments; None if that is not known, as for simulators outside of JAX."""
    if isinstance(env, MujocoEnvironment):  # each has functions of its own, but their code is the same
        return type(env), *(getattr(part, "__code__", None) or str(part) for part in env.task)
    values = str(vars(env))
    return None if " at 0x" in values else (type(env), env.episode_length, values)


def kind_of_parts(parts: Parts) -> Hashable:
    """Returns what is equal for parts that were made from equal spec strings."""

    def of_part(kind: str, part: Any) -> Hashable:
        try:
            parse(kind, part.spec_string)
        except ValueError:
            return part.update if kind == "adapt" else part.make
        return part.spec_string

    kinds = {"algorithm": parts.algorithm, "policy": parts.policy, "critic": parts.critic, "adapt": parts.rule}
    made = tuple(of_part(*part) for part in kinds.items())
    return (
        *made,
        parts.surrogate,
        parts.discount,
        parts.normalize_observations,
        parts.frame_stack,
        parts.noise_correlation,
        parts.select,
    )


def shapes_of(tree: PyTree) -> Hashable:
    """Returns the structure of a tree, and shape and dtype of each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


class UsedKey(NamedTuple):
    """One use of a random key."""

    key: tuple[int, ...]
    use: str  # name of a function of `jax.random`
    number: int | None = None  # argument of `fold_in`


@contextlib.contextmanager
def recorded_keys() -> Iterator[list[UsedKey]]:
    """Yields a list of all uses of keys inside of the block; compiled functions must be traced inside of it, too."""
    used: list[UsedKey] = []

    def recording(name: str) -> Callable:
        original = getattr(jax.random, name)

        def function(key, *args, **kwargs):
            def record(key, number=None):
                number = None if number is None else int(number)
                used.append(UsedKey(tuple(np.ravel(key).tolist()), name, number))

            jax.debug.callback(record, key, *(args[:1] if name == "fold_in" else ()))
            return original(key, *args, **kwargs)

        return function

    with contextlib.ExitStack() as stack:
        for name in (*DRAWS, "split", "fold_in"):
            stack.enter_context(mock.patch.object(jax.random, name, recording(name)))
        yield used
        jax.effects_barrier()


def assert_no_key_is_used_twice(used: list[UsedKey]) -> None:
    """Asserts that every key is drawn from once, split once, or folded in with distinct numbers only."""
    uses: dict[tuple[int, ...], list[UsedKey]] = {}
    for each in used:
        uses.setdefault(each.key, []).append(each)
    for each in uses.values():
        numbers = {use.number for use in each if use.use == "fold_in"}
        assert len(each) == max(len(numbers), 1), each


def actors(count: int) -> Actors:
    """Returns actors on the first `count` CPU devices."""
    return Actors(tuple(jax.devices("cpu")[:count]))


def learner_of(
    algorithm: Algorithm,
    policy: Policy,
    critic: Critic,
    *,
    observation_size: int = 3,
    discount: float = 0.99,
    surrogate: Surrogate | None = None,
    segment_steps: int = 16,
    segment_length: int = 1,
    actions: ActionSpace = TWO_NUMBERS,
) -> Learner:
    """Returns the learner that a run would build for the algorithm."""
    return algorithm.make(
        Spec(
            observation_size,
            policy,
            critic,
            discount,
            surrogate,
            normalize_observations=True,
            steps_per_update=int(algorithm.hyperparameters["steps_per_update"]),
            segment_steps=segment_steps,
            segment_length=segment_length,
            actions=actions,
            observations=flat_space(observation_size),
        )
    )


def step_of(algorithm: str, policy: Policy, surrogate: Surrogate | None = None):
    """Returns the policy step of an algorithm's spec string, and its initial memory (see `actor_critic`)."""
    captured = {}

    def keep(spec: Spec, **parts: object) -> Learner:
        captured.update(parts)
        return Learner(lambda *_: None, lambda *_: None)

    builder = "actor_critic" if policy.value_head is None else "shared_torso"
    with mock.patch(f"jaxtrpo.algorithms.{algorithm.partition('(')[0]}.{builder}", keep):
        made = parse("algorithm", algorithm)
        learner_of(made, policy, linear_critic(1), surrogate=surrogate)
    return captured["step"], captured["no_memory"]


def random_batch(
    seed: int,
    *,
    segments: int = 4,
    length: int = 3,
    envs: int = 4,
    obs_size: int = 3,
    action_size: int = 2,
    num_segments: int | None = None,
    end: float = 0.15,
    broken: float = 0.05,
    padding: float = 0.0,
) -> Batch:
    """Returns consistent random experience of `envs` environments, in NumPy; `padding` fills segments without data."""
    rng = np.random.default_rng(seed)
    shape = (segments, length, envs)
    flat = (segments * length, envs)
    invalid = rng.random(flat) < broken
    terminated = (rng.random(flat) < end) & ~invalid
    truncated = ((rng.random(flat) < end) & ~terminated) | invalid
    done = terminated | truncated
    reward = np.where(invalid, 0, rng.normal(size=flat)).astype(np.float32)
    elapsed = np.zeros(flat, np.int32)
    episode_return = np.full(flat, np.nan, np.float32)
    now, total = rng.integers(0, 50, envs), np.zeros(envs)
    for t in range(flat[0]):
        elapsed[t] = now
        total += reward[t]
        episode_return[t] = np.where(done[t] & ~invalid[t], total, np.nan)
        now, total = np.where(done[t], 0, now + 1), np.where(done[t], 0, total)
    obs = rng.normal(size=(*flat, obs_size)).astype(np.float32)
    following = np.concatenate([obs[1:], rng.normal(size=(1, envs, obs_size)).astype(np.float32)])
    elsewhere = rng.normal(size=obs.shape).astype(np.float32)
    steps = Steps(
        obs=obs,
        action=rng.normal(size=(*flat, action_size)).astype(np.float32),
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        invalid=invalid,
        final_obs=np.where(done[..., None], np.where(invalid[..., None], obs, elsewhere), following),
        elapsed=elapsed,
        episode_return=episode_return,
    )
    steps = jax.tree.map(lambda leaf: leaf.reshape(shape + leaf.shape[2:]), steps)
    num = segments if num_segments is None else num_segments
    return pad(Batch(steps, np.int32(num)), padding)


def pad(batch: Batch, value: float) -> Batch:
    """Fills segments without data with `value`, and flags with `value != 0`."""

    def fill(leaf: np.ndarray) -> np.ndarray:
        leaf = leaf.copy()
        leaf[batch.num_segments :] = value if leaf.dtype.kind == "f" else value != 0
        return leaf

    return Batch(jax.tree.map(fill, batch.steps), batch.num_segments)


def deal(leaf: np.ndarray, count: int) -> np.ndarray:
    """[segment, time, env, ...] -> [actor, segment, time, env of the actor, ...]."""
    split = leaf.reshape(*leaf.shape[:2], count, leaf.shape[2] // count, *leaf.shape[3:])
    return np.ascontiguousarray(np.moveaxis(split, 2, 0))


def deal_batch(batch: Batch, count: int) -> Batch:
    """Splits a batch into the parts of actors."""
    steps = jax.tree.map(lambda leaf: deal(leaf, count), batch.steps)
    return Batch(steps, np.full(count, batch.num_segments, np.int32))


def undeal(leaf: jax.Array) -> np.ndarray:
    """Undoes `deal`."""
    leaf = np.moveaxis(np.asarray(leaf), 0, 2)
    return leaf.reshape(*leaf.shape[:2], -1, *leaf.shape[4:])


def spread(tree: object, count: int) -> object:
    """Repeats a value for every actor, in NumPy."""
    return jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * count), tree)


def first(tree: object) -> object:
    """Returns the first actor's value, in NumPy."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], tree)


def with_method(thing: Any, **methods: Callable) -> Any:
    """A copy of an object that has other methods."""
    changed = copy.copy(thing)
    for name, method in methods.items():
        object.__setattr__(changed, name, method)
    return changed


class Acting(NamedTuple):
    """User-defined normal distribution with what acting needs, without entropy, KL divergence and Fisher metric."""

    mean: jax.Array
    log_std: jax.Array

    noise_size = Gaussian.noise_size
    draw_noise = staticmethod(Gaussian.draw_noise)
    sample, mode, log_prob, summary = Gaussian.sample, Gaussian.mode, Gaussian.log_prob, Gaussian.summary


class LinearPolicy(nn.Module):
    """User-defined network for one action, whose mean is linear."""

    distribution: type

    @nn.compact
    def __call__(self, obs):
        mean = nn.Dense(1)(obs)
        return self.distribution(mean, jnp.zeros_like(mean))
