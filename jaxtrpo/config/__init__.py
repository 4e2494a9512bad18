"""The settings shared by all training runs, with defaults, units and bounds.

Settings of one algorithm, policy, critic or rule belong to its spec string: `--algorithm "ppo(clip=0.1)"`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxtrpo.config.checks import (
    MOST_ENVS,
    MOST_EPISODES,
    MOST_FRAMES,
    plain,
    require_bool,
    require_number,
    require_positive,
    require_seed,
    require_share,
    require_whole,
    whole,
)
from jaxtrpo.config.environment import names_string, options_string
from jaxtrpo.config.messages import short

DEVICES = ("auto", "cpu", "gpu", "tpu")
# More environments per core gain little: two actors collect 20,480 steps of HalfCheetah at 30,900 steps/s with 16
# environments, at 48,800 steps/s with 128 and at 53,400 steps/s with 256.
MAX_ENVS_PER_CORE = 128
ENVS_PER_ACCELERATOR = 4096
SELECT = ("best", "last")
SEGMENT_LENGTH = 16  # steps of each environment; fewer if the first batch is smaller
USUAL_STEPS = 1_000_000
USUAL_DISCOUNT = 0.99
USUAL_ALGORITHM = "trpo"  # where nothing else is better by default (see `training.defaults.usual_algorithm`)
# Settings that may be whole floats, such as 1e6.
NUMBERS_OF_STEPS = ("total_steps", "steps_per_update", "max_steps_per_update", "eval_every", "max_episode_steps")
UNLIMITED_STEPS = 10**10  # environment steps of days; a segment of few steps allows no more (see `segments_of_run`)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of `train`. Each one is also a command-line flag of the same name."""

    total_steps: int | None = None
    """environment steps of all actors together; the run ends with the update that reaches this number;
    if not given, 1,000,000 or, with stop_after_seconds, no limit"""
    seed: int = 0
    """random seed, an integer from 0 to 2**32 - 1"""
    algorithm: str | None = None
    """learning algorithm: a name or a spec string such as "ppo(clip=0.1, epochs=4)"; `jaxtrpo algorithms` lists all;
    in the shell also your own, as MODULE:NAME or FILE.py:NAME, which policy, critic and adapt accept, too;
    if not given, trpo; with default settings otherwise, trpo_replay for continuous actions of at least 12
    coordinates in runs of at least 200,000 steps (or, with stop_after_seconds, 100 seconds), and for those of at least
    6 coordinates where episodes never end early in runs of at least 100,000 steps (or 60 seconds)"""
    policy: str | None = None
    """policy network: mlp, cnn, "mlp(hidden=(128, 128))" or another spec string;
    if not given, cnn for observations with images, squashed for sac, mlp otherwise"""
    critic: str | None = None
    """critic, which predicts returns: mlp, linear, none or a spec string; if not given, the algorithm's default"""
    adapt: str | None = None
    """rule that adapts settings during training: trust, fixed, "linear(learning_rate=0)", ...;
    if not given, the algorithm's default"""
    max_kl: float | None = None
    """initial trust-region radius in nats, the same as "trpo(max_kl=...)"; if not given, the algorithm's default"""
    steps_per_update: int | None = None
    """initial batch size: environment steps of all actors per update, rounded down to segments;
    if not given, the algorithm's default"""
    max_steps_per_update: int | None = None
    """largest batch size that the rule may choose, in environment steps; if not given, the rule's own limit"""
    discount: float | None = None
    """discount factor per environment step, between 0 and 1;
    if not given, 0.99 or, with trpo where every episode is known to last to a limit of at least 1,000 steps, 0.999"""
    normalize_observations: bool = True
    """normalise observations by their running mean and standard deviation, and by more where they are mostly 0 and
    otherwise vary, as contact forces do; images are not normalised"""
    frame_stack: int = 1
    """number of consecutive observations, images or vectors, that policy and critic see together"""
    noise_correlation: float | None = None
    """correlation between the exploration noise of one step and the next, at least 0 and less than 1, for continuous
    actions: noise that pushes in one direction for several steps moves systems with inertia further;
    if not given, 0 or, where discount is 0.999 by default, 0.5"""
    select: str = "best"
    """policy that the run hands out: "last", or "best", the one with the best evaluation; without evaluations, the last
    one whose return_100 was not significantly below the highest, which needs 100 finished episodes. A run is resumed
    from its last one"""
    actors: int | None = None
    """number of actors, the devices that collect and learn, over all processes;
    if not given, one per CPU core or accelerator, or the most below that which divide a given num_envs"""
    device: str = "auto"
    """device type of the actors: cpu, gpu, tpu or auto;
    auto uses an accelerator, if there is one, for environments written in JAX, and the CPU otherwise"""
    processes: int | None = None
    """number of processes that train jointly, which must match the launcher;
    if not given, the number that the launcher started, or 1"""
    num_envs: int | None = None
    """number of environments of all actors together;
    if not given, 4096 per actor on accelerators, and on CPUs the algorithm's default, 16 for most; each
    doubling of steps_per_update beyond its default doubles it, up to 128 per core; rounded up to a multiple of the
    actors"""
    segment_length: int | None = None
    """steps of each environment in a segment, the unit of batch sizes;
    if not given, 16, or fewer if the first batch is smaller"""
    max_episode_steps: int | None = None
    """time limit of episodes, in environment steps; if not given, the environment's own"""
    env_options: str | None = None
    """options of the environment's constructor, such as "obs_type=ram, frameskip=4"; in Python also a mapping"""
    log_info: str | None = None
    """entries of a Gymnasium environment's info, such as "success, x_position": their values at the end of episodes,
    averaged over the episodes of an update, become columns of metrics.csv; in Python also a tuple"""
    eval_every: int | None = None
    """environment steps between evaluations of the deterministic policy during training; 0 for none;
    if not given, none or, in long runs where MuJoCo's C engine steps the environment and episodes may end early, a
    tenth of the run. Without a time limit, evaluation episodes are stopped after 10,000 steps"""
    eval_episodes: int = 10
    """episodes per evaluation"""
    start_from: str | None = None
    """start with the policy, critic and observation moments of another run or snapshot, given by its directory;
    other settings and the environment may differ, but not the sizes of the policy's network"""
    stop_at_return: float | None = None
    """stop once an evaluation reaches this return; without eval_every, stop once return_100 reaches it
    and 100 episodes have finished"""
    stop_after_evaluations: int | None = None
    """stop after this number of consecutive evaluations without a new best one; needs eval_every"""
    stop_after_seconds: float | int | None = None
    """stop after this many seconds, compilation included; schedules and rules expect the end of the run then"""

    @property
    def most_steps(self) -> int:
        """Environment steps with which the run ends at the latest."""
        if self.total_steps is not None:
            return self.total_steps
        return USUAL_STEPS if self.stop_after_seconds is None else UNLIMITED_STEPS

    def __post_init__(self) -> None:
        """Checks each setting on its own.

        Numbers may be NumPy's, whole numbers of steps floats such as 1e6, and paths `Path`s.

        Raises:
          ValueError: a setting is out of bounds; one sentence that names it.
        """
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name in NUMBERS_OF_STEPS:
            object.__setattr__(self, name, whole(getattr(self, name)))
        if isinstance(self.start_from, Path):
            object.__setattr__(self, "start_from", str(self.start_from))
        if self.total_steps is not None:
            require_whole(1, None, total_steps=self.total_steps)  # bounded by the number of segments
        require_whole(1, MOST_EPISODES, eval_episodes=self.eval_episodes)
        at_least_one = ("actors", "processes", "segment_length", "steps_per_update", "max_steps_per_update")
        for name in (*at_least_one, "max_episode_steps"):
            if getattr(self, name) is not None:
                require_whole(1, **{name: getattr(self, name)})
        if self.num_envs is not None:
            require_whole(1, MOST_ENVS, num_envs=self.num_envs)
        require_seed(seed=self.seed)
        if self.eval_every is not None:
            require_whole(0, None, eval_every=self.eval_every)
        if self.start_from is not None and not (isinstance(self.start_from, str) and self.start_from):
            raise ValueError(f"start_from={short(self.start_from)} must be the directory of a run or snapshot")
        if self.stop_at_return is not None:
            require_number("a number", lambda value: True, stop_at_return=self.stop_at_return)
        if self.stop_after_evaluations is not None:
            require_whole(1, stop_after_evaluations=self.stop_after_evaluations)
        if self.stop_after_seconds is not None:
            require_positive(stop_after_seconds=self.stop_after_seconds)
        if self.device not in DEVICES:
            raise ValueError(f"device={short(self.device)} must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}")
        if self.max_kl is not None:
            require_positive(max_kl=self.max_kl)
        if self.discount is not None:
            require_share(discount=self.discount)
        require_bool(normalize_observations=self.normalize_observations)
        require_whole(1, MOST_FRAMES, frame_stack=self.frame_stack)
        if self.noise_correlation is not None:
            require_number(
                "at least 0 and less than 1", lambda value: 0 <= value < 1, noise_correlation=self.noise_correlation
            )
        if self.select not in SELECT:
            raise ValueError(f"select={short(self.select)} must be {' or '.join(SELECT)}")
        # In one form, by which a resumed run is compared.
        for name, text in (("env_options", options_string), ("log_info", names_string)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, text(getattr(self, name)))
        for name in ("algorithm", "policy", "critic", "adapt"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise ValueError(f"{name}={short(value)} must be a name or a spec string")
        if None not in (self.max_steps_per_update, self.steps_per_update):
            _require_not_below_first(self.max_steps_per_update or 0, self.steps_per_update or 0)


class Sizes(NamedTuple):
    """Batch sizes that follow from the settings and the number of actors."""

    num_envs: int  # of all actors
    segment_length: int  # steps of each environment
    max_segments: int  # segments in the largest batch

    @property
    def segment_steps(self) -> int:
        """Environment steps of all actors in one segment."""
        return self.num_envs * self.segment_length


def for_batch(num_actors: int, num_envs: int, *, larger: float = 1.0, accelerator: bool = False) -> int:
    """Returns the default number of environments of all actors together, a multiple of the number of actors.

    Args:
      num_actors: number of actors.
      num_envs: the algorithm's default.
      larger: size of the first batch relative to the algorithm's default. Each doubling doubles the number of
        environments, up to 128 per CPU core; in between, each environment contributes more steps.
      accelerator: whether actors are accelerators, which step thousands of environments as fast as one.
    """
    if accelerator:
        return ENVS_PER_ACCELERATOR * num_actors
    doubled = num_envs * 2 ** math.floor(math.log2(max(larger, 1.0)))
    most = max(num_envs, MAX_ENVS_PER_CORE * num_actors)
    return -(-min(doubled, most) // num_actors) * num_actors


def resolve_sizes(config: Config, num_actors: int, *, num_envs: int, steps_per_update: int) -> Sizes:
    """Returns the batch sizes, and checks the settings that depend on each other and on the number of actors.

    Args:
      config: settings; sizes may be None.
      num_actors: number of actors.
      num_envs: environments of all actors if `config.num_envs` is None (see `for_batch`).
      steps_per_update: environment steps of the first updates.

    Raises:
      ValueError: the settings do not fit together; one sentence that names one of them.
    """
    num_envs = config.num_envs or num_envs
    if num_envs % num_actors:
        raise ValueError(f"num_envs={num_envs} must be a multiple of the {num_actors} actors")
    length = config.segment_length or min(SEGMENT_LENGTH, max(steps_per_update // num_envs, 1))
    if steps_per_update < length * num_envs:
        raise ValueError(
            f"steps_per_update={steps_per_update} is below one segment of {length * num_envs} steps "
            f"(num_envs={num_envs} times segment_length={length})"
        )
    largest = config.max_steps_per_update or steps_per_update
    _require_not_below_first(largest, steps_per_update)
    return Sizes(num_envs, length, largest // (length * num_envs))


def make_config(settings: Mapping[str, Any], *, algorithm: str = USUAL_ALGORITHM) -> Config:
    """Makes a Config from keyword arguments.

    Args:
      settings: values by name.
      algorithm: spec string of the run's algorithm, which an unknown setting may belong to.

    Raises:
      ValueError: a setting is out of bounds.
      TypeError: there is no such setting; the message says what to write, or near names.
    """
    from jaxtrpo.config.aliases import advice

    known = [field.name for field in dataclasses.fields(Config)]
    for name, value in settings.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            instead = advice(name, value, algorithm=algorithm)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            hint = f"; write {instead}" if instead else hint
            raise TypeError(f"unknown setting {name!r}{hint}")
    return Config(**settings)


def _require_not_below_first(largest: int, first: int) -> None:
    if largest < first:
        raise ValueError(f"max_steps_per_update={largest} is below steps_per_update={first}")
