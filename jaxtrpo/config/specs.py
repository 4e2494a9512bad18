"""Algorithms, policies, critics and rules from words, as the shell gives them."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

# Where the factory of each name is. Only what is asked for is imported.
_ALGORITHMS = ("trpo", "npg", "trpo_penalty", "trpo_replay", "ppo", "pg", "a2c", "a3c", "naf", "gps")


_RULES = ("trust", "fixed", "linear", "exponential", "improvement", "margin", "model_accuracy", "chain")


KINDS: Mapping[str, Mapping[str, str]] = {
    "algorithm": {name: f"jaxtrpo.algorithms.{name}" for name in _ALGORITHMS},
    "adapt": dict.fromkeys(_RULES, "jaxtrpo.adapt"),
    "critic": {name: f"jaxtrpo.critics.{name}" for name in ("mlp", "linear", "none")},
    "policy": {"mlp": "jaxtrpo.policies.networks"},
}


CALLED = {"adapt": "rule"}  # what one of a kind is called, where that is not its setting


def factory(kind: str, name: str) -> Callable[..., Any]:
    """What makes the algorithm, rule, critic or policy of that name."""
    return getattr(importlib.import_module(KINDS[kind][name]), name)


def parse(kind: str, text: str) -> Any:
    """What a name, or a call as in Python, stands for: `ppo`, `ppo(clip=0.1)`, `chain(margin(), fixed)`.

    Args:
      kind: "algorithm", "adapt", "critic" or "policy": the setting that the words are of.
      text: the words.

    Raises:
      ValueError: one sentence that names the setting.
    """
    try:
        return _made(kind, ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        example = next(iter(KINDS[kind]))
        raise ValueError(f"{kind}={text!r} is not like {example} or {example}(setting=value)") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{kind}={text!r}: {error}") from None


def _made(kind: str, node: ast.expr) -> Any:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise SyntaxError
    name, known = call.func.id, KINDS[kind]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=2) or list(known)
        raise ValueError(f"there is no {CALLED.get(kind, kind)} {name!r}; did you mean {' or '.join(near)}?")
    make = factory(kind, name)
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise SyntaxError
        try:
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            raise ValueError(f"{keyword.arg} of {name} is no number, truth value, None or several of them") from None
    parts = [_made(kind, argument) for argument in call.args]
    signature = inspect.signature(make)
    try:
        signature.bind(*parts, **arguments)
    except TypeError as error:
        raise ValueError(f"{error}{_near_settings(arguments, signature, name)}") from None
    return make(*parts, **arguments)


def _near_settings(arguments: Mapping[str, Any], signature: inspect.Signature, name: str) -> str:
    """What to say beside a call that does not fit."""
    known = list(signature.parameters)
    for argument in arguments:
        near = difflib.get_close_matches(argument, known, n=1)
        if argument not in known and near:
            return f"; did you mean {near[0]}?"
    return f"; {name} takes {', '.join(known) or 'none'}"


def said(kind: str, words: str) -> list[tuple[str, Any]]:
    """Settings that the calls in words give values of, and the values: max_kl and 0.05 of `trpo(max_kl=0.05)`.

    Only what a factory of ours declares: `linear(max_kl=0)` says where max_kl shall go, not what it is.
    """
    try:
        tree = ast.parse(words.strip(), mode="eval")
    except SyntaxError:
        return []
    found = []
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in KINDS[kind]):
            continue
        declared = inspect.signature(factory(kind, call.func.id)).parameters
        for keyword in call.keywords:
            if keyword.arg in declared:
                with contextlib.suppress(ValueError):  # which is refused where the words are read
                    found.append((keyword.arg, ast.literal_eval(keyword.value)))
    return found


def require_not_said(kind: str, words: str, name: str, value: Any) -> None:
    """Refuses a value of a setting that words give another value of.

    Raises:
      ValueError: one sentence that names both.
    """
    for setting, other in said(kind, words):
        if setting == name and other != value:
            raise ValueError(f"{kind}={words!r} and {name}={value} contradict each other; give only one of them")


def require_one_value(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Refuses two values of one setting: that of the run, and that which the words of a part say.

    Args:
      settings: of the run and its parts, by name; parts are words or have `words`.
      usual: settings of the run that nobody gave.

    Raises:
      ValueError: one sentence that names both.
    """
    for kind in KINDS:
        part = settings.get(kind)
        words = part if isinstance(part, str) else getattr(part, "words", None)
        if not isinstance(words, str):
            continue
        for name, _ in said(kind, words):
            value = settings.get(name)
            if value is not None and value != usual.get(name):
                require_not_said(kind, words, name, value)


def call_in_words(factory: Callable[..., Any], settings: Mapping[str, Any]) -> str:
    """How a factory is called with these settings, without those that are its defaults: `ppo(clip=0.1)`, or `ppo`.

    Args:
      factory: takes the settings as keywords.
      settings: by name; names that are no parameters of the factory do not count, so that `locals()` serves.
    """
    parameters = inspect.signature(factory).parameters.values()
    given = ", ".join(
        f"{p.name}={settings[p.name]!r}" for p in parameters if p.name in settings and settings[p.name] != p.default
    )
    return f"{factory.__name__}({given})" if given else factory.__name__


def with_argument(words: str, name: str, value: Any) -> str:
    """Words of a call in which an argument is another."""
    return _with_keywords(words, name, [ast.keyword(name, ast.Constant(value))])


def without_argument(words: str, name: str) -> str:
    """Words of a call without an argument."""
    return _with_keywords(words, name, [])


def _with_keywords(words: str, name: str, keywords: list[ast.keyword]) -> str:
    node = ast.parse(words, mode="eval").body
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    others = [keyword for keyword in call.keywords if keyword.arg != name]
    return ast.unparse(ast.Call(call.func, call.args, [*others, *keywords]))
