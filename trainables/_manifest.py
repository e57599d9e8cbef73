"""A file beside others that tells their sizes and checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

__all__ = ["MANIFEST", "damage", "seal"]

MANIFEST = "manifest.json"


def seal(directory: Path) -> None:
    """Write the manifest of all files in a folder."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(directory.iterdir())
    }
    (directory / MANIFEST).write_text(json.dumps(files, sort_keys=True))


def damage(directory: Path, needed: Iterable[str], alone: bool = True) -> str:
    """Return what is wrong with the files in a folder, or an empty string.

    Args:
        directory: The folder.
        needed: Files that its manifest has to list.
        alone: Whether a file that it does not list is damage too.
    """
    try:
        files = json.loads((directory / MANIFEST).read_text())
        present = {path.name for path in directory.iterdir()} - {MANIFEST}
        found = present if alone else present.intersection(files)
        if found != set(files) or not found.issuperset(needed):
            return f"it holds {sorted(found)}, not what its manifest lists"
        for name, facts in files.items():
            path = directory / name
            if path.stat().st_size != facts["bytes"]:
                return f"{name} has {path.stat().st_size} bytes, not {facts['bytes']}"
            if _digest(path) != facts["sha256"]:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"by its {MANIFEST}, {type(error).__name__}: {error}"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
