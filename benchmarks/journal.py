"""Seconds and memory that reading the journal of a large sweep takes.

Run it as ``python benchmarks/journal.py [TRIALS]``; each reader has a process of its own.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.report._search import CURVES
from orchestrator.search.study_state import Past
from orchestrator.storage.events import (
    Epoch,
    Evaluated,
    StudyClosed,
    StudyOpened,
    SweepEnded,
    SweepStarted,
    TrialFinished,
    TrialScored,
    TrialStarted,
)
from orchestrator.storage.journal import Journal, iterate_events
from orchestrator.storage.ledger import Ledger, read_ledger
from orchestrator.storage.results import results_of

STUDIES, EPOCHS = 20, 5
TASK = "cifar10/resnet18/convnet-200"
METRICS = ("acc", "nll", "brier", "ece", "aece", "cwece", "cwaece", "mce")


def write(path: Path, trials: int) -> None:
    """Write the journal of a finished sweep of so many trials."""
    numbers = random.Random(0)
    with Journal(path) as journal:
        provenance = {"git_commit": "0" * 40, "versions": {"torch": "2.11.0"}, "hardware": {}}
        started = SweepStarted(sweep="bench", sweep_id="b", spec={}, provenance=provenance)
        journal.append(started, durable=False)
        for index in range(STUDIES):
            _write_study(journal, f"m{index}+ts", trials // STUDIES, numbers)
        journal.append(SweepEnded(status="finished"))


def _write_study(journal: Journal, recipe: str, trials: int, numbers: random.Random) -> None:
    study, best = f"{TASK}|{recipe}", (1.0, "")
    opened = StudyOpened(study=study, task=TASK, recipe=recipe, trials=trials, row=True)
    journal.append(opened, durable=False)
    for number in range(trials):
        key = f"{numbers.getrandbits(256):064x}"
        best = min(best, (_write_trial(journal, study, number, key, numbers), key))
    closed = StudyClosed(study=study, chosen=best[1], finished=trials, failed=0)
    journal.append(closed, durable=False)
    test = {f"test_{name}": numbers.random() for name in METRICS}
    journal.append(Evaluated(key=best[1], study=study, seed=0, metrics=test), durable=False)


def _write_trial(
    journal: Journal, study: str, number: int, key: str, numbers: random.Random
) -> float:
    part = study.split("|")[1].split("+")[0]
    values = {name: numbers.random() for name in ("margin", "weight", "gamma")}
    journal.append(
        TrialStarted(
            study=study,
            number=number,
            key=key,
            role="search",
            seed=0,
            stage="train",
            parameters={f"{part}.{name}": value for name, value in values.items()},
            configuration={part: {**values, "variant": "paper"}, "ts": {"objective": "ce"}},
        ),
        durable=False,
    )
    for step in range(1, EPOCHS + 1):
        metrics = {f"val_{name}": numbers.random() for name in METRICS}
        figures = {**metrics, "train_loss": numbers.random()}
        journal.append(Epoch(key=key, step=step, metrics=figures), durable=False)
    journal.append(
        TrialFinished(
            key=key,
            status="finished",
            metrics=metrics,
            artifact=f"{numbers.getrandbits(256):064x}",
            seconds=12.345,
            epoch_seconds=2.4,
            peak_memory=9.1e8,
        ),
        durable=False,
    )
    journal.append(TrialScored(key=key, objective=metrics["val_ece"]), durable=False)
    return metrics["val_ece"]


def resume(path: Path) -> object:
    """Read what a resumed sweep does before its first trial; a plan leaves out the second part."""
    past = Past(read_ledger(path))
    Journal(path).close()
    return past


def report(path: Path) -> object:
    """Read what a report is drawn from."""
    ledger = Ledger(iterate_events(path, kinds=None), CURVES)
    return ledger, results_of(ledger)


READERS = {"resume": resume, "report": report}


def measure(reader: str, path: Path) -> None:
    """Print seconds of the processor and the peak of memory beyond what the imports take."""
    before, started = _peak(), time.process_time()
    found = READERS[reader](path)
    seconds, memory = time.process_time() - started, _peak() - before
    assert found
    print(f"| {reader} | {seconds:.2f} s | {memory:.0f} MB |")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Write a journal and have each reader read it."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        write(path, trials)
        print(f"{trials} trials, {path.stat().st_size / 1e6:.0f} MB", flush=True)
        for reader in READERS:
            subprocess.run([sys.executable, __file__, reader, str(path)], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
