"""What is learned from images: a door whose key is found from what is ahead (Minigrid), and four games of MinAtar.

    pip install '.[experiments]' minigrid gymnax
    python experiments/images.py [--tasks T ...] [--systems S ...] [--seeds N ...] [--quick]

Runs are made one at a time, and those that are in the table are not made again. Written to experiments/results/images/.
"""

from __future__ import annotations

import functools

from common.grid_worlds import grid_world
from common.runs_of_systems import Study, Task, main

SEEDS = (0, 1, 2, 3, 4)
DOOR = "MiniGrid-DoorKey-5x5-v0"
# Returns after 320,000 steps in the logs that come with gymnax's own PPO (gymnax-blines, one seed).
GAMES = {"Breakout": "8.37", "Asterix": "1.36", "Freeway": "24.7", "SpaceInvaders": "19.4"}
STEPS = 320_000
TASKS = {
    DOOR: Task(functools.partial(grid_world, DOOR), 100_000, {"policy": "cnn(pixel_scale=10)"}),
    **{
        name: Task(f"gymnax:{name}-MinAtar", STEPS, {"discount": 0.999} if name == "Freeway" else {}, published)
        for name, published in GAMES.items()
    },
}
SYSTEMS = {name: {"algorithm": name, "actors": 1} for name in ("ppo", "trpo")}
ABOUT = """# Learning from images

Made by `python experiments/images.py`. Return of the deterministic policy after training, over 100 episodes: mean over
seeds, and each seed; "exploring" is the mean of the last 100 training episodes. All settings are defaults, except the
discount of Freeway, that of the published run, 0.999 (on seed 100, exploring, it gave 28.6, the default of 0.99 22.5),
and `pixel_scale=10` at the door, whose cells are numbers up to 10.

- The door's reward is 1 - 0.9 t / 250 at step t, and 0 if the goal is not reached within 250; a policy sees 7 x 7 cells
  ahead, three small numbers each. Asked: 0.9.
- MinAtar's games (Young & Tian 2019) as gymnax has them, 10 x 10 pixels. Published are the returns of PPO in the logs
  of gymnax-blines at the same number of steps: one seed, actions drawn as in training, so they compare with
  "exploring"; two layers of 256 units, 64 environments, discount 0.999. After 9.9 million steps they are 22.9 on
  Breakout, 15.0 on Asterix, 58.8 on Freeway and 131.6 on SpaceInvaders.
"""
AFTER = """
At the door, `ppo` has as much as `trpo` while exploring, but in some rooms its deterministic policy never reaches the
goal. With the door's numbers divided by 255, `trpo` had 0.82 while exploring after 150,000 steps (one seed), and its
deterministic policy opened no door.

On MinAtar, exploring, `trpo` has more than the published returns at as many steps in three of four games and nearly as
much in Freeway; `ppo` has more in three, and two fifths as much in Freeway. The deterministic policy plays the same
game of SpaceInvaders every time, and in Asterix and Freeway seeds differ by a factor of two and more.

Seconds are those of one actor, taken while other work ran on both cores; `trpo` on seeds 0 and 1, and at the door, was
run before convolutions had derivatives of their own (`ops/convolution.py`), which are faster and round differently."""

if __name__ == "__main__":
    main(Study("images", ABOUT, TASKS, SYSTEMS, SEEDS, after=AFTER), __doc__)
