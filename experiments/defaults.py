"""What the defaults reach: for each task, the algorithm and settings that `jaxtrpo train TASK` has.

    python experiments/defaults.py [--tasks T ...] [--seeds N ...] [--quick]

Runs are made one at a time, on all cores, and those that are in the table are not made again. Written to
experiments/results/defaults/.
"""

from __future__ import annotations

from common.runs_of_systems import Study, Task, main

SEEDS = (0, 1, 2, 3, 4)
STEPS = 1_000_000
# The best result of any on-policy algorithm, and that of Tianshou's SAC.
PUBLISHED = {
    "HalfCheetah-v5": "5784 (Tianshou's PPO); SAC 12139",
    "Hopper-v5": "3372 (sb3-contrib's TRPO); SAC 3542",
    "Walker2d-v5": "4502 (sb3-contrib's TRPO); SAC 5007",
    "Ant-v5": "3554 (sb3-contrib's TRPO); SAC 5850",
    "Humanoid-v5": "1726 (Tianshou's A2C); SAC 5489",
    "Swimmer-v5": "359 (sb3-contrib's TRPO, discount 0.9999); SAC 44",
    "Reacher-v5": "-4.1 (Tianshou's PPO); SAC -2.6",
    "InvertedPendulum-v5": "1000 (Tianshou's PPO); SAC 1000",
    "InvertedDoublePendulum-v5": "9258 (Tianshou's A2C); SAC 9360",
}
TASKS = {name: Task(name, STEPS, published=published) for name, published in PUBLISHED.items()}
ABOUT = """# What the defaults reach

Made by `python experiments/defaults.py`: a million steps, nothing chosen but the task and the seed. Return of the
policy that a run hands out, deterministic, over 100 episodes: mean over seeds, and each seed; "exploring" is the mean
of the last 100 training episodes. Published is the best result of any on-policy algorithm after a million steps, and
that of Tianshou's SAC, on earlier versions of some environments. Seconds are those of all cores of the machine,
the evaluations of a run included, and with programs that an earlier run had compiled.
"""

if __name__ == "__main__":
    main(Study("defaults", ABOUT, TASKS, {"default": {}}, SEEDS), __doc__)
