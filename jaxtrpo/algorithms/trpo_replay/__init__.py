"""TRPO with an action-value critic that learns from a replay buffer."""

from jaxtrpo.algorithms.trpo_replay.trpo_replay import trpo_replay

__all__ = ["trpo_replay"]
