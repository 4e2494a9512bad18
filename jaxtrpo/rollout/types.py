"""The containers that pass between collecting, learning and adapting."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Num, PyTree, UInt32

from jaxtrpo.envs.base import EnvState
from jaxtrpo.ops.moments import Moments
from jaxtrpo.rollout.staggering import TimeLimits

# Settings that may change between updates, by name: scalars, data to compiled code, so that changing them recompiles
# nothing. An algorithm says which it has; each has "steps_per_update", environment steps of all actors, a whole number
# that is rounded down to whole segments.
Hyperparameters = dict[str, Array]


class ActorState(NamedTuple):
    """What one actor carries from update to update: its environments, in the middle of their episodes."""

    env: EnvState
    noise_key: UInt32[Array, "env 2"]  # of the exploration noise; split once a segment
    episode_return: Float[Array, " env"]  # rewards of the running episodes so far
    time_limits: TimeLimits


class Steps(NamedTuple):
    """Consecutive steps of one actor's environments. Leading axes of a batch are segment, time, env."""

    obs: Float[Array, "*steps obs"]  # as the simulator gave it
    action: Num[Array, "*steps action"]  # as sampled, in policy units, not clipped; whole numbers where it is a choice
    reward: Float[Array, "*steps"]
    terminated: Bool[Array, "*steps"]
    truncated: Bool[Array, "*steps"]
    invalid: Bool[Array, "*steps"]  # no experience: the simulation broke in this step
    final_obs: Float[Array, "*steps obs"]  # what the step led to, before any reset
    elapsed: Int[Array, "*steps"]  # steps taken in the episode before this one
    episode_return: Float[Array, "*steps"]  # of the complete episode that ended with the step; NaN if none did


class Batch(NamedTuple):
    """What one actor collected in one update.

    The buffers have room for the largest batch of a run; the first `num_segments` segments hold data.
    """

    steps: Steps  # leaves are [segment, time, env, ...]
    num_segments: Int[Array, ""]


@runtime_checkable
class Acting(Protocol):
    """What an algorithm's learner state must have, whatever else it holds: with these the policy acts."""

    @property
    def policy(self) -> PyTree:
        """Its parameters."""
        ...

    @property
    def obs_moments(self) -> Moments:
        """Observations are normalised with them."""
        ...


class LearnerState(NamedTuple):
    """What most algorithms learn. Every actor holds the same."""

    policy: PyTree
    critic: PyTree
    obs_moments: Moments
    memory: PyTree  # what the algorithm's policy step remembers


class Episodes(NamedTuple):
    """The last finished episodes of all actors."""

    returns: Float[Array, " last"]  # oldest first; NaN in front while they are fewer


class TrainState(NamedTuple):
    """Everything a run is at one moment: with it, it goes on exactly."""

    actors: ActorState
    learner: PyTree  # the algorithm's; see `Acting`
    episodes: Episodes
    hyperparameters: Hyperparameters
    adapt: PyTree  # state of the adaptation rule
    key: UInt32[Array, "2"]  # of the run; an update's is that of the segments before it
    segments: Int[Array, ""]  # collected so far by each actor; by all of them, where they do not wait for each other
    total_segments: Int[Array, ""]  # of the whole run, counted alike: with them it is over
