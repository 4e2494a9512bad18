"""Trained policies, for use outside of training."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Num, PRNGKeyArray, PyTree

from jaxtrpo.envs.actions import ActionSpace, make_converter
from jaxtrpo.envs.observation_space import ObservationSpace, Observed, as_space, channels_last
from jaxtrpo.envs.observations import MASK, Observations
from jaxtrpo.ops.moments import Moments, normalize
from jaxtrpo.policies.action_units import to_simulator
from jaxtrpo.policies.distributions import Distribution
from jaxtrpo.policies.making import policy_for
from jaxtrpo.policies.masking import input_of
from jaxtrpo.policies.networks import Policy, PolicyMaker


@dataclasses.dataclass(frozen=True, eq=False, repr=False)  # hashable, as `jax.jit(policy)` needs
class TrainedPolicy:
    """A trained policy, which maps observations to actions in the simulator's units when called.

    It can be called inside of compiled functions, and compiled itself: `jax.jit(policy)`. A policy with memory keeps
    its recurrent state between calls, until `reset`; `step` does the same as a pure function, which can be compiled.
    """

    env_name: str  # name of the environment it was trained in
    observation_size: int  # numbers in an observation
    actions: ActionSpace  # the simulator's, with its bounds
    maker: PolicyMaker  # makes the network
    params: PyTree  # of the network
    moments: Moments  # moments for the normalisation of observations
    observations: Observations | None = None  # the simulator's observation space; None if it is flat
    max_episode_steps: int | None = None  # time limit of training, if not the environment's own
    masked: bool = False  # whether the policy needs to know which choices are legal
    env_options: str | None = None  # options of the environment's constructor in training, as in `Config`
    observation_space: ObservationSpace | None = None  # of observations with images; None if they are flat
    has_probabilities: bool = True  # False where its outputs are values of actions, as with `dqn`: none to draw from
    # Not an argument, so that copies by `dataclasses.replace` have a memory of their own.
    _remembered: list[PyTree] = dataclasses.field(default_factory=lambda: [None], init=False, compare=False, repr=False)

    def __repr__(self) -> str:
        """Names the environment, the network and the sizes, without parameters."""
        sizes = (
            f"{self.observation_size} observations, {self.actions.size} {self.actions.kind.partition(' ')[0]} actions"
        )
        return f"TrainedPolicy({self.env_name}, {self.maker.spec_string}, {sizes})"

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields, without functions made from them, which cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def action_low(self) -> np.ndarray:
        """Lower bounds of actions in the simulator's units, one per coordinate."""
        return self.actions.low

    @property
    def action_high(self) -> np.ndarray:
        """Upper bounds of actions in the simulator's units, one per coordinate."""
        return self.actions.high

    @functools.cached_property
    def network(self) -> Policy:
        """The network of `params`."""
        return policy_for(self.maker, self.observed, self.actions, masked=self.masked)

    @property
    def observed(self) -> Observed:
        """What the network is made for."""
        return self.observation_size if self.observation_space is None else self.observation_space

    @property
    def state(self) -> PyTree:
        """Recurrent state of a policy with memory, for its next call; None at the beginning of an episode."""
        return self._remembered[0]

    def reset(self) -> None:
        """Resets the recurrent state of a policy with memory, for a new episode."""
        self._remembered[0] = None

    def __call__(
        self,
        obs: Any,
        *,
        action_mask: Any = None,
        key: PRNGKeyArray | None = None,
    ) -> np.ndarray | np.integer | Num[Array, "..."]:
        """Computes actions for one observation or a batch.

        Args:
          obs: one observation or a batch with any leading axes, in the environment's form or flat (see `flatten`). In
            batches of Dict or Tuple observations, every array has the leading axes, as in Gymnasium's vector
            environments. A policy with memory takes the next observations of the same environments in every call.
          action_mask: which choices are legal, with the leading axes of `obs`: of all coordinates one after another, a
            tuple of one mask per coordinate, or, if all coordinates have as many choices, [..., coordinate, choice];
            for a policy that was trained with masks. None: the entry `action_mask` of `obs`.
          key: random key to sample actions, but not with policies of action values (`dqn`); None: the mode.

        Returns:
          Actions in the simulator's form: of its shape, within its bounds, and integers if discrete. For NumPy
          observations, they are NumPy arrays of the simulator's dtype; for JAX arrays, they are JAX arrays of the
          nearest dtype that JAX supports.

        Raises:
          ValueError: the observations do not fit the policy, a policy with memory was called with another number of
            observations before, or another argument has a wrong shape or type.
        """
        action, state = self.step(self.state, obs, action_mask=action_mask, key=key)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(state)):
            raise ValueError(f"{self.maker.spec_string} has memory: use step inside of compiled functions")
        self._remembered[0] = state
        return action

    def step(
        self,
        state: PyTree,
        obs: Any,
        *,
        first: Any = False,
        action_mask: Any = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[np.ndarray | np.integer | Num[Array, "..."], PyTree]:
        """Computes actions from observations and a recurrent state; a pure function.

        Args:
          state: state that the previous call returned; None if all episodes begin.
          obs: as in `__call__`.
          first: which environments begin an episode, so that their state is reset; has the shape of the leading axes of
            `obs`, or is a single bool for all.
          action_mask: as in `__call__`.
          key: as in `__call__`.

        Returns:
          Actions as in `__call__`, and the state for the next call; None for a policy without memory.

        Raises:
          ValueError: as in `__call__`.
        """
        if isinstance(key, int | np.integer):
            raise ValueError(f"key={key} must be a random key of JAX, such as jax.random.key({key})")
        if key is not None:
            self.require_probabilities("key")
        mask, obs = self._mask(obs, action_mask), self.flatten(obs)
        lead = as_space(self.observed).lead_of(obs)
        if self.masked and np.shape(mask)[:-1] != lead:
            raise ValueError(f"action_mask has shape {np.shape(mask)}, but obs has the leading axes {lead}")
        if np.shape(first) not in ((), lead):
            raise ValueError(f"first has shape {np.shape(first)}, but obs has the leading axes {lead}")
        recurrence = self.network.recurrence
        if recurrence is not None:
            number = math.prod(lead)
            if state is None:  # stacks are filled with the first observation of an episode, not with zeros
                state, first = recurrence.start(number), True
            if {len(leaf) for leaf in jax.tree.leaves(state)} - {number}:
                raise ValueError(
                    f"obs has {number} observations, but the previous call had another number; call reset()"
                )
            first = jnp.broadcast_to(jnp.asarray(first, bool), lead).reshape(-1)
        about = self.maker, self.observed, _hashable(self.actions)
        distribution, action, state = _predict(*about, self.params, self.moments, state, obs, mask, first)
        if key is not None:
            noise = distribution.draw_noise(key, (*lead, distribution.noise_size))
            action = distribution.sample(noise)
        action = to_simulator(action, self.actions)
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(obs)):
            return _as_simulator(action, self.actions), state
        converted = self._convert(np.asarray(action))
        # As in Gymnasium, a single number is a scalar if it is discrete, else a zero-dimensional array.
        return converted[()] if self.actions.counts else converted, state

    def require_probabilities(self, setting: str) -> None:
        """Checks that actions can be drawn, as `setting` asks for.

        Raises:
          ValueError: the policy was learned as values of actions.
        """
        if not self.has_probabilities:
            raise ValueError(
                f"{setting}: the policy of {self.env_name} has learned values of actions, not probabilities to draw "
                "them by; leave it out for the best action"
            )

    def _mask(self, obs: Any, action_mask: Any) -> Any:
        """Returns the mask of legal choices; () without masks."""
        if not self.masked:
            if action_mask is not None:
                raise ValueError(f"action_mask: the policy of {self.env_name} was trained without masks")
            return ()
        if action_mask is None and isinstance(obs, Mapping):
            action_mask = obs.get(MASK)
        counts = self.actions.counts
        choices = sum(counts)
        if isinstance(action_mask, tuple) and all(np.ndim(each) for each in action_mask):  # one for each coordinate
            action_mask = jnp.concatenate([jnp.asarray(each) for each in action_mask], axis=-1)
        shape = () if action_mask is None else np.shape(action_mask)
        if len({*counts}) == 1 < len(counts) and shape[-2:] == (len(counts), counts[0]):  # one row for each of them
            shape = (*shape[:-2], choices)
            action_mask = jnp.reshape(jnp.asarray(action_mask), shape)
        if action_mask is None or shape[-1:] != (choices,):
            given = "" if action_mask is None else f", not an array of shape {shape}"
            raise ValueError(f"action_mask: pass which of the {choices} choices are legal{given}")
        return jnp.asarray(action_mask, bool)

    def flatten(self, obs: Any) -> Any:
        """Converts observations to the input of the network and of exported files.

        Args:
          obs: observations in the environment's form, or what this function returns.

        Returns:
          Float32 [..., observation]; or, with images, a dictionary (see `ObservationSpace`).

        Raises:
          ValueError: the observations do not fit the policy.
        """
        own, space = self.observations, self.observation_space
        if space is not None and space.images:
            return _with_images(own, space, obs)
        if own is not None and not own.is_flat and own.fits(obs):
            in_jax = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(obs))
            return _flatten_in_jax(own, obs) if in_jax else own.flatten(obs)
        shape = np.shape(obs)
        if shape[-1:] != (self.observation_size,):
            structured = "" if own is None or own.is_flat else f"pass observations of {own.description}, or flat ones: "
            raise ValueError(f"obs has shape {shape}; {structured}its last axis must have size {self.observation_size}")
        return jnp.asarray(obs, jnp.float32) if isinstance(obs, jax.Array) else np.asarray(obs, np.float32)

    @functools.cached_property
    def _convert(self) -> Callable[[np.ndarray], np.ndarray]:
        return make_converter(self.actions)

    def deterministic(self) -> Callable[[Any], Num[Array, "..."]]:
        """Returns a traceable function, observations -> actions of the deterministic policy.

        Raises:
          ValueError: the policy has memory or takes masks; use `deterministic_step`.
        """
        if self.network.recurrence is not None or self.masked:
            has = "takes masks" if self.masked else "has memory"
            raise ValueError(f"the policy {self.maker.spec_string} {has}: use deterministic_step, or step")
        act = self.deterministic_step()
        space = as_space(self.observed)
        return lambda obs: act((), obs, jnp.zeros(space.lead_of(obs), bool))[0]

    def deterministic_step(
        self,
    ) -> Callable[..., tuple[Num[Array, "..."], PyTree]]:
        """Returns a traceable function of the deterministic policy.

        It maps (state, observations, where an episode begins) to (actions, state). With memory, the observations are
        [env, obs], and states those of `Recurrence`; without, a state is (). With masks, there is a fourth argument,
        which choices are legal.
        """
        network, actions, params, moments = self.network, self.actions, self.params, self.moments

        def act(state: PyTree, obs: Any, first: Array, mask: Any = ()) -> tuple[Array, PyTree]:
            inputs = input_of(network, normalize(obs, moments), mask)
            action, state = likeliest_step(network, params, state, inputs, first, actions)
            return _as_simulator(action, actions), state

        return act


