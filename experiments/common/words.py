"""What an algorithm, a policy, a critic or a rule is set to, written out."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any

from jaxtrpo.config.specs import factory


def defaults_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The settings of what a factory makes, as they are if nothing is said."""
    parameters = inspect.signature(make).parameters.values()
    return {each.name: each.default for each in parameters if each.kind == each.KEYWORD_ONLY}


@functools.cache
def in_full(kind: str, words: str, **given: Any) -> str:
    """The same call with every setting, such as "linear(ridge=0.0001)" for "linear".

    Args:
      kind: "algorithm", "adapt", "critic" or "policy".
      words: a name, or a call.
      **given: settings that count more than those in the words.
    """
    node = ast.parse(words.strip(), mode="eval").body
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    assert isinstance(call.func, ast.Name)
    defaults = defaults_of(factory(kind, call.func.id))
    said = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    parts = [in_full(kind, ast.unparse(part)) for part in call.args]
    settings = {**defaults, **said, **given}
    parts += [f"{name}={_like(defaults.get(name), value)!r}" for name, value in settings.items()]
    return f"{call.func.id}({', '.join(parts)})"


def _like(default: Any, value: Any) -> Any:
    """1 is 1.0 where a number need not be whole, and [64] is (64,)."""
    alike = {(float, int): float, (tuple, list): tuple}
    return alike.get((type(default), type(value)), lambda same: same)(value)
