"""The settings that every training run has, with default, unit and bounds.

A setting of an algorithm, a policy, a critic or a rule lives with it: `--algorithm "ppo(clip=0.1)"`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtrpo.config.checks import require_bool, require_positive, require_share, require_whole
from jaxtrpo.config.messages import short

DEVICES = ("auto", "cpu", "gpu", "tpu")
# Physics gains little from more: two actors collect 20,480 steps of HalfCheetah at 30,900 steps/s with 16 environments,
# at 48,800 with 128 and at 53,400 with 256.
MOST_ENVS_OF_A_CORE = 128
ENVS_OF_AN_ACCELERATOR = 2048
SEGMENT_LENGTH = 16  # steps of every environment, unless a batch is smaller


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of `train`. The shell has a flag of the same name for each."""

    total_steps: int = 1_000_000
    """environment steps of all actors; the run ends with the update that reaches them"""
    seed: int = 0
    """of everything random"""
    algorithm: str = "trpo"
    """how it learns: a name, or a call such as "ppo(clip=0.1, epochs=4)"; `jaxtrpo algorithms` lists them"""
    policy: str = "mlp"
    """network that acts: mlp, or a call such as "mlp(hidden=(128, 128))" with settings of its own"""
    critic: str | None = None
    """what predicts returns: mlp, linear, none, or a call; what goes with the algorithm if not given"""
    adapt: str | None = None
    """rule that changes settings while training: trust, fixed, linear(learning_rate=0), ...; the algorithm's if None"""
    max_kl: float | None = None
    """trust region of the first updates, nats: short for "trpo(max_kl=...)" and the like"""
    steps_per_update: int | None = None
    """environment steps of all actors between the first updates, whole segments; the algorithm's if not given"""
    max_steps_per_update: int | None = None
    """largest batch that adaptation gets, environment steps; what its rule may ask for if not given"""
    discount: float = 0.99
    """per environment step"""
    normalize_observations: bool = True
    """subtract the running mean of observations and divide by their standard deviation"""
    actors: int | None = None
    """devices that collect and learn, of all processes; all CPU cores (or accelerators) if not given"""
    device: str = "auto"
    """what actors are: cpu, gpu, tpu, or auto, which is the accelerator for environments that are JAX programs if there
    is one, else the CPU"""
    processes: int | None = None
    """that train together, as many as a launcher has started; if not given, those of `jaxtrpo launch`, or this one"""
    num_envs: int | None = None
    """environments of all actors together; if not given the algorithm's, more where steps_per_update is larger than the
    algorithm's, and 2,048 an actor on an accelerator"""
    segment_length: int | None = None
    """steps of each environment in a segment, the unit of batches; at most 16, as the first batch has, if not given"""
    max_episode_steps: int | None = None
    """time limit of the environment, in steps; its own if not given"""
    eval_every: int = 0
    """environment steps between evaluations of the deterministic policy while training; 0 for none. Where there is no
    time limit, they stop an episode after 10,000 steps"""
    eval_episodes: int = 10
    """episodes of one evaluation"""

    def __post_init__(self) -> None:
        """Checks every setting by itself.

        Raises:
          ValueError: one sentence that names the setting.
        """
        require_whole(1, total_steps=self.total_steps, eval_episodes=self.eval_episodes)
        at_least_one = ("actors", "processes", "num_envs", "segment_length", "steps_per_update", "max_steps_per_update")
        for name in (*at_least_one, "max_episode_steps"):
            if getattr(self, name) is not None:
                require_whole(1, **{name: getattr(self, name)})
        require_whole(0, seed=self.seed, eval_every=self.eval_every)
        if self.seed >= 2**32:
            raise ValueError(f"seed={self.seed} must be below 2**32")  # JAX would ignore the higher bits
        if self.device not in DEVICES:
            raise ValueError(f"device={short(self.device)} must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}")
        if self.max_kl is not None:
            require_positive(max_kl=self.max_kl)
        require_share(discount=self.discount)
        require_bool(normalize_observations=self.normalize_observations)
        for name in ("algorithm", "policy", "critic", "adapt"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name in ("critic", "adapt")):
                raise ValueError(f"{name}={short(value)} must be a name, or a call in words")
        if None not in (self.max_steps_per_update, self.steps_per_update):
            _require_room(self.max_steps_per_update or 0, self.steps_per_update or 0)


class Sizes(NamedTuple):
    """What the settings come to on the actors at hand."""

    num_envs: int  # of all actors
    segment_length: int  # steps of every environment
    max_segments: int  # that the buffers have room for

    @property
    def segment_steps(self) -> int:
        """Environment steps of all actors in a segment."""
        return self.num_envs * self.segment_length


def for_batch(num_actors: int, num_envs: int, *, larger: float = 1.0, accelerator: bool = False) -> int:
    """Environments of all actors where nobody says how many; every actor has as many.

    Args:
      num_actors: how many there are.
      num_envs: that the algorithm usually has.
      larger: how many times as large as usual the first batch is. Up to twice as large it has longer stretches of the
        same environments; from then on it has twice as many of them, and so on.
      accelerator: whether actors are devices that step thousands as fast as one.
    """
    if accelerator:
        return ENVS_OF_AN_ACCELERATOR * num_actors
    doubled = num_envs * 2 ** math.floor(math.log2(max(larger, 1.0)))
    most = max(num_envs, MOST_ENVS_OF_A_CORE * num_actors)
    return -(-min(doubled, most) // num_actors) * num_actors


def resolve_sizes(config: Config, num_actors: int, *, num_envs: int, steps_per_update: int) -> Sizes:
    """Checks the settings that depend on each other and on the number of actors.

    Args:
      config: settings, of which some may not be given.
      num_actors: how many there are.
      num_envs: environments where `config` does not say (see `for_batch`).
      steps_per_update: of the first updates.

    Raises:
      ValueError: one sentence that names the setting.
    """
    num_envs = config.num_envs or num_envs
    if num_envs % num_actors:
        raise ValueError(f"num_envs={num_envs} must be a multiple of the {num_actors} actors")
    length = config.segment_length or min(SEGMENT_LENGTH, max(steps_per_update // num_envs, 1))
    if steps_per_update < length * num_envs:
        raise ValueError(
            f"steps_per_update={steps_per_update} is below one segment: segment_length={length} steps of "
            f"num_envs={num_envs} environments are {length * num_envs}"
        )
    largest = config.max_steps_per_update or steps_per_update
    _require_room(largest, steps_per_update)
    return Sizes(num_envs, length, largest // (length * num_envs))


def make_config(settings: Mapping[str, Any]) -> Config:
    """A Config of keyword arguments.

    Raises:
      ValueError: a setting is out of bounds.
      TypeError: there is no such setting; the message says which part has it, or near names.
    """
    from jaxtrpo.config.specs import place_of_setting

    known = [field.name for field in dataclasses.fields(Config)]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            place = place_of_setting(name)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            hint = f"; write {place}" if place else hint
            raise TypeError(f"unknown setting {name!r}{hint}")
    return Config(**settings)


def _require_room(largest: int, first: int) -> None:
    if largest < first:
        raise ValueError(f"max_steps_per_update={largest} is below steps_per_update={first}")