def likeliest_step(
    network: Policy, params: PyTree, carry: PyTree, inputs: Any, first: Bool[Array, "..."], actions: ActionSpace
) -> tuple[Num[Array, "... action"], PyTree]:
    """Computes flat actions of the deterministic policy, in simulator units; otherwise like `Policy.step`."""
    distribution, carry = network.step(params, carry, inputs, first)
    return to_simulator(distribution.mode(), actions), carry


def _with_images(own: Observations | None, space: ObservationSpace, obs: Any) -> Any:
    """Returns observations as a dictionary of arrays; see `TrainedPolicy.flatten`."""
    if isinstance(obs, dict) and space.fits(obs):
        return obs
    if own is None:
        raise ValueError(f"obs must be a dictionary of {space.description}")
    in_jax = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(obs))
    return _flatten_in_jax(own, obs) if in_jax else own.flatten(obs)


def _flatten_in_jax(observations: Observations, value: Any) -> Any:
    """Like `Observations.flatten` for JAX arrays, which may be traced: invalid choices become zeros."""
    rows, pixels = [], []
    for part in observations.parts:
        array = jnp.asarray(part.find(value))
        lead = array.shape[: array.ndim - len(part.shape)]
        part.require_shape(array.shape, lead)
        if part.axes:
            pixels.append(channels_last(array, part.axes).reshape(*lead, -1))
            continue
        flat = array.reshape((*lead, -1))
        if part.counts:
            choices = enumerate(zip(part.first, part.counts, strict=True))
            one_hot = [jax.nn.one_hot(flat[..., i] - first, count) for i, (first, count) in choices]
            flat = jnp.concatenate(one_hot, axis=-1)
        rows.append(flat.astype(jnp.float32))
    if not pixels:
        return jnp.concatenate(rows, axis=-1)
    joined = jnp.concatenate(rows, axis=-1) if rows else None
    return observations.joined(joined, jnp.concatenate(pixels, axis=-1))


