"""Maximum-entropy linear-quadratic regulation in local models, and the expected outcome of a controller.

States and actions are deviations from a nominal trajectory, z_t = (x_t, u_t), so models need to be linear only close to
it. Functions take one trajectory; map them over many with `vmap`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxtrpo.algorithms.gps.definite import inverse


class Dynamics(NamedTuple):
    """Time-varying linear-Gaussian dynamics: x_{t+1} ~ N(slope_t z_t + offset_t, covariance_t)."""

    slope: Float[Array, "*batch time x z"]
    offset: Float[Array, "*batch time x"]
    covariance: Float[Array, "*batch time x x"]


class Reward(NamedTuple):
    """Time-varying quadratic reward: r_t = constant_t + gradient_t . z_t + 1/2 z_t^T curvature_t z_t."""

    constant: Float[Array, "*batch time"]
    gradient: Float[Array, "*batch time z"]
    curvature: Float[Array, "*batch time z z"]


class Controller(NamedTuple):
    """Time-varying linear-Gaussian controller: u_t ~ N(gain_t x_t + offset_t, precision_t^-1)."""

    gain: Float[Array, "*batch time u x"]
    offset: Float[Array, "*batch time u"]
    precision: Float[Array, "*batch time u u"]


class Outcome(NamedTuple):
    """Expected return and KL of a controller in a model."""

    return_: Float[Array, "*batch"]  # expected sum of rewards
    kl: Float[Array, "*batch"]  # expected KL(controller || reference), nats, summed over time


class _Value(NamedTuple):
    """Value function of a state up to a constant: gradient . x + 1/2 x^T curvature x."""

    gradient: Float[Array, " x"]
    curvature: Float[Array, "x x"]


def best_response(
    dynamics: Dynamics, reward: Reward, reference: Controller, multiplier: Float[Array, ""]
) -> tuple[Controller, Bool[Array, ""]]:
    """Finds the controller p that maximises E[sum_t r_t - multiplier KL(p_t || reference_t)], by a Riccati recursion.

    With w = u - (gain x + offset) of the reference, whose precision is P, and Q(x, w) = r + V_{t+1}:

        A = multiplier P - Q_ww      w* = A^-1 (Q_wx x + Q_w)      precision* = A / multiplier
        V_xx = Q_xx + Q_xw A^-1 Q_wx      V_x = Q_x + Q_xw A^-1 Q_w

    This is maximum-entropy LQR of r / multiplier + log reference (Levine & Koltun 2013, section 3; Levine & Abbeel
    2014, section 3.1). Working with w, the change of the action, avoids cancellation between large numbers when the
    multiplier is large.

    Returns:
      The controller, and whether every A was positive definite. If not, there is no best controller, and the returned
      one is finite but meaningless.
    """
    num_x = dynamics.offset.shape[-1]

    def backwards(value: _Value, step: tuple[Dynamics, Reward, Controller]) -> tuple[_Value, tuple[Controller, Array]]:
        (slope, offset, _), (_, gradient, curvature), known = step
        # Q in z, then in (x, w): u = gain x + offset + w.
        later = slope.T @ value.curvature
        q_zz = curvature + later @ slope
        q_z = gradient + later @ offset + slope.T @ value.gradient
        q_uu, q_ux = q_zz[num_x:, num_x:], q_zz[num_x:, :num_x]
        q_wx = q_ux + q_uu @ known.gain
        q_w = q_z[num_x:] + q_uu @ known.offset
        q_xx = q_zz[:num_x, :num_x] + q_ux.T @ known.gain + known.gain.T @ q_wx
        q_x = q_z[:num_x] + q_ux.T @ known.offset + known.gain.T @ q_w
        found = inverse(multiplier * known.precision - q_uu)
        gain, shift = found.matrix @ q_wx, found.matrix @ q_w
        v_xx = q_xx + q_wx.T @ gain
        before = _Value(q_x + q_wx.T @ shift, (v_xx + v_xx.T) / 2)
        precision = known.precision - q_uu / multiplier
        return before, (Controller(known.gain + gain, known.offset + shift, precision), found.definite)

    nothing = _Value(jnp.zeros_like(dynamics.offset[0]), jnp.zeros_like(dynamics.covariance[0]))
    _, (controller, definite) = jax.lax.scan(backwards, nothing, (dynamics, reward, reference), reverse=True)
    return controller, jnp.all(definite)


def outcome(dynamics: Dynamics, reward: Reward, controller: Controller, reference: Controller) -> Outcome:
    """Computes the expected return of a controller from the nominal initial state, and its KL to a reference.

        x_t ~ N(m_t, S_t), m_0 = 0, S_0 = 0
        KL_t = 1/2 [tr(P' P^-1) - dim u + log det P - log det P' + E (D x + d)^T P' (D x + d)]

    with P and P' the precisions of controller and reference, D and d the differences of gains and offsets.
    """
    size = controller.offset.shape[-1]

    def onwards(state: tuple[Array, Array], step: tuple) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        mean, covariance = state
        moves, worth, acting, other = step
        own, others = inverse(acting.precision), inverse(other.precision)
        away = acting.gain - other.gain
        shift = away @ mean + acting.offset - other.offset
        spread = jnp.sum(other.precision * (own.matrix + away @ covariance @ away.T))
        kl = 0.5 * (spread - size + own.log_det - others.log_det + shift @ other.precision @ shift)

        by_gain = acting.gain @ covariance
        z = jnp.concatenate([mean, acting.gain @ mean + acting.offset])
        of_z = jnp.block([[covariance, by_gain.T], [by_gain, by_gain @ acting.gain.T + own.matrix]])
        curved = jnp.sum(worth.curvature * (of_z + jnp.outer(z, z)))
        expected = worth.constant + worth.gradient @ z + 0.5 * curved
        after = moves.slope @ of_z @ moves.slope.T + moves.covariance
        return (moves.slope @ z + moves.offset, (after + after.T) / 2), (expected, kl)

    nothing = jnp.zeros_like(dynamics.offset[0]), jnp.zeros_like(dynamics.covariance[0])
    _, (expected, kl) = jax.lax.scan(onwards, nothing, (dynamics, reward, controller, reference))
    return Outcome(jnp.sum(expected), jnp.sum(kl))
