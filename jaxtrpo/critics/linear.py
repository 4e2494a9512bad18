"""The closed-form critic of the 2016 system."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxtrpo.config.checks import require_positive
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import Critic, CriticMaker, Targets
from jaxtrpo.envs.observation_space import single_size
from jaxtrpo.ops.segments import sum_over_segments
from jaxtrpo.parallel import collectives


def linear(*, ridge: float = 1e-4) -> CriticMaker:
    """Closed-form ridge regression on the observation, its square and the elapsed time, as in the 2016 system.

    Args:
      ridge: penalty, added to the diagonal of the mean outer product of the features.

    Raises:
      ValueError: `ridge` is not positive.
    """
    require_positive(ridge=ridge)
    return CriticMaker(
        spec_string_of(linear, {"ridge": ridge}),
        lambda observed: linear_critic(single_size(observed, "critic=linear"), ridge=ridge),
    )


def linear_critic(observation_size: int, *, ridge: float = 1e-4) -> Critic:
    """Builds the ridge regression of returns on [o, o^2, t, t^2, 1].

    t is the time since the episode began, in hundreds of steps. Each fit replaces the previous one. These are the
    features of Duan et al. (2016, supplement, section 2) without t^3.

    Args:
      observation_size: length of o.
      ridge: penalty, added to the diagonal of the mean outer product of the features.

    Returns:
      The critic; its state is the vector of coefficients.
    """
    num_features = 2 * observation_size + 3

    def features(obs: Float[Array, "... obs"], elapsed: Int[Array, "..."]) -> Float[Array, "... features"]:
        time = elapsed[..., None] / 100.0
        return jnp.concatenate([obs, obs**2, time, time**2, jnp.ones_like(time)], axis=-1)

    @jax.named_scope("critic")
    def fit(
        state: Float[Array, " features"], targets: Targets, key: PRNGKeyArray, rate: Float[Array, ""]
    ) -> Float[Array, " features"]:
        del rate  # a closed form has no learning rate

        def sums_of(index: Int[Array, ""] | int) -> tuple[Array, Array, Array]:
            obs, elapsed, value, weight = (leaf[index] for leaf in targets[:-1])
            x = features(obs, elapsed).reshape(-1, num_features)
            weighted = x * weight.reshape(-1, 1)
            return weighted.T @ x, weighted.T @ value.reshape(-1), jnp.sum(weight)

        outer, cross, count = collectives.sum_over_actors(sum_over_segments(sums_of, targets.num_segments))
        count = jnp.maximum(count, 1.0)
        return jax.scipy.linalg.solve(outer / count + ridge * jnp.eye(num_features), cross / count, assume_a="pos")

    return Critic(
        init=lambda key: jnp.zeros(num_features),
        value=lambda state, obs, elapsed: features(obs, elapsed) @ state,
        fit=fit,
        work=lambda state, samples: collectives.Work(2.0 * samples * num_features**2, shared=True),
    )
