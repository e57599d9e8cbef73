"""Thirty short histories of sweeps of logits; ``test_outside.py`` has longer ones."""

from pathlib import Path

import pytest

from tests.outside.short import BASE, Short

ROWS = (
    {**BASE, "data": "logits-csv", "plugin": "none", "storage": "quote", "calibrator": "cts"},
    {**BASE, "data": "logits", "plugin": "calibrator", "storage": "percent", "calibrator": "ts"},
    {**BASE, "data": "logits", "plugin": "metric", "storage": "hash", "calibrator": "isotonic"},
)


@pytest.mark.parametrize("seed", range(30))
def test_a_short_history(seed: int, short: Short, tmp_path: Path) -> None:
    short.live(seed, tmp_path / "history")
