"""Lazy imports of the names that a module's stub lists."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


class LazyNames:
    """The names in a stub, also of other packages (which ``lazy_loader`` does not support)."""

    def __init__(self, module: str, file: str) -> None:
        stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
        imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
        self._homes = {each.name: str(node.module) for node in imports for each in node.names}
        self._module = module

    def __iter__(self) -> Any:
        return iter(self._homes)

    def find(self, name: str) -> Any:
        """Import and return a name; raise ``AttributeError`` if the stub does not have it."""
        if name not in self._homes:
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}")
        return getattr(import_module(self._homes[name]), name)
