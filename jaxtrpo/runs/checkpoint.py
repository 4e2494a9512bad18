"""Everything that a run is, in one file, so that it can go on exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxtrpo.config import Config
from jaxtrpo.runs.config_file import as_json
from jaxtrpo.runs.directory import CHECKPOINT_BEFORE, CHECKPOINT_FILE, link_before
from jaxtrpo.runs.msgpack_file import read_msgpack, write_msgpack

FORMAT = 2
MAY_CHANGE = ("total_steps", "actors", "processes", "device")  # when a run goes on


class Checkpoint(NamedTuple):
    """A run at the end of an update."""

    env: str  # its name
    config: Mapping[str, Any]  # every setting, as JSON has it
    metrics: Mapping[str, np.ndarray]  # columns in order, one row an update
    state: Mapping[str, np.ndarray]  # arrays by their path in the tree


def save_checkpoint(
    directory: Path, env: str, config: Config, metrics: Mapping[str, np.ndarray], state: PyTree
) -> None:
    """Writes a run into a directory that exists, to the bit; the checkpoint that lies there stays as the one before.

    Args:
      directory: of the run.
      env: name of its environment.
      config: its settings.
      metrics: columns of the updates so far.
      state: that they led to: arrays on the host, in containers of any kind.
    """
    leaves = {jax.tree_util.keystr(path): _as_numpy(leaf) for path, leaf in jax.tree.leaves_with_path(state)}
    content = Checkpoint(env, as_json(config), dict(metrics), leaves)._asdict()
    link_before(directory / CHECKPOINT_FILE, directory / CHECKPOINT_BEFORE)
    write_msgpack(directory / CHECKPOINT_FILE, FORMAT, {**content, "columns": list(metrics)})


def load_checkpoint(directory: Path) -> Checkpoint:
    """Reads what `save_checkpoint` wrote.

    Raises:
      ValueError: the file is damaged, or of another version; says how to go on with the one before, if that can be.
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
            f"{error}; the checkpoint before it, of {steps:,} environment steps, is whole: rename {before} to "
            f"{path.name} to go on with that"
        ) from error


def _checkpoint(content: dict[str, Any]) -> Checkpoint:
    """Of the content of a file, which does not keep the order of the columns."""
    names = content.pop("columns")
    if set(names) != set(content["metrics"]):
        raise ValueError("columns are missing")
    return Checkpoint(**{**content, "metrics": {name: content["metrics"][name] for name in names}})


def require_same_run(checkpoint: Checkpoint, env: str, config: Config) -> None:
    """Checks that a run can go on with this environment and these settings.

    Raises:
      ValueError: one sentence that names the setting.
    """
    if checkpoint.env != env:
        raise ValueError(f"resume=True (--resume): the run is of {checkpoint.env}, not {env}")
    wanted = as_json(config)
    has = {**as_json(Config()), **checkpoint.config}  # a setting newer than the run had its default
    if has.keys() - wanted.keys():
        raise ValueError("resume=True (--resume): the run is of another version of jaxtrpo")
    changed = [name for name in wanted if name not in MAY_CHANGE and has[name] != wanted[name]]
    if changed:
        there, here = (", ".join(f"{name}={of[name]}" for name in changed) for of in (has, wanted))
        free = f"{', '.join(MAY_CHANGE[:-1])} and {MAY_CHANGE[-1]}"
        raise ValueError(f"resume=True (--resume): the run has {there}, not {here}; only {free} may change")


def restore(saved: Mapping[str, np.ndarray], like: PyTree) -> PyTree:
    """A state of its arrays.

    Args:
      saved: of a checkpoint.
      like: has the structure of the state, and the shapes and types of its arrays.

    Raises:
      ValueError: the state is not like that.
    """
    wanted = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(like)}
    for name in sorted(wanted.keys() | saved.keys()):
        there, here = _kind(saved.get(name)), _kind(wanted.get(name))
        if there != here:
            raise ValueError(f"resume=True (--resume): the run is of another kind: {name} is {there}, not {here}")
    leaves = [_as_leaf(saved[name], leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _kind(leaf: Any) -> str:
    if leaf is None:
        return "nothing"
    as_saved = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    return f"{as_saved.dtype}{list(as_saved.shape)}"


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _as_leaf(array: np.ndarray, like: Any) -> Any:
    # Keys of JAX's default kind; an abstract key does not tell its own.
    return jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(like) else array
