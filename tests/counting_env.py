"""Gymnasium environments with known transitions for tests; worker processes import this module, too."""

import os
import random
import signal
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from maze_env import Maze


class CountingEnv(gymnasium.Env):
    """Observes (steps in the episode, index of the episode, a random number per episode).

    Episode e has 2 + e % 3 steps; odd episodes are terminated and even ones truncated. Observations are always the same
    array, as in some simulators, unless `copies` is set, which Gymnasium's vector environments need in SAME_STEP mode.
    """

    def __init__(self, lasts: bool = False, copies: bool = False):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.episode, self.lasts, self.copies, self.obs = 0, lasts, copies, np.zeros(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.obs[:] = 0, self.episode, self.np_random.random()
        return self._observe(), {}

    def step(self, action):
        assert action.shape == (2,) and action.dtype == np.float32
        self.obs[0] += 1
        over = not self.lasts and self.obs[0] >= 2 + self.episode % 3
        odd = self.episode % 2 == 1
        return self._observe(), 100 * self.episode + self.obs[0] + float(action[1]), over and odd, over and not odd, {}

    def _observe(self):
        return self.obs.copy() if self.copies else self.obs


class Copied(CountingEnv):
    """As simulators are that a search copies."""

    def copy(self):
        return Copied()


class Paying(CountingEnv):
    """Pays a bonus, which may be changed, in every step; all succeed."""

    bonus = 0.0

    def step(self, action):
        obs, _, over, cut, info = super().step(action)
        return obs, self.bonus, over, cut, {**info, "is_success": True}


class Tuned(CountingEnv):
    """Takes actions within these bounds only."""

    def __init__(self, low, high):
        super().__init__()
        self.action_space = spaces.Box(np.float32(low), np.float32(high), (2,))

    def step(self, action):
        assert self.action_space.contains(action), action
        return super().step(np.zeros(2, np.float32))


def vector_entry_point(mode):
    def make(num_envs, **_):
        return SyncVectorEnv([lambda: CountingEnv(copies=True)] * num_envs, autoreset_mode=mode)

    return make


class EarningResets(SyncVectorEnv):
    """Returns a reward and a termination for steps that only reset."""

    def reset(self, **arguments):
        self._over = np.zeros(self.num_envs, bool)
        return super().reset(**arguments)

    def step(self, actions):
        obs, reward, terminated, truncated, info = super().step(actions)
        resets, self._over = self._over, terminated | truncated
        return obs, np.where(resets, 1000.0, reward), terminated | resets, truncated, info


def earning_resets(num_envs, **_):
    make = [lambda: CountingEnv(copies=True)] * num_envs
    return EarningResets(make, autoreset_mode=AutoresetMode.NEXT_STEP)


def without_limit(num_envs, render_mode=None):
    """Takes no time limit, which `gymnasium.make_vec` passes on if one is registered."""
    return SyncVectorEnv([CountingEnv] * num_envs)


def of_old(num_envs, **_):
    """Does not say how it resets, as before Gymnasium 1.1."""
    env = SyncVectorEnv([CountingEnv] * num_envs)
    env.metadata = {}
    return env


def masked_vector(num_envs, **_):
    return SyncVectorEnv([lambda: Maze("info")] * num_envs)


gymnasium.register("WithoutLimit-v0", CountingEnv, vector_entry_point=without_limit, max_episode_steps=200)
gymnasium.register("OfOld-v0", CountingEnv, vector_entry_point=of_old)
gymnasium.register("MaskedVector-v0", lambda: Maze("info"), vector_entry_point=masked_vector)
gymnasium.register("EarningNextStep-v0", CountingEnv, vector_entry_point=earning_resets)
for mode in AutoresetMode:
    gymnasium.register(f"Counting{mode.value}-v0", CountingEnv, vector_entry_point=vector_entry_point(mode))
gymnasium.register("Lasting-v0", CountingEnv, kwargs={"lasts": True}, max_episode_steps=4)
gymnasium.register(
    "Aware-v0",
    CountingEnv,
    kwargs={"lasts": True},
    max_episode_steps=4,
    additional_wrappers=(gymnasium.wrappers.TimeAwareObservation.wrapper_spec(),),  # reads the time limit
)


class Misbehaving(CountingEnv):
    """Violates Gymnasium's interface from step `at` on, as `what` says."""

    def __init__(self, what: str, at: int = 1):
        super().__init__()
        self.what, self.at, self.steps = what, at, 0

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        if self.what == "reset returns no info" and self.at == 1:
            return obs
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps >= self.at:
            match self.what:
                case "four values":
                    return obs, reward, terminated, info
                case "raises":
                    raise KeyError("no such thing")
                case "leaves":
                    sys.exit("window closed")
                case "huge reward":
                    reward = 10**400
                case "nan observation":
                    obs = np.array([0, np.nan, 0])
                case "nan reward":
                    reward = float("nan")
                case "wrong shape":
                    obs = np.zeros((2, 3))
                case "complex":
                    obs = obs + 1j
                case "object":
                    obs = np.array([None, 1, 2])
                case "reward is not a number":
                    reward = "much"
                case "flag is not a bool":
                    terminated = None
                case "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exits":
                    os._exit(7)
                case "hangs":
                    time.sleep(1000)
        return obs, reward, terminated, truncated, info


class Counts(gymnasium.Env):
    """Reward 1 per step; episodes of instance i terminate after `steps[i % len(steps)]` steps, or never if None."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
    number = 0

    def __init__(self, *steps: int | None):
        self.steps = steps[Counts.number % len(steps)]
        Counts.number += 1

    def reset(self, *, seed=None, options=None):
        self.elapsed = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.elapsed += 1
        return np.zeros(1, np.float32), 1.0, self.elapsed == self.steps, False, {}


class Careless(CountingEnv):
    """Fails an assertion without message in the method `where`."""

    def __init__(self, where: str):
        super().__init__()
        self.where = where
        self._check("__init__")

    def reset(self, **arguments):
        self._check("reset")
        return super().reset(**arguments)

    def _check(self, here: str) -> None:
        assert self.where != here


class Spaces(gymnasium.Env):
    """Samples observations from any space, and stores observations and actions."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.seen, self.taken = [], []

    def _observe(self):
        self.seen.append(self.observation_space.sample())
        return self.seen[-1]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.append(action)
        return self._observe(), 0.0, False, False, {}


gymnasium.register("Careless-v0", Careless, kwargs={"where": "reset"})


class Unseeded(gymnasium.Env):
    """Draws from the generators of Python and NumPy that all code shares."""

    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        return np.float32([random.random(), np.random.random()]), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


class Generous(CountingEnv):
    """Gives its attribute `bonus` as the reward of each step."""

    bonus = 1.0

    def __init__(self):
        super().__init__(lasts=True)

    def step(self, action):
        obs, _, *others = super().step(action)
        return obs, self.bonus, *others


def generous():
    return gymnasium.wrappers.TimeLimit(Generous(), 5)


def generous_vector(num_envs):
    return SyncVectorEnv([generous] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


gymnasium.register("GenerousVector-v0", generous, vector_entry_point=generous_vector)


class Telling(CountingEnv):
    """Tells the return and the length of its episodes, and success, which every third episode is."""

    def __init__(self, always: bool = True):
        super().__init__(copies=True)
        self.always, self.total, self.length = always, 0.0, 0

    def reset(self, *, seed=None, options=None):
        self.total, self.length = 0.0, 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.total, self.length = self.total + reward, self.length + 1
        over = terminated or truncated
        if over or self.always:
            info["is_success"] = over and self.episode % 3 == 0
        info |= {"third": float(over and self.episode % 3 == 0), "text": "left"}
        info |= {"total": self.total if over else -1e9, "steps": np.int64(self.length)}
        if over and self.episode % 2:
            info["odd"] = np.float32(self.episode % 3)
        return obs, reward, terminated, truncated, info


NUMBER = spaces.Box(-1, 1, (1,), np.float32)


class Recorded(gymnasium.Env):
    """Plays recorded observations, of which there are no more than its time limit needs."""

    observation_space = action_space = NUMBER
    data = np.zeros((11, 1), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.data[0], {}

    def step(self, action):
        self.time += 1
        return self.data[self.time], 0.0, False, False, {}


class Unsorted(gymnasium.Env):
    """A Dict that keeps the order in which it was written, with the mask in the middle."""

    number = spaces.Box(-9, 9, (1,), np.float32)
    observation_space = spaces.Dict(velocity=number, action_mask=spaces.MultiBinary(2), height=number)
    action_space = spaces.Discrete(2)

    def seen(self):
        return {"velocity": np.float32([1]), "height": np.float32([2]), "action_mask": np.ones(2, np.int8)}

    def reset(self, *, seed=None, options=None):
        return self.seen(), {}

    def step(self, action):
        return self.seen(), 0.0, False, False, {}
