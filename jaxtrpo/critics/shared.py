"""The critic of a policy that predicts values itself."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import Critic, CriticMaker, Targets
from jaxtrpo.envs.observation_space import Observed
from jaxtrpo.ops.moments import Moments, merge, no_moments, weighted_moments
from jaxtrpo.parallel.collectives import Work, sum_over_actors
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import Sequences, single_step
from jaxtrpo.policies.value_head import in_units_of


class SharedState(NamedTuple):
    """What predicting values takes. A learner state holds only the moments here, since `policy` has the parameters."""

    params: PyTree  # of the policy; () in a learner state
    returns: Moments  # of all returns so far


def shared() -> CriticMaker:
    """The value head of a policy with `shared=True`, which is its critic; no other policy has one."""

    def make(observed: Observed) -> Critic:
        raise ValueError("critic=shared needs a policy that predicts values, such as policy='mlp(shared=True)'")

    return CriticMaker(spec_string_of(shared, {}), make)


def shared_critic(policy: Policy) -> Critic:
    """Builds the critic of a policy with a value head.

    The value head is trained along with the policy, by the algorithm. `fit` does the rest: it updates the moments of
    the returns, and rescales the head so that predictions stay the same (PopArt, van Hasselt et al. 2016, section 2.1).
    """
    head = policy.value_head
    assert head is not None

    def scaled(state: SharedState, output: Float[Array, "..."]) -> Float[Array, "..."]:
        return output * state.returns.std + state.returns.mean

    def value(state: SharedState, obs: Float[Array, "... obs"], elapsed: Int[Array, "..."]) -> Float[Array, "..."]:
        return scaled(state, head.value(state.params, obs))

    def fit(state: SharedState, targets: Targets, key: PRNGKeyArray, rate: Float[Array, ""]) -> SharedState:
        return with_returns(state, moments_of(targets))

    def unroll(state: SharedState, inputs: Sequences) -> tuple[Array, PyTree]:
        assert head.recurrence is not None
        outputs, carries = head.recurrence.unroll(state.params, inputs)
        return scaled(state, outputs), carries

    recurrence = head.recurrence
    if recurrence is not None:
        recurrence = recurrence._replace(step=single_step(unroll), unroll=unroll)
    return Critic(
        init=lambda key: SharedState((), no_moments(())),
        value=value,
        fit=fit,
        work=lambda state, samples: Work(0.0, shared=True),
        recurrence=recurrence,
    )


def moments_of(targets: Targets) -> Moments:
    """Computes the moments of the returns of all actors."""
    return weighted_moments(targets.value, targets.weight, sum_over_actors, targets.num_segments)


def with_returns(state: SharedState, seen: Moments) -> SharedState:
    """Adds returns to the moments, and rescales the value head so that predictions stay the same."""
    returns = merge(state.returns, seen)
    return SharedState(in_units_of(state.params, state.returns, returns), returns)
