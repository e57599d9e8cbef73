"""The code that a plugin imports: modules by content, installed distributions by version."""

import ast
import hashlib
import importlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, distributions, requires
from importlib.util import resolve_name
from pathlib import Path
from pkgutil import get_importer, iter_modules
from typing import Any, cast

from trainables.plugins._serve import SERVED, Module

ROOMS = frozenset({"calsweep", "orchestrator", "trainables", "search_spaces"})
SITES = frozenset({"site-packages", "dist-packages"})
# Blocks under these conditions do not run when the module is imported.
NEVER = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
BY_NAME = ("import_module", "__import__")
BY_FILE = ("spec_from_file_location", "run_path", "exec")
FINDERS = ("pkgutil", "lazy_loader")  # Users of these import modules by computed names.


@dataclass(frozen=True)
class Brought:
    """A plugin's imports, without its own files, Python, calsweep and calsweep's dependencies.

    Attributes:
        modules: Modules of no distribution, or of one that was installed from a folder or
            repository, by name.
        versions: Versions of all other imported distributions, by name.
        nearby: Names of modules that exist only in the folder that contains the plugin.
        computed: Places whose imports cannot be followed, such as ``load.py, line 3``.
        missing: Names of top-level modules that were not found.
        absent: Imported names for which no module was read: functions, classes, modules of Python
            and of installed distributions, and names that were not found.
    """

    modules: Mapping[str, Module]
    versions: Mapping[str, str]
    nearby: frozenset[str]
    computed: Sequence[str]
    missing: frozenset[str]
    absent: frozenset[str]

    @cached_property
    def identity(self) -> dict[str, str]:
        """Return the hash of each module and the version of each distribution."""
        hashes = {name: hashlib.sha256(m.content).hexdigest() for name, m in self.modules.items()}
        return {
            **{f"module {name}": hashes[name] for name in sorted(hashes)},
            **{f"distribution {name}": self.versions[name] for name in sorted(self.versions)},
        }


def combined(own: str, identity: Mapping[str, str]) -> str:
    """Return one hash of a plugin's own hash and the ``Brought.identity`` of its imports."""
    if not identity:
        return own
    return hashlib.sha256(f"{own}\n{json.dumps(identity, sort_keys=True)}".encode()).hexdigest()


def brought_by(own: Mapping[str, Module], begin: str, folder: Path) -> Brought:
    """Follow the import statements of a plugin's modules without importing anything."""
    importlib.invalidate_caches()
    following = _Following(own, str(folder))
    following.visit(begin)
    while following.waiting:
        following.follow(following.waiting.pop())
    found = {name: module for name, module in following.found.items() if name not in own}
    nearby = frozenset(name for name in found if _top(name) in following.nearby)
    computed = sorted(set(following.computed))
    absent = frozenset(following.seen.keys() - following.found.keys())
    missing = frozenset(following.missing)
    return Brought(found, following.versions, nearby, computed, missing, absent)


@dataclass
class _Following:
    own: Mapping[str, Module]
    folder: str
    found: dict[str, Module] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    nearby: set[str] = field(default_factory=set)
    computed: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    waiting: list[Module] = field(default_factory=list)
    seen: dict[str, Sequence[str] | None] = field(default_factory=dict)
    walked: set[str] = field(default_factory=set)

    def visit(self, name: str) -> Sequence[str] | None:
        """Look up a module and its parent packages; return the folders of its submodules.

        Return None if it has none, is not found, or is not followed.
        """
        if name not in self.seen:
            parent = name.rpartition(".")[0]
            path = self.visit(parent) if parent else None
            if _top(name) in self.own:
                self.seen[name] = self._add(self.own[name]) if name in self.own else None
            else:
                unknown = name in ROOMS or (parent and path is None)
                self.seen[name] = None if unknown else self._look(name, path)
        return self.seen[name]

    def _look(self, name: str, path: Sequence[str] | None) -> Sequence[str] | None:
        spec = find_spec(name, path)
        if spec is None and path is None:
            spec = find_spec(name, [self.folder])
            spec = spec if spec is not None and spec.has_location else None
            (self.missing if spec is None else self.nearby).add(name)
        if spec is None:
            return None
        if not spec.has_location:  # A namespace package has no code, a built-in module no file.
            return list(spec.submodule_search_locations or ()) or None
        return None if _is_pythons(spec) or self._is_installed(spec) else self._add(_read(spec))

    def _add(self, module: Module) -> Sequence[str] | None:
        self.found[module.name] = module
        self.waiting.append(module)
        return module.locations

    def _is_installed(self, spec: ModuleSpec) -> bool:
        """Return True if the version of an installed distribution identifies a module's code.

        Add that distribution to ``versions``, unless it is a dependency of calsweep.
        """
        place = Path(str(spec.origin))
        if spec.name in _needed() and SITES & {*place.parts}:
            return True
        owner = _owner(place)
        if owner is not None and _plain(owner.name) not in _needed():
            self.versions[_plain(owner.name)] = owner.version
        return owner is not None

    def follow(self, module: Module) -> None:
        """Visit everything that a module imports."""
        for node in _nodes(module):
            for name in _names(node, module):
                if name.endswith(".*"):
                    self._visit_below(name[:-2])
                else:
                    self.visit(name)
            if _is_computed(node):
                self.computed.append(f"{Path(module.origin).name}, line {node.lineno}")
                self._visit_below(_top(module.name))

    def _visit_below(self, package: str) -> None:
        path = self.visit(package)
        for name in [own for own in self.own if own.startswith(f"{package}.")]:
            self.visit(name)
        if path is None or package in self.walked:
            return
        self.walked.add(package)
        for each in iter_modules(path, f"{package}."):
            self.visit(each.name)
            if each.ispkg:
                self._visit_below(each.name)


