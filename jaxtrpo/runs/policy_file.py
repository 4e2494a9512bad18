"""A trained policy as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs.directory import POLICY_FILE
from jaxtrpo.runs.msgpack_file import read_msgpack, write_msgpack

FORMAT = 1


def save_policy(directory: str | Path, policy: TrainedPolicy) -> None:
    """Writes a policy into a directory that exists, exactly, in place of any that lies there."""
    content = {
        "env_name": policy.env_name,
        "observation_size": policy.observation_size,
        "action_low": np.asarray(policy.action_low),
        "action_high": np.asarray(policy.action_high),
        "hidden": list(policy.hidden),
        "params": jax.device_get(policy.params),
        "moments": jax.device_get(policy.moments)._asdict(),
    }
    write_msgpack(Path(directory) / POLICY_FILE, FORMAT, content)


def load_policy(directory: str | Path) -> TrainedPolicy:
    """Reads the policy of a run.

    Args:
      directory: what `train` was given as `out`.

    Returns:
      The policy, as it was when it was last saved: when the run ended, or in its last minute.

    Raises:
      FileNotFoundError: there is no such directory, or no policy in it.
      NotADirectoryError: it is a file.
      ValueError: its policy file is damaged or of another version.
    """
    place = Path(directory).expanduser()
    path = place / POLICY_FILE
    if not place.exists():
        raise FileNotFoundError(f"no such directory: {place}")
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is not a directory; give the one that holds {POLICY_FILE}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no {POLICY_FILE} in {place}")
    return read_msgpack(path, FORMAT, _policy)


def _policy(content: dict[str, Any]) -> TrainedPolicy:
    return TrainedPolicy(
        env_name=content["env_name"],
        observation_size=content["observation_size"],
        action_low=content["action_low"],
        action_high=content["action_high"],
        hidden=tuple(content["hidden"]),
        params=content["params"],
        moments=Moments(**content["moments"]),
    )
