"""The containers that pass between collecting, learning and adapting."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from jaxtrpo.envs.base import EnvState
from jaxtrpo.ops.moments import Moments
from jaxtrpo.ops.running_mean import RunningMean
from jaxtrpo.time_limits import TimeLimits


class Hyperparameters(NamedTuple):
    """Settings that may change between updates. They are data to compiled code: changing them recompiles nothing."""

    max_kl: Float[Array, ""]  # nats, mean over states
    steps_per_update: Int[Array, ""]  # environment steps of all actors; rounded down to whole segments


class ActorState(NamedTuple):
    """What one actor carries from update to update: its environments, in the middle of their episodes."""

    env: EnvState
    noise_key: UInt32[Array, "env 2"]  # of the exploration noise; split once a segment
    episode_return: Float[Array, " env"]  # rewards of the running episodes so far
    time_limits: TimeLimits


class Steps(NamedTuple):
    """Consecutive steps of one actor's environments. Leading axes of a batch are segment, time, env."""

    obs: Float[Array, "*steps obs"]  # as the simulator gave it
    action: Float[Array, "*steps action"]  # as sampled, in policy units, not clipped
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


class LearnerState(NamedTuple):
    """What is learned. Every actor holds the same."""

    policy: PyTree
    critic: PyTree
    obs_moments: Moments
    path: PyTree  # of the policy: its last steps (algorithms.trust_region.Path)
    advantage_variance: RunningMean  # of the last updates, before advantages were standardised


class Episodes(NamedTuple):
    """The last finished episodes of all actors."""

    returns: Float[Array, " last"]  # oldest first; NaN in front while they are fewer


class TrainState(NamedTuple):
    """Everything a run is at one moment: with it, it goes on exactly."""

    actors: ActorState
    learner: LearnerState
    episodes: Episodes
    hyperparameters: Hyperparameters
    adapt: PyTree  # state of the adaptation rule
    key: UInt32[Array, "2"]  # of the run; an update's is that of the segments before it
    segments: Int[Array, ""]  # collected so far by each actor
