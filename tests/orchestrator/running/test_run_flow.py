"""How one run of a sweep goes, from its first check to its last delivery: given logits, no Ray."""

import io
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock, patch

import numpy as np
import psutil
import pytest
import torch
import yaml
from PIL import Image
from rich.console import Console

from orchestrator.executors import Executor, open_executor
from orchestrator.executors.in_process import InProcess
from orchestrator.loop import Loop
from orchestrator.running import drive, run
from orchestrator.running.drive import Measurement
from orchestrator.running.run import SweepOutcome, run_sweep
from orchestrator.storage.events import (
    Evaluated,
    Event,
    StudyClosed,
    SweepEnded,
    SweepStarted,
    TrialFinished,
    TrialScored,
    TrialStarted,
)
from orchestrator.storage.journal import read_events
from orchestrator.storage.provenance import provenance
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.names import LONGEST_NAME
from orchestrator.sweep.plan import Plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from tests.orchestrator.one_process import GIT, git_asked_once, nothing_drawn
from trainables.charts.reliability import reliability_diagram
from trainables.common.errors import InputError, StorageError
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData, TestDataSealedError
from trainables.jobs import Job, Report, StageWork, TestWork
from trainables.store.artifacts import ArtifactStore
from trainables.worker import _computations as measuring
from trainables.worker import worker

SERVER = "http://127.0.0.1:9"
SWEEP = """
name: flow
tasks: [{{name: l, logits: {folder}/l.npz, split: {{test: 0.5, validation: 30}}}}]
recipes: [given, ts]
search: {{trials: 1}}
seeds: [0]
resources: {{deterministic: true}}
storage: {folder}/storage
tracking: {{uri: "{uri}"}}
"""
Search = Callable[[InProcess, Loop], None]


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "l.npz", logits=rng.normal(size=(80, 3)), labels=rng.integers(0, 3, 80))
    return parse_sweep(SWEEP.format(folder=tmp_path, uri=SERVER), "flow")


@pytest.fixture
def two(spec: SweepSpec) -> SweepSpec:
    """Return the same sweep on two seeds."""
    return spec.model_copy(update={"seeds": (0, 1)})


@dataclass
class Company(Executor):
    """Executor and shipper of a run, in this process; ``asked`` tells in turn what they were asked.

    A shipper that is not ``drained`` has delivered seven bytes, and never more.
    """

    search: Search = InProcess.run
    drained: bool = True
    asked: list[Any] = field(default_factory=list)

    @contextmanager
    def open(
        self, plan: Plan, store: ArtifactStore, address: str | None, say: Any
    ) -> Iterator[Any]:
        self.asked.append(("open", address))
        self.here = InProcess(store.root)
        local = plan.spec.executor == "local"
        with open_executor(plan, store, address, say) if local else nullcontext(self) as executor:
            yield executor
        self.asked.append("close")

    def run(self, loop: Loop, sealed: bool = True) -> None:
        self.asked.append("search" if sealed else "measure")
        self.search(self.here, loop) if sealed else self.here.run(loop, sealed=False)

    def ship(self, journal: Path, uri: str, files: Path, plugins: Sequence[object]) -> "Company":
        self.journal = journal
        self.asked.append(("ship", journal.parent.name, uri, files.name, self.last()))
        return self

    def last(self) -> str:
        return read_events(self.journal)[0][-1].event

    def progress(self) -> tuple[int, int]:
        return 7, 9

    def wait_drained(self, timeout: float) -> bool:
        self.asked.append(("wait", self.last()))
        assert len(self.asked) < 20, "waits for good"
        return self.drained

    def fault(self) -> None:
        return None

    def stop(self) -> None:
        self.asked.append("stop")


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> Iterator[Company]:
    here, threads = Company(), torch.get_num_threads()
    monkeypatch.setattr(run, "open_executor", here.open)
    monkeypatch.setattr(run, "start_shipper", here.ship)
    monkeypatch.setattr(measuring, "reliability_diagram", nothing_drawn)
    monkeypatch.setattr(GIT, git_asked_once)
    yield here
    torch.set_num_threads(threads)


SHIP = ("ship", "flow", SERVER, "mlflow-artifacts", "sweep_started")
WAIT = ("wait", "sweep_ended")
ALONE = [SHIP, ("open", None), "search", "measure", "close", WAIT]


def ran(spec: SweepSpec, **options: Any) -> tuple[SweepOutcome, str]:
    """Run a sweep; return its outcome and what was said."""
    said = io.StringIO()
    return run_sweep(spec, console=Console(file=said, width=200), **options), said.getvalue()


