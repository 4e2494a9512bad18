"""Distributions of actions: what a policy's network returns.

A distribution is a `NamedTuple` of parameters, so that JAX can carry, cut and differentiate it, with the methods of
`Distribution`. `Gaussian` is for actions that are real numbers, `Categorical` for choices. The functions of the same
names here do the same and read better inside a formula.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

from jaxtrpo.envs.base import ActionSpace

LOG_TWO_PI = math.log(2 * math.pi)
LARGEST_CHANGE = 80.0  # of a logit, where exp(change) is still below the largest number of 32 bits, exp(88)

D = TypeVar("D", bound="Distribution")


@runtime_checkable
class Distribution(Protocol):
    """One distribution of actions for each state. Its parameters are arrays `[..., numbers]` with any leading axes.

    Bring your own by writing a `NamedTuple` with these methods. `new` and `tangent` are of the same class.
    """

    @property
    def noise_size(self) -> int:
        """Random numbers that one action needs; known from the shapes of the parameters."""
        ...

    @staticmethod
    def draw_noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Random numbers as `sample` wants them, each independent of the others; `shape` may be any."""
        ...

    def sample(self, noise: Float[Array, "... noise"]) -> Num[Array, "... action"]:
        """The action that random numbers lead to; without any other randomness."""
        ...

    def mode(self) -> Num[Array, "... action"]:
        """The action of the deterministic policy."""
        ...

    def log_prob(self, action: Num[Array, "... action"]) -> Float[Array, "..."]:
        """Log density, or log probability, of an action, nats."""
        ...

    def entropy(self) -> Float[Array, "..."]:
        """Entropy, nats."""
        ...

    def kl_divergence(self, new: Any) -> Float[Array, "..."]:
        """KL(self || new), nats; zero where both are equal."""
        ...

    def fisher_metric(self, tangent: Any) -> Any:
        """M t: the Hessian of KL(self || new) in the parameters of `new`, where both are equal, times a tangent."""
        ...

    def summary(self) -> dict[str, Float[Array, ""]]:
        """Scalars worth a column of the metrics, means over states; the same names every time."""
        ...


@runtime_checkable
class Differentiable(Distribution, Protocol):
    """A distribution through which the expected value of a function of the action can be differentiated.

    What a critic of actions says then has a gradient in the policy's parameters.
    """

    def expected_value(
        self, old: Any, action: Num[Array, "... action"], value: Callable[[Array], Array]
    ) -> Float[Array, "..."]:
        """The expected value of `value(action)`, one number a state, from one sample of `old` in each.

        Args:
          old: of the same class; what the samples were drawn from. Where it equals `self` the estimate is unbiased.
          action: the samples.
          value: actions with any further leading axes -> their values.
        """
        ...


