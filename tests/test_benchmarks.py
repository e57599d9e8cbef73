"""The scripts whose results are committed still find what they import."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.sweep.spec import parse_sweep
from trainables.losses import LOSSES

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def test_every_benchmark_can_be_imported() -> None:
    names = [path.stem for path in sorted(FOLDER.glob("*.py"))]
    command = [sys.executable, "-c", IMPORT, *names]
    ended = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", LOSSES.names())
def test_every_loss_is_timed_against_a_reference_of_the_same_value(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    benchmark = importlib.import_module("losses")
    ours, reference = benchmark.make_steps(name, *benchmark.make_batch(64, 10, "cpu"))
    assert float(ours()) == pytest.approx(float(reference()), rel=1e-5)


@pytest.mark.parametrize("script", ["overhead", "load"])
def test_trials_without_work_report_what_their_sweep_searches(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    sweep = importlib.import_module(script).SWEEP
    uri = f"sqlite:///{tmp_path}/runs.db"
    spec = parse_sweep(sweep.format(trials=3, uri=uri, storage=tmp_path), script)
    no_op = importlib.import_module("_noop_sweep")
    report = no_op.stage_report([1], no_op.JUDGED, True)
    assert report["score"] == report["report"].metrics[f"val_{spec.search.objective}"]
