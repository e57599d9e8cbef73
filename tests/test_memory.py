"""Two trials on one machine hold one copy of the images between them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "memory.py"


def measured(*options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--megabytes", "100", *options],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells the proportional set size")
def test_two_trials_share_one_copy_of_the_images() -> None:
    """The figure moves with what it measures: a trial that copies its images is noticed."""
    shared = measured()
    assert shared["images"] > 95
    assert 0.9 < shared["copies"] < 1.2
    assert measured("--copy")["copies"] > 1.8
