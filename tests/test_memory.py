"""Two trials on one machine hold one copy of the images between them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "memory.py"


@pytest.mark.long
@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells the proportional set size")
def test_two_trials_share_one_copy_of_the_images() -> None:
    """The figure moves with what it measures: trials that copy their images are noticed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--megabytes", "100"],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["images"] > 95
    assert 0.9 < found["copies"] < 1.2
    assert found["copies_of_own"] > 1.8
