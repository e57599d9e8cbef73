"""What surrounds a sweep: what it resumes, its executor and its delivery."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from orchestrator.cli import _outcome
from orchestrator.cli._outcome import show_outcome
from orchestrator.executors import open_executor
from orchestrator.running import run
from orchestrator.running.run import SweepOutcome
from orchestrator.storage.events import Event, SweepEnded, SweepStarted
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tracking._process import Fault
from tests.orchestrator.disks import files_of_at_most
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore

SWEEP = """
name: edges
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce]
storage: {storage}
"""
BEGUN = SweepStarted(sweep="edges", sweep_id="id", spec={}, provenance={})
ENDED = SweepEnded(status="finished")


def refused(complaint: str) -> Any:
    return pytest.raises(InputError, match=complaint) if complaint else nullcontext()


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    return parse_sweep(SWEEP.format(storage=tmp_path / "my storage"), "edges")


WHOLE = """
name: edges
tasks: [{dataset: digits, model: convnet, protocol: digits, suites: []}]
recipes: [ce, wide]
variants: {wide: {of: mbls, fixed: {margin: 9.0}}}
search: {trials: 3}
seeds: [0, 1]
executor: ray
resources: {concurrent: 1}
tags: {team: red}
"""


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("convnet", "resnet8", "tasks"),
        ("[ce, wide]", "[wide, ce]", "recipes"),
        ("9.0", "8.0", "variants"),
        ("trials: 3", "trials: 4", "search"),
        ("[0, 1]", "[1, 0]", "seeds"),
        ("suites: []", "suites: [ood-svhn]", ""),
        ("ray", "local", ""),
        ("concurrent: 1", "concurrent: 2", ""),
        ("red", "blue", ""),
    ],
)
def test_a_sweep_resumes_only_unchanged(tmp_path: Path, old: str, new: str, key: str) -> None:
    text = f"{WHOLE}storage: {tmp_path}\n"
    before, now = parse_sweep(text, "edges"), parse_sweep(text.replace(old, new), "edges")
    with pytest.raises(InputError, match="no sweep 'edges'"):
        run._check_same(before, resume=True)
    run._check_same(before, resume=False)
    SweepFolder.of(before).write_spec(before)
    told = (
        f"sweep 'edges' exists in {tmp_path}/sweeps/edges with another `{key}`; "
        "give this one another name, or run the sweep file with --fresh"
    )
    for resume in (True, False):
        with refused(key and f"^{re.escape(told)}$"):
            run._check_same(now, resume)


class Cluster:
    """What is asked of Ray before a search begins."""

    elsewhere = False

    @contextmanager
    def join(self, address: str | None, variables: Mapping[str, str]) -> "Iterator[Cluster]":
        yield self

    def nodes(self) -> list[dict[str, Any]]:
        names = [os.uname().nodename, *["another"] * self.elsewhere]
        known = {"Alive": True, "Resources": self.cluster_resources()}
        return [{**known, "NodeManagerHostname": name} for name in names]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr("orchestrator.executors._open.join_cluster", cluster.join)
    monkeypatch.setattr(
        "orchestrator.executors.ray_tune.RayTune", lambda *given, **more: (given, more)
    )
    return cluster


def opened(spec: SweepSpec, address: str | None = None) -> tuple[Any, str]:
    """Return how the executor of a sweep is made, and what is said."""
    said: list[str] = []
    with open_executor(make_plan(spec), Storage.of(spec).store(), address, said.append) as executor:
        return executor, " ".join(said)


@pytest.mark.parametrize(
    ("resources", "complaint"),
    [
        ("train: {cpu: 2}", ""),
        ("train: {cpu: 3}", "resources.train: a trial of 3 CPUs"),
        ("calibrate: {gpu: 0.5}", "resources.calibrate: a trial of 1 CPUs and 0.5 GPUs"),
        ("refine: {cpu: 9}", ""),  # Nothing is refined.
    ],
)
def test_a_trial_that_fits_nowhere_is_refused(tmp_path, cluster, resources, complaint):
    text = SWEEP.format(storage=tmp_path).replace("[ce]", "[ce+ts]")
    spec = parse_sweep(f"{text}resources: {{{resources}}}\n", "edges")
    given = (Storage.of(spec).artifacts, SweepFolder.of(spec).path, None, 20.0)
    more = {"plugins": (), "hang_seconds": None}
    with refused(complaint):
        assert opened(spec) == ((given, {"asha": False, "growing": False, **more}), "starting Ray")
    growing = {"asha": False, "growing": True, **more}
    executor, said = opened(spec, "auto")
    assert executor == (given, growing), "it may grow"
    stage = complaint.partition(":")[0]
    assert said.partition(": no node")[0] == f"joining Ray at auto {stage}".strip()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("storage: here", "storage: on a cluster expected an absolute folder"),
        (
            "storage: /all\ntracking: {uri: 'sqlite:///here.db'}",
            "tracking.uri: on a cluster expected a tracking server",
        ),
        ("storage: /all\ntracking: {uri: 'http://there:1'}\nsearch: {scheduler: asha}", ""),
    ],
)
def test_a_cluster_needs_absolute_shared_folders(
    cluster: Cluster, change: str, complaint: str
) -> None:
    spec = parse_sweep(SWEEP.format(storage="").replace("storage: ", change), "edges")
    opened(spec, "auto")
    cluster.elsewhere = True
    with refused(complaint):
        (_, settings), _ = opened(spec, "auto")
        assert settings["asha"]


def test_the_limit_for_hanging_workers_is_used_or_a_message_says_that_it_has_no_effect(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SWEEP.format(storage=tmp_path)
    (_, settings), _ = opened(parse_sweep(f"{text}resources: {{hang_seconds: 60}}\n", "edges"))
    assert settings["hang_seconds"] == 60
    local = parse_sweep(f"{text}executor: local\nresources: {{hang_seconds: 60}}\n", "edges")
    at_once = [2, 1]
    monkeypatch.setattr("orchestrator.executors._open._at_once", lambda plan: at_once.pop(0))
    executor, said = opened(local)
    assert (executor.hang_seconds, said) == (60, "")
    _, said = opened(local)
    assert said.startswith("resources.hang_seconds: 60 has no effect: trials run in this process")


def test_a_full_disk_keeps_the_last_specification(spec: SweepSpec) -> None:
    SweepFolder.of(spec).write_spec(spec)
    complaint = r"sweep\.yaml cannot be written: File too large"
    with files_of_at_most(100), pytest.raises(InputError, match=complaint):
        SweepFolder.of(spec).write_spec(spec)
    assert Storage.of(spec).load_spec("edges") == spec


@pytest.mark.parametrize(
    "past", [[], [ENDED, BEGUN], *([SweepEnded(status=s)] for s in ("interrupted", "failed"))]
)
def test_nothing_is_built_on_a_damaged_artifact(tmp_path: Path, past: list[Event]) -> None:
    store = ArtifactStore(tmp_path)
    keys = ["ab" * 32, "cd" * 32]
    for key in keys:
        store.write(ArtifactRef("train", key), {"weights": {"w": torch.ones(9)}}, {"metrics": {}})
    (store.path(ArtifactRef("train", keys[0])) / "weights.safetensors").write_bytes(b"x")
    assert run._usable(store, Ledger([BEGUN, ENDED]))(ArtifactRef("train", keys[0]))
    usable = run._usable(store, Ledger(past))
    assert [usable(ArtifactRef("train", key)) for key in keys] == [False, True]


class Shipper:
    """Has delivered so much after so many seconds more, at each look; ``whole`` is all."""

    def __init__(self, now: list[float], looks: list[tuple[float, int]], whole: int) -> None:
        self.now, self.looks, self.whole = now, iter(looks), whole
        self.delivered, self.waits, self.stopped = 0, 0, False
        self.met: Fault | None = None

    def wait_drained(self, timeout: float) -> bool:
        self.waits += 1
        seconds, self.delivered = next(self.looks)
        self.now[0] += seconds
        return self.delivered == self.whole

    def progress(self) -> tuple[int, int]:
        return self.delivered, 9

    def fault(self) -> Fault | None:
        return self.met

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, in one number."""
    now = [0.0]
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize(
    ("delivers", "there", "interrupted", "expected"),
    [
        (0, False, False, (False, True, 1)),  # A server that was never there is not waited for.
        (30, True, False, (True, False, 30)),
        (30, False, False, (True, False, 30)),  # Who has taken something may be back in time.
        (0, True, False, (False, True, 46)),  # It may still start on a busy machine.
        (3, False, True, (False, False, 1)),  # After an interruption the shipper goes on alone,
        (0, True, True, (False, False, 1)),
        (0, False, True, (False, True, 1)),  # unless there is no server.
    ],
)
def test_a_run_waits_for_the_server_while_events_are_delivered(
    monkeypatch: pytest.MonkeyPatch,
    now: list[float],
    delivers: int,
    there: bool,
    interrupted: bool,
    expected: tuple[bool, bool, int],
) -> None:
    """Expected are whether all is delivered, whether the shipper was stopped, and the looks."""
    monkeypatch.setattr(run, "listens", lambda uri: there)
    shipper = Shipper(now, [(5.0, min(n, delivers)) for n in range(1, 99)], delivers or 9)
    whole = run.await_delivery(cast(Any, shipper), "http://host", 0, interrupted)
    assert (whole, shipper.stopped, shipper.waits) == expected


