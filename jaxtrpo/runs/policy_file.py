"""Saving and loading trained policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxtrpo.envs.actions import ActionSpace
from jaxtrpo.envs.observations import Observations, Part
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.custom import CUSTOM, policy_maker
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs.directory import POLICY_FILE
from jaxtrpo.runs.msgpack_file import read_msgpack, write_msgpack

FORMAT = 2


def save_policy(directory: str | Path, policy: TrainedPolicy) -> None:
    """Writes a policy into an existing directory, replacing the one that is there."""
    content = {
        "env_name": policy.env_name,
        "observation_size": policy.observation_size,
        "actions": {
            "low": np.asarray(policy.actions.low),
            "high": np.asarray(policy.actions.high),
            "counts": list(policy.actions.counts),
            "shape": None if policy.actions.shape is None else list(policy.actions.shape),
        },
        "network": policy.maker.spec_string,
        "params": jax.device_get(policy.params),
        "moments": jax.device_get(policy.moments)._asdict(),
        "observations": _to_plain(policy.observations),
        "max_episode_steps": policy.max_episode_steps,
    }
    write_msgpack(Path(directory) / POLICY_FILE, FORMAT, content)


def load_policy(directory: str | Path, *, policy: Any = None) -> TrainedPolicy:
    """Reads the policy of a run.

    Args:
      directory: the `out` of `train`, or a snapshot in it.
      policy: the `policy` of `train`, if that was a network of your own.

    Returns:
      The policy as last saved, with the last checkpoint or at the end of the run.

    Raises:
      FileNotFoundError: the directory does not exist or holds no policy.
      NotADirectoryError: the path is a file.
      ValueError: the policy file is damaged or has another format version, or its network is your own and not given.
    """
    place = Path(directory).expanduser()
    path = place / POLICY_FILE
    if not place.exists():
        raise FileNotFoundError(f"no such directory: {place}")
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is not a directory; give the one that holds {POLICY_FILE}")
    if not path.is_file():
        raise FileNotFoundError(f"no {POLICY_FILE} in {place}")
    content = read_msgpack(path, FORMAT, _content)
    if policy is None and content["network"].startswith(CUSTOM):
        raise ValueError(f"the network of {path} is {content['network']}; pass it: load_policy(..., policy=network)")
    maker = policy_maker(content["network"] if policy is None else policy)
    low, high, counts, shape = (content["actions"][name] for name in ("low", "high", "counts", "shape"))
    return TrainedPolicy(
        env_name=content["env_name"],
        observation_size=content["observation_size"],
        actions=ActionSpace(low, high, tuple(counts), None if shape is None else tuple(shape)),
        maker=maker,
        params=content["params"],
        moments=Moments(**content["moments"]),
        observations=content["observations"],
        max_episode_steps=content["max_episode_steps"],
    )


def _to_plain(observations: Observations | None) -> dict[str, Any] | None:
    """Converts a description to plain values; returns None if there is none or its keys are not plain values."""
    if observations is None or any(type(key) not in (str, int) for part in observations.parts for key in part.path):
        return None
    parts = [
        {
            "path": list(part.path),
            "shape": list(part.shape),
            "words": part.words,
            "counts": list(part.counts),
            "first": list(part.first),
        }
        for part in observations.parts
    ]
    return {"words": observations.words, "parts": parts}


def _from_plain(content: dict[str, Any] | None) -> Observations | None:
    if content is None:
        return None
    parts = [
        Part(tuple(part["path"]), tuple(part["shape"]), part["words"], tuple(part["counts"]), tuple(part["first"]))
        for part in content["parts"]
    ]
    return Observations(parts, content["words"])


def _content(content: dict[str, Any]) -> dict[str, Any]:
    """Extracts the entries of a policy file; raises KeyError if one is missing."""
    names = ("env_name", "observation_size", "actions", "network", "params", "moments")
    found = {name: content[name] for name in names}
    # Older files lack these two.
    return {
        **found,
        "observations": _from_plain(content.get("observations")),
        "max_episode_steps": content.get("max_episode_steps"),
    }
