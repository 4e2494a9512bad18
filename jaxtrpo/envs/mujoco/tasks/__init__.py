"""The eleven MuJoCo tasks of Gymnasium, version 5, and version 4 of Ant and Humanoid.

The models are Gymnasium's MJCF files; rewards, terminations, time limits and distributions of initial states follow its
documentation (Towers et al. 2024, https://gymnasium.farama.org/environments/mujoco). As in Gymnasium, observations and
rewards read derived quantities (body positions, contact forces, ...) as `mj_step` leaves them, one substep behind the
state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from jaxtrpo.envs.mujoco.task import Task
from jaxtrpo.envs.mujoco.tasks.arms import pusher, reacher
from jaxtrpo.envs.mujoco.tasks.legged import ant, humanoid, humanoid_standup
from jaxtrpo.envs.mujoco.tasks.pendulums import inverted_double_pendulum, inverted_pendulum
from jaxtrpo.envs.mujoco.tasks.runners import half_cheetah, hopper, swimmer, walker2d

TASKS: dict[str, Callable[[], Task]] = {
    "Reacher-v5": reacher,
    "Pusher-v5": pusher,
    "InvertedPendulum-v5": inverted_pendulum,
    "InvertedDoublePendulum-v5": inverted_double_pendulum,
    "HalfCheetah-v5": half_cheetah,
    "Hopper-v5": hopper,
    "Swimmer-v5": swimmer,
    "Walker2d-v5": walker2d,
    "Ant-v4": functools.partial(ant, contact_forces=False),
    "Ant-v5": ant,
    "Humanoid-v4": functools.partial(humanoid, contact_cost=False),
    "Humanoid-v5": humanoid,
    "HumanoidStandup-v5": humanoid_standup,
}
