"""What an algorithm looks like. Bring your own with `train(algorithm=...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.critics.critic import Critic
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.replay import Replay
from jaxtrpo.rollout.types import Batch, Hyperparameters

Info = dict[str, Array]  # what one update did: scalars by the names of their columns in metrics.csv


class Spec(NamedTuple):
    """What a run gives its algorithm to learn with."""

    observation_size: int
    policy: Policy  # to improve; acts
    critic: Critic  # to fit
    discount: float  # per environment step
    surrogate: Surrogate | None  # what the policy shall maximise, if the user said so
    normalize_observations: bool  # update the observation moments with each batch
    steps_per_update: int  # environment steps of all actors in the first updates
    segment_steps: int  # environment steps of all actors in a segment
    segment_length: int  # steps of each environment in a segment
    actions: ActionSpace  # of the environment


class Asynchronous(NamedTuple):
    """Learning in two halves, for actors that do not wait for each other (see `training.drivers.asynchronous`)."""

    # (learner state that the actor acted with, its batch, hyperparameters, key) -> what shall change, and what happened
    gradient: Callable[[PyTree, Batch, Hyperparameters, PRNGKeyArray], tuple[PyTree, Info]]
    apply: Callable[[PyTree, PyTree, Hyperparameters], PyTree]  # (newest learner state, gradient, ...) -> learner state


class Replaying(NamedTuple):
    """Learning from a replay buffer, for actors that never wait for it (see `jaxtrpo.training.drivers.replay`)."""

    # (learner state, one actor's batch, which is in the buffer already) -> learner state
    take_in: Callable[[PyTree, Batch], PyTree]
    # (learner state, environment steps that are new since, hyperparameters, key) -> (learner state, what happened)
    train: Callable[[PyTree, Int[Array, ""], Hyperparameters, PRNGKeyArray], tuple[PyTree, Info]]


class Learner(NamedTuple):
    """An algorithm that knows what it learns with: pure functions, run by every actor on its part of a batch.

    A learner state is any pytree with fields `policy` and `obs_moments` (see `types.Acting`), equal on every actor:
    functions of `jaxtrpo.parallel.actors` sum and gather over them. It is saved whole, so a run goes on exactly.
    """

    init: Callable[[PRNGKeyArray, PRNGKeyArray], PyTree]  # keys of the policy's and the critic's first parameters
    learn: Callable[[PyTree, Batch, Hyperparameters, PRNGKeyArray], tuple[PyTree, Info]]
    asynchronous: Asynchronous | None = None  # in place of `learn`: actors do not wait for each other
    replaying: Replaying | None = None  # in place of `learn`: actors do not wait for the learner either
    # The buffer that is the field `replay` of its state, a NamedTuple, if it has one: `learn` finds the batch in it.
    replay: Replay | None = None

    @property
    def waits(self) -> bool:
        """Whether all actors meet in every update; otherwise each makes updates of its own."""
        return self.asynchronous is None and self.replaying is None


class WholeEpisodes(NamedTuple):
    """Every update is one episode of every environment, and they begin in a few first states, again and again."""

    conditions: int  # first states
    samples: int  # environments that begin in each
    horizon: int | None  # steps of an episode; the environment's time limit if None


class Algorithm(NamedTuple):
    """A way to learn from batches, with its settings.

    What it learns with has sizes that only the environment knows, so that its functions are made of a `Spec`.
    """

    words: str  # how it is written in the shell
    hyperparameters: Mapping[str, float]  # traced settings that training starts with; always has steps_per_update
    make: Callable[[Spec], Learner]
    adapt: str = "fixed"  # rule where none is given
    critic: str = "mlp"  # critic where none is given
    num_envs: int = 16  # environments of all actors where none are given
    steps_of_each: int = 1  # of them in the first updates, at least, where no steps are given
    updates_at_once: int = 1  # that are one program: where updates are short, starting them would take longest
    episodes: WholeEpisodes | None = None  # sizes of batches follow from them; environments are left alone if None


def require_surrogate_unset(spec: Spec, name: str) -> None:
    """Refuses a surrogate of the user's own where an algorithm has no place for it."""
    if spec.surrogate is not None:
        raise ValueError(
            f"surrogate: {name} has no surrogate to replace; trpo, npg, trpo_penalty, trpo_replay and ppo have"
        )


def starting_with(algorithm: Algorithm, **values: Any) -> Algorithm:
    """The same algorithm, but that some of its traced settings start elsewhere.

    Raises:
      ValueError: it has no such setting.
    """
    known = algorithm.hyperparameters
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{name}={value}: {algorithm.words} has no {name}; it has {', '.join(known)}")
    return algorithm._replace(hyperparameters={**known, **values})
