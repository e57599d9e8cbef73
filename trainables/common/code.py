"""The code that decides what a stage computes, as it was when this process first looked."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from trainables.common.errors import AlteredCodeError

ROOMS, ENDINGS = ("trainables", "search_spaces"), (".py", ".yaml")


@cache
def code_files() -> dict[str, str]:
    """Return the SHA-256 (hex) of each file, code or settings, by its path."""
    root = Path(__file__).parents[2]
    files = (path for room in ROOMS for path in (root / room).rglob("*"))
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(files)
        if path.suffix in ENDINGS
    }


@cache
def code_hash() -> str:
    """Return the SHA-256 (hex) of all of ``code_files``."""
    return hashlib.sha256(repr(code_files()).encode()).hexdigest()


def altered_file(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return the first file whose code differs between two processes; empty if none."""
    return min((name for name, _ in here.items() ^ there.items()), default="")


def require_code(files: Mapping[str, str]) -> None:
    """Raise ``AlteredCodeError``, which names a file, unless this process runs given code."""
    if name := altered_file(files, code_files()):
        raise AlteredCodeError(f"{name} is not as it was when the sweep began")
