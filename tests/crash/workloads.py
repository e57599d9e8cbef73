"""What is interrupted: each brings a folder to its end from wherever a crash has left it."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import yaml

from orchestrator.nightly.config import load_nightly
from orchestrator.nightly.run import run_night
from orchestrator.running.run import run_sweep
from orchestrator.storage import provenance
from orchestrator.storage.events import Evaluated, StudyClosed, TrialFinished
from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.results import StudyResult, results_of
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.spec import parse_sweep
from orchestrator.tracking._kinds import open_tracker
from orchestrator.tracking.tracker import RunQuery
from tests.crash.safeguards import without
from tests.orchestrator.one_process import one_process
from trainables.calibrators import build_calibrator, load_calibrator, save_calibrator
from trainables.common.errors import InputError
from trainables.common.files import damage, make_folders, write_whole
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore, Checkpoint

SWEEP = """
name: crash
tasks:
  - name: d
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 2}}
    split: {{train_limit: 60, validation: 0.2, test_limit: 40}}
recipes: [ce, ls+ts]
search: {{trials: {trials}}}
seeds: [0]
resources: {{checkpoint_seconds: 0}}
executor: local
storage: {root}/storage
tracking: {{uri: "folder:{root}/tracked"}}
"""


def sweep(root: Path) -> list[Any]:
    """Run a sweep to its end; return its table and what its tracker holds."""
    spec = parse_sweep(SWEEP.format(root=root, trials=2), "crash")
    with one_process():
        outcome = run_sweep(spec)
    assert (outcome.status, outcome.tracked) == ("finished", True)
    check_told(SweepFolder.of(spec).journal, spec.tracking_uri)
    return figures(results_of(read_ledger(SweepFolder.of(spec).journal)))


def figures(rows: Iterable[StudyResult]) -> list[Any]:
    return [(r.recipe, r.status, r.configuration, r.validation, r.test, r.reason) for r in rows]


def check_told(journal: Path, uri: str) -> None:
    """Check that a journal says each thing once, and that a tracker has all of it, files too."""
    decisions = (TrialFinished, StudyClosed, Evaluated)
    found = [event for event in read_events(journal)[0] if isinstance(event, decisions)]
    said = Counter((e.event, getattr(e, "key", None), getattr(e, "study", None)) for e in found)
    assert set(said.values()) == {1}, said
    ledger, tracker = read_ledger(journal), open_tracker(uri)
    runs = list(tracker.runs(RunQuery(tuple(tracker.sweeps().values()), tags={})))
    tracked = sorted(run.tags["calsweep.key"] for run in runs)
    assert tracked == sorted([*ledger.studies, *ledger.trials])
    for name in ("configuration.yaml", "reliability.png"):
        kept, sent = (
            sorted(path.read_bytes() for path in place.rglob(name))
            for place in (journal.parent, Path(uri.removeprefix("folder:")))
        )
        assert kept == sent


def night(root: Path) -> list[Any]:
    """Run a night to its verdict; return its record's figures and what it came to."""
    file = root.with_name("night.yaml")
    text = SWEEP.format(root=root, trials=1)
    file.write_text(yaml.safe_dump({"sweep": yaml.safe_load(text), "metrics": ["acc", "ece"]}))
    nightly = load_nightly(file)
    with one_process():
        outcome = run_night(nightly, "2026-11-21")
    assert (outcome.messages, outcome.night.delivered) == ((), True)
    check_told(nightly.sweep_folder("2026-11-21").journal, nightly.sweep.tracking_uri)
    record = outcome.night.record
    assert record is not None
    cells = {str(c): v for c, v in record.cells.items() if c.metric in nightly.model.metrics}
    return [outcome.verdict.code, outcome.verdict.status, cells, record.failed]


@contextmanager
def quick() -> Iterator[None]:
    """Ask once for commit and versions."""
    with (
        patch.object(provenance, "git_commit", cache(provenance.git_commit)),
        patch.object(provenance, "library_versions", cache(provenance.library_versions)),
    ):
        yield


def lost(root: Path) -> list[str]:
    return [key for journal in root.rglob("journal.jsonl") for key in _lost(journal)]


def _lost(journal: Path) -> list[str]:
    artifacts = SweepFolder(journal.parent).storage.artifacts
    events, _ = read_events(journal)
    promised = {e.artifact for e in events if isinstance(e, TrialFinished) and e.artifact}
    places = {key: list(artifacts.glob(f"*/{key[:2]}/{key}")) for key in promised}
    return [k for k, found in places.items() if not found or damage(found[0], ["record.json"])]


def calibration(root: Path) -> list[Any]:
    """Fit a calibrator, keep it, and put one with another rule for like tensors in its place."""
    logits = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[:, 0] += torch.arange(60) % 3 == 0
    labels = torch.arange(60) % 3
    rules = ("prediction", "logit")
    fitted = [build_calibrator("cts", assignment=rule).fit(logits, labels) for rule in rules]
    known = [calibrator(logits).tolist() for calibrator in fitted]
    # Once it is there, both have been reported as stored. Its folder syncs no name beside it.
    saved = root / "told" / "saved"
    make_folders(saved.parent)
    with nullcontext() if saved.exists() else suppress(InputError):
        expected = known[1:] if saved.exists() else known
        assert load_calibrator(root / "kept")(logits).tolist() in expected
    for calibrator in fitted:
        save_calibrator(calibrator, root / "kept")
    write_whole(saved, "", durable=True)
    return [load_calibrator(root / "kept")(logits).tolist()]


def outcome(root: Path) -> list[Any]:
    """Compute an outcome by three steps and store it; drop its weights; put a whole one there."""
    store, key, dropped = ArtifactStore(root / "artifacts"), "ab" * 32, root / "dropped"
    for _ in range(2):
        if store.find(ArtifactRef("train", key)) is None:
            weights = _computed(store.checkpoint(ArtifactRef("train", key)))
            tensors = {"weights": {"w": weights}, "validation": {"logits": weights[:6]}}
            store.write(ArtifactRef("train", key), tensors, {"metrics": {"acc": 0.5}})
        if not dropped.exists():
            write_whole(dropped, "", durable=True)
            store.drop_weights(ArtifactRef("train", key))
    found = store.find(ArtifactRef("train", key))
    assert found is not None
    parts = (found.tensors(name).values() for name in ("weights", "validation"))
    return [found.record, [value.tolist() for part in parts for value in part]]


def _computed(checkpoint: Checkpoint) -> torch.Tensor:
    state = {"step": 0, "w": torch.zeros(5_000)}
    with suppress(Exception):  # As a stage does, which starts anew.
        state = checkpoint.read()
    while state["step"] < 3:
        state = {"step": state["step"] + 1, "w": state["w"] + 1}
        checkpoint.write(state)
    return state["w"]


WORKLOADS: dict[str, Callable[[Path], list[Any]]] = {
    "calibration": calibration,
    "outcome": outcome,
    "sweep": sweep,
    "night": night,
}
if __name__ == "__main__":
    torch.set_num_threads(1)
    shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined] # It names no bytes.
    for line in sys.stdin:
        workload, root, removed = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            if removed:
                function, function.__code__ = without(removed)
            WORKLOADS[workload](Path(root))
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        print(child, flush=True)  # noqa: T201
