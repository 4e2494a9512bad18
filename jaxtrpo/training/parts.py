"""The parts that a run is assembled from, made of what the user chose and of the algorithm's defaults."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.algorithm import Algorithm, starting_with
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.config import USUAL_DISCOUNT, Config
from jaxtrpo.config.checks import plain, require_number, require_whole, whole
from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import parse, settings_in, with_argument
from jaxtrpo.critics.critic import CriticMaker
from jaxtrpo.policies.custom import policy_maker
from jaxtrpo.policies.networks import PolicyMaker
from jaxtrpo.policies.value_head import SHARED
from jaxtrpo.training.metrics import RESERVED

IMAGE_NETWORK = "cnn"  # policy and critic by default where observations have images


class Parts(NamedTuple):
    """The parts that a run is assembled from."""

    algorithm: Algorithm
    policy: PolicyMaker
    critic: CriticMaker
    rule: Rule
    rule_was_chosen: bool  # by the user; otherwise it is the algorithm's default
    surrogate: Surrogate | None  # objective of the policy in place of the algorithm's own
    discount: float
    normalize_observations: bool
    frame_stack: int = 1
    noise_correlation: float = 0.0
    select: str = "best"


def make_parts(
    config: Config,
    *,
    algorithm: Algorithm | str,
    policy: Any,
    critic: CriticMaker | str | None,
    adapt: Rule | str | None,
    surrogate: Surrogate | None,
) -> tuple[Parts, int]:
    """Builds the parts from spec strings and the algorithm's defaults; also returns its default steps_per_update.

    The arguments besides the settings in `config` are those of `train`.
    """

    def value(kind: str, given: Any, wanted: type) -> Any:
        made = parse(kind, given) if isinstance(given, str) else given
        if not isinstance(made, wanted):
            raise ValueError(f"{kind}={short(given)} must be a spec string or a value of type {wanted.__name__}")
        return made

    chosen = value("algorithm", algorithm, Algorithm)
    _require_sound(chosen)
    usual_steps = int(chosen.hyperparameters["steps_per_update"])
    given = {"max_kl": config.max_kl, "steps_per_update": config.steps_per_update}
    chosen = starting_with(chosen, **{name: number for name, number in given.items() if number is not None})
    maker = policy_maker(chosen.policy if policy is None else policy)
    parts = Parts(
        algorithm=chosen,
        policy=maker,
        critic=value("critic", usual_critic(chosen, maker) if critic is None else critic, CriticMaker),
        rule=value("adapt", chosen.adapt if adapt is None else adapt, Rule),
        rule_was_chosen=adapt is not None,
        surrogate=surrogate,
        discount=USUAL_DISCOUNT if config.discount is None else config.discount,
        normalize_observations=config.normalize_observations,
        frame_stack=config.frame_stack,
        noise_correlation=config.noise_correlation or 0.0,
        select=config.select,
    )
    return parts, usual_steps


def _require_sound(algorithm: Algorithm) -> None:
    """Raises ValueError if numbers of an algorithm, which may be the user's own, are out of range, or names taken."""
    of = f"algorithm={algorithm.spec_string}: its "
    settings = dict(algorithm.hyperparameters)
    if "steps_per_update" not in settings:
        raise ValueError(f"{of}hyperparameters must have steps_per_update, the steps of a batch")
    if taken := sorted({*settings} & RESERVED):
        raise ValueError(f"{of}hyperparameters have {', '.join(taken)}, a name that every run uses; rename it")
    require_whole(1, **{f"{of}steps_per_update": whole(plain(settings["steps_per_update"]))})
    require_number("a number", lambda value: True, **{of + name: plain(value) for name, value in settings.items()})
    sizes = {name: getattr(algorithm, name) for name in ("num_envs", "steps_of_each", "updates_at_once")}
    require_whole(1, **{of + name: number for name, number in sizes.items()})


def with_image_critic(policy: PolicyMaker) -> PolicyMaker:
    """Returns a policy with a critic that takes images, which that of most policies by default does not."""
    return policy._replace(critic=policy.critic or IMAGE_NETWORK)


def usual_critic(algorithm: Algorithm, policy: PolicyMaker) -> str:
    """Returns the algorithm's default critic, or one like the policy with the same settings of its fit."""
    if policy.critic == SHARED:
        return SHARED
    if policy.critic is None or not algorithm.critic.startswith("mlp"):
        return algorithm.critic
    spec = policy.critic
    for name, value in settings_in("critic", algorithm.critic):
        if name != "hidden":
            spec = with_argument(spec, name, value)
    return spec
