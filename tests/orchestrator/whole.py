"""Whole texts beside what was kept of them, but for the last digits of their numbers."""

import re
from pathlib import Path

import pytest

DECIMAL = re.compile(r"(-?\d+\.\d+(?:e[-+]\d+)?)")
ROUNDED = 4  # Digits up to which a figure is rounded for people; by one unit processors may differ.


def assert_same(obtained: Path, expected: Path) -> None:
    """Compare texts as they are, and the numbers with decimals in them to their last digit."""
    texts = (path.read_text(encoding="utf-8") for path in (obtained, expected))
    found, known = (DECIMAL.split(text) for text in texts)
    for place, (here, there) in enumerate(zip(found, known, strict=False)):
        around = f"after {''.join(known[max(0, place - 6) : place])[-300:]!r}"
        if place % 2 == 0:
            assert here == there, around
        else:
            digits = len(there.partition(".")[2])
            unit = 1.01 * 10.0**-digits if digits <= ROUNDED else 1e-9
            assert float(here) == pytest.approx(float(there), rel=1e-5, abs=unit), around
    assert len(found) == len(known)
