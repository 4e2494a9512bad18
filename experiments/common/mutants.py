"""Plausible one-line mistakes in a module: an off-by-one comparison, a missing guard, a random key used twice.

The mutation operators of mutmut and cosmic-ray are not made for numerical code: they replace any operator by any other,
which mostly fails at once and says little about the tests, but never drop a guard or reuse a random key. The mutants
here are mistakes that a review might miss.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
TWINS = [
    ("minimum", "maximum"), ("min", "max"), ("any", "all"), ("sum", "mean"), ("argmin", "argmax"), ("floor", "ceil"),
    ("zeros", "ones"), ("zeros_like", "ones_like"), ("less", "greater"),
]  # fmt: skip
TWIN = {**dict(TWINS), **{b: a for a, b in TWINS}}
SYMMETRIC = {"minimum", "maximum", "min", "max", "add", "merge"}  # functions whose arguments may be swapped
# Calls that are replaced by their first argument.
BOUNDS = {"maximum", "minimum", "max", "min", "clip", "stop_gradient"}
# Names whose code affects only speed, memory or shapes.
ONLY_SPEED = {
    "work",
    "step_work",
    "Work",
    "optimization_barrier",
    "after",
    "worth_side_by_side",
    "eval_shape",
    "PRNGKey",
}
SETTINGS = {"starts"}  # tuned values, of which none is wrong
# Functions that only check settings or format messages.
ONLY_MESSAGES = re.compile(r"(require_\w+|spec_string_of|description|format_settings|_in_mib)$")


class Mutant(NamedTuple):
    """One mistake in a module."""

    line: int
    kind: str
    before: str  # the changed line, or the first of several
    after: str
    where: str  # name of the enclosing function
    start: int  # first byte of the source that is replaced
    stop: int  # byte after the last
    by: str  # replacement

    def applied(self, source: str) -> str:
        """Returns the source of the module with the mistake."""
        text = source.encode()
        return (text[: self.start] + self.by.encode() + text[self.stop :]).decode()


class _Source:
    """Source text of syntax nodes."""

    def __init__(self, source: str):
        self.text, self._starts = source.encode(), [0]
        for line in self.text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def stop(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def __call__(self, node: ast.AST) -> str:
        return self.text[self.start(node) : self.stop(node)].decode()


def required_arguments(sources: Iterable[str]) -> dict[str, set[str]]:
    """Returns the required keyword arguments of the functions in some sources, by function name."""
    found: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                found.setdefault(node.name, set()).update(
                    argument.arg for argument, default in pairs if default is None
                )
    return found


def mutants_of(source: str, required: Mapping[str, set[str]] = MappingProxyType({})) -> list[Mutant]:
    """Returns all mutants of a module, in the order of the source; all of them parse.

    Args:
      source: source of the module.
      required: keyword arguments that no mutant leaves out (see `required_arguments`).
    """
    tree, text, found = ast.parse(source), _Source(source), {}
    same = ast.dump(tree)
    for node, where in _code(tree, ""):
        for kind, start, stop, by in [
            *_of_operators(node, text),
            *_of_expression(node, text, required),
            *_of_keys(node, text),
        ]:
            line = text.text.count(b"\n", 0, start) + 1
            mutant = Mutant(line, kind, "", "", where, start, stop, by)
            changed = mutant.applied(source)
            try:
                if ast.dump(ast.parse(changed)) == same:
                    continue
            except SyntaxError:
                continue
            before, after = (each.splitlines()[line - 1].strip() for each in (source, changed))
            found.setdefault((start, stop, by), mutant._replace(before=before, after=after))
    return [found[key] for key in sorted(found)]


def _code(node: ast.AST, where: str) -> Iterator[tuple[ast.AST, str]]:
    """Yields nodes of code with their function, but no annotations, messages, default values or constants."""
    if isinstance(node, ast.Assign) and _name(node.targets[0]) in SETTINGS:
        return
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, ast.Call) and (_name(node.func) in ONLY_SPEED or ONLY_MESSAGES.match(_name(node.func))):
        return
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        name = getattr(node, "name", where)
        if name in ONLY_SPEED or ONLY_MESSAGES.match(name):
            return
        body = node.body if isinstance(node.body, list) else [node.body]
        for statement in body:
            yield from _code(statement, name)
        return
    if isinstance(node, (ast.Module, ast.ClassDef)):  # fields and constants are data
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                yield from _code(statement, getattr(node, "name", ""))
        return
    yield node, where
    for field, value in ast.iter_fields(node):
        if field != "annotation":
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _code(child, where)


Change = tuple[str, int, int, str]  # kind, first byte, byte after the last, replacement


def _of_operators(node: ast.AST, text: _Source) -> Iterator[Change]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            kind, (old, new) = "comparison", COMPARISONS[type(operator)]
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            if any(_is_text(part) for part in (left, right)):
                return
            kind, (old, new) = "arithmetic", OPERATORS[type(operator)]
        case _:
            return
    start, stop = text.stop(left), text.start(right)
    yield kind, start, stop, text.text[start:stop].decode().replace(old, new, 1)


def _of_expression(node: ast.AST, text: _Source, required: Mapping[str, set[str]]) -> Iterator[Change]:
    def replaced(kind: str, by: str, part: ast.AST = node) -> Change:
        return kind, text.start(part), text.stop(part), by

    match node:
        case ast.BoolOp(op=operator, values=values):
            word = " and " if isinstance(operator, ast.Or) else " or "
            yield replaced("logic", "(" + word.join(f"({text(each)})" for each in values) + ")")
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            if not isinstance(operand, ast.Constant):
                yield replaced("negation", f"({text(operand)})")
        case ast.Constant(value=bool(value)):
            yield replaced("constant", str(not value))
        case ast.Constant(value=int(value)):
            yield replaced("constant", str(value + 1))
            yield replaced("constant", str(value - 1))
        case ast.Constant(value=float(value)):
            yield replaced("constant", str(2 * value if value else 1.0))
        case ast.IfExp(body=body, orelse=other):
            yield replaced("guard", f"({text(body)})")
            yield replaced("guard", f"({text(other)})")
        case ast.Call(func=function, args=arguments, keywords=keywords):
            name = _name(function)
            if name == "where" and len(arguments) == 3:
                yield replaced("guard", f"({text(arguments[1])})")
                yield replaced("guard", f"({text(arguments[2])})")
            if name in BOUNDS and arguments and (len(arguments) > 1 or name == "stop_gradient"):
                yield replaced("guard", f"({text(arguments[0])})")
            if name in TWIN and isinstance(function, ast.Attribute):
                yield replaced("twin", f"{text(function.value)}.{TWIN[name]}", function)
            if len(arguments) == 2 and all(isinstance(each, ast.Name) for each in arguments) and name not in SYMMETRIC:
                rest = [text(each) for each in [*reversed(arguments), *keywords]]
                yield replaced("argument", f"{text(function)}({', '.join(rest)})")
            known = required.get(name, set())
            for left_out in keywords if not name[:1].isupper() else ():
                if left_out.arg is None or left_out.arg in known:
                    continue
                rest = [text(each) for each in [*arguments, *keywords] if each is not left_out]
                yield replaced("keyword", f"{text(function)}({', '.join(rest)})")


def _of_keys(node: ast.AST, text: _Source) -> Iterator[Change]:
    """Yields changes after which a random key is used twice."""
    match node:
        case ast.Call(func=function, args=[key, _]) if _name(function) in ("numbered_key", "fold_in"):
            yield "key", text.start(node), text.stop(node), text(key)
        case ast.Assign(targets=[ast.Tuple(elts=[first, *others])], value=ast.Call(func=function)):
            for other in others if _name(function) == "split" else ():
                yield "key", text.start(node), text.stop(node), f"{text(node)}; {text(other)} = {text(first)}"


def _name(function: ast.AST) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
