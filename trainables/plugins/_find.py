"""Where a plugin's code lies, and the hash of it."""

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path

from trainables.common.errors import InputError
from trainables.common.paths import local_path

GROUP = "calsweep.plugins"  # The entry points by which installed packages are found.
LARGEST = 16 * 2**20  # Bytes: code and YAML, not weights.
SPACE = ".yaml"


@dataclass(frozen=True)
class Source:
    """A plugin's files, read once."""

    root: Path  # The file, or the folder of the package.
    module: str  # To import from a package, such as ``package.losses``.
    files: Mapping[str, bytes]  # By path below the folder that holds ``root``.

    @property
    def name(self) -> str:
        """Return what messages and commands call the plugin."""
        return self.root.stem

    @property
    def is_package(self) -> bool:
        """Return True if it is a folder, not a single file."""
        return self.root.suffix != ".py"

    @cached_property
    def code(self) -> str:
        """Return the SHA-256 (hex) of names and content of all files."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    @property
    def path(self) -> str:
        """Return what of it a sweep file names, below the folder that holds ``root``."""
        if not self.is_package:
            return self.root.name
        place = self.module.replace(".", "/")
        return f"{place}.py" if f"{place}.py" in self.files else place


def find_source(named: str, folder: Path) -> Source:
    """Return the source of a plugin, by path, by its entry point's name or as a module.

    A path has a slash or ends in ``.py``, and begins at ``folder``; one inside a package stands for
    all of it.

    Raises:
        InputError: If there is none, or it cannot be read.
    """
    if "/" in named or named.endswith(".py"):
        place = named if named.startswith("~") else folder.absolute() / named
        return _source_at(named, local_path(place, f"plugin {named!r}"))
    points = entry_points(group=GROUP)
    module = points[named].module if named in points.names else named
    return _installed(named, module)


def installed_sources() -> Iterator[Source]:
    """Yield the source of every installed package that has an entry point; see ``find_source``."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        yield _installed(point.name, point.module)


def _installed(named: str, module: str) -> Source:
    found = None
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(module.partition(".")[0])
    if found is None or found.origin is None or not found.has_location:
        raise InputError(
            f"plugin {named!r}: no package or module of that name is installed; "
            "write ./FILE.py for a file beside the sweep file"
        )
    root = Path(found.origin)
    return _read(root.parent if root.name == "__init__.py" else root, module)


def _source_at(named: str, place: Path) -> Source:
    if place.is_dir():
        if not (place / "__init__.py").is_file():
            raise InputError(f"plugin {named!r}: {place} has no __init__.py, so it is no package")
        inner = place
    elif place.suffix == ".py" and place.is_file():
        if not (place.parent / "__init__.py").is_file():
            return _read(place, place.stem)
        inner = place.parent if place.name == "__init__.py" else place.with_suffix("")
    else:
        raise InputError(f"plugin {named!r}: there is no file or package {place}")
    root = inner if inner.is_dir() else inner.parent
    while (root.parent / "__init__.py").is_file():
        root = root.parent
    return _read(root, ".".join(inner.relative_to(root.parent).parts))


def _read(root: Path, module: str) -> Source:
    if root.is_dir():
        paths = [path for path in sorted(root.rglob("*")) if path.is_file() and _counts(path, root)]
    else:
        paths = [path for path in (root, root.with_suffix(SPACE)) if path.is_file()]
    try:
        size = sum(path.stat().st_size for path in paths)
        if size > LARGEST:
            raise InputError(f"plugin {root}: {size:,} bytes are too many; allowed are {LARGEST:,}")
        files = {str(path.relative_to(root.parent)): path.read_bytes() for path in paths}
    except OSError as error:
        raise InputError(f"plugin {root}: cannot be read: {error}") from error
    return Source(root, module, files)


def _counts(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
    return not hidden and path.suffix != ".pyc"
