from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.packages.consistency import check_form
from orchestrator.packages.journals import cleaned, settled
from orchestrator.packages.package import Package
from orchestrator.packages.publish import publish
from orchestrator.packages.verify import UnfitError, VerifyOptions, verify
from orchestrator.storage.events import (
    Evaluated,
    Event,
    SweepEnded,
    SweepStarted,
    TrialFinished,
    TrialPlaced,
    to_line,
)
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.storage import Storage
from tests.orchestrator.packages.boards import board, unpacked
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef


@pytest.fixture(scope="module")
def resumed(storage: Storage) -> list[Event]:
    """Return the journal of a sweep whose first run ended early: a machine failed one trial."""
    told = list(iterate_events(storage.sweep("board").journal))
    place = next(n for n, event in enumerate(told) if isinstance(event, TrialFinished))
    finished, started = told[place], told[0]
    assert isinstance(finished, TrialFinished)
    lost = replace(finished, status="failed", fault="machine", reason="node\tdied", artifact="")
    again = [event for event in told[1 : place + 1] if event is not finished]
    placed = TrialPlaced(key=finished.key, host="node-7")
    first = [*told[:place], placed, lost, SweepEnded(status="interrupted")]
    return [*first, started, *again, finished, *told[place + 1 :]]


def test_events_of_a_resumed_sweep_occur_once_with_the_same_outcome(storage, resumed, tmp_path):
    publish(storage, ["board"], tmp_path)
    package = unpacked(tmp_path / "package.zip", tmp_path / "package")
    (journal,) = (package.folder / "journals").iterdir()
    events = settled(filter(None, map(cleaned, resumed)))
    journal.write_bytes(b"".join(map(to_line, events)))
    assert list(check_form(Package(package.folder))) == []
    told, whole = Ledger(events), Ledger(resumed)
    assert [s.chosen for s in told.studies.values()] == [s.chosen for s in whole.studies.values()]
    for key, trial in whole.trials.items():
        own = told.trials[key]
        assert (own.status, own.artifact, own.test) == (trial.status, trial.artifact, trial.test)
        assert own.metrics == {k: v for k, v in trial.metrics.items() if k.startswith("val_")}
    assert sum(isinstance(event, SweepStarted) for event in events) == 2
    assert sum(isinstance(event, SweepEnded) for event in events) == 1


def test_a_second_measurement_adds_to_the_first(resumed: list[Event]) -> None:
    first = next(event for event in resumed if isinstance(event, Evaluated))
    second = replace(first, metrics={"test_acc": 0.25}, seconds=None)
    (found,) = settled([first, second])
    assert isinstance(found, Evaluated)
    assert found.metrics == {**first.metrics, "test_acc": 0.25}
    assert found.seconds == first.seconds


def test_a_trial_without_validation_rows_is_computed_again(tmp_path: Path) -> None:
    storage = board(tmp_path / "storage", recipes="[ce]", seeds="[0, 1]")
    ledger = Ledger(iterate_events(storage.sweep("board").journal))
    beaten = next(trial for trial in ledger.trials.values() if trial.role == "seed")
    package = Path(storage.store().path(ArtifactRef("train", beaten.artifact)))
    publish(storage, ["board"], tmp_path / "site")
    whole = unpacked(tmp_path / "site" / "package.zip", tmp_path / "package")
    assert (whole.folder / "validation" / f"{beaten.artifact}.npz").is_file()
    assert package.is_dir()
    for file in package.iterdir():
        file.unlink()
    package.rmdir()
    publish(storage, ["board"], tmp_path / "site")
    archive = tmp_path / "site" / "package.zip"
    told = f"1 trial, for example {beaten.key[:12]}, has no validation rows"
    with pytest.raises(UnfitError, match=told):
        verify(archive, VerifyOptions(share=0.0, revision="c0ffee"))
    found = verify(archive, VerifyOptions(share=0.1, revision="c0ffee", seed=0))
    assert found.problems == []
    assert beaten.key in {each.trial for each in found.retrained}


def test_a_license_is_one_printable_line(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--license: 'MIT\\x1b\[2J' is not one printable line"):
        publish(storage, ["board"], tmp_path, "MIT\x1b[2J")
