"""A bug planted in the real code, in a repository of its own, and found by real nights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from made_repository import MadeRepository
from nights import write_judged
from told_sweep import short_sweep

from orchestrator.cli import main
from orchestrator.nightly import Book, NightRecord, load_nightly, run_night
from orchestrator.nightly.commits.night import CommitNights, Part
from tests.orchestrator.one_process import one_process
from trainables.calibrators.ts import TemperatureScaling

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
PACKAGES = ("calsweep", "orchestrator", "trainables", "search_spaces")
QUALITY = ("acc", "ece", "nll")
BUG = ("return self.temperature.to(logits.device)", "return 2 * self.temperature.to(logits.device)")


class RealRepository(MadeRepository):
    """Copies of these packages; a commit's ``figures`` are whether the bug is in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for package in PACKAGES:
            own = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, folder / package, ignore=own, dirs_exist_ok=True)
        self.hashes.clear()

    def plant(self) -> None:
        """Plant the bug, to be committed with the next commit."""
        path = self.folder / "trainables/calibrators/ts.py"
        text = path.read_text()
        assert text.count(BUG[0]) == 1
        path.write_text(text.replace(*BUG))


def only_quality(record: NightRecord, night: int, code: str) -> NightRecord:
    """Return a copy for another night, of quality alone: it never varies on a machine."""
    cells = {cell: v for cell, v in record.cells.items() if cell.metric in QUALITY}
    shape, known = replace(record.shape, metrics=QUALITY), {**record.environment, "code": code}
    name = f"2026-01-{night:02}"
    return replace(record, night=name, cells=cells, shape=shape, environment=known)


@one_process()
def test_a_planted_bug_is_traced_to_its_commit(tmp_path, monkeypatch, capsys):
    source = RealRepository(tmp_path / "code")
    source.commit()
    source.plant()
    source.commit()
    path = tmp_path / "nightly.yaml"
    sweep = short_sweep("real", tmp_path / "storage")
    sweep["tracking"] = {"uri": f"folder:{tmp_path}/tracked"}
    path.write_text(yaml.safe_dump({"sweep": sweep, "metrics": list(QUALITY)}))
    benchmark = load_nightly(path)
    book = Book(benchmark.folder)
    usual = TemperatureScaling._temperatures
    good = run_night(benchmark, "2026-01-01").night.record
    with monkeypatch.context() as patch:
        patch.setattr(TemperatureScaling, "_temperatures", lambda *own: 2 * usual(*own))
        bad = run_night(benchmark, "2026-01-02").night.record
    shutil.rmtree(book.folder)
    records = [only_quality(good, night, source.hashes[0]) for night in range(1, 9)]
    records += [only_quality(bad, night, source.hashes[-1]) for night in (9, 10)]
    write_judged(book, records)
    codes, run = [], CommitNights.run

    def run_noted(nights: CommitNights, commit: str | None, part: Part) -> NightRecord:
        record = run(nights, commit, part)
        codes.append((commit, record.environment["code"]))
        return record

    monkeypatch.setattr(CommitNights, "run", run_noted)
    own = ("--repository", str(source.folder), "--quiet")
    assert main(["nightly", "bisect", str(path), *own]) == 0
    named = f"is worse by {source.hashes[1][:7]} change 1 ("
    assert named in capsys.readouterr().out
    found = json.loads((book.night("2026-01-10").folder / "bisection.json").read_text())
    assert found["cell"][0] == "ce+ts"
    assert codes == [(source.hashes[1],) * 2]