def events_of(spec: SweepSpec, kind: type[Event]) -> list[Any]:
    events, _ = read_events(SweepFolder.of(spec).journal)
    return [event for event in events if isinstance(event, kind)]


def ends(spec: SweepSpec) -> list[str]:
    return [event.status for event in events_of(spec, SweepEnded)]


def test_a_second_run_finds_everything_done(two: SweepSpec, company: Company) -> None:
    outcome, said = ran(two)
    assert (outcome.spec, outcome.status, outcome.tracked) == (two, "finished", True)
    assert [(result.recipe, len(result.test)) for result in outcome.results] == [
        ("given", 2),
        ("ts", 2),
    ]
    assert company.asked == ALONE
    assert "measuring 4 chosen configurations on test data\n" in said
    assert "delivering the last runs to the tracking server\n" in said
    (begun,) = events_of(two, SweepStarted)
    assert (begun.sweep, begun.spec) == ("flow", two.model_dump(mode="json"))
    assert begun.provenance == provenance()
    trials = events_of(two, TrialFinished)

    company.asked.clear()
    again = run_sweep(two, resume=True)
    assert (again.status, again.results) == ("finished", outcome.results)
    assert company.asked == [SHIP, WAIT]
    assert [event.sweep_id for event in events_of(two, SweepStarted)] == [begun.sweep_id] * 2
    assert ends(two) == ["finished"] * 2
    assert events_of(two, TrialFinished) == trials


def interrupt(here: InProcess, loop: Loop) -> None:
    raise KeyboardInterrupt


def after_one(here: InProcess, loop: Loop) -> None:
    """Come to the end of the first trial."""
    real = loop.take

    def take(job: Job, report: Report) -> None:
        real(job, report)
        raise KeyboardInterrupt

    with patch.object(loop, "take", take):
        here.run(loop)


def after_all(here: InProcess, loop: Loop) -> None:
    here.run(loop)
    raise KeyboardInterrupt


def nothing(here: InProcess, loop: Loop) -> None:
    """Come back without having finished."""


