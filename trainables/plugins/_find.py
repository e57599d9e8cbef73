"""The files of a plugin, and one hash of these files and everything they import."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath

from trainables.common.errors import InputError
from trainables.common.files import altered_file
from trainables.common.paths import local_path
from trainables.plugins._imports import Brought, brought_by, combined, find_spec
from trainables.plugins._serve import Module

GROUP = "calsweep.plugins"  # The entry point group of installed plugins.
LARGEST = 16 * 2**20  # Bytes; enough for code and YAML, but not for weights.
SPACE = ".yaml"
FILE = "<plugin>"  # The module name of a plugin that is a single file.
IDENTITY = "imported.json"  # File of a copy with hashes and versions of the plugin's imports.


@dataclass(frozen=True)
class Source:
    """A plugin's files, read once."""

    root: Path  # The file, or the folder of the package.
    module: str  # The module of a package to import, such as ``package.losses``.
    files: Mapping[str, bytes]  # By path relative to the folder that contains ``root``.

    @property
    def name(self) -> str:
        """Return the name that messages and commands use."""
        return self.root.stem

    @property
    def is_package(self) -> bool:
        """Return True if the plugin is a folder, not a single file."""
        return self.root.suffix != ".py"

    @cached_property
    def code(self) -> str:
        """Return the SHA-256 (hex) of the plugin's files and their imports; see ``Brought``."""
        return combined(self.own_code, self.brought.identity)

    @cached_property
    def own_code(self) -> str:
        """Return the SHA-256 (hex) of the names and content of the plugin's files."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Return the plugin's own modules by name; a single file is called ``FILE``."""
        folder = self.root.parent
        if not self.is_package:
            file = self.root.name
            return {FILE: Module(FILE, str(self.root), self.files[file])}
        found = {}
        for path, content in self.files.items():
            ending = next((s for s in (".py", *EXTENSION_SUFFIXES) if path.endswith(s)), None)
            if ending is not None:
                parts = PurePosixPath(path.removesuffix(ending)).parts
                is_package = parts[-1] == "__init__"
                name = ".".join(parts[:-1] if is_package else parts)
                places = [str((folder / path).parent)] if is_package else None
                found[name] = Module(name, str(folder / path), content, places)
        return found

    @cached_property
    def brought(self) -> Brought:
        """Return the imports of the plugin's files; see ``Brought``."""
        begin = self.module if self.is_package else FILE
        return brought_by(self.modules, begin, self.root.parent)

    @property
    def copied(self) -> dict[str, bytes]:
        """Return the files to copy, as content by path relative to the folder of the plugin.

        They are the plugin's own files, the modules that it imports and that exist only in that
        folder, and ``IDENTITY`` if it has imports.
        """
        folder = self.root.parent
        found = [self.brought.modules[name] for name in self.brought.nearby]
        nearby = {str(Path(each.origin).relative_to(folder)): each.content for each in found}
        identity = self.brought.identity
        recorded = {IDENTITY: json.dumps(identity, indent=1).encode()} if identity else {}
        return {**nearby, **self.files, **recorded}

    def changed_import(self, code: str) -> str | None:
        """Return the first import that changed since the copy was made.

        Return None if the copy itself does not match ``code``.
        """
        place = self.root.parent / IDENTITY
        recorded = json.loads(place.read_bytes()) if place.is_file() else {}
        whole = combined(self.own_code, recorded) == code
        return altered_file(recorded, self.brought.identity) if whole else None

    @property
    def path(self) -> str:
        """Return the path for a sweep file, relative to the folder that contains ``root``."""
        if not self.is_package:
            return self.root.name
        place = self.module.replace(".", "/")
        return f"{place}.py" if f"{place}.py" in self.files else place


def find_source(named: str, folder: Path) -> Source:
    """Return a plugin's source, given its path (from ``folder``), entry point or module."""
    if "/" in named or named.endswith(".py"):
        place = named if named.startswith("~") else folder.absolute() / named
        return _source_at(named, local_path(place, f"plugin {named!r}"))
    points = entry_points(group=GROUP)
    module = points[named].module if named in points.names else named
    return _installed(named, module)


def installed_sources() -> Iterator[Source]:
    """Yield the source of every installed package that has an entry point of calsweep."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        yield _installed(point.name, point.module)


def _installed(named: str, module: str) -> Source:
    found = find_spec(module.partition(".")[0])
    if found is None or found.origin is None or not found.has_location:
        raise InputError(
            f"plugin {named!r}: no installed package or module has that name; "
            "use ./FILE.py for a file next to the sweep file"
        )
    root = Path(found.origin)
    return _read(root.parent if root.name == "__init__.py" else root, module)


def _source_at(named: str, place: Path) -> Source:
    if place.is_dir():
        if not (place / "__init__.py").is_file():
            raise InputError(
                f"plugin {named!r}: expected a package, but {place} has no __init__.py"
            )
        inner = place
    elif place.suffix == ".py" and place.is_file():
        if not (place.parent / "__init__.py").is_file():
            return _read(place, place.stem)
        inner = place.parent if place.name == "__init__.py" else place.with_suffix("")
    else:
        raise InputError(f"plugin {named!r}: no file or package {place}")
    root = inner if inner.is_dir() else inner.parent
    while (root.parent / "__init__.py").is_file():
        root = root.parent
    return _read(root, ".".join(inner.relative_to(root.parent).parts))


def _read(root: Path, module: str) -> Source:
    if root.is_dir():
        paths = [path for path in sorted(root.rglob("*")) if path.is_file() and _counts(path, root)]
    else:
        space = root.with_suffix(SPACE)
        paths = [root, *([space] if space.is_file() and not is_sweep(space.read_bytes()) else [])]
    try:
        size = sum(path.stat().st_size for path in paths)
        if size > LARGEST:
            raise InputError(f"plugin {root}: expected at most {LARGEST:,} bytes, got {size:,}")
        files = {str(path.relative_to(root.parent)): path.read_bytes() for path in paths}
    except OSError as error:
        raise InputError(f"plugin {root}: cannot be read: {error}") from error
    return Source(root, module, files)


def is_sweep(content: bytes) -> bool:
    """Return True for a sweep file, which may have a plugin's name but does not belong to it."""
    return re.search(rb"^(tasks|recipes)\s*:", content, re.MULTILINE) is not None


def _counts(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
    return not hidden and path.suffix != ".pyc"