@pytest.mark.parametrize(("lasting", "waits"), [(True, 1), (False, 10)])
def test_a_tracker_that_someone_has_to_mend_is_not_waited_for(monkeypatch, now, lasting, waits):
    monkeypatch.setattr(run, "listens", lambda uri: True)
    shipper = Shipper(now, [(5.0, 0)] * 99, 9)
    shipper.met = Fault("damaged", lasting)
    assert not run.await_delivery(cast(Any, shipper), "sqlite:////m.db", 0, False)
    assert (shipper.stopped, shipper.waits) == (True, waits)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("pause", "fault", "whole"),
    [(44.0, True, True), (46.0, True, False), (224.0, False, True), (226.0, False, False)],
)
def test_a_stall_is_counted_from_the_last_delivery(monkeypatch, now, pause, fault, whole, there):
    monkeypatch.setattr(run, "listens", lambda uri: there)
    shipper = Shipper(now, [(40.0, 1), (40.0, 2), (pause, 2), (1.0, 3)], 3)
    shipper.met = Fault("away", False) if fault else None
    assert run.await_delivery(cast(Any, shipper), "http://host", 0, False) == whole
    assert shipper.stopped != whole


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_stopped_while_its_report_is_written_says_how_to_resume(
    spec: SweepSpec,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: signal.Signals,
) -> None:
    outcome = SweepOutcome(spec, "finished", (), True, 1.0)
    monkeypatch.setattr(run, "run_sweep", lambda *_, **__: outcome)
    monkeypatch.setattr(_outcome, "build_table", lambda results: signal.raise_signal(kind))
    assert _outcome.run_and_show(spec) == 130
    (said,) = capsys.readouterr().out.splitlines()
    assert said.endswith(f"calsweep run --resume edges --storage '{spec.storage}'")


@pytest.mark.parametrize(
    ("address", "ending"), [(None, ""), ("10.0.0.1:6379", " --address 10.0.0.1:6379")]
)
def test_an_interrupted_run_prints_the_complete_command_that_resumes(spec, capsys, address, ending):
    outcome = SweepOutcome(spec, "interrupted", (), False, 1.0)
    assert show_outcome(outcome, address) == 130
    said, pending = capsys.readouterr().out.splitlines()
    assert said.endswith(f"calsweep run --resume edges --storage '{spec.storage}'{ending}")
    assert pending.endswith(f"deliver the rest with: calsweep storage sync '{outcome.journal}'")
