"""Saving and loading trained policies."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxtrpo.config.checks import expanded, require_path
from jaxtrpo.config.messages import short
from jaxtrpo.envs.actions import ActionSpace
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace
from jaxtrpo.envs.observations import Observations, Part
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.custom import CUSTOM, is_called, policy_maker
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs.directory import POLICY_FILE
from jaxtrpo.runs.msgpack_file import read_msgpack, write_msgpack

FORMAT = 2


def save_policy(directory: str | Path, policy: TrainedPolicy) -> None:
    """Writes a policy into an existing directory, replacing the one that is there.

    Raises:
      FileNotFoundError: the directory does not exist.
      ValueError: `directory` is not a path, or `policy` is not a trained policy, such as the `policy` of a result.
    """
    require_path(directory=directory)
    if not isinstance(policy, TrainedPolicy):
        raise ValueError(f"policy={short(policy)} must be a trained policy, such as train(...).policy")
    place = expanded(directory)
    if not place.is_dir():
        raise FileNotFoundError(f"no such directory: {place}")
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
        "masked": policy.masked,
        "env_options": policy.env_options,
        "observation_space": _space_to_plain(policy.observation_space),
        "has_probabilities": policy.has_probabilities,
    }
    write_msgpack(place / POLICY_FILE, FORMAT, content)


def load_policy(directory: str | Path, *, policy: Any = None) -> TrainedPolicy:
    """Reads the policy of a run.

    Args:
      directory: the `out` of `train`, or a snapshot in it.
      policy: the `policy` of `train`, if that was a network of your own.

    Returns:
      The policy as last saved, with the last checkpoint or at the end of the run. A warning says so if its network has
      another name than the given one.

    Raises:
      FileNotFoundError: the directory does not exist or holds no policy.
      NotADirectoryError: the path is a file.
      ValueError: the policy file is damaged or has another format version, or its network is your own and not given.
    """
    network, content = read_policy_file(directory)
    path = expanded(directory) / POLICY_FILE
    if policy is None and network.startswith(CUSTOM):
        name = network.removeprefix(CUSTOM)
        raise ValueError(
            f"the network of {path} is your own, {name}: pass load_policy(..., policy={name}()), or type --policy "
            f"MODULE:{name}"
        )
    maker = policy_maker(network if policy is None else policy)
    if policy is not None and not is_called(maker, network):
        warnings.warn(
            f"{path} is of policy={network}, but is read with policy={maker.spec_string}; unless these are the same "
            "network under two names, it acts otherwise than in training",
            stacklevel=2,
        )
    loaded = TrainedPolicy(maker=maker, **content)
    _require_fitting_params(path, loaded, "is damaged: its" if policy is None else "fits another policy: its")
    return loaded


def read_policy_file(directory: str | Path) -> tuple[str, dict[str, Any]]:
    """Returns the spec string of the network of a run's policy, and all other fields of `TrainedPolicy` by name.

    Raises:
      The exceptions of `load_policy`, but for those about networks of your own.
    """
    place = expanded(directory)
    path = place / POLICY_FILE
    if not place.exists():
        raise FileNotFoundError(f"no such directory: {place}")
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is not a directory; give the one that holds {POLICY_FILE}")
    if not path.is_file():
        raise FileNotFoundError(f"no {POLICY_FILE} in {place}")
    content = read_msgpack(path, FORMAT, _content)
    return content.pop("network"), content


def _to_plain(observations: Observations | None) -> dict[str, Any] | None:
    """Converts a description to plain values; returns None if there is none or its keys are not plain values."""
    if observations is None or any(type(key) not in (str, int) for part in observations.parts for key in part.path):
        return None
    parts = [
        {
            "path": list(part.path),
            "shape": list(part.shape),
            "description": part.description,
            "counts": list(part.counts),
            "first": list(part.first),
            "axes": list(part.axes),
            "dtype": part.dtype,
        }
        for part in observations.parts
    ]
    return {"description": observations.description, "parts": parts}


def _from_plain(content: dict[str, Any] | None) -> Observations | None:
    if content is None:
        return None

    def description(of: dict[str, Any]) -> str:
        return of["description"] if "description" in of else of["words"]  # its name in older files

    parts = [
        Part(
            tuple(part["path"]),
            tuple(part["shape"]),
            description(part),
            tuple(part["counts"]),
            tuple(part["first"]),
            tuple(part.get("axes", ())),  # older files lack images
            part.get("dtype", "uint8"),
        )
        for part in content["parts"]
    ]
    return Observations(parts, description(content))


def _space_to_plain(space: ObservationSpace | None) -> dict[str, Any] | None:
    if space is None:
        return None
    leaves = [{"name": leaf.name, "shape": list(leaf.shape), "dtype": leaf.dtype} for leaf in space.leaves]
    return {"leaves": leaves, "frames": space.frames}


def _space_from_plain(content: dict[str, Any] | None) -> ObservationSpace | None:
    if content is None:
        return None
    leaves = [
        Leaf(_text(leaf["name"]), tuple(map(_whole, leaf["shape"])), np.dtype(_text(leaf["dtype"])).name)
        for leaf in content["leaves"]
    ]
    return ObservationSpace(tuple(leaves), _whole(content["frames"]))


def _content(content: dict[str, Any]) -> dict[str, Any]:
    """Builds the fields of a policy, and the spec string of its network, from the content of a file.

    Raises:
      KeyError, TypeError, ValueError: an entry is missing or not of its kind.
    """
    size, space = _whole(content["observation_size"]), _space_from_plain(content.get("observation_space"))
    in_moments = size if space is None else space.vector_size
    low, high, counts, shape = (content["actions"][name] for name in ("low", "high", "counts", "shape"))
    steps, options = (content.get(name) for name in ("max_episode_steps", "env_options"))  # older files lack these
    return {
        "env_name": _text(content["env_name"]),
        "observation_size": size,
        "actions": ActionSpace(
            _numbers(low),
            _numbers(high, np.shape(low)),
            tuple(map(_whole, counts)),
            None if shape is None else tuple(map(_whole, shape)),
        ),
        "network": _text(content["network"]),
        "params": jax.tree.map(_numbers, content["params"]),
        "moments": Moments(
            count=_numbers(content["moments"]["count"], ()),
            mean=_numbers(content["moments"]["mean"], (in_moments,)),
            variance=_numbers(content["moments"]["variance"], (in_moments,)),
        ),
        "observations": _from_plain(content.get("observations")),  # older files lack it, and `masked`
        "max_episode_steps": None if steps is None else _whole(steps),
        "masked": _flag(content.get("masked", False)),
        "env_options": None if options is None else _text(options),
        "observation_space": space,
        "has_probabilities": _flag(content.get("has_probabilities", True)),  # older files lack it
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} must be true or false")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} must be a whole number")
    return value


def _numbers(value: Any, shape: tuple[int, ...] | None = None) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or shape not in (None, array.shape):
        raise TypeError(f"{array.dtype}{list(array.shape)} must be numbers{'' if shape is None else list(shape)}")
    return array


def _require_fitting_params(path: Path, policy: TrainedPolicy, what: str) -> None:
    """Raises ValueError if the parameters in a file are not those of the network; `what` begins the reason."""

    def shapes(params: PyTree) -> dict[str, tuple[int, ...]]:
        return {jax.tree_util.keystr(place): np.shape(leaf) for place, leaf in jax.tree.leaves_with_path(params)}

    wanted = shapes(jax.eval_shape(policy.network.init, jax.ShapeDtypeStruct((2,), np.uint32)))
    if shapes(policy.params) != wanted:
        raise ValueError(f"{path} {what} parameters are not those of the network {policy.maker.spec_string}")
