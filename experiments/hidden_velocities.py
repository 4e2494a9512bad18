"""What memory is worth where velocities are hidden: recurrent policies beside feed-forward ones and stacked frames.

    pip install '.[experiments]'
    python experiments/hidden_velocities.py [--tasks T ...] [--systems S ...] [--seeds N ...] [--quick]

Runs are made one at a time, and those that are in the table are not made again. Written to
experiments/results/hidden_velocities/.
"""

from __future__ import annotations

from common.hidden import positions_only
from common.runs_of_systems import Study, Task, main

SEEDS = (0, 1, 2, 3, 4)
STEPS = 100_000
PPO = "ppo(learning_rate=0.001)"


TASKS = {
    "CartPole-v1": Task(positions_only("CartPole-v1"), STEPS, published="500"),
    "Pendulum-v1": Task(positions_only("Pendulum-v1"), STEPS, {"discount": 0.9}, published="-218"),
}
SYSTEMS = {
    "trpo, gru": {"algorithm": "trpo", "policy": "gru"},
    "trpo, lstm": {"algorithm": "trpo", "policy": "lstm"},
    "ppo, gru": {"algorithm": PPO, "policy": "gru"},
    "trpo, mlp": {"algorithm": "trpo", "policy": "mlp"},
    "trpo, mlp, 4 frames": {"algorithm": "trpo", "policy": "mlp", "frame_stack": 4},
    "ppo, mlp, 4 frames": {"algorithm": PPO, "policy": "mlp", "frame_stack": 4},
}
ABOUT = """# Memory where velocities are hidden

Made by `python experiments/hidden_velocities.py`. Observations are positions and angles only. Return of the
deterministic policy after training, over 100 episodes: mean over seeds, and each seed; "exploring" is the mean of the
last 100 training episodes, where it was recorded. `discount=0.9` on Pendulum and `learning_rate=0.001` of `ppo` were
chosen on seed 100; everything else is the default. Published are the returns of rl-zoo's tuned RecurrentPPO, with LSTM.
"""
AFTER = """
Seconds were taken while other work ran on the machine. Simulators of CartPole and Pendulum are stepped in Python."""

if __name__ == "__main__":
    main(Study("hidden_velocities", ABOUT, TASKS, SYSTEMS, SEEDS, after=AFTER), __doc__)