class Gaussian(NamedTuple):
    """Independent normal distributions, one an action coordinate; any leading axes."""

    mean: Float[Array, "... action"]
    log_std: Float[Array, "... action"]  # may have fewer axes than `mean`

    @property
    def noise_size(self) -> int:
        """One number an action coordinate."""
        return self.mean.shape[-1]

    @staticmethod
    def draw_noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Standard normal numbers."""
        return jax.random.normal(key, shape)

    def sample(self, noise: Float[Array, "... action"]) -> Float[Array, "... action"]:
        """mean + std * noise, with standard normal `noise`."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, "... action"]:
        """The mean."""
        return self.mean

    def log_prob(self, action: Float[Array, "... action"]) -> Float[Array, "..."]:
        """Log density: sum of -(a - m)^2 / (2 s^2) - log s - log(2 pi) / 2."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * LOG_TWO_PI, axis=-1)

    def entropy(self) -> Float[Array, "..."]:
        """Differential entropy: sum of log s + (log(2 pi) + 1) / 2."""
        log_std = jnp.broadcast_to(self.log_std, self.mean.shape)
        return jnp.sum(log_std + 0.5 * (LOG_TWO_PI + 1), axis=-1)

    def kl_divergence(self, new: Gaussian) -> Float[Array, "..."]:
        """Sum of log s'/s + (s^2 + (m - m')^2) / (2 s'^2) - 1/2."""
        ratio = self.log_std - new.log_std
        shift = (self.mean - new.mean) * jnp.exp(-new.log_std)
        # expm1 keeps the small values that trust regions are about: it is exactly zero for equal distributions.
        return jnp.sum(0.5 * (jnp.expm1(2 * ratio) + shift**2) - ratio, axis=-1)

    def fisher_metric(self, tangent: Gaussian) -> Gaussian:
        """The matrix is diagonal: 1 / s^2 for a mean, 2 for a log std."""
        return Gaussian(mean=tangent.mean * jnp.exp(-2 * self.log_std), log_std=2 * tangent.log_std)

    def expected_value(
        self, old: Gaussian, action: Float[Array, "... action"], value: Callable[[Array], Array]
    ) -> Float[Array, "..."]:
        """Mean of the values at mean + std * noise and mean - std * noise, with the noise of the sample.

        The standard deviation gets no gradient: a critic's errors are largest where few actions were, so that it nearly
        always calls for less exploration than is good.
        """
        offset = jax.lax.stop_gradient(jnp.exp(self.log_std)) * (action - old.mean) * jnp.exp(-old.log_std)
        return jnp.mean(value(jnp.stack([self.mean + offset, self.mean - offset])), axis=0)

    def summary(self) -> dict[str, Float[Array, ""]]:
        """Mean standard deviation over states and coordinates, in policy units."""
        of_states = jnp.mean(jnp.exp(self.log_std), axis=-1)
        first = jnp.ravel(of_states)[0]
        return {"policy_std": first + jnp.mean(of_states - first)}  # where all are alike that is exact


class Categorical(NamedTuple):
    """Independent choices, one an action coordinate; any leading axes.

    An action is the numbers of the choices from 0, int32 `[..., coordinate]`. Logits are finite: what shall never be
    chosen has one like -1e9.
    """

    logits: tuple[Float[Array, "... choices"], ...]  # unnormalised log probabilities, one array a coordinate

    @property
    def noise_size(self) -> int:
        """One number an action coordinate."""
        return len(self.logits)

    @staticmethod
    def draw_noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Uniform numbers from 0 to 1, without the 1."""
        return jax.random.uniform(key, shape)

    def sample(self, noise: Float[Array, "... coordinate"]) -> Int[Array, "... coordinate"]:
        """The choices whose stretch of the cumulative probabilities a uniform `noise` falls into."""
        return _stack([_choose(logits, noise[..., i]) for i, logits in enumerate(self.logits)])

    def mode(self) -> Int[Array, "... coordinate"]:
        """The likeliest choices."""
        return _stack([jnp.argmax(logits, axis=-1) for logits in self.logits])

    def log_prob(self, action: Int[Array, "... coordinate"]) -> Float[Array, "..."]:
        """Sum over coordinates of log p(a), with log p = logits - log sum exp(logits)."""
        # By comparison: a gather would come back as a scatter, for which a CPU takes much longer.
        chosen = [
            jnp.where(jnp.arange(logits.shape[-1]) == action[..., i, None], jax.nn.log_softmax(logits), 0.0)
            for i, logits in enumerate(self.logits)
        ]
        return _total(jnp.sum(each, axis=-1) for each in chosen)

    def entropy(self) -> Float[Array, "..."]:
        """Sum over coordinates of -sum p log p."""
        return -_total(jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1) for logits in self.logits)

    def kl_divergence(self, new: Categorical) -> Float[Array, "..."]:
        """Sum over coordinates of sum p (log p - log p'); exactly zero for equal logits."""
        return _total(_kl_of_logits(*both) for both in zip(self.logits, new.logits, strict=True))

    def fisher_metric(self, tangent: Categorical) -> Categorical:
        """In the logits of a coordinate the matrix is diag(p) - p p^T, so M t = p * t - p (p . t)."""
        return Categorical(tuple(_metric_of_logits(*both) for both in zip(self.logits, tangent.logits, strict=True)))

    def expected_value(
        self, old: Categorical, action: Int[Array, "... coordinate"], value: Callable[[Array], Array]
    ) -> Float[Array, "..."]:
        """Expectation over the choices of one coordinate, the others as they were sampled; mean over coordinates."""
        del old  # every choice is looked at, whatever the sample was
        found = []
        for i, logits in enumerate(self.logits):
            choices = jnp.arange(logits.shape[-1]).reshape(-1, *(1,) * (action.ndim - 1))
            tried = jnp.broadcast_to(action, (logits.shape[-1], *action.shape)).at[..., i].set(choices)
            found.append(jnp.sum(jax.nn.softmax(logits) * jnp.moveaxis(value(tried), 0, -1), axis=-1))
        return _total(found) / len(found)

    def summary(self) -> dict[str, Float[Array, ""]]:
        """Nothing: the entropy says it all."""
        return {}


def _stack(choices: list[Array]) -> Int[Array, "... coordinate"]:
    return jnp.stack(choices, axis=-1).astype(jnp.int32)


def _total(coordinates: Iterable[Array]) -> Float[Array, "..."]:
    return functools.reduce(jnp.add, coordinates)


def _choose(logits: Float[Array, "... choices"], noise: Float[Array, "..."]) -> Int[Array, "..."]:
    """Inverse of the cumulative probabilities. A choice whose probability is zero is never made."""
    probability = jax.nn.softmax(logits)
    cumulative = jnp.cumsum(probability, axis=-1)
    # The sum need not round to 1, and what is cumulated in parallel need not even grow everywhere.
    here = (noise[..., None] * jnp.max(cumulative, axis=-1, keepdims=True) < cumulative) & (probability > 0)
    return jnp.where(jnp.any(here, axis=-1), jnp.argmax(here, axis=-1), jnp.argmax(logits, axis=-1))


def _kl_of_logits(old: Float[Array, "... choices"], new: Float[Array, "... choices"]) -> Float[Array, "..."]:
    """sum p log(p/q) as sum p (d + exp(-d) - 1), d = log(p/q).

    As q - p sums to zero, both are equal, but here no term is negative, so that small values are not the difference of
    large ones, and an error that all d have in common counts by its square.
    """
    probability = jax.nn.softmax(old)
    change = old - new
    change -= jnp.sum(probability * change, axis=-1, keepdims=True)  # what all have in common changes nothing
    near = jnp.all(jnp.abs(change) < LARGEST_CHANGE, axis=-1)
    change = jnp.where(near[..., None], change, 0.0)
    # log(p/q) = change + log sum p exp(-change); the sum is at least 1 (Jensen), and exactly 1 where nothing changed.
    ratio = change + jnp.log1p(jnp.sum(probability * jnp.expm1(-change), axis=-1, keepdims=True))
    small = jnp.sum(probability * (ratio + jnp.expm1(-ratio)), axis=-1)
    large = jnp.sum(probability * (jax.nn.log_softmax(old) - jax.nn.log_softmax(new)), axis=-1)
    return jnp.where(near, small, large)


def _metric_of_logits(
    logits: Float[Array, "... choices"], tangent: Float[Array, "... choices"]
) -> Float[Array, "... choices"]:
    weighted = jax.nn.softmax(logits) * tangent
    return weighted - jax.nn.softmax(logits) * jnp.sum(weighted, axis=-1, keepdims=True)


def sample(distribution: Distribution, noise: Float[Array, "... noise"]) -> Num[Array, "... action"]:
    """The action that random numbers lead to."""
    return distribution.sample(noise)


def log_prob(distribution: Distribution, action: Num[Array, "... action"]) -> Float[Array, "..."]:
    """Log density, or log probability, of an action, nats."""
    return distribution.log_prob(action)


def kl_divergence(old: D, new: D) -> Float[Array, "..."]:
    """KL(old || new), nats."""
    return old.kl_divergence(new)


def entropy(distribution: Distribution) -> Float[Array, "..."]:
    """Entropy, nats."""
    return distribution.entropy()


def fisher_metric(distribution: D, tangent: D) -> D:
    """Fisher matrix of the distribution in its own parameters, times a tangent vector."""
    return distribution.fisher_metric(tangent)


def encoded(action: Num[Array, "... action"], space: ActionSpace) -> Float[Array, "... feature"]:
    """An action as a network should see it: in policy units and cut as `to_simulator` cuts it; choices as one-hot."""
    if space.counts:
        one_hot = [jax.nn.one_hot(action[..., i], count) for i, count in enumerate(space.counts)]
        return jnp.concatenate(one_hot, axis=-1)
    return jnp.clip(action, *space.policy_range())


def encoded_size(space: ActionSpace) -> int:
    """Numbers in an encoded action."""
    return sum(space.counts) or space.size


def to_simulator(action: Num[Array, "... action"], space: ActionSpace) -> Num[Array, "... action"]:
    """Policy units to simulator units, within the simulator's bounds.

    Where a coordinate has two bounds, [-1, 1] is the range between them, and what is beyond is clipped (`stretch`).
    Where it lacks one, the policy acts in the simulator's own units, clipped to the bound that there is. Choices stay
    the numbers they are, from 0.
    """
    if space.counts:
        return action
    bounded, (low, high) = space.bounded, space.float32_bounds()
    if bounded.all():
        return stretch(action, low, high)
    stretched = stretch(action, np.where(bounded, low, -1), np.where(bounded, high, 1))
    # What is finite for float32 may not be for the simulator.
    clipped = jnp.clip(action, np.maximum(low, -space.largest), np.minimum(high, space.largest))
    return jnp.where(bounded, stretched, clipped)


def stretch(
    action: Float[ArrayLike, "... action"], low: Float[ArrayLike, " action"], high: Float[ArrayLike, " action"]
) -> Float[Array, "... action"]:
    """Policy units to simulator units: clips to [-1, 1] and stretches that to the simulator's range.

    -1 and 1 give the bounds to the last bit, and nothing is beyond them.

    Args:
      action: in policy units.
      low: float32, finite, not traced.
      high: as `low`.
    """
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    centre, half = _centre_and_half(low, high)
    return jnp.clip(centre + half * jnp.clip(action, -1, 1), low, high)


def _centre_and_half(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The middle of a range, and how far float32 arithmetic has to go from there to be at neither bound too early."""
    exact_low, exact_high = low.astype(np.float64), high.astype(np.float64)
    centre = ((exact_low + exact_high) / 2).astype(np.float32)
    half = np.maximum(exact_high - centre, centre - exact_low).astype(np.float32)
    while np.any(early := (centre + half < high) | (centre - half > low)):
        half = np.where(early, np.nextafter(half, np.float32(np.inf)), half)
    return centre, half
