"""What surrounds a sweep: its folder, its owner, its delivery, what it finds again."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from orchestrator.cli._outcome import show_outcome
from orchestrator.running import run
from orchestrator.running.run import SweepOutcome
from orchestrator.storage.events import Event, SweepEnded, SweepStarted
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.results import StudyResult
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from trainables.common.errors import InputError
from trainables.store.artifacts import ArtifactStore

SWEEP = """
name: edges
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce]
storage: {storage}
"""
BEGUN = SweepStarted(sweep="edges", sweep_id="id", spec={}, provenance={})
ENDED = SweepEnded(status="finished")


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    return parse_sweep(SWEEP.format(storage=tmp_path / "my storage"), "edges")


def no_space(*arguments: Any, **options: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_specification_survives_a_disk_that_is_full(
    spec: SweepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    SweepFolder.of(spec).write_spec(spec)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", no_space)
        with pytest.raises(InputError, match=r"sweep.yaml cannot be written: No space left"):
            SweepFolder.of(spec).write_spec(spec)
    assert Storage.of(spec).load_spec("edges") == spec


def test_whoever_comes_second_is_told_who_is_there(spec: SweepSpec) -> None:
    here = f"{psutil.Process().username()} on {os.uname().nodename}, process {os.getpid()}"
    message = rf"'edges' is being run by {re.escape(here)}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
    with SweepFolder.of(spec).owned():
        second = SweepFolder.of(spec).owned()
        with pytest.raises(InputError, match=message):
            second.__enter__()


@pytest.mark.parametrize("past", [[], [ENDED, BEGUN]])
def test_what_is_damaged_is_not_built_on(tmp_path: Path, past: list[Event]) -> None:
    store = ArtifactStore(tmp_path)
    keys = ["ab" * 32, "cd" * 32]
    for key in keys:
        store.write("train", key, {"weights": {"w": torch.ones(9)}}, {"metrics": {}})
    (store.path("train", keys[0]) / "weights.safetensors").write_bytes(b"x")
    assert run._usable(store, Ledger([BEGUN, ENDED]))("train", keys[0])
    usable = run._usable(store, Ledger(past))
    assert [usable("train", key) for key in keys] == [False, True]


class Shipper:
    """Delivers a byte whenever it is looked at, as long as it has more."""

    def __init__(self, delivers: int) -> None:
        self.left, self.delivered, self.stopped, self.waits = delivers, 0, False, 0

    def wait_drained(self, timeout: float) -> bool:
        self.waits += 1
        return self.delivered > 0 and self.left == 0

    def progress(self) -> tuple[int, int]:
        self.delivered, self.left = self.delivered + min(1, self.left), max(0, self.left - 1)
        return self.delivered, 9

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 10_000, 5))
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: next(ticks)))


def ending(shipper: Shipper, interrupted: bool = False) -> tuple[bool, bool]:
    """Return whether all was delivered, and whether the shipper was stopped."""
    delivered = run.await_delivery(shipper, "http://host", 0, interrupted)  # type: ignore[arg-type]
    return delivered, shipper.stopped


def listening(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    monkeypatch.setattr(run, "listens", lambda uri: answer)


@pytest.mark.usefixtures("clock")
def test_a_server_that_was_never_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    shipper = Shipper(0)
    listening(monkeypatch, False)
    assert ending(shipper) == (False, True)
    assert shipper.waits == 1


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("there", [True, False])
def test_one_that_delivers_is_waited_for(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    listening(monkeypatch, there)
    assert ending(Shipper(30)) == (True, False)


@pytest.mark.usefixtures("clock")
def test_one_that_listens_but_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    shipper = Shipper(0)
    listening(monkeypatch, True)
    assert ending(shipper) == (False, True)
    assert shipper.waits > 5


@pytest.mark.parametrize(("delivers", "there"), [(3, False), (0, True)])
def test_an_interrupted_sweep_leaves_its_shipper_at_work(
    monkeypatch: pytest.MonkeyPatch, delivers: int, there: bool
) -> None:
    shipper = Shipper(delivers)
    listening(monkeypatch, there)
    assert ending(shipper, interrupted=True) == (False, False)
    assert shipper.waits == 1


def test_an_interrupted_sweep_leaves_no_shipper_without_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listening(monkeypatch, False)
    assert ending(Shipper(0), interrupted=True) == (False, True)


@pytest.mark.parametrize(
    ("address", "ending"), [(None, ""), ("10.0.0.1:6379", " --address 10.0.0.1:6379")]
)
def test_how_to_go_on_is_said_in_full(
    spec: SweepSpec, capsys: pytest.CaptureFixture[str], address: str | None, ending: str
) -> None:
    outcome = SweepOutcome(spec, "interrupted", (), False, 1.0)
    assert show_outcome(outcome, address) == 130
    said, pending = capsys.readouterr().out.splitlines()
    assert said.endswith(f"calsweep run --resume edges --storage '{spec.storage}'{ending}")
    assert pending.endswith(f"deliver the rest with: calsweep sync '{outcome.journal}'")


def test_a_table_that_cannot_be_written_is_named(
    spec: SweepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = (StudyResult("edges", "a task", "ce", "failed", reason="NaN"),)
    monkeypatch.setattr(Path, "write_text", no_space)
    with pytest.raises(InputError, match=r"table\.md cannot be written: No space left on device"):
        show_outcome(SweepOutcome(spec, "failed", results, True, 1.0))
