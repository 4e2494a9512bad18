"""Settings of a run that belong to its environment: options of the constructor, and names of entries of `info`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import literal_or_word

VECTOR = "vector"  # name of the numbers that are not images, in observations with images
SET_ELSEWHERE = {"groups": "actors", "max_episode_steps": "max_episode_steps", "name": "env"}  # by which setting


def options_string(given: str | Mapping[str, Any]) -> str | None:
    """Returns options as text of one form, "frameskip=4, obs_type='ram'", from which `options_of` returns the same.

    Raises:
      ValueError: an option is not a Python literal, or belongs to another setting; one sentence.
    """
    if not isinstance(given, str | Mapping):
        raise ValueError(f'env_options={short(given)} must be a mapping or text such as "obs_type=ram, frameskip=4"')
    options = options_of(given) if isinstance(given, str) else dict(given)
    for name, value in options.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"env_options={short(given)}: {short(name)} is not the name of an option")
        if name in SET_ELSEWHERE:
            raise ValueError(f"env_options={short(given)}: {name} is set by {SET_ELSEWHERE[name]}")
        if not _is_literal(value):
            raise ValueError(
                f"env_options: {name}={short(value, 60)} must be a Python literal; for other values pass a function "
                "that makes the environment"
            )
    return ", ".join(f"{name}={options[name]!r}" for name in sorted(options)) or None


def options_of(text: str | None) -> dict[str, Any]:
    """Parses options such as "obs_type=ram, frameskip=4"; values are Python literals or single words.

    Raises:
      ValueError: the text has another form; one sentence.
    """
    try:
        call = ast.parse(f"options({text or ''})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise SyntaxError
        options = {
            str(keyword.arg): literal_or_word(keyword.value) for keyword in call.keywords if keyword.arg is not None
        }
        if len(options) < len(call.keywords):  # one is given twice, or as **options
            raise SyntaxError
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(
            f'env_options={short(text, 60)} must be literals by name, each once, such as "obs_type=ram, frameskip=4"; '
            "put other text in quotes"
        ) from None
    for name, word in ((each.arg, each.value.id) for each in call.keywords if isinstance(each.value, ast.Name)):
        if word in ("true", "false"):  # which would be text, and count as true
            raise ValueError(f"env_options: write {name}={word.title()}, or put {word} in quotes if it is text")
    return options


def names_string(given: str | tuple[str, ...] | list[str]) -> str | None:
    """Returns names of entries of `info` as text, separated by commas.

    Raises:
      ValueError: there is something other than names, or one is given twice; one sentence.
    """
    names = [each.strip() for each in given.split(",")] if isinstance(given, str) else given
    if not isinstance(names, tuple | list) or not all(isinstance(each, str) and _is_name(each) for each in names):
        raise ValueError(f'log_info={short(given)} must be names of entries of info, such as "success, x_position"')
    if len(set(names)) < len(names):
        raise ValueError(f"log_info={short(given)} has a name twice; give each once")
    return ",".join(names) or None


def names_of(text: str | None) -> tuple[str, ...]:
    """Returns the names in a text made by `names_string`."""
    return tuple(text.split(",")) if text else ()


def _is_literal(value: Any) -> bool:
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False


def _is_name(text: str) -> bool:
    return bool(text) and text == text.strip() and "," not in text and text.isprintable()


def made_elsewhere(options: Mapping[str, Any]) -> bool:
    """Returns whether options of an environment name another Python interpreter, which makes it."""
    return options.get("python") is not None
