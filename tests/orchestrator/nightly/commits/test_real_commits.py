import shutil
from pathlib import Path

import pytest
import yaml
from made_repository import MadeRepository
from told_sweep import short_sweep

from orchestrator.nightly import load_nightly, run_night
from orchestrator.nightly.commits.night import CommitNights
from orchestrator.nightly.commits.repository import Repository
from tests.orchestrator.one_process import one_process

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

    def plant(self) -> None:
        """Plant the bug, to be committed with the next commit."""
        path = self.folder / "trainables/calibrators/ts.py"
        text = path.read_text()
        assert text.count(BUG[0]) == 1
        path.write_text(text.replace(*BUG))


@one_process()
def test_a_night_of_a_commit_runs_the_code_of_that_commit(tmp_path):
    source = RealRepository(tmp_path / "code")
    source.plant()
    planted = source.commit()
    path = tmp_path / "nightly.yaml"
    sweep = short_sweep("real", tmp_path / "storage")
    path.write_text(yaml.safe_dump({"sweep": sweep, "metrics": list(QUALITY)}))
    benchmark = load_nightly(path)
    good = run_night(benchmark, "2026-01-01").night.record
    with CommitNights(benchmark, Repository(source.folder), "gate", None) as nights:
        bad = nights.run(planted)
    assert bad.environment["code"] == planted
    changed = {cell.recipe for cell in good.cells if bad.mean(cell) != good.mean(cell)}
    assert {cell for cell in good.cells if cell.metric in QUALITY} <= set(bad.cells)
    assert [recipe for recipe in changed if "+" in recipe] == ["ce+ts"]
    unchanged = [c for c in good.cells if c.recipe == "ce" and c.metric in QUALITY]
    assert [bad.mean(cell) for cell in unchanged] == [good.mean(cell) for cell in unchanged]
