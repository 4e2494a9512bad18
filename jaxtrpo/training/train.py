"""`train`: trains one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    total_steps: int | float | None = Config.total_steps,
    seed: int = Config.seed,
    algorithm: Algorithm | str | None = Config.algorithm,
    policy: Any = Config.policy,
    critic: CriticMaker | str | None = Config.critic,
    adapt: Rule | str | None = Config.adapt,
    surrogate: Surrogate | None = None,
    max_kl: float | None = Config.max_kl,
    steps_per_update: int | None = Config.steps_per_update,
    max_steps_per_update: int | None = Config.max_steps_per_update,
    discount: float | None = Config.discount,
    normalize_observations: bool = Config.normalize_observations,
    frame_stack: int = Config.frame_stack,
    noise_correlation: float | None = Config.noise_correlation,
    select: str = Config.select,
    actors: int | None = Config.actors,
    device: str = Config.device,
    processes: int | None = Config.processes,
    num_envs: int | None = Config.num_envs,
    segment_length: int | None = Config.segment_length,
    max_episode_steps: int | None = Config.max_episode_steps,
    env_options: str | Mapping[str, Any] | None = Config.env_options,
    log_info: str | tuple[str, ...] | list[str] | None = Config.log_info,
    eval_every: int | None = Config.eval_every,
    eval_episodes: int = Config.eval_episodes,
    start_from: str | Path | None = Config.start_from,
    stop_at_return: float | None = Config.stop_at_return,
    stop_after_evaluations: int | None = Config.stop_after_evaluations,
    stop_after_seconds: float | int | None = Config.stop_after_seconds,
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

    Algorithm, policy, critic and rule may be given as values, such as `ppo(clip=0.1)`, or as spec strings, as in the
    shell. Settings that are not listed below are described in `jaxtrpo.Config`.

    Args:
      env: name (see `make_env`), a function that returns a `gymnasium.Env` or a `gymnasium.vector.VectorEnv`, or an
        environment of your own.
      algorithm: learning algorithm (see `jaxtrpo.algorithms`, and `jaxtrpo algorithms` in the shell); if None, `trpo`,
        or `trpo_replay` for actions of many coordinates (see `jaxtrpo.Config`).
      policy: network that acts: `mlp(...)` of `jaxtrpo.policies.networks`, `cnn(...)` of `jaxtrpo.policies.cnn`,
        `gru(...)` or `lstm(...)` of `jaxtrpo.policies.recurrent`, or your own flax module that returns action
        distributions (see `jaxtrpo.policies.custom`).
      critic: predicts returns (see `jaxtrpo.critics`); the algorithm's default if None.
      adapt: rule that changes settings between updates (see `jaxtrpo.adapt`); the algorithm's default if None.
      surrogate: objective of the policy (see `jaxtrpo.algorithms.surrogates`) in place of the algorithm's own.
      out: directory for metrics.csv, the policy and checkpoints; if None, nothing is written.
      overwrite: replace the run in `out`, if there is one.
      resume: resume the run in `out` from its last checkpoint, if there is one. All settings must be those of the run
        except `total_steps`, `actors`, `processes`, `device`, `select`, `stop_at_return`, `stop_after_evaluations`
        and `stop_after_seconds`. Settings are compared with those of the run, but of an environment, `surrogate`, rule,
        algorithm, critic or network of your own only names and shapes. With the same number of actors, the result is
        bit-identical to that of an uninterrupted run, except with `a3c`, and `naf`, `dqn` and `sac` with
        `asynchronous=True`, which are never reproducible, with Gymnasium's simulators, which cannot be saved and begin
        new episodes, and with `stop_after_seconds`. A larger `total_steps` also changes what depends on the length of
        the run (schedules; `trust` beyond a million steps) from the resumed step on.
      checkpoint_seconds: seconds between checkpoints; another is saved at the end, on interruption and on SIGTERM.
      keep_best: keep a snapshot of the state with the best evaluation in `out`/best; needs `eval_every`.
      keep_every: environment steps between snapshots in `out`/step-0000200704 and so on; 0 for none. A snapshot is a
        directory like `out`, which `load_policy` and `jaxtrpo evaluate` accept.
      on_update: called as on_update(row, state) after each update, with its row of metrics and the state of the run,
        without the contents of a replay buffer, which would have to be copied (`replay` of the learner's
        state is None). If it returns False, the run is saved and stops; an exception also ends the run, after it was
        saved. If it returns the state with other parameters of the environments (see `set_env`), the run continues
        from that state. If one compiled program makes several updates (as with `a2c`), `state` is the state after the
        last of them, and the run stops there.
      tensorboard: write event files to `out`/tensorboard.
      wandb: Weights & Biases project to log to (needs the package `wandb`, and is configured by its own environment
        variables).
      progress: show a progress bar, or lines where the output is not a terminal.

    Returns:
      The policy (see `Config.select`), the metrics, the final state and the settings.

    Raises:
      ValueError: a setting is out of bounds or does not fit the others, the environment is unknown, its first
        observation is not finite, the run in `out` cannot be resumed with these arguments, or the policy in
        `start_from` does not fit. Nothing has been compiled or written by then.
      TypeError: a setting is unknown; the message suggests similar names, or the component that has the setting.
      FileExistsError: `out` holds a run, and neither `overwrite` nor `resume` is set.
      DirectoryInUse: a BlockingIOError; another process is writing to `out`, or has just written to it.
      SimulatorError: a Gymnasium simulator failed during training; what was learned before is saved.
      OutputError: `out` is no longer writable, as on a full disk; what was saved before is intact.
      ConnectionError: the first of several processes cannot listen at its address.
      Interrupted: a KeyboardInterrupt, raised on Ctrl-C (SIGINT) during training, so that a loop over several runs
        also ends. The run is saved, and the attribute `result` is the Result so far.
      Terminated: a SystemExit, raised on SIGTERM; everything is saved.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("progress", "unknown")}
    return prepare(**arguments, **unknown).run(progress=progress)
