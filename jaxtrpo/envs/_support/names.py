"""What messages say about names and values."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(
    name: str, known: Iterable[str], *, also: Iterable[str] = (), kind: str = "environment", prefix: str = ""
) -> str:
    """One sentence that offers the names nearest to a wrong one, or all if none is near.

    Args:
      name: the wrong one.
      known: the right ones.
      also: more right ones, too many to offer all of them.
      kind: of what it is the name.
      prefix: stands before every name.
    """
    by_lower = {k.lower(): k for k in known}
    candidates = {k.lower(): k for k in also} | by_lower
    near = [candidates[k] for k in difflib.get_close_matches(name.lower(), candidates, n=3, cutoff=0.5)]
    offered = [prefix + k for k in near or by_lower.values()]
    return f"unknown {kind} {prefix + name!r}; {'did you mean' if near else 'there are'} {', '.join(offered)}"
