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
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, TaskSpec, parse_sweep
from tests.orchestrator.disks import files_of_at_most
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


WHOLE = """
name: edges
tasks: [{{dataset: digits, model: {model}, protocol: digits, suites: [{suites}]}}]
recipes: [{recipes}]
variants: {{wide: {{of: mbls, fixed: {{margin: {margin}}}}}}}
search: {{trials: {trials}}}
seeds: {seeds}
resources: {{concurrent: {concurrent}}}
tags: {{team: {team}}}
storage: {storage}
"""
USUAL = {
    "model": "convnet",
    "suites": "",
    "recipes": "ce, wide",
    "margin": 9.0,
    "trials": 3,
    "seeds": [0, 1],
    "concurrent": 1,
    "team": "red",
}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model": "resnet8"}, "tasks"),
        ({"recipes": "wide, ce"}, "recipes"),
        ({"margin": 8.0}, "variants"),
        ({"trials": 4}, "search"),
        ({"seeds": [1, 0]}, "seeds"),
        ({"suites": "ood-svhn"}, ""),
        ({"concurrent": 2}, ""),
        ({"team": "blue"}, ""),
    ],
)
def test_a_sweep_goes_on_only_as_what_it_was(
    tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    texts = (WHOLE.format(storage=tmp_path, **{**USUAL, **new}) for new in ({}, change))
    before, now = (parse_sweep(text, "edges") for text in texts)
    with pytest.raises(InputError, match="no sweep 'edges'"):
        run._check_same(before, resume=True)
    run._check_same(before, resume=False)
    SweepFolder.of(before).write_spec(before)
    for resume in (True, False):
        if key:
            with pytest.raises(InputError) as caught:
                run._check_same(now, resume)
            assert str(caught.value) == (
                f"sweep 'edges' exists in {tmp_path}/sweeps/edges with another `{key}`; "
                "give this one another name, or start it with --fresh"
            )
        else:
            run._check_same(now, resume)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("name", TaskSpec.model_fields)
def test_all_of_a_task_but_its_suites_makes_another_sweep(spec: SweepSpec, name: str) -> None:
    other = spec.tasks[0].model_copy(update={name: "another"})
    changed = run._identity(spec.model_copy(update={"tasks": (other,)})) != run._identity(spec)
    assert changed == (name != "suites")


@pytest.mark.parametrize(
    ("resources", "complaint"),
    [
        ("train: {cpu: 2}", ""),
        ("train: {cpu: 3}", "resources.train: a trial of 3 CPUs"),
        ("calibrate: {gpu: 0.5}", "resources.calibrate: a trial of 1 CPUs and 0.5 GPUs"),
        ("refine: {cpu: 9}", ""),  # Nothing is refined.
    ],
)
def test_a_trial_that_fits_nowhere_is_refused_before_any_runs(
    tmp_path: Path, resources: str, complaint: str
) -> None:
    text = SWEEP.format(storage=tmp_path).replace("[ce]", "[ce+ts]")
    plan = make_plan(parse_sweep(f"{text}resources: {{{resources}}}\n", "edges"))
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 2.0})
    if not complaint:
        run._require_room(plan, ray)
        return
    with pytest.raises(InputError, match=complaint):
        run._require_room(plan, ray)


def test_a_fresh_start_takes_the_next_free_name(spec: SweepSpec) -> None:
    names = []
    for _ in range(3):
        found = run._next_free(spec)
        SweepFolder.of(found).write_spec(found)
        names.append(found.name)
    assert names == ["edges", "edges-2", "edges-3"]


def test_a_specification_survives_a_disk_that_is_full(spec: SweepSpec) -> None:
    SweepFolder.of(spec).write_spec(spec)
    complaint = r"sweep\.yaml cannot be written: File too large"
    with files_of_at_most(100), pytest.raises(InputError, match=complaint):
        SweepFolder.of(spec).write_spec(spec)
    assert Storage.of(spec).load_spec("edges") == spec


def test_whoever_comes_second_is_told_who_is_there(spec: SweepSpec) -> None:
    here = f"{psutil.Process().username()} on {os.uname().nodename}, process {os.getpid()}"
    message = rf"'edges' is being run by {re.escape(here)}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
    with SweepFolder.of(spec).owned():
        second = SweepFolder.of(spec).owned()
        with pytest.raises(InputError, match=message):
            second.__enter__()


@pytest.mark.parametrize(
    "past", [[], [ENDED, BEGUN], *([SweepEnded(status=s)] for s in ("interrupted", "failed"))]
)
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


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("pause", "whole"), [(44.0, True), (46.0, False)])
def test_a_pause_is_measured_from_the_last_delivery(
    monkeypatch: pytest.MonkeyPatch, pause: float, whole: bool, there: bool
) -> None:
    """Who has taken something may be back in time."""
    listening(monkeypatch, there)
    now, steps = [0.0], iter([(40.0, 1), (40.0, 2), (pause, 2), (1.0, 3)])
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shipper = Shipper(3)

    def wait(timeout: float) -> bool:
        gap, shipper.delivered = next(steps)
        now[0] += gap
        return shipper.delivered == 3

    monkeypatch.setattr(shipper, "wait_drained", wait)
    monkeypatch.setattr(shipper, "progress", lambda: (shipper.delivered, 9))
    assert ending(shipper) == (whole, not whole)


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


def test_a_table_that_cannot_be_written_is_named(spec: SweepSpec) -> None:
    results = (StudyResult("edges", "a task", "ce", "failed", reason="NaN"),)
    SweepFolder.of(spec).table("md").mkdir(parents=True)
    with pytest.raises(InputError, match=r"table\.md cannot be written: Is a directory"):
        show_outcome(SweepOutcome(spec, "failed", results, True, 1.0))