def find_spec(name: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """Return a module's spec, None if there is none, without importing its parent packages."""
    # With a path, PathFinder needs the parent packages to be imported.
    skipped = (SERVED,) if path is None else (SERVED, PathFinder)
    finders: list[Any] = [finder for finder in sys.meta_path if finder not in skipped]
    for finder in finders:
        if (spec := finder.find_spec(name, path)) is not None:
            return cast(ModuleSpec, spec)
    portions: list[str] = []
    for place in path or ():
        importer: Any = get_importer(place)
        spec = importer.find_spec(name) if importer is not None else None
        if spec is not None and spec.loader is not None:
            return cast(ModuleSpec, spec)
        portions += (spec.submodule_search_locations or ()) if spec is not None else ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _read(spec: ModuleSpec) -> Module:
    origin, places = str(spec.origin), spec.submodule_search_locations
    content = cast(Any, spec.loader).get_data(origin)
    return Module(spec.name, origin, content, None if places is None else list(places))


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_pythons(spec: ModuleSpec) -> bool:
    place = Path(str(spec.origin))
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return any(map(place.is_relative_to, libraries)) and not SITES & {*place.parts}


def _owner(place: Path) -> Distribution | None:
    """Return the distribution that owns a file.

    Return None if there is none, or if it was installed from a folder or repository.
    """
    for entry in map(Path, dict.fromkeys(each or os.getcwd() for each in sys.path)):
        if place.is_relative_to(entry) and entry.is_dir():
            line = f"\n{place.relative_to(entry).as_posix()},"
            for distribution, record in _records(entry, entry.stat().st_mtime_ns):
                if line in record:
                    address = json.loads(distribution.read_text("direct_url.json") or "{}")
                    # The version does not identify the code in a folder or repository.
                    return None if {"dir_info", "vcs_info"} & {*address} else distribution
    return None


@cache  # Reading takes a second if many distributions are installed.
def _records(folder: Path, _changed: int) -> list[tuple[Distribution, str]]:
    found = distributions(path=[str(folder)])
    return [(each, f"\n{each.read_text('RECORD') or ''}") for each in found]


@cache
def _needed() -> frozenset[str]:
    """Return the names of calsweep's dependencies, without those of extras."""
    lines = requires("calsweep") or ()
    names = (re.match(r"[\w.-]+", line) for line in lines if "extra ==" not in line)
    return frozenset(_plain(name[0]) for name in names if name)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _nodes(module: Module) -> Iterator[Any]:
    """Yield a module's syntax nodes, without blocks that never run in an import (``NEVER``)."""
    nodes: list[ast.AST] = []
    with suppress(SyntaxError, ValueError):  # The import itself reports this error.
        nodes = [ast.parse(module.content)] if module.is_source else []
    while nodes:
        node = nodes.pop()
        yield node
        never = isinstance(node, ast.If) and ast.unparse(node.test) in NEVER
        nodes += node.orelse if never else ast.iter_child_nodes(node)  # type: ignore[attr-defined]


def _names(node: ast.AST, module: Module) -> Iterator[str]:
    """Yield the full names that a node imports: of modules, or of anything in them.

    A name that ends in ``.*`` stands for everything below that module.
    """
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute("." * node.level + (node.module or ""), module)
        yield from (f"{base}.{alias.name}" for alias in node.names if base)
    elif (called := _called(node, BY_NAME)) and (named := _text(called)):
        yield from filter(None, [_absolute(named, module)])


def _absolute(name: str, module: Module) -> str:
    """Return the absolute name; empty if a relative one leaves its package."""
    try:
        return resolve_name(name, module.package) if name.startswith(".") else name
    except ImportError:
        return ""


def _called(node: ast.AST, names: Sequence[str]) -> ast.Call | None:
    if not isinstance(node, ast.Call):
        return None
    name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
    return node if name in names else None


def _text(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _is_computed(node: ast.AST) -> bool:
    """Return True if a node may import modules whose names are computed at run time."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        return any(name in FINDERS for name in (*named, getattr(node, "module", None)))
    called = _called(node, BY_NAME)
    return bool(called and not _text(called)) or _called(node, BY_FILE) is not None
