"""What is learned from images: a door whose key is found from what is ahead (Minigrid).

    pip install '.[experiments]' minigrid
    python experiments/images.py [--tasks T ...] [--systems S ...] [--seeds N ...] [--quick]

Runs are made one at a time, and those that are in the table are not made again. Written to experiments/results/images/.
"""

from __future__ import annotations

import functools

from common.grid_worlds import grid_world
from common.runs_of_systems import Study, Task, main

SEEDS = (0, 1, 2, 3, 4)
DOOR = "MiniGrid-DoorKey-5x5-v0"
TASKS = {DOOR: Task(functools.partial(grid_world, DOOR), 150_000)}
SYSTEMS = {name: {"algorithm": name, "actors": 1} for name in ("ppo", "trpo")}
ABOUT = """# Learning from images

Made by `python experiments/images.py`. Return of the deterministic policy after training, over 100 episodes: mean over
seeds, and each seed; "exploring" is the mean of the last 100 training episodes. All settings are defaults. The door's
reward is 1 - 0.9 t / 250 at step t, and 0 if the goal is not reached within 250; a policy sees 7 x 7 cells ahead, three
small numbers each. Asked: 0.9.
"""
AFTER = """
The exploring policy of `ppo` has at least 0.96 on every seed. The deterministic one repeats itself forever in some
grids, since what it sees does not tell it what it has tried. `trpo` had not finished learning, and was run on one seed.

Seconds are those of one actor, taken while other work ran on both cores."""

if __name__ == "__main__":
    main(Study("images", ABOUT, TASKS, SYSTEMS, SEEDS, after=AFTER), __doc__)
