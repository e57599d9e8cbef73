"""Sweeps with parts from outside: a file beside the sweep file, and the example's package."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.running.reproduce import reproduce
from orchestrator.running.run import SweepOutcome, run_sweep
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import load_sweep
from orchestrator.tracking import ping, study_results
from tests.orchestrator.databases import place_database
from tests.orchestrator.one_process import ShipperHere, one_process
from trainables.common.errors import InputError
from trainables.metrics import METRICS
from trainables.plugins import load_plugins

EXAMPLE = Path(__file__).parents[3] / "examples" / "plugin"
SWEEP = """
name: {name}
plugins: {plugins}
tasks:
  - name: digits/tiny
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 1}}
    split: {{train_limit: 150, test_limit: 120}}
recipes: {recipes}
search: {{trials: 2}}
executor: {executor}
storage: {storage}
tracking: {{uri: "folder:{storage}-runs"}}
"""
METRIC = """
from calsweep import METRICS

@METRICS.register("sure", better="lower", floored=True)
def sure(probs, labels):
    return {factor} * probs.amax(1).mean() / 4

@METRICS.register("hit", better="higher", percent=False, label="hits")
def hit(probs, labels):
    return probs.argmax(1) == labels
"""
TRACKER = """
import logging
from calsweep import TRACKERS, InputError
from orchestrator.tracking.folder import FolderTracker

@TRACKERS.register("shelf")
class Shelf(FolderTracker):
    def __init__(self, uri):
        super().__init__(uri.replace("shelf", "folder"))
        logging.warning("opened")

    @classmethod
    def check(cls, uri):
        if not uri.startswith("shelf:/") or "//" in uri:
            raise InputError(f"tracking uri {uri!r}: a shelf has a path")
"""


USED = """
import pytest
from calsweep.__main__ import main

assert pytest.main(["-q", "-p", "no:cacheprovider", "tests"]) == 0
assert main(["list", "methods"]) == 0
print("---")
assert main(["run", "sweep.yaml", "--quiet"]) == 0
"""
WORKER = """
import sys
from pathlib import Path
import yaml
from trainables.losses import LOSSES
from trainables.plugins import Pinned
from trainables.worker import Bench