def _as_simulator(action: Num[Array, "... action"], actions: ActionSpace) -> Num[Array, "..."]:
    """Converts flat actions to the simulator's shape and choice numbers, and to its dtype if JAX supports it."""
    action = action.reshape((*action.shape[:-1], *actions.shape_of_one))
    if actions.counts:
        integer = jax.dtypes.canonicalize_dtype(np.int64)
        if np.any(actions.low < np.iinfo(integer).min) or np.any(actions.high > np.iinfo(integer).max):
            raise ValueError(
                f"actions range from {actions.low.min()} to {actions.high.max()}, beyond JAX's {integer}; pass NumPy "
                "observations instead"
            )
        return action + actions.low.astype(integer).reshape(actions.shape_of_one)
    return action.astype(jax.dtypes.canonicalize_dtype(actions.dtype))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _predict(
    maker: PolicyMaker,
    observed: Observed,
    actions: tuple,
    params: PyTree,
    moments: Moments,
    carry: PyTree,
    obs: Any,
    mask: Any,
    first: Array,
) -> tuple[Distribution, Array, PyTree]:
    """Computes a distribution, its mode and the carry; compiled once for all policies of the same maker and sizes."""
    dtype, low, high, counts, shape = actions
    space = ActionSpace(np.array(low, dtype), np.array(high, dtype), counts, shape)
    network = policy_for(maker, observed, space, masked=not isinstance(mask, tuple))
    lead = as_space(observed).lead_of(obs)
    obs = jax.tree.map(jnp.asarray, obs) if isinstance(obs, dict) else jnp.asarray(obs, jnp.float32)
    inputs = input_of(network, normalize(obs, moments), mask)
    if network.recurrence is None:
        distribution = network.apply(params, inputs)
        return distribution, distribution.mode(), carry
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(lead) :]), inputs)
    distribution, carry = network.recurrence.step(params, carry, rows, first)
    distribution = jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), distribution)
    return distribution, distribution.mode(), carry


def _hashable(actions: ActionSpace) -> tuple:
    return (
        actions.low.dtype,
        tuple(actions.low.tolist()),
        tuple(actions.high.tolist()),
        tuple(actions.counts),
        actions.shape,
    )