@pytest.mark.usefixtures("company")
def test_a_sweep_interrupted_while_it_delivers_is_resumed_for_its_tables(spec, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(run, "await_delivery", Mock(side_effect=KeyboardInterrupt))
        outcome, said = ran(spec)
    assert (outcome.status, outcome.tracked) == ("interrupted", False)
    assert said.endswith("delivering the last runs to the tracking server\nstopped\n")
    assert ends(spec) == ["finished"]
    assert ran(spec, resume=True)[0].status == "finished"


@pytest.mark.parametrize(
    ("search", "trials"), [(interrupt, 0), (after_one, 1), (nothing, 0), (after_all, 2)]
)
def test_an_interrupted_search_resumes(spec, company, search, trials):
    company.search = search
    outcome, said = ran(spec)
    assert (outcome.status, outcome.tracked) == ("interrupted", True)
    assert company.asked[:3] == ALONE[:3]
    assert company.asked[-1] == WAIT
    assert ("stopped\n" in said) == (search is not nothing)
    assert "measuring" not in said
    assert ends(spec) == ["interrupted"]
    assert len(events_of(spec, TrialFinished)) == trials
    assert not SweepFolder.of(spec).is_owned()

    company.search = InProcess.run
    whole, _ = ran(spec, resume=True)
    assert whole.status == "finished"
    assert all(result.test for result in whole.results)
    assert len({event.sweep_id for event in events_of(spec, SweepStarted)}) == 1
    assert len(events_of(spec, TrialFinished)) == 2, "none is computed twice"


def test_missing_predictions_are_measured_again(two: SweepSpec, company: Company) -> None:
    """Also where what was measured is damaged, too."""
    ran(two)
    before, store = events_of(two, Evaluated), Storage.of(two).store()
    gone = before[-2:]
    for event in gone:
        shutil.rmtree(store.path(ArtifactRef("evaluate", event.predictions)))
    (own,) = (one for one in events_of(two, TrialFinished) if one.key == gone[-1].key)
    next(store.path(ArtifactRef("calibrate", own.artifact)).glob("*.safetensors")).write_bytes(b"x")
    outcome, said = ran(two)
    assert outcome.status == "finished"
    assert "measuring 2 chosen configurations on test data\n" in said
    again = [replace(event, time=ANY, seconds=ANY) for event in gone]
    assert events_of(two, Evaluated)[len(before) :] == again
    assert all(store.contains(ArtifactRef("evaluate", event.predictions)) for event in gone)


def test_damaged_predictions_of_a_finished_sweep_are_measured_by_the_first_resume(
    spec: SweepSpec, company: Company
) -> None:
    ran(spec)
    *_, last = events_of(spec, Evaluated)
    path = Storage.of(spec).store().path(ArtifactRef("evaluate", last.predictions))
    whole = (path / "test.safetensors").read_bytes()
    (path / "test.safetensors").write_bytes(whole[:100])
    outcome, said = ran(spec, resume=True)
    assert outcome.status == "finished"
    assert "measuring 1 chosen configuration on test data\n" in said
    assert (path / "test.safetensors").read_bytes() == whole
    assert "measuring" not in ran(spec, resume=True)[1]


@pytest.mark.parametrize(
    ("files", "sealed", "told"),
    [
        (0, True, ""),
        (1, True, "1 file;"),
        (2, False, "2 files and the end of the journal;"),
        (0, False, "the end of the journal;"),
    ],
)
def test_a_message_counts_files_that_are_not_in_the_bucket(
    spec: SweepSpec, files: int, sealed: bool, told: str
) -> None:
    said = io.StringIO()
    run.say_undelivered(spec, files, sealed, Console(file=said, width=1000))
    found = said.getvalue().partition(" on this machine")[0]
    assert found == (told and f"not in {spec.storage} yet: {told}")


def test_a_damaged_artifact_is_computed_again(spec: SweepSpec, company: Company) -> None:
    company.search = after_all
    ran(spec)
    ended, store = events_of(spec, TrialFinished), Storage.of(spec).store()
    last = next(store.path(ArtifactRef("calibrate", ended[-1].artifact)).glob("*.safetensors"))
    last.write_bytes(b"x")
    company.search = InProcess.run
    assert ran(spec)[0].status == "finished"
    assert [event.key for event in events_of(spec, TrialFinished)[len(ended) :]] == [ended[-1].key]


def test_a_running_sweep_is_not_run_twice(spec: SweepSpec, company: Company) -> None:
    me = rf"{psutil.Process().username()} on {os.uname().nodename}, process {os.getpid()}"

    def run_again(here: InProcess, loop: Loop) -> None:
        before = SweepFolder.of(spec).journal.read_bytes()
        since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
        with pytest.raises(InputError, match=rf"'flow' is being run by {me}, {since}"):
            ran(spec)
        assert SweepFolder.of(spec).journal.read_bytes() == before

    company.search = run_again
    assert ran(spec)[0].status == "interrupted"
    assert [asked[0] for asked in company.asked].count("ship") == 1


def test_an_error_in_the_search_ends_the_journal(spec: SweepSpec, company: Company) -> None:
    def fill_the_disk(here: InProcess, loop: Loop) -> None:
        raise InputError("no space left")

    company.search = fill_the_disk
    with pytest.raises(InputError, match="no space left"):
        ran(spec)
    assert company.asked[-1] == WAIT
    assert ends(spec) == ["interrupted"]
    assert not SweepFolder.of(spec).is_owned()


def test_a_measurement_that_fails_makes_the_study_fail(spec, company, monkeypatch):
    real = measuring.evaluate_on_test

    def refuse(store: Any, ref: ArtifactRef, *more: Any) -> Any:
        if ref.stage == "calibrate":
            raise InputError("rows are gone")
        return real(store, ref, *more)

    with monkeypatch.context() as patched:
        patched.setattr(measuring, "evaluate_on_test", refuse)
        outcome, said = ran(spec)
    assert (outcome.status, outcome.tracked) == ("failed", True)
    reason = "not measured on test data: InputError: rows are gone"
    assert {result.recipe: (result.status, result.reason) for result in outcome.results} == {
        "given": ("finished", ""),
        "ts": ("failed", reason),
    }
    assert f"l|ts failed: {reason}\n" in said
    assert ran(spec)[0].status == "finished"


def test_a_measurement_is_recorded_in_full(two, company, monkeypatch):
    """A published default is measured where its outcome is there still; all where trials may be."""
    place, pending = torch.device("cpu", 0), drive.pending_measurements

    def where(gpus: float, deterministic: bool) -> torch.device:
        return place if (gpus, deterministic) == (0.0, True) else torch.device("cpu")

    absent = ArtifactRef("train", "ab" * 32)

    def with_defaults(*given: Any) -> list[Measurement]:
        return [
            replace(one, default=absent if chosen.trial.seed else chosen.ref)
            for one in pending(*given)
            for chosen in [one.chosen]
        ]

    monkeypatch.setattr(worker, "trial_device", where)
    monkeypatch.setattr(drive, "pending_measurements", with_defaults)
    tested, drawn = (Mock(wraps=measuring.evaluate_on_test), Mock(wraps=reliability_diagram))
    monkeypatch.setattr(measuring, "evaluate_on_test", tested)
    monkeypatch.setattr(measuring, "reliability_diagram", drawn)
    ran(two)
    asked = [call.args for call in tested.call_args_list]
    assert (len(asked), {given[-2] for given in asked}) == (4 + 2, {place})
    assert len({id(given[-1]) for given in asked}) == 1, "the last pass of one process"
    folder, store = SweepFolder.of(two), Storage.of(two).store()
    trials = {trial.key: trial for trial in events_of(two, TrialStarted)}
    keys = {event.key: event.artifact for event in events_of(two, TrialFinished)}
    scores = {event.key: event.objective for event in events_of(two, TrialScored)}
    measured = events_of(two, Evaluated)
    assert sorted(event.key for event in measured) == sorted(trials)
    recipes = [trials[event.key].study.split("|")[1] for event in measured]
    titles = [call.args[1] for call in drawn.call_args_list]
    assert titles == [f"{recipe} on l" for recipe in recipes]
    errors = [event.metrics["test_ece"] for event in measured]
    assert [call.args[0].error for call in drawn.call_args_list] == pytest.approx(errors)
    for event, recipe in zip(measured, recipes, strict=True):
        trial = trials[event.key]
        assert (event.study, event.seed) == (trial.study, trial.seed)
        assert store.metrics(ArtifactRef("evaluate", event.predictions)) == {
            name.removeprefix("test_"): value for name, value in event.metrics.items()
        }
        assert event.default_predictions == (None if trial.seed else event.predictions)
        chain = measuring.chain_of(store, ArtifactRef(trial.stage, keys[event.key]))
        assert len(chain) == 1 + (recipe == "ts")
        assert event.seconds == round(sum(link.record["seconds"] for link in chain), 3)
        assert event.computed == {link.stage: link.record["computed"] for link in chain}
        own = folder.chosen / "l" / recipe / f"seed-{trial.seed}"
        files = ("reliability.png", "configuration.yaml")
        assert event.artifacts == {name: str(own / name) for name in files}
        with Image.open(own / "reliability.png") as image:
            assert min(image.size) > 300
        document = yaml.safe_load((own / "configuration.yaml").read_text())
        assert list(document.items()) == [
            ("task", "l"),
            ("recipe", recipe),
            ("seed", trial.seed),
            ("objective", scores[event.key]),
            ("fixed", trial.configuration),
        ]


def test_an_unwritable_folder_ends_the_run(spec: SweepSpec, company: Company) -> None:
    chosen = SweepFolder.of(spec).chosen
    chosen.parent.mkdir(parents=True)
    chosen.write_text("No folder can be below a file.")
    with pytest.raises(StorageError, match=f"{chosen}/l/.* cannot be written: "):
        ran(spec)
    assert ends(spec) == ["interrupted"]
    assert {event.chosen is None for event in events_of(spec, StudyClosed)} == {False}


def test_a_refused_run_leaves_no_sweep(spec, company, tmp_path, monkeypatch):
    def refuse(uri: str) -> None:
        raise InputError(f"another password at {uri}")

    with pytest.raises(InputError, match="--address 'http://' has no host"):
        ran(spec, address="http://")
    with pytest.raises(
        InputError, match=r"^executor: local computes on this machine; remove --add"
    ):
        ran(spec.model_copy(update={"executor": "local"}), address="10.0.0.1:6379")
    with pytest.raises(InputError, match="no sweep 'flow'"):
        ran(spec, resume=True)
    assert not SweepFolder.of(spec).path.exists()
    with monkeypatch.context() as patched:
        patched.setattr(run, "check_login", refuse)
        with pytest.raises(InputError, match=f"^another password at {SERVER}$"):
            ran(spec)
    assert not Path(spec.storage).exists()
    (tmp_path / "l.npz").unlink()
    with pytest.raises(InputError, match=r"tasks\[0\] \(l\): .*l\.npz"):
        ran(spec)
    assert not SweepFolder.of(spec).exists
    assert company.asked == []


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("search", [interrupt, InProcess.run])
def test_a_stalled_server_is_given_up(spec, company, monkeypatch, there, search):
    """What an earlier run has delivered says nothing of whether the server is there now."""
    company.search, company.drained = search, False
    monkeypatch.setattr(run, "STALLED_SECONDS", 0.0)
    monkeypatch.setattr(run, "listens", lambda uri: there and uri == SERVER)
    outcome, _ = ran(spec)
    assert not outcome.tracked
    left_at_work = there and search is interrupt
    assert company.asked.count(WAIT) == 1
    assert (company.asked[-1] == "stop") != left_at_work


@pytest.mark.parametrize(("room", "name"), [(run, "prepare_data"), (drive, "pending_measurements")])
def test_sigterm_interrupts_before_and_after_the_search(spec, company, monkeypatch, room, name):
    unheard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: unheard.append(number))
    monkeypatch.setattr(room, name, lambda *given: os.kill(os.getpid(), signal.SIGTERM))
    try:
        if room is run:
            with pytest.raises(KeyboardInterrupt):
                ran(spec)
        else:
            assert ran(spec)[0].status == "interrupted"
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert unheard == [signal.SIGTERM], "as before the run"
    assert not SweepFolder.of(spec).is_owned()