stored = Path(sys.argv[1])
named = yaml.safe_load(stored.read_text())["plugins"]
pinned = [Pinned(str(stored.parent / one["path"]), one["code"]) for one in named]
Bench(Path("artifacts"), sealed=False, plugins=pinned)
assert "gce" in LOSSES
"""


def write_sweep(
    folder: Path,
    storage: Path,
    name: str = "own",
    plugins: str = "[./gce.py]",
    recipes: str = "[ce, gce, gce+ts]",
    executor: str = "ray",
) -> Path:
    path = folder / f"{name}.yaml"
    words = {"name": name, "plugins": plugins, "recipes": recipes, "executor": executor}
    path.write_text(SWEEP.format(storage=storage, **words))
    return path


def write_loss(folder: Path, steeper: bool = False) -> None:
    text = (EXAMPLE / "calsweep_example" / "gce.py").read_text()
    (folder / "gce.py").write_text(text.replace("/ self.q", "* 2 / self.q") if steeper else text)


def artifact_of(outcome: SweepOutcome, study: str) -> str | None:
    """Return the outcome that a study chose."""
    ledger = read_ledger(outcome.journal)
    chosen = ledger.studies[f"digits/tiny|{study}"].chosen
    return ledger.trials[str(chosen)].artifact


def artifacts(outcome: SweepOutcome, study: str) -> set[str | None]:
    ledger = read_ledger(outcome.journal)
    return {t.artifact for t in ledger.trials.values() if t.study == f"digits/tiny|{study}"}


def test_a_plugin_next_to_the_sweep_file_is_computed_resumed_and_reproduced(tmp_path, capsys):
    storage = tmp_path / "storage"
    write_loss(tmp_path)
    path = write_sweep(tmp_path, storage)
    assert main(["plan", str(path)]) == 0
    told = capsys.readouterr().out
    assert "plugin gce, code " in told
    assert "plugin gce: its code hash covers the content of gce.py (1 file)\n" in told
    with one_process():
        first = run_sweep(load_sweep(path))
        assert first.status == "finished"
        write_loss(tmp_path, steeper=True)
        with pytest.raises(InputError, match="with another `plugins`; give this one another name"):
            run_sweep(load_sweep(path))
        again = run_sweep(Storage(storage).load_spec("own"), resume=True)
        assert again.results == first.results
        fresh = run_sweep(load_sweep(path), fresh=True)
        same = run_sweep(load_sweep(write_sweep(tmp_path, storage, "twin")))
    for recipe in ("gce", "gce+ts"):
        assert not artifacts(first, recipe) & artifacts(fresh, recipe)
        assert artifacts(fresh, recipe) == artifacts(same, recipe)
    assert artifacts(first, "ce") == artifacts(fresh, "ce")
    (result,) = [r for r in study_results(first.spec.tracking_uri, "own") if r.recipe == "gce+ts"]
    found = reproduce(
        result.run_ids[0], tracking_uri=first.spec.tracking_uri, folder=tmp_path / "again"
    )
    assert (found.equal, found.artifact) == (True, artifact_of(first, "gce+ts"))
    (copy,) = first.spec.plugins
    storage.rename(tmp_path / "moved")
    (there,) = Storage(tmp_path / "moved").load_spec("own").plugins
    assert there.path == copy.path.replace(str(storage), str(tmp_path / "moved"))


def test_a_metric_of_a_plugin_is_searched_tracked_and_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(METRICS, "_declared", {})

    def sweep(name: str, factor: int) -> SweepOutcome:
        (tmp_path / "sure.py").write_text(METRIC.format(factor=factor))
        path = write_sweep(tmp_path, storage, name, "[./sure.py]", "[ce, ls]", "local")
        path.write_text(path.read_text().replace("2}", "2, objective: sure, pareto: [hit]}"))
        with one_process():
            return run_sweep(load_sweep(path))

    storage = tmp_path / "storage"
    first, second = sweep("first", 1), sweep("second", 2)
    load_plugins((), installed=True)
    figures = []
    for outcome in (first, second):
        assert outcome.status == "finished"
        ledger = read_ledger(outcome.journal)
        trials = [t for t in ledger.trials.values() if t.status == "finished"]
        assert {t.reused for t in trials if t.stage == "train"} == {outcome is second}
        assert all(t.objective >= t.metrics["val_sure"] > 0 for t in trials)
        chosen = ledger.studies["digits/tiny|ls"].chosen_trial
        figures.append([t.metrics["val_sure"] for t in trials] + [chosen.test["sure"]])
        assert chosen.test["hit"] == pytest.approx(chosen.test["acc"])
    assert figures[1] == pytest.approx([2 * value for value in figures[0]])
    capsys.readouterr()
    assert main(["table", "second", "--storage", str(storage)]) == 0
    assert re.search("sure % ↓ +hits ↑", capsys.readouterr().out)
    place = ["--storage", str(storage)]
    words = ["--metric", "sure", "--draws", "20", "--format", "csv", *place]
    assert main(["compare", "second", *words]) == 0
    compared = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["recipe"] for row in compared] == ["ce", "ls"]
    assert [float(row["value"]) for row in compared][1] == pytest.approx(figures[1][-1])
    floors, values = ([float(row[key]) for row in compared] for key in ("floor", "value"))
    assert floors == pytest.approx(values)  # It does not look at labels.
    columns = ["--metrics", "sure,hit,ood/auroc", "--show", "ties,floor"]
    assert main(["table", "second", *columns, "--format", "csv", *place]) == 0
    output = capsys.readouterr()
    assert "--show ties: skipped ood/auroc, which test rows alone do not determine" in output.err
    assert main(["compare", "second", "--ranks", "--metric", "sure", *place]) == 0
    assert "average rank by sure % ↓ over 1 blocks (combinations of" in capsys.readouterr().out
    best = ["best", "second", "--task", "digits/tiny", "--recipe", "ls", "--json"]
    assert main([*best, "--storage", str(storage)]) == 0
    assert json.loads(capsys.readouterr().out)["validation"]["val_sure"] > 0
    (row,) = [r for r in study_results(second.spec.tracking_uri, "second") if r.recipe == "ls"]
    assert (row.test[0]["sure"], row.metrics) == (pytest.approx(figures[1][-1]), ("sure", "hit"))


@pytest.mark.full
def test_runs_go_to_a_tracker_of_ones_own(tmp_path, capsys):
    (tmp_path / "shelf.py").write_text(TRACKER)
    path = write_sweep(tmp_path, tmp_path / "storage", "own", "[./shelf.py]", "[ls]", "local")
    uri = f"shelf:{tmp_path}/runs"
    alone = path.read_text() + "resources: {concurrent: 1}\n"
    path.write_text(alone.replace(f"folder:{tmp_path}/storage-runs", uri))
    outcome = run_sweep(load_sweep(path))
    assert (outcome.status, outcome.tracked) == ("finished", True)
    assert outcome.journal.with_name("shipper.log").read_text().count("opened") == 1
    (row,) = study_results(uri, "own")
    assert (row.recipe, len(row.test)) == ("ls", 1)
    assert ping(uri) == (True, f"shelf:{tmp_path}/runs has 1 sweep")
    shutil.rmtree(tmp_path / "runs")
    load_plugins((), installed=True)
    with pytest.raises(InputError, match=r"tracking uri 'shelf:.*' is not supported"):
        study_results(uri, "own")
    (outcome.journal.with_name("shipped.json")).unlink()
    assert main(["storage", "sync", str(outcome.journal.parent)]) == 0
    assert [again.test for again in study_results(uri, "own")] == [row.test]
    path.write_text(path.read_text().replace("shelf:", "shelf://lib"))
    assert main(["run", str(path), "--fresh"]) == 2
    assert "a shelf has a path" in capsys.readouterr().err


@pytest.mark.full
def test_every_process_has_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that compute trials, and those that train together with them."""
    monkeypatch.setattr("orchestrator.running.run.start_shipper", ShipperHere)
    write_loss(tmp_path)
    path = write_sweep(tmp_path, tmp_path / "storage", recipes="[gce]", executor="local")
    more = "resources: {concurrent: 2, train: {processes: 2}}\n"
    path.write_text(path.read_text().replace("trials: 2", "trials: 1") + more)
    assert run_sweep(load_sweep(path)).status == "finished"


@pytest.mark.full
def test_the_example_is_installed_and_needs_no_mention(tmp_path: Path) -> None:
    here = shutil.copytree(EXAMPLE, tmp_path / "plugin")
    python = str(tmp_path / "clean" / "bin" / "python")

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "clean"))
    # An environment of its own that sees calsweep and all that calsweep needs.
    (place,) = (tmp_path / "clean" / "lib").glob("*/site-packages")
    seen = (str(EXAMPLE.resolve().parents[2]), sysconfig.get_paths()["purelib"])
    (place / "calsweep.pth").write_text("\n".join(seen))
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    run(python, "-m", "pip", "install", "--quiet", *offline, ".")
    shutil.rmtree(here / "calsweep_example")
    with (here / "sweep.yaml").open("a") as sweep:
        sweep.write("resources: {concurrent: 1}\n")
    place_database(here / "calsweep-storage")
    methods, table = run(python, "-c", USED).split("---")
    assert " gce " in methods
    for recipe in ("ce+floored", "gce", "gce+floored"):
        assert f" {recipe} " in table
    stored = here / "calsweep-storage/sweeps/own-methods/sweep.yaml"
    assert "example" in stored.read_text()
    run(python, "-c", WORKER, str(stored))
