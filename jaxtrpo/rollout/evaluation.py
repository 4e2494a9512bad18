"""Evaluation: returns of whole episodes of a policy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree, UInt32

from jaxtrpo.config.checks import MOST_EPISODES, plain, require_bool, require_seed, require_whole
from jaxtrpo.config.environment import made_elsewhere, options_of, options_string
from jaxtrpo.config.messages import short
from jaxtrpo.envs.abilities import close, envs_per_simulator, masks_actions, observation_space, require_working
from jaxtrpo.envs.base import MOST_STEPS_WITHOUT_LIMIT, Environment, action_space
from jaxtrpo.envs.known_as import is_known
from jaxtrpo.envs.modules import is_maker, module_of, name_of_function, split
from jaxtrpo.envs.observation_space import as_space
from jaxtrpo.envs.registry import environment_for, is_program, make_env, may_solve_equations, same_spaces
from jaxtrpo.ops.keys import key_for
from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.actors import Actors, join_envs
from jaxtrpo.parallel.devices import choose_actors
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.rollout.episodes import Recording, make_recorder, make_rollout


class Evaluation(NamedTuple):
    """Unnormalised returns of complete episodes."""

    mean: float  # over the episodes
    std: float  # population standard deviation
    returns: np.ndarray  # one per episode
    stopped: int = 0  # episodes that were stopped after `MOST_STEPS_WITHOUT_LIMIT` steps; their returns are partial
    recording: Recording | None = None  # steps of the episodes, if asked for

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the mean, that of Student's t; NaN for a single episode."""
        number = len(self.returns)
        if number < 2:
            return math.nan, math.nan
        from scipy.special import stdtrit  # here, because it is rarely needed

        half = float(stdtrit(number - 1, 0.975)) * self.std / math.sqrt(number - 1)
        return self.mean - half, self.mean + half


def evaluate(
    policy: TrainedPolicy,
    env: str | Environment | Callable[[], Any] | None = None,
    episodes: int = 10,
    seed: int = 0,
    max_episode_steps: int | None = None,
    env_options: str | Mapping[str, Any] | None = None,
    *,
    stochastic: bool = False,
    record: bool = False,
) -> Evaluation:
    """Evaluates a policy over whole episodes. It acts with the mode of its distributions, or samples from them.

    Args:
      policy: policy to evaluate.
      env: environment, as for `train`; None: the one in which the policy was trained.
      episodes: number of episodes, which run in parallel.
      seed: seed of the initial states, and of sampled actions.
      max_episode_steps: time limit in steps; None: that of the policy's training or, if another `env` is given, its
        own.
      env_options: options of the environment's constructor; None: those of the policy's training or, if another `env`
        is given, none. A function, or its name as "module:function", is not another one if the policy was trained with
        it.
      stochastic: sample actions from the policy, independently in each step, whatever `noise_correlation` was; not for
        policies of action values (`dqn`).
      record: also return the observations, actions, rewards and ends of the episodes (`Evaluation.recording`).

    Returns:
      The returns of the episodes; NaN for an episode with an invalid step. Without a time limit, episodes are stopped
      after 10,000 steps, with a warning.

    Raises:
      ValueError: there is no such environment, the policy does not fit it, or it has no distribution to sample from.
      SimulatorError: a Gymnasium simulator failed.
    """
    evaluation = prepare_evaluation(
        policy, env, episodes, max_episode_steps, env_options, stochastic=stochastic, record=record
    )(seed)
    if evaluation.stopped:
        warnings.warn(stopped_in_words(evaluation), stacklevel=2)
    return evaluation


