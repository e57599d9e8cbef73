"""The scripts whose results are committed still find what they import."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def test_every_benchmark_can_be_imported() -> None:
    names = [path.stem for path in sorted(FOLDER.glob("*.py"))]
    command = [sys.executable, "-c", IMPORT, *names]
    ended = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
