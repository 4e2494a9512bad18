"""The whole state of a run as a file, so that it can go on exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization
from jaxtyping import PyTree

from jaxtrpo.runs.directory import CHECKPOINT_FILE, write_whole

FORMAT = 1


def save_checkpoint(directory: Path, state: PyTree, updates: int) -> None:
    """Writes a state into a directory that exists, to the bit, in place of any that lies there.

    Args:
      directory: of the run.
      state: arrays on the host, in containers of any kind.
      updates: that led to it.
    """
    leaves = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(state)}
    content = {"format": FORMAT, "updates": updates, "leaves": leaves}
    write_whole(directory / CHECKPOINT_FILE, serialization.msgpack_serialize(content))


def load_checkpoint(directory: Path, like: PyTree) -> tuple[PyTree, int]:
    """Reads what `save_checkpoint` wrote.

    Args:
      directory: of the run.
      like: has the structure of the state, and the shapes and types of its arrays.

    Returns:
      The state, and how many updates led to it.

    Raises:
      ValueError: the file is damaged, or the state is not like that.
    """
    path = directory / CHECKPOINT_FILE
    data = path.read_bytes()
    try:
        content: Any = serialization.msgpack_restore(data)
        version, updates, leaves = (content[name] for name in ("format", "updates", "leaves"))
    except Exception as error:  # the decoder raises errors of many kinds on bytes that are not its own
        raise ValueError(f"{path} is not a checkpoint, or damaged") from error
    if version != FORMAT:
        raise ValueError(f"{path} has format {version!r}; this version of jaxtrpo reads format {FORMAT}")
    wanted = {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype) for path, leaf in jax.tree.leaves_with_path(like)}
    for name in sorted(wanted.keys() | leaves.keys()):
        there = (leaves[name].shape, leaves[name].dtype) if name in leaves else None
        if there != wanted.get(name):
            raise ValueError(
                f"{path} is of another kind of run: {name} is {_kind(there)}, not {_kind(wanted.get(name))}"
            )
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in wanted]), updates


def _kind(of: tuple[tuple[int, ...], np.dtype] | None) -> str:
    return "nothing" if of is None else f"{of[1]}{list(of[0])}"
