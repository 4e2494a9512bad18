"""config.json: the settings of a run, from which it can be repeated, and the package versions and machine it ran on."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

from jaxtrpo.config import Config, make_config
from jaxtrpo.config.checks import expanded
from jaxtrpo.parallel.machine import available_cores
from jaxtrpo.runs.directory import CONFIG_FILE, read_text, write_whole

PACKAGES = ("jaxtrpo", "jax", "jaxlib", "flax", "optax", "numpy", "mujoco", "brax", "gymnasium")
MADE_WITH = ("versions", "machine")


def as_json(config: Config) -> dict[str, Any]:
    """Returns all settings as JSON values: tuples become lists, and the number of steps is always said."""
    return json.loads(json.dumps({**dataclasses.asdict(config), "total_steps": config.most_steps}))


def save_config(directory: Path, env: str, config: Config) -> None:
    """Writes the environment's name, all settings, and the package versions and machine of this process."""
    content = {"env": env, **as_json(config), "versions": versions(), "machine": _machine()}
    write_whole(directory / CONFIG_FILE, (json.dumps(content, indent=2) + "\n").encode())


def load_config(path: str | Path) -> dict[str, Any]:
    """Reads the settings of a run: `train(**load_config("runs/one"))` repeats it.

    Args:
      path: directory of the run, or its config.json.

    Returns:
      Arguments of `train` by name.

    Raises:
      FileNotFoundError: the file does not exist.
      ValueError: the file was not written by `train`, or a setting in it is unknown to this version or out of bounds.
    """
    place = expanded(path)
    place = place / CONFIG_FILE if place.is_dir() else place
    try:
        content = json.loads(read_text(place))
        env = content["env"]
        if not isinstance(env, str):
            raise TypeError(f"env={env!r} must be a name")
    except FileNotFoundError:
        raise FileNotFoundError(f"config={str(path)!r}: no such file: {place}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"config={str(path)!r}: {place} is not a config.json written by `train`") from error
    settings = {name: value for name, value in content.items() if name not in ("env", *MADE_WITH)}
    try:
        make_config(settings)
    except TypeError as error:
        raise ValueError(f"config={str(path)!r}: {error}") from error
    return {"env": env, **settings}


@functools.cache  # called for every checkpoint
def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a run depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # optional packages
            continue
    return found


@functools.cache
def _machine() -> dict[str, str | int]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": available_cores(),
    }


def _processor() -> str:
    """Name of the CPU model, if known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
