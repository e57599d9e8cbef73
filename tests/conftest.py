"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of reference values and data kept beside the repository, else skip."""
    folder = Path(os.environ.get("CALSWEEP_SHARED", ROOT.parent / "shared"))
    if not (folder / "goldens" / "index.json").is_file():
        pytest.skip(f"no reference values at {folder} (set CALSWEEP_SHARED to their folder)")
    return folder
