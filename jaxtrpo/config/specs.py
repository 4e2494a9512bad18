"""Spec strings: calls such as "ppo(clip=0.1)" that name an algorithm, policy, critic or rule with its settings."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxtrpo.config.checks import plain

# Names and the modules of their factories, which are imported on demand.
_ALGORITHMS = ("trpo", "npg", "trpo_penalty", "trpo_replay", "ppo", "pg", "a2c", "a3c", "naf", "dqn", "sac", "gps")
_RULES = ("trust", "fixed", "linear", "exponential", "improvement", "margin", "model_accuracy", "chain")
KINDS: Mapping[str, Mapping[str, str]] = {
    "algorithm": {name: f"jaxtrpo.algorithms.{name}" for name in _ALGORITHMS},
    "adapt": dict.fromkeys(_RULES, "jaxtrpo.adapt"),
    "critic": {
        **{name: f"jaxtrpo.critics.{name}" for name in ("mlp", "linear", "none", "cnn")},
        **dict.fromkeys(("gru", "lstm"), "jaxtrpo.critics.recurrent"),
        "shared": "jaxtrpo.critics.shared",
    },
    "policy": {
        "mlp": "jaxtrpo.policies.networks",
        "cnn": "jaxtrpo.policies.cnn",
        "squashed": "jaxtrpo.policies.squashed",
        **dict.fromkeys(("gru", "lstm"), "jaxtrpo.policies.recurrent"),
    },
}
# Parts of the user's own, which only the command line imports: MODULE:NAME or FILE.py:NAME, with settings or without.
_OWN = re.compile(r"(?P<place>[^():]+):(?P<call>[A-Za-z_]\w*(\(.*\))?)", re.DOTALL)
OWN = "custom"  # spec string of a part of the user's own that has no other
CALLED = {"adapt": "rule"}  # kinds whose name in messages is not that of the setting


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Returns the factory of the algorithm, rule, critic or policy of that name."""
    return getattr(importlib.import_module(KINDS[kind][name]), name)


def parse(kind: str, text: str) -> Any:
    """Returns the value of a spec string such as `ppo`, `ppo(clip=0.1)` or `chain(margin(), fixed)`.

    The string is parsed, never evaluated: arguments are literals, bare words, or spec strings of the same kind.

    Args:
      kind: the setting that the string is for: "algorithm", "adapt", "critic" or "policy".
      text: spec string.

    Raises:
      ValueError: the string is not a spec string, or names an unknown factory or setting, or a value is out of bounds;
        one sentence that names the setting.
    """
    if split_own(text) or text == OWN:
        raise ValueError(
            f"{kind}={text!r} is your own, which text cannot describe in Python: pass the object itself, or in the "
            f"shell --{kind} MODULE:NAME"
        )
    try:
        return _build(kind, ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        example = next(iter(KINDS[kind]))
        raise ValueError(
            f"{kind}={text!r} must be a name or a call, such as {example} or {example}(setting=value)"
        ) from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{kind}={text!r}: {error}") from None


def _build(kind: str, node: ast.expr) -> Any:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise SyntaxError
    name, known = call.func.id, KINDS[kind]
    if name not in known:
        from jaxtrpo.config.aliases import known_elsewhere

        near = difflib.get_close_matches(name, known, n=2) or list(known)
        if instead := known_elsewhere(kind, name):
            raise ValueError(f"unknown {CALLED.get(kind, kind)} {name!r}; {instead}")
        raise ValueError(f"unknown {CALLED.get(kind, kind)} {name!r}; did you mean {' or '.join(near)}?")
    make = factory(kind, name)
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise SyntaxError
        if keyword.arg in arguments:
            raise ValueError(f"{name} is given {keyword.arg} twice")
        try:
            arguments[keyword.arg] = literal_or_word(keyword.value)
        except ValueError:
            raise ValueError(f"{keyword.arg} of {name} must be a Python literal or a word") from None
    parts = [_build(kind, argument) for argument in call.args]
    signature = inspect.signature(make)
    try:
        signature.bind(*parts, **arguments)
    except TypeError as error:
        raise ValueError(f"{error}{_near_settings(arguments, signature, name)}") from None
    return make(*parts, **arguments)


def literal_or_word(node: ast.expr) -> Any:
    """Returns the value of a Python literal, and a bare word as a string: shells take quotes away.

    Raises:
      ValueError: the expression is something else.
    """
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _near_settings(arguments: Mapping[str, Any], signature: inspect.Signature, name: str) -> str:
    """Returns the hint that ends the message about an unknown setting."""
    known = list(signature.parameters)
    for argument in arguments:
        near = difflib.get_close_matches(argument, known, n=1)
        if argument not in known and near:
            return f"; did you mean {near[0]}?"
    return f"; {name} takes {', '.join(known) or 'none'}"


def settings_in(kind: str, spec: str) -> list[tuple[str, Any]]:
    """Returns the settings that a spec string sets, with their values: max_kl and 0.05 for `trpo(max_kl=0.05)`.

    Only parameters that a factory declares count: in `linear(max_kl=0)`, max_kl is the final value, not the first.
    """
    try:
        tree = ast.parse(spec.strip(), mode="eval")
    except SyntaxError:
        return []
    found = []
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in KINDS[kind]):
            continue
        declared = inspect.signature(factory(kind, call.func.id)).parameters
        for keyword in call.keywords:
            if keyword.arg in declared:
                with contextlib.suppress(ValueError):  # `parse` rejects values that are not literals
                    found.append((keyword.arg, literal_or_word(keyword.value)))
    return found


