"""TRPO that combines the score-function gradient of the batch with an action-value critic fitted to replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.actor_critic import (
    about,
    gather_samples,
    kept_if,
    no_observations,
    with_observations,
    with_rewards,
)
from jaxtrpo.algorithms.advantages import Advantages, compare_with_usual, estimate_advantages, standardize
from jaxtrpo.algorithms.algorithm import Algorithm, Info, Learner, Spec, replay_for, require_plain_networks
from jaxtrpo.algorithms.natural_gradient import CONTROLS_KL, require_natural_gradient
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.algorithms.trpo_replay.combined_step import DirectionMemory, combined_direction, no_directions
from jaxtrpo.algorithms.trpo_replay.labels import advantage_over, critic_surrogate, draw_labelled
from jaxtrpo.algorithms.trust_region import Path, no_path, require_line_search, step_work, take_step
from jaxtrpo.config.checks import (
    require_not_negative,
    require_positive,
    require_replay_ratio,
    require_share,
    require_sizes,
    require_whole,
)
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.action_values import ActionCriticState, action_critic
from jaxtrpo.critics.critic import Targets, sound_fit
from jaxtrpo.critics.reward_scale import value_unit
from jaxtrpo.ops.minibatches import minibatches_for
from jaxtrpo.ops.moments import Moments, no_moments
from jaxtrpo.ops.running_mean import RunningMean, no_mean
from jaxtrpo.ops.tree import if_finite, mean_of_copies
from jaxtrpo.parallel.collectives import (
    Copies,
    after,
    num_actors,
    side_by_side,
    without_collectives,
    worth_side_by_side,
)
from jaxtrpo.policies.distributions import Differentiable
from jaxtrpo.rollout.replay import Ring
from jaxtrpo.rollout.types import Batch, Hyperparameters

VALUE_CRITIC = "mlp(hidden=(128, 128))"
RULE = "trust(kl_range=(0.25, 2.5))"  # the same bounds in nats as for `trpo`, whose initial max KL is half as large
# Of the action-value critic: two actors take half as long for half of the gradient steps each. There are two copies for
# any number of actors, because learning must not depend on it.
COPIES = 2
FEWEST_ENVS = 4  # with fewer, a batch mostly continues the previous one and cannot evaluate its step independently


class Memory(NamedTuple):
    """Memory of previous policy steps."""

    path: Path
    followed: DirectionMemory
    advantage_variance: RunningMean  # over the last updates, before standardising


class ReplayState(NamedTuple):
    """Learner state, equal on every actor."""

    policy: PyTree
    critic: PyTree
    actions: ActionCriticState
    obs_moments: Moments
    rewards: Moments
    memory: Memory
    replay: Ring


def trpo_replay(
    *,
    max_kl: float = 0.02,
    gae_lambda: float = 0.95,
    advantage_memory: int = 100,
    replay: int = 100_000,
    replay_ratio: float = 0.5,
    minibatch_size: int = 64,
    minibatch_per_env: float = 0.125,
    hidden: Sequence[int] = (64, 64),
    value_hidden: Sequence[int] = (128, 128),
    target_rate: float = 0.04,
    learning_rate: float = 2e-3,
    critic_lambda: float = 0.5,
    fisher_samples: int = 512,
    cg_iterations: int = 15,
    cg_damping: float = 0.03,
    critic_cg_damping: float = 0.001,
    line_search_shrink: float = 0.8,
    line_search_steps: int = 10,
) -> Algorithm:
    """TRPO plus an action-value critic fitted to a replay buffer, weighted by how well new batches confirm it.

    The critic V(s) + D(s, a) is fitted off-policy to the steps in a replay buffer. Its targets bootstrap from the value
    of the next state under the current policy, given by a target network V' (a slow copy of V). In each update, two
    copies of the critic take half of the gradient steps each, at the same time if there are two actors, and are then
    averaged (local SGD, Stich 2019).

    The gradient of D with respect to the action is backpropagated through the policy (stochastic value gradients,
    SVG(0), Heess et al. 2015). Its natural direction and that of the batch's score function are added, with weights
    from later batches, which are independent of both (see `jaxtrpo.algorithms.trpo_replay.weighting`). The step along
    the sum keeps TRPO's KL bound and line search.

    Args:
      max_kl: initial trust region: upper bound on the mean KL divergence between the policies before and after an
        update, nats.
      gae_lambda: lambda of GAE for the advantages of the batch, trading bias (0) against variance (1).
      advantage_memory: as in `trpo`.
      replay: capacity of the replay buffer, environment steps.
      replay_ratio: gradient steps of the action-value critic per environment step, of both copies together; fewer, in
        proportion, if `minibatch_per_env` makes minibatches larger.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: minimum size of a minibatch, in steps per environment, so that thousands of environments do not
        mean thousands of small gradient steps, one after another.
      hidden: sizes of the hidden layers of the advantage network D.
      value_hidden: sizes of the hidden layers of the value network V.
      target_rate: fraction by which the target network V' moves towards V in each gradient step.
      learning_rate: learning rate of Adam for the action-value critic.
      critic_lambda: lambda of the critic's return targets, trading bias (0) against variance (1). 0 bootstraps from V'
        after one step; larger values include the rewards that followed, corrected for the actions of older policies.
      fisher_samples: as in `trpo`.
      cg_iterations: as in `trpo`, for each direction.
      cg_damping: as in `trpo`.
      critic_cg_damping: `cg_damping` for the direction of the action-value critic, which is less noisy.
      line_search_shrink: as in `trpo`.
      line_search_steps: as in `trpo`.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(trpo_replay, locals())
    require_positive(max_kl=max_kl, learning_rate=learning_rate)
    require_replay_ratio(replay_ratio=replay_ratio)
    require_share(gae_lambda=gae_lambda, critic_lambda=critic_lambda, target_rate=target_rate)
    require_whole(0, advantage_memory=advantage_memory)
    require_whole(1, replay=replay, minibatch_size=minibatch_size)
    require_sizes(hidden=hidden, value_hidden=value_hidden)
    require_natural_gradient(fisher_samples, cg_iterations, cg_damping)
    require_not_negative(critic_cg_damping=critic_cg_damping, minibatch_per_env=minibatch_per_env)
    require_line_search(line_search_shrink, line_search_steps)

    def make(spec: Spec) -> Learner:
        require_plain_networks(spec, "trpo_replay")
        _require_fitting(spec)
        policy, critic = spec.policy, spec.critic
        minibatches = minibatches_for(spec.num_envs, minibatch_size, minibatch_per_env, replay_ratio / COPIES)
        actions = action_critic(
            spec.observation_size,
            spec.actions,
            hidden=hidden,
            value_hidden=value_hidden,
            learning_rate=learning_rate,
            minibatch_size=minibatches.size,
            target_rate=target_rate,
            at_once=minibatches.at_once,
        )
        buffer = replay_for(spec, replay, spec.actions.size)

        def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> ReplayState:
            for_values, for_actions = jax.random.split(for_critic)
            params = policy.init(for_policy)
            return ReplayState(
                policy=params,
                critic=critic.init(for_values),
                actions=actions.init(for_actions),
                obs_moments=no_observations(spec),
                rewards=no_moments(()),
                memory=Memory(no_path(params), no_directions(2, optax.tree.size(params)), no_mean()),
                replay=buffer.empty(),
            )

        def learn(
            learner: ReplayState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
        ) -> tuple[ReplayState, Info]:
            for_policy, for_critic, for_actions = jax.random.split(key, 3)
            unscaled = estimate_advantages(
                critic,
                learner.critic,
                learner.obs_moments,
                batch,
                discount=spec.discount,
                gae_lambda=gae_lambda,
                action_advantage=advantage_over(actions, learner.actions, policy, learner.policy),
            )
            samples = unscaled.targets.weight.size * num_actors()
            split = worth_side_by_side(
                *COPIES * [[actions.work(minibatches.per_step * samples)]],
                [step_work(policy, fisher_samples, 2 * cg_iterations)(learner.policy, samples)],
                [critic.work(learner.critic, samples)],
            )
            if split:
                steps, unscaled = gather_samples(batch.steps, unscaled, learner.obs_moments)
                batch = batch._replace(steps=steps)
            # With all samples gathered, no collectives are needed.
            once = without_collectives if split else lambda task: task

            def prepare_batch() -> tuple[Advantages, Moments]:
                found = standardize(unscaled, learner.obs_moments)
                return found, with_rewards(learner.rewards, batch, found.targets.weight)

            found, rewards = once(prepare_batch)()
            usual, bound = learner.memory.advantage_variance, hyperparameters["max_kl"]
            if advantage_memory:
                usual, share = compare_with_usual(usual, found.variance, advantage_memory)
                bound = share * bound
            number = minibatches.number(batch.num_segments * spec.segment_steps)

            def improve() -> tuple[PyTree, Path, DirectionMemory, Info]:
                natural, followed, weighting = combined_direction(
                    policy,
                    learner.policy,
                    learner.memory.followed,
                    batch.steps.action,
                    found,
                    for_policy,
                    surrogates=(
                        spec.surrogate or importance_weighted_advantage,
                        critic_surrogate(actions, learner.actions),
                    ),
                    fisher_samples=fisher_samples,
                    cg_iterations=cg_iterations,
                    cg_damping=(cg_damping, critic_cg_damping),
                )
                params, path, info = take_step(
                    natural,
                    learner.policy,
                    learner.memory.path,
                    bound,
                    line_search_shrink=line_search_shrink,
                    line_search_steps=line_search_steps,
                )
                return params, path, followed, {**info._asdict(), **weighting}

            def fit(targets: Targets) -> PyTree:
                return sound_fit(critic.fit(learner.critic, targets, for_critic, jnp.ones(())), learner.critic)

            def learn_from_replay(copy: Int[Array, ""]) -> tuple[ActionCriticState, Float[Array, ""]]:
                draw = draw_labelled(
                    buffer, learner.replay, actions, learner.obs_moments, learner.policy, critic_lambda, spec
                )
                return actions.fit(
                    learner.actions,
                    value_unit(rewards),
                    draw,
                    number.astype(jnp.int32),
                    jax.random.fold_in(for_actions, copy),
                )

            copies = Copies(COPIES, learn_from_replay)
            if split:
                done = side_by_side(copies, improve, lambda: fit(found.targets))
                of_copies, (params, path, followed, info), fitted = done
            else:
                of_copies = copies.in_turn()
                params, path, followed, info = improve()
                fitted = fit(after(params, found.targets))
            learned, unexplained = mean_of_copies(of_copies)
            learned = if_finite(learned, learner.actions)

            def conclude() -> tuple[Moments, Info]:
                moments = with_observations(spec, learner.obs_moments, batch.steps.obs, found)
                return moments, about(spec, params, found)

            moments, more = once(conclude)()
            info = {**more, **dict(sorted({**info, "critic_explained_variance": 1 - unexplained}.items()))}
            # In the first batch, all observations look alike: a bonus of the surrogate must not be followed there.
            stepped, before = (params, Memory(path, followed, usual)), (learner.policy, learner.memory)
            (params, memory), info = kept_if(learner.obs_moments.known, stepped, before, info)
            return ReplayState(params, fitted, learned, moments, rewards, memory, learner.replay), info

        return Learner(init, learn, replay=buffer)

    starts = {"max_kl": max_kl, "steps_per_update": 1024}
    return Algorithm(
        spec_string,
        starts,
        make,
        adapt=RULE,
        critic=VALUE_CRITIC,
        uses_surrogate=True,
        distributions=Differentiable,
        refuses_shared=CONTROLS_KL,
    )


def _require_fitting(spec: Spec) -> None:
    """Raises ValueError if there are too few environments."""
    if spec.num_envs < FEWEST_ENVS:
        raise ValueError(
            f"num_envs={spec.num_envs}: trpo_replay needs at least {FEWEST_ENVS} environments, or batches would not be "
            "independent of the step that they evaluate"
        )
