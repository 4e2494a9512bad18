"""Error messages for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(
    name: str, known: Iterable[str], *, also: Iterable[str] = (), kind: str = "environment", prefix: str = ""
) -> str:
    """Returns an error message that suggests the known names closest to `name`, or lists `known` if none is close.

    Args:
      name: the unknown name.
      known: valid names.
      also: further valid names; suggested if close, but too many to list.
      kind: what the name refers to.
      prefix: put in front of every name.
    """
    by_lower = {k.lower(): k for k in known}
    candidates = {k.lower(): k for k in also} | by_lower
    close = [candidates[k] for k in difflib.get_close_matches(name.lower(), candidates, n=3, cutoff=0.5)]
    offered = [prefix + k for k in close or by_lower.values()]
    return f"unknown {kind} {prefix + name!r}; {'did you mean' if close else 'available:'} {', '.join(offered)}"
