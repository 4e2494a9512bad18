"""Action distributions, which policy networks return.

A distribution is a `NamedTuple` of parameters, and thus a pytree, with the methods of `Distribution`, which suffice for
acting, and nearly always those of `Comparable`, which a trust region needs. `Gaussian` is for continuous actions,
`Categorical` for discrete ones. The module's functions call the methods of the same names and read better in formulas.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

LOG_TWO_PI = math.log(2 * math.pi)
LARGEST_CHANGE = 80.0  # of a logit; exp(change) stays below the largest float32 number, about exp(88)

C = TypeVar("C", bound="Comparable")


@runtime_checkable
class Distribution(Protocol):
    """A distribution of actions per state, whose parameters are arrays `[..., numbers]` with any leading axes.

    A custom distribution is a `NamedTuple` with these methods. Most algorithms need one that is also `Comparable`.
    """

    @property
    def noise_size(self) -> int:
        """Random numbers per action, derived from the shapes of the parameters."""
        ...

    @staticmethod
    def draw_noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draws independent random numbers of any shape for `sample`."""
        ...

    def sample(self, noise: Float[Array, "... noise"]) -> Num[Array, "... action"]:
        """Computes the action from random numbers, deterministically."""
        ...

    def mode(self) -> Num[Array, "... action"]:
        """Returns the action of the deterministic policy."""
        ...

    def log_prob(self, action: Num[Array, "... action"]) -> Float[Array, "..."]:
        """Computes the log density or log probability of an action, nats."""
        ...

    def summary(self) -> dict[str, Float[Array, ""]]:
        """Computes scalars for the metrics, as means over states; the names must not depend on the values."""
        ...


@runtime_checkable
class Comparable(Distribution, Protocol):
    """A distribution whose distance from others of its class is known, which trust regions need.

    `new` and `tangent` are of the same class as `self`.
    """

    def entropy(self) -> Float[Array, "..."]:
        """Computes the entropy, nats."""
        ...

    def kl_divergence(self, new: Any) -> Float[Array, "..."]:
        """Computes KL(self || new), nats; zero if both are equal."""
        ...

    def fisher_metric(self, tangent: Any) -> Any:
        """Computes M t, with M the Hessian of KL(self || new) in the parameters of `new` at `new` = `self`."""
        ...


@runtime_checkable
class Differentiable(Comparable, Protocol):
    """A distribution for which expected values of a function of the action are differentiable.

    The values of an action-value critic then have a gradient in the policy's parameters.
    """

    def expected_value(
        self, old: Any, action: Num[Array, "... action"], value: Callable[[Array], Array]
    ) -> Float[Array, "..."]:
        """Estimates the expectation of `value(action)` per state, from one sample of `old` per state.

        Args:
          old: distribution of the same class from which the samples were drawn. The estimate is unbiased if it equals
            `self`.
          action: samples.
          value: actions with any further leading axes -> their values.
        """
        ...


