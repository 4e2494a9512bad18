# MuJoCo's Python module is a compiled one that says nothing about its types.
from typing import Any

def __getattr__(name: str) -> Any: ...
