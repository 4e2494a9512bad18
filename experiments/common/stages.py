"""Where the time of a compiled program goes, by the named scopes that its operations were written in."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

# Named scopes of the package. An operation belongs to the first that its path contains, so inner scopes come first.
STAGES = (
    "reset",
    "physics",
    "policy",
    "advantages",
    "action_critic",
    "critic",
    "gradient",
    "fisher",
    "line_search",
    "passes",
)
REST = "rest"
CONTROL_FLOW = ("while", "conditional", "call")  # their events last as long as those of what they contain
OPERATION = re.compile(r'%?([\w.\-]+) = .*?metadata=\{op_name="([^"]*)"')
FUSION = re.compile(r"%?([\w.\-]+) = [^\n]*? calls=%?([\w.\-]+)")
COMPUTATION = re.compile(r"^%?([\w.\-]+) \([^\n]*\{$", re.MULTILINE)


def stage_of(path: str) -> str:
    """The stage of an operation, given its path of scopes such as "jit(f)/while/body/fisher/dot_general"."""
    scopes = path.split("/")
    return next((stage for stage in STAGES if stage in scopes), REST)


def stages_of_operations(program: str) -> dict[str, str]:
    """Operation -> stage, for the text of a compiled program.

    A fusion that does not say where it comes from is attributed to the stage that most of its operations belong to.
    """
    found = {name: stage_of(path) for name, path in OPERATION.findall(program)}
    inside = _stages_inside(program)
    for name, computation in FUSION.findall(program):
        if found.get(name, REST) == REST and inside.get(computation):
            found[name] = inside[computation].most_common(1)[0][0]
    return found


def _stages_inside(program: str) -> Mapping[str, Counter[str]]:
    starts = list(COMPUTATION.finditer(program))
    ends = [start.start() for start in starts[1:]] + [len(program)]
    return {
        start.group(1): Counter(stage_of(path) for _, path in OPERATION.findall(program[start.end() : end]))
        for start, end in zip(starts, ends, strict=True)
    }


def seconds_by_stage(program: str, run: Callable[[], Any]) -> dict[str, float]:
    """Seconds that each stage keeps the device busy while `run` executes a compiled program once.

    Args:
      program: its optimised text.
      run: executes it and waits for the result; it has run before.
    """
    stages, found = stages_of_operations(program), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    planes = list(data.planes)
    on_device = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in on_device or planes:
        for line in plane.lines:
            for event in line.events:
                about = dict(event.stats)
                operation = about.get("hlo_op")
                if operation is None or event.name.startswith("end: ") or operation.startswith(CONTROL_FLOW):
                    continue
                path = str(about.get("name", ""))  # a GPU says it of each kernel
                stage = stage_of(path) if path else stages.get(operation, REST)
                found[stage] += event.duration_ns / 1e9
    return dict(found)
