import importlib
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator.sweep.spec import parse_sweep

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_can_be_imported(path: Path) -> None:
    importlib.import_module(path.stem)


def test_trials_without_work_report_the_objective_of_their_sweep(tmp_path: Path) -> None:
    sweep = importlib.import_module("overhead").SWEEP
    uri = f"sqlite:///{tmp_path}/runs.db"
    spec = parse_sweep(sweep.format(trials=3, uri=uri, storage=tmp_path), "overhead")
    no_op = importlib.import_module("_noop_sweep")
    report = no_op.stage_report([1], no_op.JUDGED, True)
    assert report["score"] == report["report"].metrics[f"val_{spec.search.objective}"]


def test_a_page_keeps_its_further_tables_in_files_next_to_it(tmp_path, monkeypatch, capsys):
    page = importlib.import_module("_page")
    monkeypatch.setattr("sys.argv", ["/a/scale.py", "--out", "x.md", "--trials", "2"])
    files = {"-more": (("name", "value"), [("`a`, b", 0.5)])}
    page.publish("Why?", ["| a |"], "2 cores", tmp_path / "p.md", files)
    assert (tmp_path / "p-more.csv").read_text() == 'name,value\n"a, b",0.5\n'
    text = (tmp_path / "p.md").read_text()
    assert text == (
        "# Why?\n\n| a |\n\n## How it was measured\n\n"
        "    python benchmarks/scale.py --trials 2\n\n2 cores\n\n[p-more.csv](p-more.csv).\n"
    )
    assert capsys.readouterr().out.startswith(text)


@pytest.mark.long
@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells the proportional set size")
def test_two_trials_share_one_copy_of_the_images() -> None:
    """The figure moves with what it measures: trials that copy their images are noticed."""
    command = [sys.executable, str(FOLDER / "memory.py"), "--megabytes", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["images"] > 95
    assert 0.9 < found["copies"] < 1.2
    assert found["copies_of_own"] > 1.8
