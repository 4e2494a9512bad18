"""Three tasks of POPGym and one of Minigrid that need memory.

    pip install '.[experiments]' popgym minigrid
    python experiments/partial_observability.py [--tasks T ...] [--systems S ...] [--seeds N ...] [--quick]

Runs are made one at a time, and those that are in the table are not made again. Written to
experiments/results/partial_observability/.
"""

from __future__ import annotations

import functools

import gymnasium

from common.grid_worlds import one_hot_world
from common.runs_of_systems import Study, Task, main

SEEDS = (0, 1, 2, 3, 4)
STEPS = 1_000_000
MEMORY = "MiniGrid-MemoryS7-v0"


def _popgym(name: str) -> gymnasium.Env:
    import popgym  # noqa: F401  registers its environments

    return gymnasium.make(name)


TASKS = {
    name: Task(functools.partial(_popgym, f"popgym-{name}-v0"), STEPS, published="at most 1")
    for name in ("RepeatFirstEasy", "RepeatPreviousEasy", "PositionOnlyCartPoleEasy")
} | {MEMORY: Task(functools.partial(one_hot_world, MEMORY), 300_000, published="at most 1")}
SYSTEMS = {
    "trpo, gru": {"algorithm": "trpo", "policy": "gru", "actors": 1},
    "ppo with entropy bonus, gru": {"algorithm": "ppo(entropy_bonus=0.02)", "policy": "gru", "actors": 1},
    "trpo, feed-forward": {"algorithm": "trpo", "actors": 1},
}
ABOUT = """# Tasks that need memory

Made by `python experiments/partial_observability.py`. Return of the deterministic policy after training, over 100
episodes: mean over seeds, and each seed; "exploring" is the mean of the last 100 training episodes. All settings are
defaults, but for the entropy bonus of `ppo`, 0.02, which was chosen on seed 100.

- POPGym (Morad et al. 2023): at each step, name the first of 52 cards that were shown (RepeatFirst), or the one shown
  four steps ago (RepeatPrevious), or balance a pole whose velocities are hidden. No return can be above 1, so no
  published one is; those of the paper's PPO with GRU come from 15 million steps.
- Minigrid's MemoryS7: a key or a ball in the first room says at which end of a corridor the reward is, 1 - 0.9 t / 245
  at step t; at the other end there is none. A policy sees 7 x 7 cells ahead, each one-hot. A guess has 0.5.
"""

if __name__ == "__main__":
    main(Study("partial_observability", ABOUT, TASKS, SYSTEMS, SEEDS), __doc__)