def test_a_fresh_start_is_another_sweep(spec: SweepSpec, company: Company) -> None:
    company.search = interrupt
    other = spec.model_copy(update={"seeds": (1,)})
    runs = ((spec, False), (spec, True), (spec, False), (other, True))
    names = [ran(one, fresh=fresh, address="h:1")[0].spec.name for one, fresh in runs]
    assert names == ["flow", "flow-2", "flow", "flow-3"]
    assert [asked[1] for asked in company.asked if asked[0] == "ship"] == names
    assert [asked for asked in company.asked if asked[0] == "open"] == [("open", "h:1")] * 4


def test_a_fresh_start_of_the_longest_name_can_be_resumed(spec, company):
    company.search = interrupt
    longest = spec.model_copy(update={"name": "x" * LONGEST_NAME})
    first, second = (ran(longest, fresh=fresh)[0].spec for fresh in (False, True))
    assert (first.name, second.name) == (longest.name, "x" * (LONGEST_NAME - 2) + "-2")
    assert Storage.of(second).load_spec(second.name).name == second.name


def test_the_local_executor_seals_its_search(spec, company, tmp_path, monkeypatch):
    """Its figures are those of any other."""
    expected, _ = ran(spec)
    resources = spec.resources.model_copy(update={"concurrent": 1})
    changes = {"executor": "local", "storage": str(tmp_path / "other"), "resources": resources}
    local = spec.model_copy(update=changes)
    take, reached = Loop.take, set[tuple[type, bool]]()

    def can(read: Callable[[], object]) -> bool:
        try:
            read()
        except TestDataSealedError:
            return False
        return True

    def look(loop: Loop, job: Job, report: Report) -> None:
        work: Any = job.work
        data = PreparedData.open(work.data if isinstance(work, TestWork) else work.request.data)
        file = data.directory / "test" / "labels.npy"
        reached.update((type(work), can(read)) for read in (data.test, file.read_bytes))
        take(loop, job, report)

    monkeypatch.setattr(Loop, "take", look)
    outcome, said = ran(local)
    assert (outcome.status, "Ray" in said) == ("finished", False)
    assert [result.test for result in outcome.results] == [r.test for r in expected.results]
    assert reached == {(StageWork, False), (TestWork, True)}


@pytest.mark.full
def test_local_processes_find_the_same(two: SweepSpec, company: Company, tmp_path: Path) -> None:
    """Their epochs, logs and plugins are as of one process; none of them outlives the sweep."""
    expected, _ = ran(two)
    resources = two.resources.model_copy(update={"concurrent": 2})
    changes = {"executor": "local", "storage": str(tmp_path / "other"), "resources": resources}
    local = two.model_copy(update=changes)
    outcome, said = ran(local)
    assert (outcome.status, "Ray" in said) == ("finished", False)
    assert [result.test for result in outcome.results] == [r.test for r in expected.results]
    logs = [file.read_text() for file in SweepFolder.of(local).logs.iterdir()]
    assert len(logs) == len(
        {e.key for e in read_events(outcome.journal)[0] if e.event == "trial_started"}
    )
    assert all("finished after" in log for log in logs)
    here = psutil.Process()
    assert len(here.children(recursive=True)) == len(here.children()), "a worker is left"