class Gaussian(NamedTuple):
    """Independent normal distributions, one per action coordinate; any leading axes."""

    mean: Float[Array, "... action"]  # also the mode
    log_std: Float[Array, "... action"]  # may have fewer axes than `mean`

    @property
    def noise_size(self) -> int:
        """One number per action coordinate."""
        return self.mean.shape[-1]

    @staticmethod
    def draw_noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draws standard normal numbers."""
        return jax.random.normal(key, shape)

    def sample(self, noise: Float[Array, "... action"]) -> Float[Array, "... action"]:
        """Computes mean + std * noise, with standard normal `noise`."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, "... action"]:
        """Returns the mean."""
        return self.mean

    def log_prob(self, action: Float[Array, "... action"]) -> Float[Array, "..."]:
        """Computes the log density: sum of -(a - m)^2 / (2 s^2) - log s - log(2 pi) / 2."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * LOG_TWO_PI, axis=-1)

    def entropy(self) -> Float[Array, "..."]:
        """Computes the differential entropy: sum of log s + (log(2 pi) + 1) / 2."""
        log_std = jnp.broadcast_to(self.log_std, self.mean.shape)
        return jnp.sum(log_std + 0.5 * (LOG_TWO_PI + 1), axis=-1)

    def kl_divergence(self, new: Gaussian) -> Float[Array, "..."]:
        """Computes the sum of log s'/s + (s^2 + (m - m')^2) / (2 s'^2) - 1/2."""
        ratio = self.log_std - new.log_std
        shift = (self.mean - new.mean) * jnp.exp(-new.log_std)
        # expm1 is accurate for the small values that trust regions need, and exactly zero for equal distributions.
        return jnp.sum(0.5 * (jnp.expm1(2 * ratio) + shift**2) - ratio, axis=-1)

    def fisher_metric(self, tangent: Gaussian) -> Gaussian:
        """Multiplies by the Fisher matrix, which is diagonal: 1 / s^2 for a mean, 2 for a log std."""
        return self._replace(mean=tangent.mean * jnp.exp(-2 * self.log_std), log_std=2 * tangent.log_std)

    def expected_value(
        self, old: Gaussian, action: Float[Array, "... action"], value: Callable[[Array], Array]
    ) -> Float[Array, "..."]:
        """Averages the values at mean + std * noise and mean - std * noise, with the noise of the sample.

        The standard deviation gets no gradient: a critic's errors are largest where actions are rare, so its gradient
        nearly always reduces exploration too much.
        """
        offset = jax.lax.stop_gradient(jnp.exp(self.log_std)) * (action - old.mean) * jnp.exp(-old.log_std)
        return jnp.mean(value(jnp.stack([self.mean + offset, self.mean - offset])), axis=0)

    def summary(self) -> dict[str, Float[Array, ""]]:
        """Computes the mean standard deviation over states and coordinates, in policy units."""
        of_states = jnp.mean(jnp.exp(self.log_std), axis=-1)
        first = jnp.ravel(of_states)[0]
        return {"policy_std": first + jnp.mean(of_states - first)}  # exact if all are equal


class Categorical(NamedTuple):
    """Independent categorical distributions, one per action coordinate; any leading axes.

    An action is int32 `[..., coordinate]`, with choices counted from 0. Logits must be finite; use a value such as -1e9
    to mask a choice.
    """

    logits: tuple[Float[Array, "... choices"], ...]  # unnormalised log probabilities, one array per coordinate

    @property
    def noise_size(self) -> int:
        """One number per action coordinate."""
        return len(self.logits)

    @staticmethod
    def draw_noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draws uniform numbers in [0, 1)."""
        return jax.random.uniform(key, shape)

    def sample(self, noise: Float[Array, "... coordinate"]) -> Int[Array, "... coordinate"]:
        """Inverts the cumulative probabilities at uniform `noise`."""
        return _stack([_choose(logits, noise[..., i]) for i, logits in enumerate(self.logits)])

    def mode(self) -> Int[Array, "... coordinate"]:
        """Returns the most likely choices."""
        return _stack([jnp.argmax(logits, axis=-1) for logits in self.logits])

    def log_prob(self, action: Int[Array, "... coordinate"]) -> Float[Array, "..."]:
        """Computes the sum over coordinates of log p(a), with log p = logits - log sum exp(logits)."""
        # Selects by comparison, because the gradient of a gather is a scatter, which is much slower on a CPU.
        chosen = [
            jnp.where(jnp.arange(logits.shape[-1]) == action[..., i, None], jax.nn.log_softmax(logits), 0.0)
            for i, logits in enumerate(self.logits)
        ]
        return _total(jnp.sum(terms, axis=-1) for terms in chosen)

    def entropy(self) -> Float[Array, "..."]:
        """Computes the sum over coordinates of -sum p log p."""
        return -_total(jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1) for logits in self.logits)

    def kl_divergence(self, new: Categorical) -> Float[Array, "..."]:
        """Computes the sum over coordinates of sum p (log p - log p'); exactly zero for equal logits."""
        return _total(_kl_of_logits(*pair) for pair in zip(self.logits, new.logits, strict=True))

    def fisher_metric(self, tangent: Categorical) -> Categorical:
        """Multiplies by the Fisher matrix, diag(p) - p p^T per coordinate, so M t = p * t - p (p . t)."""
        products = tuple(_metric_of_logits(*pair) for pair in zip(self.logits, tangent.logits, strict=True))
        return self._replace(logits=products)  # of the same type, also in subclasses

    def expected_value(
        self, old: Categorical, action: Int[Array, "... coordinate"], value: Callable[[Array], Array]
    ) -> Float[Array, "..."]:
        """Averages, over coordinates, the expectation over a coordinate's choices, with the others as sampled."""
        del old  # the expectation does not depend on the sampling distribution of a coordinate
        expectations = []
        for i, logits in enumerate(self.logits):
            choices = jnp.arange(logits.shape[-1]).reshape(-1, *(1,) * (action.ndim - 1))
            actions = jnp.broadcast_to(action, (logits.shape[-1], *action.shape)).at[..., i].set(choices)
            probabilities = jax.nn.softmax(logits)
            # Each expectation has the whole gradient of its own logits, which the mean must not divide.
            rest = (len(self.logits) - 1) * (probabilities - jax.lax.stop_gradient(probabilities))
            expectations.append(jnp.sum((probabilities + rest) * jnp.moveaxis(value(actions), 0, -1), axis=-1))
        return _total(expectations) / len(expectations)

    def summary(self) -> dict[str, Float[Array, ""]]:
        """Returns no scalars, because the metrics contain the entropy."""
        return {}


def _stack(choices: list[Array]) -> Int[Array, "... coordinate"]:
    return jnp.stack(choices, axis=-1).astype(jnp.int32)


def _total(coordinates: Iterable[Array]) -> Float[Array, "..."]:
    return functools.reduce(jnp.add, coordinates)


def _choose(logits: Float[Array, "... choices"], noise: Float[Array, "..."]) -> Int[Array, "..."]:
    """Inverts the cumulative probabilities; never returns a choice of probability zero."""
    probability = jax.nn.softmax(logits)
    cumulative = jnp.cumsum(probability, axis=-1)
    # The last sum need not be exactly 1, and sums computed in parallel need not even be monotonic.
    here = (noise[..., None] * jnp.max(cumulative, axis=-1, keepdims=True) < cumulative) & (probability > 0)
    return jnp.where(jnp.any(here, axis=-1), jnp.argmax(here, axis=-1), jnp.argmax(logits, axis=-1))


def _kl_of_logits(old: Float[Array, "... choices"], new: Float[Array, "... choices"]) -> Float[Array, "..."]:
    """Computes sum p log(p/q) as sum p (d + exp(-d) - 1), with d = log(p/q).

    Both are equal, because q - p sums to zero. But no term of the latter is negative, so there is no cancellation, and
    an error common to all d enters only by its square.
    """
    probability = jax.nn.softmax(old)
    change = old - new
    change -= jnp.sum(probability * change, axis=-1, keepdims=True)  # a common shift has no effect
    is_small = jnp.all(jnp.abs(change) < LARGEST_CHANGE, axis=-1)
    change = jnp.where(is_small[..., None], change, 0.0)
    # log(p/q) = change + log sum p exp(-change); the sum is at least 1 (Jensen), and exactly 1 if nothing changed.
    ratio = change + jnp.log1p(jnp.sum(probability * jnp.expm1(-change), axis=-1, keepdims=True))
    small = jnp.sum(probability * (ratio + jnp.expm1(-ratio)), axis=-1)
    large = jnp.sum(probability * (jax.nn.log_softmax(old) - jax.nn.log_softmax(new)), axis=-1)
    return jnp.where(is_small, small, large)


def _metric_of_logits(
    logits: Float[Array, "... choices"], tangent: Float[Array, "... choices"]
) -> Float[Array, "... choices"]:
    weighted = jax.nn.softmax(logits) * tangent
    return weighted - jax.nn.softmax(logits) * jnp.sum(weighted, axis=-1, keepdims=True)


def sample(distribution: Distribution, noise: Float[Array, "... noise"]) -> Num[Array, "... action"]:
    """Computes the action from random numbers."""
    return distribution.sample(noise)


def log_prob(distribution: Distribution, action: Num[Array, "... action"]) -> Float[Array, "..."]:
    """Computes the log density or log probability of an action, nats."""
    return distribution.log_prob(action)


def kl_divergence(old: C, new: C) -> Float[Array, "..."]:
    """Computes KL(old || new), nats."""
    return old.kl_divergence(new)


def entropy(distribution: Comparable) -> Float[Array, "..."]:
    """Computes the entropy, nats."""
    return distribution.entropy()


def fisher_metric(distribution: C, tangent: C) -> C:
    """Computes the product of the Fisher matrix in the distribution's own parameters and a tangent vector."""
    return distribution.fisher_metric(tangent)
