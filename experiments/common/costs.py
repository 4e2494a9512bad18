"""What a compiled program computes and moves, by stage, with loops counted as often as they run.

XLA's own cost analysis has one number for a whole program, in which each loop runs once. This one reads the program's
text by the same rules; with every loop run once, it is to be held against XLA's number.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from common.stages import REST, stage_of, stages_of_operations

BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4}
BYTES |= {"s64": 8, "u64": 8, "f64": 8}
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
MOVING = {
    "broadcast",
    "concatenate",
    "copy",
    "dynamic-slice",
    "dynamic-update-slice",
    "gather",
    "iota",
    "pad",
    "reshape",
}
MOVING |= {"reverse", "slice", "transpose", "custom-call", "rng-bit-generator"}
TRANSCENDENTAL = {"atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log", "log-plus-one"}
TRANSCENDENTAL |= {"logistic", "power", "rsqrt", "sine", "sqrt", "tan", "tanh"}
SLICING = {"dynamic-slice", "slice", "gather"}
HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)$")
ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
PATH = re.compile(r'op_name="([^"]*)"')


class Cost(NamedTuple):
    """Cost of operations."""

    flops: float = 0.0  # operations on numbers, transcendental functions counted as one
    bytes: float = 0.0  # read and written by kernels
    kernels: float = 0.0  # one after another
    transcendental: float = 0.0  # of the operations, which XLA counts by themselves

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, number: float) -> Cost:
        return Cost(*(number * each for each in self))


class Operation(NamedTuple):
    """A line of a computation."""

    name: str
    type: str
    kind: str
    operands: tuple[str, ...]
    rest: str  # of the line: its attributes

    @property
    def elements(self) -> int:
        return sum(math.prod(shape) for _, shape in arrays(self.type))

    @property
    def bytes(self) -> int:
        return sum(BYTES[kind] * math.prod(shape) for kind, shape in arrays(self.type))


def arrays(type_: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields dtype and shape of each array of a type."""
    for kind, shape in ARRAY.findall(type_):
        if kind in BYTES:
            yield kind, tuple(int(size) for size in shape.split(",") if size)


