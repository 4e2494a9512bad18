"""Every setting of a training run, with its default, unit and bounds."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

DEFAULT_NUM_ENVS = 16


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of `train`. The shell has a flag of the same name for each."""

    total_steps: int = 1_000_000
    """environment steps of all actors; the run ends with the update that reaches them"""
    seed: int = 0
    """of everything random"""
    actors: int | None = None
    """devices that collect and learn; all CPU cores if not given"""
    num_envs: int | None = None
    """environments of all actors together; 16, rounded up to a multiple of the actors, if not given"""
    segment_length: int = 16
    """steps of every environment in a segment, the unit in which batches grow and shrink"""
    steps_per_update: int = 1024
    """environment steps of all actors between the first updates, rounded down to whole segments"""
    max_steps_per_update: int | None = None
    """largest batch that adaptation gets, environment steps; what its rule may ask for if not given"""
    max_kl: float = 0.01
    """trust region of the first updates: mean KL divergence between the policies before and after an update, nats"""
    adapt: str = "trust"
    """how max_kl and steps_per_update change while training: trust, fixed, margin, or a call as in jaxtrpo.adapt"""
    discount: float = 0.99
    """per environment step"""
    advantages: Literal["gae", "monte_carlo"] = "gae"
    """generalised advantage estimation, or discounted returns less the critic's value as in 2016"""
    gae_lambda: float = 0.95
    """bias (0) against variance (1) of the advantages; ignored by monte_carlo"""
    advantage_memory: int = 100
    """updates that say how large advantages usually are; smaller ones make a smaller trust region; 0 to leave it"""
    critic: Literal["mlp", "linear"] = "mlp"
    """neural network, or the closed-form ridge regression of the 2016 system"""
    critic_hidden: tuple[int, ...] = (64, 64)
    """sizes of the critic's hidden layers"""
    critic_epochs: int = 10
    """passes over the batch in an update of the critic"""
    critic_minibatch_size: int = 128
    """environment steps in one gradient step of the critic"""
    critic_learning_rate: float = 1e-3
    """of Adam"""
    policy_hidden: tuple[int, ...] = (64, 64)
    """sizes of the policy's hidden layers"""
    initial_log_std: float = -0.5
    """log standard deviation of the first actions, where the simulator's range is [-1, 1]"""
    fisher_samples: int = 512
    """states that the Fisher matrix is estimated on, of all actors; whole moments of all environments"""
    cg_iterations: int = 15
    """products with the Fisher matrix in one update, at most"""
    cg_damping: float = 0.03
    """added to the diagonal of the Fisher matrix, as a part of the curvature along the gradient"""
    line_search_shrink: float = 0.8
    """factor between trials of the line search"""
    line_search_steps: int = 10
    """trials of the line search before the old policy stays"""
    normalize_observations: bool = True
    """subtract the running mean of observations and divide by their standard deviation"""
    normalize_returns: bool = True
    """the same for what the neural critic predicts"""
    eval_every: int = 0
    """environment steps between evaluations of the deterministic policy while training; 0 for none"""
    eval_episodes: int = 10
    """episodes of one evaluation"""

    def __post_init__(self) -> None:
        """Checks every setting by itself.

        Raises:
          ValueError: one sentence that names the setting.
        """
        for name in ("total_steps", "segment_length", "steps_per_update", "critic_epochs", "critic_minibatch_size",
                     "fisher_samples", "cg_iterations", "line_search_steps", "eval_episodes"):  # fmt: skip
            _require(name, getattr(self, name), 1)
        for name in ("actors", "num_envs", "max_steps_per_update"):
            if getattr(self, name) is not None:
                _require(name, getattr(self, name), 1)
        _require("seed", self.seed, 0)
        if self.seed >= 2**32:
            raise ValueError(f"seed={self.seed} must be below 2**32")  # JAX would ignore the higher bits
        for name in ("eval_every", "advantage_memory"):
            _require(name, getattr(self, name), 0)
        for name in ("max_kl", "critic_learning_rate"):
            _require_number(name, getattr(self, name), "positive", lambda value: value > 0)
        _require_number("cg_damping", self.cg_damping, "not negative", lambda value: value >= 0)
        for name in ("discount", "gae_lambda"):
            _require_number(name, getattr(self, name), "between 0 and 1", lambda value: 0 <= value <= 1)
        _require_number("line_search_shrink", self.line_search_shrink, "between 0 and 1", lambda value: 0 < value < 1)
        _require_number("initial_log_std", self.initial_log_std, "between -10 and 5", lambda value: -10 <= value <= 5)
        for name in ("critic_hidden", "policy_hidden"):
            object.__setattr__(self, name, _sizes(name, getattr(self, name)))
        for name in ("normalize_observations", "normalize_returns"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        for name, choices in (("critic", ("mlp", "linear")), ("advantages", ("gae", "monte_carlo"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(choices)}")
        if not isinstance(self.adapt, str):
            raise ValueError(f"adapt={self.adapt!r} must be the name of a rule")
        if self.max_steps_per_update is not None and self.max_steps_per_update < self.steps_per_update:
            raise ValueError(
                f"max_steps_per_update={self.max_steps_per_update} is below steps_per_update={self.steps_per_update}"
            )


class Sizes(NamedTuple):
    """What the settings come to on the actors at hand."""

    num_envs: int  # of all actors
    segment_steps: int  # environment steps of all actors in a segment
    max_segments: int  # that the buffers have room for


def resolve_sizes(config: Config, num_actors: int) -> Sizes:
    """Checks the settings that depend on each other and on the number of actors.

    Raises:
      ValueError: one sentence that names the setting.
    """
    num_envs = config.num_envs or -(-DEFAULT_NUM_ENVS // num_actors) * num_actors
    if num_envs % num_actors:
        raise ValueError(f"num_envs={num_envs} must be a multiple of the {num_actors} actors")
    segment_steps = config.segment_length * num_envs
    if config.steps_per_update < segment_steps:
        raise ValueError(
            f"steps_per_update={config.steps_per_update} is below one segment: segment_length={config.segment_length} "
            f"steps of num_envs={num_envs} environments are {segment_steps}"
        )
    largest = config.max_steps_per_update or config.steps_per_update
    return Sizes(num_envs, segment_steps, largest // segment_steps)


def make_config(settings: Mapping[str, Any]) -> Config:
    """A Config of keyword arguments.

    Raises:
      ValueError: a setting is out of bounds.
      TypeError: there is no such setting; the message lists near names.
    """
    known = [field.name for field in dataclasses.fields(Config)]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise TypeError(f"unknown setting {name!r}{hint}")
    return Config(**settings)


def _sizes(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{name}={value!r} must be a sequence of sizes, such as (64, 64)")
    for size in value:
        _require(name, size, 1)
    return tuple(value)


def _require(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")


def _require_number(name: str, value: object, what: str, test: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not test(value):
        raise ValueError(f"{name}={value!r} must be {what}")
