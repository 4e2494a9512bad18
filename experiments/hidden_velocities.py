"""What memory is worth where velocities are hidden: recurrent policies beside feed-forward ones and stacked frames.

    pip install '.[experiments]'
    python experiments/hidden_velocities.py [--tasks T ...] [--systems S ...] [--seeds N ...] [--python P] [--quick]

Runs are made one at a time, and those that are in the table are not made again. `--python` names an interpreter that
has sb3-contrib. Written to experiments/results/hidden_velocities/.
"""

from __future__ import annotations

import functools

from common.hidden import positions_only
from common.runs_of_systems import Peer, Study, Task, main

SEEDS = (0, 1, 2, 3, 4)
CLASSIC, MUJOCO = 100_000, 1_000_000  # environment steps
PPO = "ppo(learning_rate=0.001)"


def task(name: str, steps: int, **more: object) -> Task:
    return Task(functools.partial(positions_only, name), steps, **more)  # type: ignore[arg-type]


TASKS = {
    "CartPole-v1": task("CartPole-v1", CLASSIC, published="500"),
    "Pendulum-v1": task("Pendulum-v1", CLASSIC, settings={"discount": 0.9}, published="-218"),
    **{name: task(name, MUJOCO) for name in ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")},
}
SYSTEMS = {
    "trpo, gru": {"algorithm": "trpo", "policy": "gru"},
    "trpo, lstm": {"algorithm": "trpo", "policy": "lstm"},
    "ppo, gru": {"algorithm": PPO, "policy": "gru"},
    "trpo, mlp": {"algorithm": "trpo", "policy": "mlp"},
    "trpo, mlp, 4 frames": {"algorithm": "trpo", "policy": "mlp", "frame_stack": 4},
    "ppo, mlp, 4 frames": {"algorithm": PPO, "policy": "mlp", "frame_stack": 4},
    "RecurrentPPO (sb3-contrib)": Peer("recurrent_ppo.py", seeds=(0,), flags={"seconds": 300}),
}
ABOUT = """# Memory where velocities are hidden

Made by `python experiments/hidden_velocities.py`. Observations are positions and angles only. Return of the
deterministic policy after training, over 100 episodes: mean over seeds, and each seed; "exploring" is the mean of the
last 100 training episodes. `discount=0.9` on Pendulum and `learning_rate=0.001` of `ppo` were chosen on seed 100;
everything else is the default. Published are the returns of rl-zoo's tuned RecurrentPPO, with LSTM.
"""
AFTER = """
sb3-contrib's RecurrentPPO has its default settings and is stopped after 300 seconds, or at the number of steps that the
others take. Seconds were taken while other work ran on the machine. Simulators of CartPole and Pendulum are stepped in
Python by all of them, those of MuJoCo only by RecurrentPPO.
"""

if __name__ == "__main__":
    main(Study("hidden_velocities", ABOUT, TASKS, SYSTEMS, SEEDS, after=AFTER), __doc__)