class Costs:
    """Costs of a compiled program."""

    def __init__(self, program: str, trips: Mapping[str, int] | None):
        """Reads a program.

        Args:
          program: its optimised text.
          trips: how often loops run whose length is not a constant, by the end of their path of scopes; others run
            once. None: all loops run once, as XLA counts.
        """
        self._stages = stages_of_operations(program)
        self._trips = trips
        self._computations = dict(_computations(program))
        self._entry = next(line.split()[1].lstrip("%") for line in program.splitlines() if line.startswith("ENTRY"))
        self._shared: dict[str, dict[str, Cost]] = {}

    def by_stage(self) -> dict[str, Cost]:
        """Returns stage -> cost."""
        return self._of_computation(self._entry)

    def _length(self, loop: Operation) -> int:
        if self._trips is None:
            return 1
        if found := TRIPS.search(loop.rest):
            return int(found.group(1))
        return next((trips for end, trips in self._trips.items() if _path(loop).endswith(f"/{end}")), 1)

    def _of_computation(self, name: str) -> dict[str, Cost]:
        if name not in self._shared:
            found: dict[str, Cost] = {}
            operations = self._computations[name]
            for operation in operations.values():
                for stage, cost in self._of_operation(operation, operations).items():
                    found[stage] = found.get(stage, Cost()) + cost
            self._shared[name] = found
        return self._shared[name]

    def _of_operation(self, operation: Operation, others: Mapping[str, Operation]) -> dict[str, Cost]:
        if operation.kind in FREE:
            return {}
        if operation.kind == "while":
            body = self._of_computation(CALLED.findall(operation.rest)[0])
            here, found = stage_of(_path(operation)), dict[str, Cost]()
            for stage, cost in body.items():  # some of what XLA makes inside a loop has lost its path
                stage = here if stage == REST else stage
                found[stage] = found.get(stage, Cost()) + cost.times(self._length(operation))
            return found
        if operation.kind == "call":
            return self._of_computation(CALLED.findall(operation.rest)[0])
        if operation.kind == "conditional":
            branches = re.findall(r"%([\w.\-]+)", re.findall(r"branch_computations=\{([^}]*)\}", operation.rest)[0])
            costs = [self._of_computation(branch) for branch in branches]
            return max(costs, key=lambda cost: sum(each.kernels for each in cost.values()))
        stage = self._stages.get(operation.name, REST)
        arithmetic = self._arithmetic(operation, others)
        return {stage: arithmetic._replace(bytes=self._bytes(operation, others), kernels=1.0)}

    def _arithmetic(self, operation: Operation, others: Mapping[str, Operation]) -> Cost:
        """Returns operations on numbers alone."""
        kind, out = operation.kind, operation.elements
        if kind == "fusion":
            inside = self._computations[CALLED.findall(operation.rest)[0]]
            return sum((self._arithmetic(each, inside) for each in inside.values()), Cost())
        if kind in FREE or kind in MOVING:
            return Cost()
        if kind in TRANSCENDENTAL:
            return Cost(flops=out, transcendental=out)
        if kind == "dot":
            dims = re.findall(r"lhs_contracting_dims=\{([\d,]*)\}", operation.rest)[0]
            ((_, shape),) = arrays(others[operation.operands[0]].type)
            return Cost(flops=2.0 * out * math.prod(shape[int(dim)] for dim in dims.split(",") if dim))
        if kind in ("reduce", "reduce-window", "scatter", "map"):
            inside = self._computations[CALLED.findall(operation.rest)[0]]
            each = sum((self._arithmetic(one, inside) for one in inside.values()), Cost())
            if kind == "reduce":
                number = others[operation.operands[0]].elements - out
            elif kind == "reduce-window":
                size = math.prod(int(one) for one in re.findall(r"size=([\dx]+)", operation.rest)[0].split("x"))
                number = out * (size - 1)
            else:
                number = others[operation.operands[-1]].elements if kind == "scatter" else out
            return each.times(max(number, 0))
        if kind == "sort":
            return Cost(flops=out * math.log2(max(out, 2)))
        return Cost(flops=out)

    def _bytes(self, operation: Operation, others: Mapping[str, Operation]) -> float:
        """Returns bytes read and written; of what is only sliced or written in place, no more than the slice."""
        if operation.kind == "fusion":
            inside = self._computations[CALLED.findall(operation.rest)[0]]
            parameters = {int(_number(each)): name for name, each in inside.items() if each.kind == "parameter"}
            read = [_read(parameters[at], others[name], inside) for at, name in enumerate(operation.operands)]
            root = list(inside.values())[-1]
            return sum(read) + (2 * inside[root.operands[1]].bytes if _in_place(root) else operation.bytes)
        if operation.kind in SLICING:
            return 2.0 * operation.bytes
        if _in_place(operation):
            return 2.0 * others[operation.operands[1]].bytes
        return sum(others[name].bytes for name in operation.operands if name in others) + operation.bytes


def _number(parameter: Operation) -> str:
    return parameter.operands[0]


def _in_place(operation: Operation) -> bool:
    return operation.kind == "dynamic-update-slice"


def _read(parameter: str, given: Operation, inside: Mapping[str, Operation]) -> float:
    users = [each for each in inside.values() if each.kind != "parameter" and parameter in each.operands]
    if users and all(each.kind in SLICING and each.operands[0] == parameter for each in users):
        return sum(each.bytes for each in users)
    if users and all(_in_place(each) and each.operands[0] == parameter for each in users):
        return 0.0
    return given.bytes


def _path(operation: Operation) -> str:
    found = PATH.search(operation.rest)
    return found.group(1) if found else ""


def _computations(program: str) -> Iterator[tuple[str, dict[str, Operation]]]:
    name, found = "", {}
    for line in program.splitlines():
        if header := HEADER.match(line):
            name, found = header.group(1), {}
        elif line.startswith("}"):
            yield name, found
        elif match := INSTRUCTION.match(line):
            operation = _operation(*match.groups())
            found[operation.name] = operation


def _operation(name: str, type_: str, kind: str, rest: str) -> Operation:
    depths = itertools.accumulate((letter == "(") - (letter == ")") for letter in rest)
    end = next(at for at, depth in enumerate(depths, 1) if depth == -1)
    inside, rest = rest[: end - 1], rest[end:]
    operands = re.findall(r"%([\w.\-]+)", inside) if kind != "parameter" else [inside]
    return Operation(name, type_, kind, tuple(operands), rest)
