"""Names of a module that are imported when first used, as its stub lists them."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


class LazyNames:
    """The names of a stub; ``lazy_loader`` reads only those of the stub's own package."""

    def __init__(self, module: str, file: str) -> None:
        stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
        imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
        self._homes = {each.name: str(node.module) for node in imports for each in node.names}
        self._module = module

    def __iter__(self) -> Any:
        return iter(self._homes)

    def find(self, name: str) -> Any:
        """Import what a name stands for; raise ``AttributeError`` if there is no such name."""
        if name not in self._homes:
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}")
        return getattr(import_module(self._homes[name]), name)
