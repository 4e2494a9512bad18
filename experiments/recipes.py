"""What every recipe reaches, on seeds that it was not tuned on, beside published returns of TRPO and PPO.

    pip install '.[experiments]' 'gymnasium[box2d]'
    python experiments/recipes.py [--tasks T ...] [--seeds N ...] [--quick]

Runs are made one at a time, and those that are in the table are not made again. Written to
experiments/results/recipes/.
"""

from __future__ import annotations

from common.runs_of_systems import Study, Task, main
from jaxtrpo.runs.recipes import recipes

SEEDS = (5, 6, 7, 8, 9)
PUBLISHED = {
    "CartPole-v1": "TRPO 500 (100k), PPO 500 (100k)",
    "Acrobot-v1": "TRPO -83.1 (100k), PPO -73.5 (1M)",
    "Pendulum-v1": "TRPO -174.6 (100k), PPO -172.2 (100k)",
    "MountainCar-v0": "TRPO -107.3 (100k), PPO -110.4 (1M)",
    "MountainCarContinuous-v0": "TRPO 92.5 (50k), PPO 88.3 (20k)",
    "LunarLander-v3": "TRPO 133 (200k), PPO 242 (1M)",
    "LunarLanderContinuous-v3": "TRPO 262 (200k), PPO 271 (1M)",
    "BipedalWalker-v3": "TRPO 182 (1M), PPO 213 (5M)",
    "Swimmer-v5": "TRPO 366, PPO 282 (1M)",
    "HalfCheetah-v5": "TRPO 1785, PPO 5819 (1M)",
    "Walker2d-v5": "TRPO 4933, PPO 3479 (1M)",
    "Ant-v5": "TRPO 4982, PPO 1327 (1M)",
    "Humanoid-v5": "not in the Zoo; A2C of Tianshou 1726 (1M)",
}
TASKS = {
    name: Task(
        name,
        recipe.settings["total_steps"],
        {setting: value for setting, value in recipe.settings.items() if setting != "total_steps"},
        PUBLISHED.get(name, ""),
    )
    for name, recipe in recipes().items()
}
ABOUT = """# What the recipes reach

Made by `python experiments/recipes.py`: settings of `jaxtrpo/recipes`, on seeds that they were not tuned on. Return of
the deterministic policy after training, over 100 episodes: mean over seeds, and each seed; "exploring" is the mean of
the last 100 training episodes. Published are the returns of the tuned agents of RL Baselines3 Zoo, one run each, with
their environment steps, on earlier versions of some environments. Seconds are those of one actor, taken while other
work ran on the machine. HalfCheetah and Humanoid were trained before `trpo_replay` fitted two copies of its critic.
"""

if __name__ == "__main__":
    main(Study("recipes", ABOUT, TASKS, {"recipe": {"actors": 1}}, SEEDS), __doc__)
