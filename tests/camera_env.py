"""Gymnasium environments that show images; they use no JAX, so they can be stepped without processes."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Camera(gymnasium.Env):
    """An image of which a pixel moves with the steps, drawn from the environment's own generator; ends by itself.

    Args:
      layout: "last", "first", "grey", "dict", "masked", or "stack", which say what an observation looks like.
      length: steps of an episode.
      terminates: whether an episode is terminated rather than truncated after them.
    """

    def __init__(self, layout: str = "last", length: int = 5, terminates: bool = True):
        self.layout, self.length, self.terminates = layout, length, terminates
        shape = {"first": (3, 8, 10), "grey": (8, 10), "stack": (2, 8, 10, 3)}.get(layout, (8, 10, 3))
        self.image = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = self.image
        if layout == "dict":
            self.observation_space = spaces.Dict(
                {
                    "rgb": self.image,
                    "speed": spaces.Box(-10, 10, (2,), np.float32),
                    "gear": spaces.Discrete(3),
                }
            )
        if layout == "masked":
            self.observation_space = spaces.Dict(
                {
                    "action_mask": spaces.MultiBinary(3),
                    "rgb": self.image,
                    "speed": spaces.Box(-10, 10, (2,), np.float32),
                }
            )
        self.action_space = spaces.Discrete(3)
        self.taken = 0

    def draw(self):
        image = self.np_random.integers(0, 256, self.image.shape, np.uint8)
        if self.layout == "dict":
            return {"rgb": image, "speed": np.array([self.taken, -1], np.float32), "gear": self.taken % 3}
        if self.layout == "masked":
            mask = np.array([1, self.taken % 2, 1], np.int8)
            return {"action_mask": mask, "rgb": image, "speed": np.array([self.taken, -1], np.float32)}
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self.draw(), {}

    def step(self, action):
        self.taken += 1
        over = self.taken == self.length
        return self.draw(), float(action), over and self.terminates, over and not self.terminates, {}


class Grid(Camera):
    """Observes truth values."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 1, (6, 6, 2), np.bool_)

    def draw(self):
        return self.np_random.random((6, 6, 2)) < 0.5


class Floats(Camera):
    """Observes something else than its space says."""

    def draw(self):
        return super().draw() / 255.0


class Cameras(gymnasium.vector.VectorEnv):
    """Images of environments that reset in one of the modes; a pixel counts the steps, another names the episode."""

    def __init__(self, mode: str, num_envs: int = 2):
        self.num_envs, self.mode = num_envs, gymnasium.vector.AutoresetMode[mode]
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space = spaces.Dict(
            {"rgb": spaces.Box(0, 255, (3, 6, 8), np.uint8), "x": spaces.Box(-9, 9, (1,), np.float32)}
        )
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def observe(self):
        rgb = np.zeros((self.num_envs, 3, 6, 8), np.uint8)
        rgb[:, 0, 0, 0], rgb[:, 2, 5, 7] = self.steps, self.episode
        return {"rgb": rgb, "x": self.steps[:, None].astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        if options:
            self.steps[options["reset_mask"]] = 0
            self.episode[options["reset_mask"]] += 1
        else:
            self.steps, self.episode = np.arange(self.num_envs), np.ones(self.num_envs, int)
            self.over = np.zeros(self.num_envs, bool)
        return self.observe(), {}

    def step(self, actions):
        fresh = self.over if self.mode is gymnasium.vector.AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self.steps = np.where(fresh, 0, self.steps + 1)
        self.episode = self.episode + fresh
        self.over = (self.steps == 4) & ~fresh
        obs, info, no = self.observe(), {}, np.zeros(self.num_envs, bool)
        if self.mode is gymnasium.vector.AutoresetMode.SAME_STEP and self.over.any():
            info = {"final_obs": obs, "_final_obs": self.over}
            self.steps, self.episode = np.where(self.over, 0, self.steps), self.episode + self.over
            obs = self.observe()
        return obs, np.ones(self.num_envs, np.float32), self.over, no, info
