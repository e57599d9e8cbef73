"""Imports the modules of plugins exactly as they were when they were hashed."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

from trainables.common.errors import InputError


@dataclass(frozen=True)
class Module:
    """A module that was read, but not imported.

    Attributes:
        name: The full name, such as ``package.losses``.
        origin: The path of its file.
        content: The file's bytes.
        locations: The folders of its submodules; None if it is not a package.
    """

    name: str
    origin: str
    content: bytes
    locations: Sequence[str] | None = None

    @property
    def is_source(self) -> bool:
        """Return True for Python source, False for a compiled extension."""
        return self.origin.endswith(".py")

    @property
    def package(self) -> str:
        """Return the package that relative imports start from; empty if none."""
        return self.name if self.locations is not None else self.name.rpartition(".")[0]


class _AsHashed(SourceFileLoader):
    """Executes the source that was hashed: bytecode caches compare times only to the second."""

    def __init__(self, module: Module) -> None:
        super().__init__(module.name, module.origin)
        self.content = module.content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.content, self.path)


class _Served(MetaPathFinder):
    """Lets all import statements, also later ones, find ``modules``."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        module = self.modules.get(fullname)
        if module is None:
            return None
        places = None if module.locations is None else list(module.locations)
        loader = _AsHashed(module) if module.is_source else None
        return spec_from_file_location(
            fullname, module.origin, loader=loader, submodule_search_locations=places
        )


SERVED = _Served()


def serve(modules: Mapping[str, Module], absent: Iterable[str] = ()) -> set[str]:
    """Make import statements find these modules; return the names of modules that they replace.

    Modules named in ``absent`` are unloaded and no longer served.
    """
    if SERVED not in sys.meta_path:
        sys.meta_path.insert(0, SERVED)
    for name, module in modules.items():
        before = SERVED.modules.get(name, module)
        if name in sys.modules and not module.is_source and before.content != module.content:
            raise InputError(
                f"module {name!r} ({module.origin}) was compiled again after this process had "
                "imported it; start a new process"
            )
    for name in [name for name in absent if name in SERVED.modules]:
        _unload(name)
        del SERVED.modules[name]
    replaced = {name for name in modules if name in sys.modules} if _stale(modules) else set()
    for name in replaced:
        if modules[name].is_source:
            _unload(name)
    SERVED.modules.update(modules)
    return replaced


def _unload(name: str) -> None:
    """Make the next import load a module, and all source modules below it, again."""
    for known, module in list(sys.modules.items()):
        is_source = str(getattr(module, "__file__", "")).endswith(".py")
        if known == name or (known.startswith(f"{name}.") and is_source):
            del sys.modules[known]
    parent, _, attribute = name.rpartition(".")
    vars(sys.modules.get(parent, ModuleType(""))).pop(attribute, None)


def are_served(modules: Mapping[str, Module]) -> bool:
    """Return True if import statements find exactly these versions of the modules."""
    return not _stale(modules) and all(
        SERVED.modules.get(name) is not None and SERVED.modules[name].content == module.content
        for name, module in modules.items()
    )


def withdraw(package: str) -> None:
    """Unload a package and all modules below it, and stop serving them."""
    for known in (sys.modules, SERVED.modules):
        for name in [name for name in known if name.partition(".")[0] == package]:
            del known[name]


def _stale(modules: Mapping[str, Module]) -> bool:
    """Return True if a module of Python source was imported in another or an unknown version."""
    return any(
        module.is_source
        and name in sys.modules
        and getattr(getattr(sys.modules[name], "__loader__", None), "content", None)
        != module.content
        for name, module in modules.items()
    )
