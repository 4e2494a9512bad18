"""Extension of griffe: comments of class fields are their documentation, so the reference shows what the code says."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Documents each annotated field of a class by the comment on its line, or else by the comment lines above it."""

    def on_attribute_instance(self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **_: Any) -> None:
        """Adds the comment of a field that has no docstring."""
        if attr.docstring is None and isinstance(node, ast.AnnAssign) and attr.parent and attr.parent.is_class:
            text = comment_of(attr.module.source.splitlines(), node)
            if text:
                attr.docstring = griffe.Docstring(text, parent=attr, lineno=node.lineno, endlineno=node.end_lineno)


def comment_of(lines: list[str], node: ast.AnnAssign) -> str:
    """Returns the comment of a field, "" if there is none."""
    last = node.end_lineno or node.lineno
    after = _comment(lines[last - 1].encode()[node.end_col_offset :].decode())
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line.strip().removeprefix("#").strip())
    return " ".join(above) if not after else after


def _comment(rest: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(rest.strip()).readline)
    return "".join(token.string.removeprefix("#").strip() for token in tokens if token.type == tokenize.COMMENT)
