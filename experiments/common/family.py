"""Which algorithm is trained on which task, how long and with which settings: data of algorithms.py and its like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.store import Job

ALL = ("trpo", "ppo", "npg", "trpo_penalty", "pg", "a2c", "a3c", "pg, no critic")
BEST = ("trpo", "ppo")  # that every task is trained with, five seeds each
GYMNASIUM = {
    "CartPole-v1": 100_000,
    "Acrobot-v1": 200_000,
    "Pendulum-v1": 300_000,
    "LunarLander-v3": 1_000_000,
    "BipedalWalker-v3": 3_000_000,
}
# Version 4 of Ant and Humanoid is nearest to the versions that most results are published for.
MUJOCO = (
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5", "Reacher-v5", "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5", "Ant-v4", "Humanoid-v4",
)  # fmt: skip
OF_ALL = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Reacher-v5", "InvertedPendulum-v5")  # with every algorithm
MILLION = 1_000_000
EVALUATIONS = 25

OF_A2C = {"critic": "mlp(learning_rate=0.003)", "steps_per_update": 512, "num_envs": 16, "segment_length": 16}
ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"algorithm": name} for name in ALL if "," not in name},
    "trpo": {},
    # The results were made with the defaults of that time.
    "a2c": {"algorithm": "a2c(gae_lambda=0.95)", **OF_A2C},
    "a3c": {"algorithm": "a3c(gae_lambda=0.95)", **OF_A2C, "actors": 2},
    "pg, no critic": {"algorithm": "pg", "critic": "none"},
}
# Settings of a task: those of an algorithm there, or of all ("").
TUNED: Mapping[tuple[str, str], Mapping[str, Any]] = {
    # The only runs of more than a million steps; they were made when batches could grow at any time.
    **{("BipedalWalker-v3", name): {"adapt": "trust(settle_steps=3_000_000)"} for name in ("trpo", "npg")},
    # These are the defaults of today, found on seeds 100 to 119.
    **{
        ("CartPole-v1", name): {
            "algorithm": name,
            "critic": "mlp(learning_rate=0.01)",
            "steps_per_update": 80,
            "segment_length": 5,
        }
        for name in ("a2c", "a3c")
    },
}


def total_steps(env: str) -> int:
    """How long a task is trained."""
    return GYMNASIUM.get(env, MILLION)


def job(env: str, algorithm: str, seed: int) -> Job:
    """One run of the comparison."""
    steps = total_steps(env)
    often = 20_000 if algorithm in BEST else 50_000  # what is evaluated takes a third of the time of a run
    every = often if env in MUJOCO else steps // EVALUATIONS
    length = {} if steps == MILLION else {"total_steps": steps}
    tuned = {**TUNED.get((env, ""), {}), **TUNED.get((env, algorithm), {})}
    return Job(env, seed, {**ALGORITHMS[algorithm], **length, "eval_every": every, **tuned})


def seeds_of(env: str, algorithm: str) -> tuple[int, ...]:
    """Five for the best two, on the short tasks and for A2C on MuJoCo, else three; none where it is not trained.

    What is asked of A2C and A3C on CartPole counts seeds of ten.
    """
    if env == "CartPole-v1" and algorithm in ("a2c", "a3c"):
        return tuple(range(10))
    if algorithm in BEST:
        return (0, 1, 2, 3, 4)
    if env in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1") or (algorithm == "a2c" and env in MUJOCO):
        return (0, 1, 2, 3, 4)
    return (0, 1, 2) if env in GYMNASIUM or env in OF_ALL else ()
