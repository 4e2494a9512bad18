"""Minigrid's environments, of which a policy sees the part of the grid before the agent."""

from __future__ import annotations

import gymnasium


def grid_world(name: str) -> gymnasium.Env:
    """Makes an environment of Minigrid whose observation is its image, 7 x 7 cells of three small numbers."""
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gymnasium.make(name))


def one_hot_world(name: str) -> gymnasium.Env:
    """Makes an environment of Minigrid whose cells are one-hot, because they are categories, all in one vector."""
    from minigrid.wrappers import ImgObsWrapper, OneHotPartialObsWrapper

    return gymnasium.wrappers.FlattenObservation(ImgObsWrapper(OneHotPartialObsWrapper(gymnasium.make(name))))
