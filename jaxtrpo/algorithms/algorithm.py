"""The algorithm interface. Pass your own with `train(algorithm=...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.critics.critic import Critic
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import ObservationSpace
from jaxtrpo.policies.distributions import Comparable
from jaxtrpo.policies.exploring import Explore
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.replay import Replay, make_replay
from jaxtrpo.rollout.types import Batch, Hyperparameters

Info = dict[str, Array]  # metrics of one update: scalars by column name in metrics.csv


class Spec(NamedTuple):
    """Everything that a run provides for its algorithm."""

    observation_size: int  # numbers in an observation
    policy: Policy  # acts and is improved
    critic: Critic  # predicts returns
    discount: float  # discount factor per environment step
    surrogate: Surrogate | None  # the user's own objective for the policy, if any
    normalize_observations: bool  # whether to update the observation moments with each batch
    steps_per_update: int  # initial batch size, environment steps of all actors
    segment_steps: int  # environment steps of all actors in a segment
    segment_length: int  # steps of each environment in a segment
    actions: ActionSpace  # of the environment
    observations: ObservationSpace  # of the environment

    @property
    def num_envs(self) -> int:
        """Number of environments of all actors."""
        return self.segment_steps // self.segment_length


class Asynchronous(NamedTuple):
    """Learning split into computing and applying a gradient, for the driver in `training.drivers.asynchronous`."""

    # (learner state that the actor acted with, its batch, hyperparameters, key) -> (gradient, info)
    gradient: Callable[[PyTree, Batch, Hyperparameters, PRNGKeyArray], tuple[PyTree, Info]]
    # (latest learner state, gradient, hyperparameters) -> learner state
    apply: Callable[[PyTree, PyTree, Hyperparameters], PyTree]


class Replaying(NamedTuple):
    """Learning from a replay buffer while actors keep collecting, for the driver in `training.drivers.replay`."""

    # (learner state, one actor's batch, already in the buffer) -> learner state
    observe: Callable[[PyTree, Batch], PyTree]
    # (learner state, environment steps collected since the last call, hyperparameters, key) -> (learner state, info)
    train: Callable[[PyTree, Int[Array, ""], Hyperparameters, PRNGKeyArray], tuple[PyTree, Info]]


class Learner(NamedTuple):
    """Pure functions of an algorithm for a given `Spec`, run by every actor on its part of a batch.

    A learner state is any pytree with fields `policy` and `obs_moments` (see `rollout.types.Acting`). It must be equal
    on every actor; sum and gather over actors with the functions of `jaxtrpo.parallel.collectives`. Checkpoints contain
    the whole state, so a resumed run is exact.
    """

    init: Callable[[PRNGKeyArray, PRNGKeyArray], PyTree]  # (key for the policy, key for the critic) -> learner state
    # (learner state, batch, hyperparameters, key) -> (learner state, info)
    learn: Callable[[PyTree, Batch, Hyperparameters, PRNGKeyArray], tuple[PyTree, Info]]
    asynchronous: Asynchronous | None = None  # used instead of `learn` if actors do not wait for each other
    replaying: Replaying | None = None  # used instead of `learn` if actors do not wait for the learner either
    # Replay buffer, if the learner state is a NamedTuple with a field `replay`; `learn` finds the batch already in it.
    replay: Replay | None = None

    @property
    def waits(self) -> bool:
        """Whether all actors synchronise in every update; otherwise each makes updates of its own."""
        return self.asynchronous is None and self.replaying is None


class WholeEpisodes(NamedTuple):
    """Batches of one whole episode per environment, which always start from the same few initial states."""

    conditions: int  # number of initial states
    samples: int  # environments that start from each
    horizon: int | None  # steps of an episode; the environment's time limit if None


class Algorithm(NamedTuple):
    """A learning algorithm with its settings and defaults.

    Sizes depend on the environment, so `make` builds its functions from a `Spec`.
    """

    spec_string: str  # such as "ppo(clip=0.1)"
    hyperparameters: Mapping[str, float]  # initial values of traced settings; must include steps_per_update
    make: Callable[[Spec], Learner]  # called once per run
    adapt: str = "fixed"  # default rule
    policy: str = "mlp"  # default policy where observations have no images
    critic: str = "mlp"  # default critic
    num_envs: int = 16  # default number of environments, over all actors
    steps_of_each: int = 1  # minimum steps of each environment in the first batch; ignored if steps_per_update is given
    updates_at_once: int = 1  # updates per compiled program; more than 1 if launching would dominate short updates
    episodes: WholeEpisodes | None = None  # determines batch sizes; None if batches are cut from running environments
    # Whether it is known to learn well with a long horizon, which then is the default where episodes are long and never
    # terminate (see `training.defaults.with_horizon`).
    long_horizon: bool = False
    explore: Explore | None = None  # what actions are drawn from; None: the distributions of the policy
    uses_surrogate: bool = False  # whether `make` reads `Spec.surrogate`; otherwise runs with one are refused
    distributions: type = Comparable  # protocol that the distributions of the policy must follow
    # Why it cannot train a policy with a value head (`Policy.value_head`), which are then refused; None if it can.
    refuses_shared: str | None = "it trains policy and critic separately"


def require_plain_networks(spec: Spec, name: str) -> None:
    """Raises ValueError for images, frames, memory or masks, which the algorithm cannot use."""
    others = "trpo, npg, trpo_penalty, ppo, pg, a2c and a3c can"
    if spec.observations.images:
        raise ValueError(f"algorithm: {name} cannot learn from images; {others}")
    if spec.observations.frames > 1:
        raise ValueError(f"frame_stack={spec.observations.frames}: {name} cannot stack frames; {others}")
    for part, recurrence in (("policy", spec.policy.recurrence), ("critic", spec.critic.recurrence)):
        if recurrence is not None:
            raise ValueError(f"{part}: {name} cannot train networks with memory; {others}")
    if spec.policy.is_masked:
        raise ValueError(f"algorithm: {name} cannot train with action masks; {others}")


def replay_for(spec: Spec, capacity: int, action_size: int) -> Replay:
    """Builds a replay buffer of so many environment steps for the batches of a run."""
    return make_replay(
        capacity,
        segment_steps=spec.segment_steps,
        segment_length=spec.segment_length,
        observation_size=spec.observation_size,
        action_size=action_size,
    )


def starting_with(algorithm: Algorithm, **values: Any) -> Algorithm:
    """Returns the algorithm with other initial values of its traced settings.

    Raises:
      ValueError: the algorithm has no such setting.
    """
    known = algorithm.hyperparameters
    for name, value in values.items():
        if name not in known:
            raise ValueError(
                f"{name}={value}: {algorithm.spec_string} has no {name}; its adaptable settings are {', '.join(known)}"
            )
    return algorithm._replace(hyperparameters={**known, **values})
