"""`train`: what a script calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.algorithm import Algorithm
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.config import Config
from jaxtrpo.critics.critic import CriticMaker
from jaxtrpo.envs.base import Environment
from jaxtrpo.training.prepare import prepare
from jaxtrpo.training.record import OnUpdate, Result


def train(  # noqa: D417  (settings are described in Config, once)
    env: str | Environment | Callable[[], Any],
    *,
    total_steps: int = Config.total_steps,
    seed: int = Config.seed,
    algorithm: Algorithm | str = Config.algorithm,
    policy: Any = Config.policy,
    critic: CriticMaker | str | None = Config.critic,
    adapt: Rule | str | None = Config.adapt,
    surrogate: Surrogate | None = None,
    max_kl: float | None = Config.max_kl,
    steps_per_update: int | None = Config.steps_per_update,
    max_steps_per_update: int | None = Config.max_steps_per_update,
    discount: float = Config.discount,
    normalize_observations: bool = Config.normalize_observations,
    actors: int | None = Config.actors,
    device: str = Config.device,
    processes: int | None = Config.processes,
    num_envs: int | None = Config.num_envs,
    segment_length: int | None = Config.segment_length,
    max_episode_steps: int | None = Config.max_episode_steps,
    eval_every: int = Config.eval_every,
    eval_episodes: int = Config.eval_episodes,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    checkpoint_seconds: float = 60.0,
    keep_best: bool = False,
    keep_every: int = 0,
    on_update: OnUpdate | None = None,
    tensorboard: bool = False,
    wandb: str | None = None,
    progress: bool = True,
    **unknown: Never,
) -> Result:
    """Trains a policy.

    Algorithm, policy, critic and rule are values, such as `ppo(clip=0.1)`, or spec strings, as in the shell. Settings
    that are not listed below are described in `jaxtrpo.Config`.

    Args:
      env: name (see `make_env`), a function that returns a `gymnasium.Env`, or an environment of your own.
      algorithm: how it learns (see `jaxtrpo.algorithms`, and `jaxtrpo algorithms` in the shell).
      policy: network that acts: `mlp(...)` of `jaxtrpo.policies.networks`, or a flax module of your own that gives
        distributions of actions (see `jaxtrpo.policies.custom`).
      critic: what predicts returns (see `jaxtrpo.critics`); what goes with the algorithm if not given.
      adapt: how settings change between updates (see `jaxtrpo.adapt`); what goes with the algorithm if not given.
      surrogate: what the policy maximises (see `jaxtrpo.algorithms.surrogates`), in place of what the algorithm would.
      out: directory for metrics.csv, the policy and checkpoints; nothing is written without it.
      overwrite: replace a run that `out` already holds.
      resume: go on with the run that `out` holds, if it holds one, from its last checkpoint. It takes the same
        arguments as before, except that `total_steps`, `actors`, `processes` and `device` may differ, and ends as if it
        had never stopped: to the bit if there are as many actors. Settings are compared with those of the run; what you
        wrote yourself (environment, `surrogate`, a rule) cannot be. Environments whose simulators cannot be saved
        (Gymnasium's) begin new episodes, and `a3c` and `naf(asynchronous=True)` are never the same twice. Where it
        shall be longer, what goes by the length of a run (schedules; `trust` beyond a million steps) goes by the new
        one from there on.
      checkpoint_seconds: seconds between checkpoints; there also is one at the end of a run, and where it is
        interrupted, by SIGTERM too.
      keep_best: keep the state with the best evaluation, as `out`/best; needs `eval_every`.
      keep_every: environment steps between states that are kept, as `out`/step-0000200704 and so on; 0 for none.
        Kept states are directories like `out`, which `load_policy` and `jaxtrpo evaluate` take.
      on_update: (row of metrics, state of the run) called after each update; what it raises ends the run, which is
        saved. Where several updates are one program the state is that after the last of them.
      tensorboard: write event files into `out`/tensorboard.
      wandb: project of Weights & Biases (the package `wandb`) that is told the metrics; its own settings say where.
      progress: show a bar, or lines where the output is no terminal.

    Returns:
      The policy and the metrics.

    Raises:
      ValueError: a setting is out of bounds or does not fit the others, the environment is not known, its first
        observation is not finite, or the run in `out` is not one that can go on so. Nothing has been compiled or
        written then.
      TypeError: there is no such setting; the message says which part has it, or near names.
      FileExistsError: `out` holds a run, and neither `overwrite` nor `resume` says what to do with it.
      BlockingIOError: another process is writing to `out`.
      SimulatorError: a simulator of Gymnasium's kind failed while training; what was learned before is saved.
      OutputError: `out` cannot be written to any more, as on a full disk; what was saved before is whole.
      ConnectionError: other processes do not come, or are gone before the training begins.
      Terminated: a SystemExit, since SIGTERM was received; everything is saved.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("progress", "unknown")}
    return prepare(**arguments, **unknown).run(progress=progress)
