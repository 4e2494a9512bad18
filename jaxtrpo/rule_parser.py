"""Rules of adaptation from words, as the shell gives them."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable
from typing import Any

from jaxtrpo.adapt import Rule, chain, exponential, fixed, improvement, linear, margin, trust

RULES: dict[str, Callable[..., Rule]] = {
    "fixed": fixed,
    "linear": linear,
    "exponential": exponential,
    "improvement": improvement,
    "margin": margin,
    "trust": trust,
    "chain": chain,
}


def parse_rule(text: str) -> Rule:
    """A rule from its name, or from a call as in Python: `margin`, `margin(window=5, kl_delta=None)`.

    Raises:
      ValueError: one sentence that names the setting `adapt`.
    """
    try:
        return _rule_of(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"adapt={text!r} is not like margin or margin(window=5)") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"adapt={text!r}: {error}") from None


def _rule_of(node: ast.expr) -> Rule:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise SyntaxError
    name = call.func.id
    if name not in RULES:
        near = difflib.get_close_matches(name, RULES, n=2) or list(RULES)
        raise ValueError(f"there is no rule {name!r}; did you mean {' or '.join(near)}?")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise SyntaxError
        try:
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            raise ValueError(f"{keyword.arg} of {name} must be a number, None or a pair of numbers") from None
    rules = [_rule_of(argument) for argument in call.args]
    signature = inspect.signature(RULES[name])
    try:
        signature.bind(*rules, **arguments)
    except TypeError as error:
        raise ValueError(f"{error}; {name} takes {', '.join(signature.parameters) or 'none'}") from None
    return RULES[name](*rules, **arguments)