def setting_of(kind: str, spec: str, name: str) -> Any:
    """Returns a setting in a spec string, or its default; None if the part is not built in or has no such setting."""
    if not is_built_in(kind, spec):
        return None
    declared = inspect.signature(factory(kind, spec.partition("(")[0].strip())).parameters
    return dict(settings_in(kind, spec)).get(name, declared[name].default) if name in declared else None


def split_own(text: str) -> tuple[str, str] | None:
    """Returns the module or file, and the name or call in it, of `MODULE:NAME(...)`; None for other texts."""
    found = _OWN.fullmatch(text.strip())
    if found is None:
        return None
    try:
        ast.parse(found["call"], mode="eval")
    except SyntaxError:
        return None
    return found["place"], found["call"]


def is_built_in(kind: str, spec: str) -> bool:
    """Whether a spec string names only factories of this package; nothing is imported."""

    def known(node: ast.expr) -> bool:
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        return isinstance(call.func, ast.Name) and call.func.id in KINDS[kind] and all(map(known, call.args))

    try:
        return known(ast.parse(spec.strip(), mode="eval").body)
    except (SyntaxError, ValueError):  # such as "custom:Name", or a null byte
        return False


def require_no_contradiction(kind: str, spec: str, name: str, value: Any) -> None:
    """Checks that a spec string does not set a setting to another value.

    Raises:
      ValueError: it does; one sentence that names both.
    """
    for setting, other in settings_in(kind, spec):
        if setting == name and other != value:
            raise ValueError(f"{kind}={spec!r} and {name}={value} contradict each other; give only one of them")


def require_one_value(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Checks that no setting of a run has another value in one of its spec strings.

    Args:
      settings: settings by name. Algorithm, policy, critic and rule are spec strings, or values with
        an attribute `spec_string`.
      usual: default values, which never contradict a spec string.

    Raises:
      ValueError: a setting has two values; one sentence that names both.
    """
    for kind in KINDS:
        part = settings.get(kind)
        spec = part if isinstance(part, str) else getattr(part, "spec_string", None)
        if not isinstance(spec, str):
            continue
        for name, _ in settings_in(kind, spec):
            value = settings.get(name)
            if value is not None and value != usual.get(name):
                require_no_contradiction(kind, spec, name, value)


def spec_string_of(factory: Callable[..., Any], settings: Mapping[str, Any]) -> str:
    """Returns the spec string of a factory called with these settings, without defaults: `ppo(clip=0.1)` or `ppo`.

    Args:
      factory: function that takes the settings as keyword arguments.
      settings: values by name. Names that are not parameters of the factory are ignored, so `locals()` can be passed.
    """
    parameters = inspect.signature(factory).parameters.values()
    given = ", ".join(
        f"{p.name}={plain(settings[p.name])!r}"
        for p in parameters
        if p.name in settings and not _is_same(plain(settings[p.name]), p.default)
    )
    return f"{factory.__name__}({given})" if given else factory.__name__


def _is_same(value: Any, default: Any) -> bool:
    """Returns whether a setting has its default; an array, which compares number by number, never has."""
    same = value == default
    return isinstance(same, bool) and same


def with_argument(spec: str, name: str, value: Any) -> str:
    """Returns a spec string with one argument set or replaced."""
    return _with_keywords(spec, name, [ast.keyword(name, ast.Constant(value))])


def without_argument(spec: str, name: str) -> str:
    """Returns a spec string without one of its arguments."""
    return _with_keywords(spec, name, [])


def _with_keywords(spec: str, name: str, keywords: list[ast.keyword]) -> str:
    place, text = split_own(spec) or ("", spec)
    node = ast.parse(text, mode="eval").body
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    others = [keyword for keyword in call.keywords if keyword.arg != name]
    changed = ast.unparse(ast.Call(call.func, call.args, [*others, *keywords]))
    return f"{place}:{changed}" if place else changed
