"""BASELINE, not part of jaxtrpo: other ways to step the same simulations, with random actions and no policy.

    python experiments/baselines/stepping.py HalfCheetah-v5 --way envpool --num-envs 128 --steps 200

Each line on standard input asks for one round; the answer is its seconds. So the caller decides when the machine is
busy, and none of this shares a process with JAX.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from rounds import answer_rounds


def envpool_envs(name: str, num_envs: int, cores: int) -> Any:
    import envpool

    return envpool.make_gymnasium(name, num_envs=num_envs, num_threads=cores, seed=0)


def gymnasium_envs(mode: str) -> Callable[[str, int, int], Any]:
    return lambda name, num_envs, cores: gym.make_vec(name, num_envs=num_envs, vectorization_mode=mode)


WAYS: dict[str, Callable[[str, int, int], Any]] = {
    "envpool": envpool_envs,
    **{mode: gymnasium_envs(mode) for mode in ("sync", "async", "vector_entry_point")},
}


def random_actions(space: gym.Space, shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(0)
    if isinstance(space, gym.spaces.Discrete):
        return random.integers(space.start, space.start + space.n, shape)
    assert isinstance(space, gym.spaces.Box)
    return random.uniform(space.low, space.high, (*shape, *space.shape)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of every environment, a round")
    parser.add_argument("--cores", type=int, default=1)
    arguments = parser.parse_args()
    envs = WAYS[arguments.way](arguments.env, arguments.num_envs, arguments.cores)
    actions = random_actions(gym.make(arguments.env).action_space, (arguments.steps, arguments.num_envs))
    envs.reset()

    def work() -> None:
        for action in actions:
            envs.step(action)

    answer_rounds(work)


if __name__ == "__main__":
    main()