def prepare_evaluation(
    policy: TrainedPolicy,
    env: str | Environment | Callable[[], Any] | None,
    episodes: int,
    max_episode_steps: int | None = None,
    env_options: str | Mapping[str, Any] | None = None,
    *,
    stochastic: bool = False,
    record: bool = False,
) -> Callable[[int], Evaluation]:
    """Validates the arguments of `evaluate`, and returns a function from a seed to the evaluation."""
    episodes = plain(episodes)
    require_whole(1, MOST_EPISODES, episodes=episodes)
    require_bool(stochastic=stochastic, record=record)
    if not isinstance(policy, TrainedPolicy):
        raise ValueError(f"policy={short(policy, 60)} must be a TrainedPolicy, such as train(...).policy")
    if stochastic:
        policy.require_probabilities("stochastic=True (--stochastic)")
    where, limit, options = where_to_act(policy, env, max_episode_steps, env_options)
    actors = choose_actors(program=is_program(where, options), lapack=may_solve_equations(where, options))
    environment, _ = environment_for(where, actors.count, limit, options)
    require_fitting(policy, environment)
    run = make_evaluator(environment, policy.network, actors, episodes, stochastic=stochastic, record=record)

    def evaluate_once(seed: int) -> Evaluation:
        try:
            require_seed(seed=seed)
            return run(actors.replicate((policy.params, policy.moments)), evaluation_key(int(seed)))
        finally:
            if environment is not env:  # created above; its simulators would otherwise run until garbage collection
                close(environment)

    return evaluate_once


def where_to_act(
    policy: TrainedPolicy,
    env: Any,
    max_episode_steps: int | None,
    env_options: str | Mapping[str, Any] | None = None,
) -> tuple[Any, int | None, dict[str, Any]]:
    """Returns the environment, the time limit and options; None is replaced with that of the policy's training.

    Raises:
      ValueError: the policy's environment cannot be made from its name, is in a module that has not been imported, or
        is made by another Python interpreter (a file from somebody else must not decide which code is run); or `env`
        names a task of MJX that the policy does not fit.
    """
    if max_episode_steps is not None:
        require_whole(1, max_episode_steps=max_episode_steps)
    if isinstance(env, str) and (task := same_spaces(env)) is not None:
        require_fitting(policy, make_env(task))  # before MJX is traced, which takes seconds
    name = policy.env_name
    if env is not None and not _is_same_code(env, name):
        return env, max_episode_steps, _checked(env_options)
    options = _checked(policy.env_options if env_options is None else env_options)
    if env_options is None and made_elsewhere(options):
        raise ValueError(
            f"env_options: those of the policy start another Python interpreter ({options['python']!r}); repeat them "
            "(--env-options) if you trust it"
        )
    if env is not None:
        return env, max_episode_steps or policy.max_episode_steps, options
    module = module_of(name)
    if module is not None:
        raise ValueError(
            f"env={name}, where the policy was trained, imports the module {short(module)}: give env (--env {name}) if "
            "you trust it"
        )
    if not (is_known(name) or made_elsewhere(options)):
        raise ValueError(
            f"env={short(name, 60)}, where the policy was trained, is a function or an environment of your own: give "
            "env, in the shell as --env module:function or --env file.py:function"
        )
    return name, max_episode_steps or policy.max_episode_steps, options


def _is_same_code(env: Any, name: str) -> bool:
    """Whether `env` only repeats the function of the user's that a name tells, which no file can hold."""
    if isinstance(env, str):
        found = split(env)
        return env == name and found is not None and found[1].isidentifier()  # which a registered id is not
    return is_maker(env) and name_of_function(env) == name and not name.endswith("<lambda>")


