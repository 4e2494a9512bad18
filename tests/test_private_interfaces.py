"""Private interfaces of other packages, which may change in any release: every use is listed here with its reason."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PACKAGE = "jaxtrpo"

# (file, private name): why there is no public way, and what fails when it changes.
ALLOWED = {
    ("envs/brax.py", "._envs"): "Brax has no public list of its environments; tests/envs/test_envs_brax.py fails",
    ("envs/gymnasium/spec.py", "._max_episode_steps"): (
        "TimeLimit has no public attribute for its limit; tests/envs/test_envs_gymnasium_bridge.py fails"
    ),
    ("envs/mujoco/mjx_engine.py", "._impl"): (
        "MJX has no public accessor for the fields of one implementation; tests/envs/test_envs_mjx.py fails"
    ),
    ("envs/mujoco/mjx_engine.py", "mujoco.mjx.third_party.mujoco_warp._src.types"): (
        "MuJoCo Warp exports its overflow bits nowhere else; making an environment with impl='warp' fails"
    ),
    ("envs/mujoco/native.py", "._address"): (
        "the bindings lend the C pointer of a model in no other way; every test of a MuJoCo task fails"
    ),
    ("envs/mujoco/libmujoco.py", "._mjPRIVATE_setTlsLogHandler"): (
        "the public log handler is global to the process, not to a thread; every test of a MuJoCo task fails"
    ),
    ("runs/sweep/scheduler.py", "._trial_id"): (
        "Optuna resumes a running trial only by its private id; tests/runs/sweep/test_sweep.py fails"
    ),
}

# Public in spite of the underscore, by the documentation of the standard library.
NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
DOCUMENTED = {"os._exit"}
BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}


def is_private(name: str) -> bool:
    """Whether one of the parts of a dotted name is private."""
    return any(re.fullmatch(r"_(?!_.*__$).+", part) for part in name.split("."))


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Private names that are not of the package itself: modules in full, attributes as `._name`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names if _is_foreign(alias.name))
            case ast.ImportFrom(level=0, module=str(module)):
                names = (f"{module}.{alias.name}" for alias in node.names)
                yield from (name for name in names if _is_foreign(name))
            case ast.Attribute(value=owner, attr=attr) if is_private(attr) and attr not in NAMED_TUPLE:
                if not _is_own(owner) and ast.unparse(node) not in DOCUMENTED:
                    yield f".{attr}"
            case ast.Call(func=function, args=arguments):
                called = ast.unparse(function).rpartition(".")[2]
                texts = [each.value for each in arguments if isinstance(each, ast.Constant)]
                names = [text for text in texts if isinstance(text, str) and is_private(text)]
                if called in ("import_module", "__import__", "find_spec"):
                    yield from (name for name in names if _is_foreign(name))
                elif called in BY_NAME and not _is_own(arguments[0]):
                    yield from (f".{name}" for name in names)


def _is_own(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls")


def _is_foreign(name: str) -> bool:
    return is_private(name) and name.partition(".")[0] != PACKAGE


def found() -> set[tuple[str, str]]:
    """(file, private name) of all uses in the package."""
    root = ROOT / PACKAGE
    files = sorted(root.rglob("*.py"))
    assert len(files) > 50
    return {(str(file.relative_to(root)), name) for file in files for name in private_uses(ast.parse(file.read_text()))}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import jax._src.core", ["jax._src.core"]),
        ("from jax._src import core as c", ["jax._src.core"]),
        ("from jax import _src", ["jax._src"]),
        ("import _thread", ["_thread"]),
        ("def f():\n    jax._src.core.f()", ["._src"]),
        ("self._jax._src.f(self._mine)", ["._src"]),
        ("getattr(data._impl, name)", ["._impl"]),
        ("getattr(data, '_impl', getattr(self, '_mine'))", ["._impl"]),
        ("importlib.import_module('jax._src.core')", ["jax._src.core"]),
        ("from __future__ import annotations\nimport jax.numpy as _jnp", []),
        ("from jaxtrpo.envs._support import names\nfrom . import _this", []),
        ("state._replace(a=1)._asdict()\nself._x = cls._y\ntype(x).__name__\nos._exit(1)\nlog('_x')", []),
    ],
)
def test_each_way_to_reach_a_private_name_is_found(source, expected):
    assert list(private_uses(ast.parse(source))) == expected


def test_private_interfaces_are_those_listed():
    assert found() == set(ALLOWED), "list new uses in ALLOWED with their reason, and remove those that are gone"


def test_jax_has_an_upper_bound_if_its_private_interfaces_are_used():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [jax] = [each for each in map(Requirement, dependencies) if each.name == "jax"]
    bounded = any(each.operator in ("<", "<=", "==", "~=") for each in jax.specifier)
    assert bounded == any(name.startswith("jax.") for _, name in found())
