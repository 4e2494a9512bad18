"""What memory is worth where velocities are hidden: recurrent policies beside feed-forward ones and stacked frames.

    pip install '.[experiments]'
    python experiments/hidden_velocities.py [--tasks T ...] [--systems S ...] [--seeds N ...] [--python P] [--quick]

Runs are made one at a time, and those that are in the table are not made again. `--python` names an interpreter that
has sb3-contrib, MuJoCo and Gymnasium. Written to experiments/results/hidden_velocities/.
"""

from __future__ import annotations

from common.hidden import positions_only
from common.runs_of_systems import Peer, Study, Task, main

SEEDS = (0, 1, 2, 3, 4)
STEPS = 100_000
MUJOCO = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")
CLASSIC = ("CartPole-v1", "Pendulum-v1")
TUNED = "trpo tuned for Pendulum, gru"
FASTER = {"algorithm": "ppo(learning_rate=0.001)"}
FASTER_GRU, FASTER_FRAMES = "ppo with a higher learning rate, gru", "ppo with a higher learning rate, mlp, 4 frames"


TASKS = {
    "CartPole-v1": Task(positions_only("CartPole-v1"), STEPS, published="500"),
    "Pendulum-v1": Task(positions_only("Pendulum-v1"), STEPS, {"discount": 0.9}, published="-218"),
    **{name: Task(positions_only(name), 10 * STEPS) for name in MUJOCO},
}
SYSTEMS = {
    "trpo, gru": {"algorithm": "trpo", "policy": "gru"},
    TUNED: {
        "algorithm": "trpo(cg_damping=0.001)",
        "policy": "gru(initial_log_std=0.5)",
        "noise_correlation": 0.8,
        "steps_per_update": 2560,
    },
    "trpo with more damping, gru": {"algorithm": "trpo(cg_damping=0.03)", "policy": "gru"},
    "trpo with more damping, lstm": {"algorithm": "trpo(cg_damping=0.03)", "policy": "lstm"},
    "ppo, gru": {"algorithm": "ppo", "policy": "gru"},
    FASTER_GRU: {**FASTER, "policy": "gru"},
    "trpo, mlp": {"algorithm": "trpo", "policy": "mlp"},
    "trpo, mlp, 4 frames": {"algorithm": "trpo", "policy": "mlp", "frame_stack": 4},
    "ppo, mlp, 4 frames": {"algorithm": "ppo", "policy": "mlp", "frame_stack": 4},
    FASTER_FRAMES: {**FASTER, "policy": "mlp", "frame_stack": 4},
    "RecurrentPPO (sb3-contrib)": Peer("recurrent_ppo.py", MUJOCO, seeds=(0,)),
    "RecurrentPPO (sb3-contrib), 180 s": Peer("recurrent_ppo.py", MUJOCO, seeds=(0,), flags={"seconds": 180}),
}
ONLY = {TUNED: ("Pendulum-v1",), FASTER_GRU: CLASSIC, FASTER_FRAMES: CLASSIC}
ABOUT = """# Memory where velocities are hidden

Made by `python experiments/hidden_velocities.py`. Observations are positions and angles only. Return of the
deterministic policy after training, over 100 episodes: mean over seeds, and each seed; "exploring" is the mean of the
last 100 training episodes, where it was recorded. `discount=0.9` on Pendulum was chosen on seed 100; everything else is
the default, except:

- "with more damping": `cg_damping=0.03`, the default without memory; with memory, it is 0.005, chosen on seeds 100 to
  105 of Pendulum;
- "tuned for Pendulum": `cg_damping=0.001`, a first log standard deviation of 0.5, 2,560 steps per update and
  `noise_correlation=0.8`, chosen on seeds 111 to 118;
- "with a higher learning rate": `learning_rate=0.001` of `ppo`, chosen on seed 100 of Pendulum.

Published are the returns of rl-zoo's tuned RecurrentPPO, with LSTM.
"""
AFTER = """
CartPole and Pendulum are stepped in Python, and their seconds were taken while other work ran on the machine. So were
those of seeds 3 and 4 and of `ppo` on the MuJoCo tasks, which had one core. sb3-contrib's RecurrentPPO has its default
settings with eight environments, whose observations and rewards are not normalised, so that its returns do not compare
with ours. In rows with "180 s", it is stopped after these, alone on the machine; its million
steps were taken on one core beside other work and with pauses, so their seconds say nothing."""

if __name__ == "__main__":
    main(Study("hidden_velocities", ABOUT, TASKS, SYSTEMS, SEEDS, only=ONLY, after=AFTER), __doc__)