def _checked(env_options: str | Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if env_options is None else options_of(options_string(env_options))


def stopped_in_words(evaluation: Evaluation) -> str:
    """Returns the warning about episodes that were stopped."""
    count = len(evaluation.returns)
    return (
        f"{evaluation.stopped} of {count} episodes were stopped after {MOST_STEPS_WITHOUT_LIMIT:,} steps, "
        "because the environment has no time limit; set max_episode_steps (--max-episode-steps)"
    )


def require_fitting(policy: TrainedPolicy, env: Environment) -> None:
    """Checks that a policy fits an environment.

    Sizes and discrete choices must be the same. Bounds of continuous actions may differ, because a policy acts in units
    of the range between them; but it must be the same coordinates that are bounded on both sides, because a policy acts
    in the simulator's units on the others.

    Raises:
      ValueError: the observation or action space does not fit.
    """
    ours, theirs = policy.actions, action_space(env)
    sizes = env.observation_size, theirs.size
    if sizes != (policy.observation_size, ours.size):
        raise ValueError(
            f"the policy has observations of size {policy.observation_size} and actions of size {ours.size}, but "
            f"those of {env.name} have sizes {sizes[0]} and {sizes[1]}"
        )
    ours_seen, theirs_seen = as_space(policy.observed), observation_space(env)
    if (ours_seen.images or theirs_seen.images) and ours_seen.leaves != theirs_seen.leaves:
        raise ValueError(
            f"the policy has observations {ours_seen.description}, but those of {env.name} are "
            f"{theirs_seen.description}"
        )
    if policy.masked and not masks_actions(env):
        raise ValueError(f"the policy was trained with action masks, which {env.name} does not give")
    if ours.counts != theirs.counts:
        raise ValueError(
            f"the policy's actions are {ours.kind}, but those of {env.name} are {theirs.kind}; use an environment like "
            f"{policy.env_name}, where the policy was trained"
        )
    differ = [] if ours.counts else np.flatnonzero(ours.bounded != theirs.bounded)
    if len(differ):
        has, lacks = ("the policy", env.name) if ours.bounded[differ[0]] else (env.name, "the policy")
        raise ValueError(
            f"action {differ[0]} has two bounds for {has} but not for {lacks}, which changes its units; use an "
            f"environment like {policy.env_name}, where the policy was trained"
        )


def evaluation_key(seed: int) -> UInt32[Array, "2"]:
    """Returns the key of the initial states, which differ from those of a training with the same seed."""
    return key_for("evaluation", jax.random.PRNGKey(seed))


Evaluator = Callable[[tuple[PyTree, Moments], UInt32[Array, "2"]], Evaluation]


def make_evaluator(
    env: Environment,
    policy: Policy,
    actors: Actors,
    episodes: int,
    *,
    stochastic: bool = False,
    record: bool = False,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Evaluator:
    """Builds (policy parameters and observation moments per actor, key) -> evaluation; compiles once.

    Args:
      env: environment.
      policy: policy to evaluate.
      actors: devices among which the episodes are divided.
      episodes: number of episodes.
      stochastic: see `evaluate`.
      record: see `evaluate`.
      waiting: context that limits how long an evaluation waits for other processes.
    """
    unit = actors.count * envs_per_simulator(env)
    num_envs = -(-episodes // unit) * unit
    reset = jax.jit(env.reset, static_argnums=1)
    if record:
        rollout = make_recorder(env, policy, actors, episodes, stochastic=stochastic)
    else:
        rollout = actors.map(make_rollout(env, policy, stochastic=stochastic))

    def run(policy_and_moments: tuple[PyTree, Moments], key: UInt32[Array, "2"]) -> Evaluation:
        with actors.on_first():
            start = jax.block_until_ready(reset(key, num_envs))
            noise = [jax.random.split(key_for("noise", key), num_envs)] if stochastic else []
        require_working(env)
        keys = [actors.split_envs(each) for each in noise]
        found = jax.block_until_ready(rollout(actors.split_envs(start), *policy_and_moments, *keys))
        require_working(env)
        returns, ended, recording = found if record else (*found, None)
        with waiting():
            returns, ended = join_envs((returns, ended))
        returns = returns[:episodes].astype(np.float64)
        stopped = episodes - int(np.sum(ended[:episodes]))
        return Evaluation(float(np.mean(returns)), float(np.std(returns)), returns, stopped, recording)

    return run
