"""Thirty short histories of sweeps of trainings; ``test_outside.py`` has longer ones."""

from pathlib import Path

import pytest

from tests.outside.short import BASE, Short

ROWS = (
    {**BASE, "data": "npz", "plugin": "none", "storage": "umlaut", "calibrator": "ts"},
    {**BASE, "data": "features", "plugin": "library", "storage": "symlink", "calibrator": "cts"},
)


@pytest.mark.parametrize("seed", range(30))
def test_a_short_history(seed: int, short: Short, tmp_path: Path) -> None:
    short.live(seed, tmp_path / "history")
