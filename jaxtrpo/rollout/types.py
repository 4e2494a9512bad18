"""Data types shared by rollouts, algorithms and adaptation rules."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Num, PyTree, UInt32

from jaxtrpo.envs.base import EnvState
from jaxtrpo.ops.moments import Moments
from jaxtrpo.rollout.staggering import TimeLimits

# Settings that may change between updates, by name. They are scalar arguments of compiled code, so a change does not
# recompile it. Algorithms define them; all have "steps_per_update", an integer number of environment steps of all
# actors, which is rounded down to whole segments.
Hyperparameters = dict[str, Array]


class Carries(NamedTuple):
    """What networks with memory carry from step to step; `()` for one without memory."""

    policy: PyTree = ()
    critic: PyTree = ()


class ActorState(NamedTuple):
    """State that an actor carries between updates: its environments, in the middle of their episodes."""

    env: EnvState
    noise_key: UInt32[Array, "env 2"]  # keys of the exploration noise; split once per segment
    episode_return: Float[Array, " env"]  # returns of the current episodes so far
    time_limits: TimeLimits
    carries: Carries = Carries()  # before the next step; leaves are [env, ...]
    noise: Float[Array, "env noise"] | tuple[()] = ()  # of the last step, if the next one's is correlated with it


class Steps(NamedTuple):
    """Consecutive steps of one actor's environments. Leading axes of a batch are segment, time, env."""

    obs: PyTree  # unnormalised; leaves are [*steps, ...] (see `EnvState.obs`)
    action: Num[Array, "*steps action"]  # as sampled, in policy units, not clipped; int32 if discrete
    reward: Float[Array, "*steps"]  # 0 where `invalid`
    terminated: Bool[Array, "*steps"]  # the step ended the episode for good
    truncated: Bool[Array, "*steps"]  # the step ended the episode early
    invalid: Bool[Array, "*steps"]  # the simulation failed in this step; to be ignored by learning
    # Observation after the step, before any reset; () for observations with images (see `Ends`).
    final_obs: PyTree
    elapsed: Int[Array, "*steps"]  # steps taken in the episode before this one
    episode_return: Float[Array, "*steps"]  # return of the complete episode that ended with the step; NaN if none did
    mask: Bool[Array, "*steps choices"] | tuple[()] = ()  # legal choices (see `EnvState.mask`)
    info: dict[str, Float[Array, "*steps"]] | None = None  # entries of `info` to log, at the same steps; NaN elsewhere


class Ends(NamedTuple):
    """Observations to bootstrap from, of observations with images: those that are not the next row of a batch.

    Truncated steps of each environment and segment are numbered; the last slots may be empty.
    """

    obs: PyTree  # after each truncated step, before the reset; leaves are [segment, slot, env, ...]
    step: Int[Array, "segment slot env"]  # of the segment; the length of a segment for an empty slot
    after: PyTree  # after the last step of the batch; leaves are [env, ...]


class Batch(NamedTuple):
    """Data that an actor collected for one update.

    The arrays have the size of the largest batch of a run; the first `num_segments` segments hold data.
    """

    steps: Steps  # leaves are [segment, time, env, ...]
    num_segments: Int[Array, ""]  # that hold data
    # At the start of every stretch of a network's `bptt_steps` steps, as they were when acting; [stretch, env, ...]
    carries: Carries = Carries()
    ends: Ends | tuple[()] = ()  # for observations with images


@runtime_checkable
class Acting(Protocol):
    """The part of every learner state that is needed to act; with a critic that has memory, also `critic`."""

    @property
    def policy(self) -> PyTree:
        """Parameters of the policy."""
        ...

    @property
    def obs_moments(self) -> Moments:
        """Moments for the normalisation of observations."""
        ...


class LearnerState(NamedTuple):
    """Learner state of most algorithms, identical on all actors."""

    policy: PyTree  # parameters
    critic: PyTree  # state of the critic
    obs_moments: Moments  # for the normalisation of observations
    memory: PyTree  # state of the algorithm's policy step


class Episodes(NamedTuple):
    """Returns of the most recent episodes of all actors."""

    returns: Float[Array, " last"]  # oldest first; padded with NaN in front


class Best(NamedTuple):
    """The last policy whose returns were not significantly below the highest (see `training.selection`)."""

    highest: Float[Array, ""]  # `return_100`; minus infinity before 100 episodes have finished
    standard_error: Float[Array, ""]  # of that mean
    return_100: Float[Array, ""]  # after the update of the policy
    episodes: Int[Array, ""]  # finished since the run began or its environments were changed, counted up to 100
    segments: Int[Array, ""]  # of the run after that update
    policy: PyTree
    obs_moments: Moments


class TrainState(NamedTuple):
    """Complete state of a run, from which it can be resumed exactly."""

    actors: ActorState
    learner: PyTree  # defined by the algorithm; see `Acting`
    episodes: Episodes
    hyperparameters: Hyperparameters
    adapt: PyTree  # state of the adaptation rule
    key: UInt32[Array, "2"]  # key of the run; each update folds in the segments before it
    segments: Int[Array, ""]  # collected so far by each actor; by all together if actors are asynchronous
    total_segments: Int[Array, ""]  # at which the run ends, counted in the same way
    best: Best | tuple[()] = ()  # () if the last policy is handed out
