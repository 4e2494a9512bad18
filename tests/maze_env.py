"""A Gymnasium environment with illegal moves, for tests; it uses no JAX, so it can be stepped without processes."""

import gymnasium
import numpy as np
from gymnasium import spaces

COUNTS = (3, 2)


class Maze(gymnasium.Env):
    """Two coordinates of moves; which are legal depends on the step of the episode, which is what is observed.

    Args:
      convention: how the mask is given.
      wrong: what is wrong with it.
    """

    def __init__(self, convention: str, wrong: str = "", spaces_of_one: bool = False):
        self.convention, self.wrong, self.taken, self.length = convention, wrong, 0, 4
        self.action_space = spaces.Discrete(3, start=5) if spaces_of_one else spaces.MultiDiscrete(COUNTS)
        seen = spaces.Box(-1, 10, (2,), np.float32)
        self.observation_space = seen
        if convention == "observation":
            self.observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(5), "where": seen})
        if convention == "method":
            self.action_masks = lambda: self.mask()

    def mask(self):
        legal = np.array([self.taken % 3 == i for i in range(3)] + [True, self.taken % 2 == 0])
        legal = legal[:3] if isinstance(self.action_space, spaces.Discrete) else legal
        if self.wrong == "short":
            return legal[:-1]
        if self.wrong == "none" and self.taken == 2:
            legal[3:] = False
        return legal

    def result(self):
        seen, info = np.array([self.taken, 7], np.float32), {}
        if self.convention == "info" and not (self.wrong == "missing" and self.taken == 2):
            info["action_mask"] = self.mask().astype(np.int8)
        if self.convention == "observation":
            return {"action_mask": self.mask().astype(np.int8), "where": seen}, info
        return seen, info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self.result()

    def step(self, action):
        if isinstance(self.action_space, spaces.Discrete):
            assert self.mask()[action - 5], "an illegal move was made"
        else:
            assert self.mask()[action[0]] and self.mask()[3 + action[1]], "an illegal move was made"
        self.taken += 1
        obs, info = self.result()
        return obs, 1.0, self.taken == self.length, False, info


class Ends(Maze):
    """Leaves no legal move at the end of an episode, or does not say there which moves are (`absent`)."""

    def __init__(self, convention: str, end: str):
        super().__init__(convention)
        self.end = end

    def mask(self):
        return super().mask() & (self.taken < self.length)

    def result(self):
        obs, info = super().result()
        return obs, ({} if self.end == "absent" and self.taken == self.length else info)
