"""Names of settings in other libraries and of settings of parts, with what to write instead."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from jaxtrpo.config import USUAL_ALGORITHM, Config
from jaxtrpo.config.specs import KINDS, factory, is_built_in, with_argument

# Names here by names elsewhere (Stable-Baselines3, CleanRL, RLlib, Spinning Up, Tianshou, Brax). Where there are
# several, the first one that the run or its algorithm has.
ALIASES = {
    **dict.fromkeys(("gamma", "discount_factor", "discounting"), ("discount",)),
    **dict.fromkeys(("total_timesteps", "num_timesteps", "timesteps", "max_steps", "num_env_steps"), ("total_steps",)),
    **dict.fromkeys(("n_envs", "num_environments", "num_workers", "n_workers"), ("num_envs",)),
    **dict.fromkeys(("n_cpus", "num_cpus", "n_jobs"), ("actors",)),
    **dict.fromkeys(
        ("steps_per_epoch", "train_batch_size", "timesteps_per_batch", "steps_per_collect"), ("steps_per_update",)
    ),
    **dict.fromkeys(("batch_size", "sgd_minibatch_size"), ("minibatch_size", "steps_per_update")),
    **dict.fromkeys(("max_episode_length", "max_ep_len", "episode_length", "time_limit"), ("max_episode_steps",)),
    **dict.fromkeys(("eval_freq", "eval_interval", "evaluation_interval"), ("eval_every",)),
    **dict.fromkeys(("n_eval_episodes", "num_eval_episodes"), ("eval_episodes",)),
    **dict.fromkeys(("normalize_obs", "norm_obs", "obs_norm"), ("normalize_observations",)),
    **dict.fromkeys(("target_kl", "delta"), ("target_kl", "kl_stop", "max_kl")),
    **dict.fromkeys(("lr", "pi_lr", "policy_lr", "actor_lr"), ("learning_rate",)),
    **dict.fromkeys(("lam", "lmbda", "lambda_", "gae_lam"), ("gae_lambda",)),
    **dict.fromkeys(("ent_coef", "entropy_coef", "entropy_coeff", "entropy_cost"), ("entropy_bonus",)),
    **dict.fromkeys(("clip_range", "clip_ratio", "clip_param", "clip_coef", "clipping_epsilon"), ("clip",)),
    **dict.fromkeys(("n_epochs", "num_epochs", "update_epochs", "num_sgd_iter"), ("epochs",)),
    **dict.fromkeys(("max_grad_norm", "grad_clip"), ("max_gradient_norm",)),
    **dict.fromkeys(("buffer_size", "replay_size"), ("replay",)),
    **dict.fromkeys(("tau", "polyak"), ("target_rate",)),
    **dict.fromkeys(("cg_max_steps", "cg_iters"), ("cg_iterations",)),
    **dict.fromkeys(("hidden_sizes", "net_arch", "hidden_dims"), ("hidden",)),
    "log_std_init": ("initial_log_std",),
    **dict.fromkeys(("clip_range_vf", "vf_clip_param", "clip_vloss"), ("value_clip",)),
}
# What to write in Python and in the shell, where that is more than another name.
SENTENCES = {
    **dict.fromkeys(
        ("n_steps", "num_steps", "rollout_length", "unroll_length"),
        (
            "steps_per_update=2048, the steps of all environments together",
            "--steps-per-update 2048, the steps of all environments together",
        ),
    ),
    "verbose": ("progress=False to hide the progress", "--quiet to hide the progress"),
    **dict.fromkeys(("log_dir", "logdir", "save_path"), ('out="runs/one"', "--out runs/one")),
    "tensorboard_log": ('tensorboard=True, out="runs/one"', "--tensorboard --out runs/one"),
    **dict.fromkeys(("env_id", "env_name", "gym_id"), ('train("Hopper-v5", ...)', "jaxtrpo train Hopper-v5 ...")),
    "callback": ("on_update=function, called with (row of metrics, state)", "a script, train(..., on_update=function)"),
    **dict.fromkeys(("num_seeds", "n_seeds"), ("train_many(..., seeds=range(5))", "--seeds 5")),
    **dict.fromkeys(
        ("vf_coef", "value_coef", "value_loss_coef", "vf_loss_coeff"),
        ('critic="mlp(learning_rate=0.001)": the critic has a network of its own; value_weight of ppo and a2c is for '
         'policy="mlp(shared=True)"',
         '--critic "mlp(learning_rate=0.001)": the critic has a network of its own; value_weight of ppo and a2c is for '
         '--policy "mlp(shared=True)"'),
    ),
}  # fmt: skip
_REPLAY = "use sac or trpo_replay, which also learn from a replay buffer"
_DISCRETE = "use dqn, which has double Q-learning and n-step returns"
# Names of parts elsewhere, and what to use here.
PARTS = {
    "algorithm": {
        **dict.fromkeys(("td3", "ddpg", "tqc", "redq", "crossq", "droq"), _REPLAY),
        **dict.fromkeys(("ddqn", "qrdqn", "rainbow", "c51"), _DISCRETE),
        **dict.fromkeys(("reinforce", "vpg", "policy_gradient"), "use pg"),
        "ppo2": "use ppo",
        **dict.fromkeys(("recurrentppo", "ppo_lstm"), "use ppo with the policy lstm"),
        "maskableppo": "use ppo, which asks environments for action masks",
    },
    "policy": {
        **dict.fromkeys(("mlppolicy", "multiinputpolicy", "actorcriticpolicy"), "use mlp"),
        "cnnpolicy": "use cnn, the default for observations with images",
        **dict.fromkeys(("mlplstmpolicy", "cnnlstmpolicy", "multiinputlstmpolicy"), "use lstm"),
    },
    "adapt": {},
    "critic": {},
}


def known_elsewhere(kind: str, name: str) -> str | None:
    """Returns what to use instead of a part of another library, or the spelling of a part of this one."""
    plain = name.lower()
    return f"use {plain}" if plain in KINDS[kind] else PARTS[kind].get(plain)


def advice(name: str, value: Any, *, algorithm: str = USUAL_ALGORITHM, shell: bool = False) -> str | None:
    """Returns what to write instead of an unknown setting, such as `discount=0.9` for gamma.

    Args:
      name: the setting, with underscores.
      value: its value, which the advice repeats.
      algorithm: spec string of the run's algorithm, of which the setting may be one.
      shell: whether the advice is for the shell instead of Python.

    Returns:
      The advice; None if nothing is known about the name.
    """
    if name in SENTENCES:
        return SENTENCES[name][shell]
    runs = [field.name for field in dataclasses.fields(Config)]
    name = name.removeprefix("algorithm_")
    names = ALIASES.get(name, (name,))
    for each in names:
        if each in runs:
            return _setting(each, value, shell)
        if each in _settings("algorithm", algorithm):
            return _part("algorithm", algorithm, each, value, shell)
    elsewhere = list(_elsewhere(names[0], value, shell))
    if not elsewhere:
        return None
    of_algorithm = elsewhere[0].removeprefix("--").startswith("algorithm")
    lacks = f" ({algorithm.partition('(')[0]} has no {names[0]})" if of_algorithm else ""
    return " or ".join(elsewhere) + lacks


def swept_name(name: str, algorithm: str) -> str | None:
    """Returns the name that a sweep has for an unknown setting, such as `algorithm_learning_rate` for lr, if any."""
    names = ALIASES.get(name, (name,))
    runs = [each for each in names if each in (field.name for field in dataclasses.fields(Config))]
    own = [f"algorithm_{each}" for each in names if each in _settings("algorithm", algorithm)]
    others = [
        f"{kind}_{each}"
        for kind in ("policy", "critic")
        for each in names
        if any(each in _settings(kind, part) for part in KINDS[kind])
    ]
    return next(iter([*own, *runs, *others]), None)


def _elsewhere(name: str, value: Any, shell: bool) -> Iterator[str]:
    """Yields what to write for a setting of parts that the run does not have, the likeliest first."""
    for kind, names in KINDS.items():
        inner = name.removeprefix(f"{kind}_")
        with_it = [part for part in names if inner in _settings(kind, part)]
        if inner != name and with_it:
            yield _part(kind, with_it[0], inner, value, shell)
            return
    if name in _settings("policy", "mlp"):
        yield _part("policy", "mlp", name, value, shell)
        return
    with_it = [part for part in ("ppo", *KINDS["algorithm"]) if name in _settings("algorithm", part)]
    if with_it:
        yield _part("algorithm", with_it[0], name, value, shell)
    for kind in ("critic", "adapt"):
        with_it = [part for part in KINDS[kind] if name in _settings(kind, part)]
        if with_it:
            yield _part(kind, with_it[0], name, value, shell)
            return


def _settings(kind: str, spec: str) -> list[str]:
    if not is_built_in(kind, spec):
        return []
    return list(inspect.signature(factory(kind, spec.partition("(")[0].strip())).parameters)


def _setting(name: str, value: Any, shell: bool) -> str:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(getattr(Config, name), bool):
        given = bool(value)
        return (flag if given else f"--no-{flag[2:]}") if shell else f"{name}={given}"
    return f"{flag} {_text(value)}" if shell else f"{name}={_text(value)}"


def _part(kind: str, spec: str, name: str, value: Any, shell: bool) -> str:
    literal = _text(value)
    spec = with_argument(spec, name, value) if literal != "..." else f"{spec.partition('(')[0]}({name}=...)"
    return f'--{kind} "{spec}"' if shell else f'{kind}="{spec}"'


def _text(value: Any) -> str:
    """Returns a short Python literal as it is typed, and ... for other values."""
    text = repr(value)
    try:
        return text if ast.literal_eval(text) == value and len(text) < 40 else "..."
    except (ValueError, SyntaxError):
        return "..."
