"""Checkpoints: the complete state of a run in one file, from which it resumes bit-identically."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxtrpo.config import Config
from jaxtrpo.config.kinds import is_key
from jaxtrpo.runs.config_file import as_json
from jaxtrpo.runs.directory import CHECKPOINT_BEFORE, CHECKPOINT_FILE, link_before
from jaxtrpo.runs.msgpack_file import read_msgpack, write_msgpack

FORMAT = 2
# When a run is resumed.
MAY_CHANGE = (
    "total_steps", "actors", "processes", "device", "select", "stop_at_return", "stop_after_evaluations",
    "stop_after_seconds",
)  # fmt: skip
# What runs used that were saved before there was the setting, where it is not the default.
USED_BEFORE = {"noise_correlation": 0.0}


class Checkpoint(NamedTuple):
    """A run after an update."""

    env: str  # name of the environment
    config: Mapping[str, Any]  # all settings, as JSON values
    metrics: Mapping[str, np.ndarray]  # columns in order, one row per update
    state: Mapping[str, np.ndarray]  # arrays by their path in the state pytree


def save_checkpoint(
    directory: Path, env: str, config: Config, metrics: Mapping[str, np.ndarray], state: PyTree
) -> None:
    """Writes a checkpoint; the existing one, if any, is kept as the previous checkpoint.

    Args:
      directory: existing directory of the run.
      env: name of the environment.
      config: settings of the run.
      metrics: columns of metrics, up to the update of `state`.
      state: pytree of arrays on the host.
    """
    leaves = {jax.tree_util.keystr(path): as_numpy(leaf) for path, leaf in jax.tree.leaves_with_path(state)}
    content = Checkpoint(env, as_json(config), dict(metrics), leaves)._asdict()
    link_before(directory / CHECKPOINT_FILE, directory / CHECKPOINT_BEFORE)
    write_msgpack(directory / CHECKPOINT_FILE, FORMAT, {**content, "columns": list(metrics)})


def load_checkpoint(directory: Path) -> Checkpoint:
    """Reads the checkpoint that `save_checkpoint` wrote.

    Raises:
      ValueError: the file is damaged or has another format version; if the previous checkpoint is intact, the message
        says how to resume from it.
    """
    path, before = directory / CHECKPOINT_FILE, directory / CHECKPOINT_BEFORE
    try:
        return read_msgpack(path, FORMAT, _checkpoint)
    except ValueError as error:
        try:
            steps = read_msgpack(before, FORMAT, _checkpoint).metrics["env_steps"][-1]
        except (OSError, ValueError, KeyError):
            raise error from None
        raise ValueError(
            f"{error}; the previous checkpoint, of {steps:,} environment steps, is intact: rename {before} to "
            f"{path.name} to resume from it"
        ) from error


def _checkpoint(content: dict[str, Any]) -> Checkpoint:
    """Builds a checkpoint from the content of a file; msgpack does not keep the order of the columns."""
    names = content.pop("columns")
    if set(names) != set(content["metrics"]):
        raise ValueError("columns do not match")
    return Checkpoint(**{**content, "metrics": {name: content["metrics"][name] for name in names}})


def require_same_run(checkpoint: Checkpoint, env: str, config: Config) -> None:
    """Checks that a checkpoint can be resumed with this environment and these settings.

    Raises:
      ValueError: it cannot; one sentence that names the settings that differ.
    """
    if checkpoint.env != env:
        raise ValueError(f"resume=True (--resume): the run was trained in {checkpoint.env}, not {env}")
    wanted = as_json(config)
    has = {**as_json(Config()), **USED_BEFORE, **checkpoint.config}  # settings added since the run have their defaults
    if has.keys() - wanted.keys():
        raise ValueError("resume=True (--resume): the run was saved by another version of jaxtrpo")
    changed = [name for name in wanted if name not in MAY_CHANGE and has[name] != wanted[name]]
    if changed:
        there, here = (", ".join(f"{name}={of[name]}" for name in changed) for of in (has, wanted))
        free = f"{', '.join(MAY_CHANGE[:-1])} and {MAY_CHANGE[-1]}"
        raise ValueError(f"resume=True (--resume): the run has {there}, not {here}; only {free} may change")


def restore(saved: Mapping[str, np.ndarray], like: PyTree) -> PyTree:
    """Rebuilds a state from its arrays.

    Args:
      saved: arrays of a checkpoint by path.
      like: pytree with the structure, shapes and dtypes that the state must have.

    Raises:
      ValueError: the saved state has other paths, shapes or dtypes.
    """
    wanted = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(like)}
    for name in sorted(wanted.keys() | saved.keys()):
        there, here = kind_of(saved.get(name)), kind_of(wanted.get(name))
        if there != here:
            raise ValueError(f"resume=True (--resume): the saved state does not match: {name} is {there}, not {here}")
    leaves = [as_leaf(saved[name], leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def kind_of(leaf: Any) -> str:
    """Returns dtype and shape of an array as text, such as float32[64, 2]; of None, that it is missing."""
    if leaf is None:
        return "missing"
    as_saved = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    return f"{as_saved.dtype}{list(as_saved.shape)}"


def as_numpy(leaf: Any) -> np.ndarray:
    """Returns a leaf of a state as NumPy array; of a typed PRNG key, its numbers."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def as_leaf(array: np.ndarray, like: Any) -> Any:
    """Undoes `as_numpy`; `like` is a typed PRNG key where the array is to become one."""
    # Keys have JAX's default implementation: an abstract key does not reveal its own.
    return jax.random.wrap_key_data(jnp.asarray(array)) if is_key(like) else array
