"""How one run of a sweep goes, from its first check to its last delivery: given logits, no Ray."""

from __future__ import annotations

import io
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
import yaml
from matplotlib.image import imread
from rich.console import Console

from orchestrator.running import evaluate, run
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
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from tests.orchestrator.one_process import REPLACED, Here, search_here
from trainables.common.errors import InputError, StorageError

SERVER = "http://127.0.0.1:9"
SWEEP = """
name: flow
tasks: [{{name: l, logits: {folder}/l.npz, split: {{test: 0.5, validation: 30}}}}]
recipes: [given, ts]
search: {{trials: 1}}
seeds: [0, 1]
resources: {{deterministic: true}}
storage: {folder}/storage
tracking: {{uri: "{uri}"}}
mirror: "{mirror}"
"""


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    """Return a sweep whose mirror takes nothing: no folder can be below a file."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "l.npz", logits=rng.normal(size=(80, 3)), labels=rng.integers(0, 3, 80))
    (tmp_path / "bucket").write_text("")
    mirror = (tmp_path / "bucket").as_uri()
    return parse_sweep(SWEEP.format(folder=tmp_path, uri=SERVER, mirror=mirror), "flow")


@dataclass
class Company(Here):
    """Ray, Tune and the shipper, in this process; ``asked`` tells in turn what was asked of them.

    A shipper that is not ``drained`` has delivered seven bytes, and never more.
    """

    search: Callable[..., None] = search_here
    elsewhere: bool = False
    cpus: float = 2.0
    drained: bool = True
    asked: list[Any] = field(default_factory=list)

    @contextmanager
    def join(self, address: str | None) -> Iterator[Company]:
        self.asked.append(("join", address))
        yield self
        self.asked.append("leave")

    def nodes(self) -> list[dict[str, Any]]:
        names = [os.uname().nodename, *["another"] * self.elsewhere]
        return [{"Alive": True, "NodeManagerHostname": name} for name in names]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def tune(self, *of_a_sweep: Any, growing: bool = False) -> None:
        self.asked.append(("search", growing))
        self.search(*of_a_sweep)

    def ship(self, journal: Path, uri: str, files: Path) -> Company:
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

    def stop(self) -> None:
        self.asked.append("stop")


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> Iterator[Company]:
    here, threads = Company(), torch.get_num_threads()
    monkeypatch.setattr(run, "join_cluster", here.join)
    monkeypatch.setattr("orchestrator.running.tune.search", here.tune)
    monkeypatch.setattr(run, "start_shipper", here.ship)
    sealing = "trainables.ray_edge.seal_test_data"
    monkeypatch.setattr(sealing, REPLACED[sealing])
    yield here
    torch.set_num_threads(threads)


SHIP = ("ship", "flow", SERVER, "mlflow-artifacts", "sweep_started")
WAIT = ("wait", "sweep_ended")
ALONE = [SHIP, ("join", None), ("search", False), "leave", WAIT]


def ran(spec: SweepSpec, **options: Any) -> tuple[SweepOutcome, str]:
    """Run a sweep; return its outcome and what was said."""
    said = io.StringIO()
    return run_sweep(spec, console=Console(file=said, width=200), **options), said.getvalue()


def events_of(spec: SweepSpec, kind: type[Event]) -> list[Any]:
    return [
        event for event in read_events(SweepFolder.of(spec).journal)[0] if isinstance(event, kind)
    ]


NOT_THERE = "artifacts that have not reached the mirror"


def test_a_run_and_another_one_that_finds_everything_done(
    spec: SweepSpec, company: Company
) -> None:
    outcome, said = ran(spec)
    assert (outcome.spec, outcome.status, outcome.tracked) == (spec, "finished", True)
    assert [result.recipe for result in outcome.results] == ["given", "ts"]
    assert all(len(result.test) == 2 for result in outcome.results)
    assert company.asked == ALONE
    assert "starting Ray\n" in said
    assert "measuring 4 chosen configurations on test data\n" in said
    assert "delivering the last runs to the tracking server\n" in said
    waiting = len(list(Storage.of(spec).artifacts.rglob("manifest.json")))
    sent = "the next run in this storage sends them\n"
    assert f"{NOT_THERE} {spec.mirror}: {waiting}; {sent}" in said
    (begun,) = events_of(spec, SweepStarted)
    assert (begun.sweep, begun.spec) == ("flow", spec.model_dump(mode="json"))
    assert begun.provenance == provenance()
    ends = events_of(spec, TrialFinished)

    company.asked.clear()
    again = run_sweep(spec, resume=True)
    assert (again.status, again.results) == ("finished", outcome.results)
    assert company.asked == [SHIP, WAIT]
    assert [event.sweep_id for event in events_of(spec, SweepStarted)] == [begun.sweep_id] * 2
    assert [event.status for event in events_of(spec, SweepEnded)] == ["finished"] * 2
    assert events_of(spec, TrialFinished) == ends


def interrupt(*of_a_sweep: Any) -> None:
    raise KeyboardInterrupt


def after_one(*of_a_sweep: Any) -> None:
    """Come to the end of the search's first trial."""
    state = of_a_sweep[0]
    real = state.record

    def record(*ended: Any) -> None:
        real(*ended)
        raise KeyboardInterrupt

    state.record = record
    search_here(*of_a_sweep)


def nothing(*of_a_sweep: Any) -> None:
    """Come back without having finished."""


def ask_to_stop(*of_a_sweep: Any) -> None:
    """Finish what there is, though the one who watches wants it stopped, as Tune may."""
    told: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
    os.kill(os.getpid(), signal.SIGINT)
    assert told, "Tune is asked first"
    search_here(*of_a_sweep)


@pytest.mark.parametrize(
    ("search", "trials"), [(interrupt, 0), (after_one, 1), (nothing, 0), (ask_to_stop, 4)]
)
def test_a_search_that_is_cut_short_is_gone_on_with(
    spec: SweepSpec, company: Company, search: Callable[..., None], trials: int
) -> None:
    company.search = search
    outcome, said = ran(spec)
    assert (outcome.status, outcome.tracked) == ("interrupted", True)
    assert company.asked[:3] == ALONE[:3]
    assert company.asked[-1] == WAIT
    assert ("stopped\n" in said) == (search is not nothing)
    assert "measuring" not in said
    assert NOT_THERE not in said, "who stops a sweep waits for nothing"
    assert [event.status for event in events_of(spec, SweepEnded)] == ["interrupted"]
    assert len(events_of(spec, TrialFinished)) == trials
    assert not SweepFolder.of(spec).is_owned()

    company.search = search_here
    whole, _ = ran(spec, resume=True)
    assert whole.status == "finished"
    assert all(result.test for result in whole.results)
    assert len({event.sweep_id for event in events_of(spec, SweepStarted)}) == 1
    assert len(events_of(spec, TrialFinished)) == 4, "none is computed twice"


def test_predictions_that_are_gone_are_computed_again(spec: SweepSpec, company: Company) -> None:
    ran(spec)
    before, store = events_of(spec, Evaluated), Storage.of(spec).store()
    gone = before[-1]
    shutil.rmtree(store.path("evaluate", gone.predictions))
    outcome, said = ran(spec)
    assert outcome.status == "finished"
    assert "measuring 1 chosen configurations on test data\n" in said
    assert events_of(spec, Evaluated)[len(before) :] == [replace(gone, time=ANY)]
    assert store.contains("evaluate", gone.predictions)


def test_what_is_damaged_before_a_search_goes_on_is_computed_again(
    spec: SweepSpec, company: Company
) -> None:
    company.search = ask_to_stop
    ran(spec)
    ended = events_of(spec, TrialFinished)
    last = next(
        Storage.of(spec).store().path("calibrate", ended[-1].artifact).glob("*.safetensors")
    )
    last.write_bytes(b"x")
    company.search = search_here
    assert ran(spec)[0].status == "finished"
    assert [event.key for event in events_of(spec, TrialFinished)[len(ended) :]] == [ended[-1].key]


def test_a_run_takes_what_all_its_parts_do(
    spec: SweepSpec, company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    parts = {"check_login": 1.0, "prepare_data": 2.0, "await_delivery": 4.0, "results_of": 8.0}

    def slow(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            now[0] += parts[name]
            return real(*given)

        return called

    for name in parts:
        monkeypatch.setattr(run, name, slow(name, getattr(run, name)))
    assert ran(spec)[0].seconds == 15.0


def test_a_sweep_that_runs_is_not_run_a_second_time(spec: SweepSpec, company: Company) -> None:
    def run_again(*of_a_sweep: Any) -> None:
        before = SweepFolder.of(spec).journal.read_bytes()
        with pytest.raises(InputError, match=rf"'flow' is being run by .* process {os.getpid()}, "):
            ran(spec)
        assert SweepFolder.of(spec).journal.read_bytes() == before

    company.search = run_again
    assert ran(spec)[0].status == "interrupted"
    assert [asked[0] for asked in company.asked].count("ship") == 1


def test_what_goes_wrong_within_a_search_is_told_after_a_proper_end(
    spec: SweepSpec, company: Company
) -> None:
    def fill_the_disk(*of_a_sweep: Any) -> None:
        raise InputError("no space left")

    company.search = fill_the_disk
    with pytest.raises(InputError, match="no space left"):
        ran(spec)
    assert company.asked[-1] == WAIT
    assert [event.status for event in events_of(spec, SweepEnded)] == ["interrupted"]
    assert not SweepFolder.of(spec).is_owned()


def test_what_cannot_be_measured_fails_its_study_until_a_run_measures_it(
    spec: SweepSpec, company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = evaluate.evaluate_on_test

    def refuse(store: Any, stage: str, *more: Any) -> Any:
        if stage == "calibrate":
            raise InputError("rows are gone")
        return real(store, stage, *more)

    with monkeypatch.context() as patched:
        patched.setattr(evaluate, "evaluate_on_test", refuse)
        outcome, said = ran(spec)
    assert (outcome.status, outcome.tracked) == ("failed", True)
    reason = "not measured on test data: InputError: rows are gone"
    assert {result.recipe: (result.status, result.reason) for result in outcome.results} == {
        "given": ("finished", ""),
        "ts": ("failed", reason),
    }
    assert f"l|ts failed: {reason}\n" in said
    assert NOT_THERE in said
    assert ran(spec)[0].status == "finished"


def test_all_is_told_of_what_is_measured(
    spec: SweepSpec, company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published default is measured where its outcome is there still; all where trials may be."""
    place, seen = torch.device("cpu", 0), []
    measure = evaluate.evaluate_on_test

    def where(gpus: float, deterministic: bool) -> torch.device:
        return place if (gpus, deterministic) == (0.0, True) else torch.device("cpu")

    def seeing(*given: Any) -> Any:
        seen.append(given[-2:])
        return measure(*given)

    drawn, draw = [], evaluate.reliability_diagram

    def drawing(curve: Any, title: str) -> Any:
        drawn.append((title, curve))
        return draw(curve, title=title)

    monkeypatch.setattr(evaluate, "reliability_diagram", drawing)
    monkeypatch.setattr(evaluate, "trial_device", where)
    monkeypatch.setattr(evaluate, "evaluate_on_test", seeing)
    real = run.pending_evaluations

    def with_defaults(*given: Any) -> list[evaluate.Evaluation]:
        return [
            replace(job, default="ab" * 32 if seed else job.chosen.outcome.artifact)
            for job in real(*given)
            for seed in [job.chosen.trial.seed]
        ]

    monkeypatch.setattr(run, "pending_evaluations", with_defaults)
    ran(spec)
    devices, passes = zip(*seen, strict=True)
    assert (len(seen), set(devices)) == (4 + 2, {place})
    assert len({id(last) for last in passes if last is not None}) == 2, "one a process"
    assert None not in passes
    folder, store = SweepFolder.of(spec), Storage.of(spec).store()
    trials = {trial.key: trial for trial in events_of(spec, TrialStarted)}
    keys = {event.key: event.artifact for event in events_of(spec, TrialFinished)}
    scores = {event.key: event.objective for event in events_of(spec, TrialScored)}
    measured = {event.key: event for event in events_of(spec, Evaluated)}
    assert len(measured) == 4
    assert set(measured) == set(trials)
    recipes = [trials[key].study.split("|")[1] for key in measured]
    assert [title for title, _ in drawn] == [f"{recipe} on l" for recipe in recipes]
    errors = [event.metrics["test_ece"] for event in measured.values()]
    assert [curve.error for _, curve in drawn] == pytest.approx(errors)
    for key, event in measured.items():
        trial = trials[key]
        recipe, seed = trial.study.split("|")[1], trial.seed
        assert (event.study, event.seed) == (trial.study, seed)
        assert store.metrics("evaluate", event.predictions) == {
            name.removeprefix("test_"): value for name, value in event.metrics.items()
        }
        assert event.default_predictions == (None if seed else event.predictions)
        chain, stage, before = [], trial.stage, keys[key]
        while before:
            found = store.find(stage, before)
            assert found is not None
            chain.append(found)
            stage = found.record["request"]["upstream_stage"]
            before = found.record["request"]["upstream"]
        assert len(chain) == 1 + (recipe == "ts")
        assert event.seconds == round(sum(link.record["seconds"] for link in chain), 3)
        assert event.computed == {link.stage: link.record["computed"] for link in chain}
        place = folder.chosen / "l" / recipe / f"seed-{seed}"
        files = ("reliability.png", "configuration.yaml")
        assert event.artifacts == {name: str(place / name) for name in files}
        assert imread(place / "reliability.png").shape[:2] == (528, 440)
        document = yaml.safe_load((place / "configuration.yaml").read_text())
        assert list(document.items()) == [
            ("task", "l"),
            ("recipe", recipe),
            ("seed", seed),
            ("objective", scores[key]),
            ("fixed", trial.configuration),
        ]


def test_a_folder_that_takes_no_figures_ends_the_run_and_fails_no_study(
    spec: SweepSpec, company: Company
) -> None:
    chosen = SweepFolder.of(spec).chosen
    chosen.parent.mkdir(parents=True)
    chosen.write_text("No folder can be below a file.")
    with pytest.raises(StorageError, match=f"{chosen}/l/.* cannot be written: "):
        ran(spec)
    assert [event.status for event in events_of(spec, SweepEnded)] == ["interrupted"]
    assert {event.chosen is None for event in events_of(spec, StudyClosed)} == {False}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_cluster_is_joined_where_it_is_and_may_grow(
    spec: SweepSpec, company: Company, elsewhere: bool
) -> None:
    company.cpus, company.elsewhere, company.search = 0.5, elsewhere, interrupt
    said = ran(spec, address="10.0.0.1:6379")[1]
    assert company.asked[1:3] == [("join", "10.0.0.1:6379"), ("search", True)]
    assert "joining Ray at 10.0.0.1:6379\n" in said


@pytest.mark.parametrize(
    ("where", "change", "complaint"),
    [
        ({"cpus": 0.5}, {}, "resources.calibrate: a trial of 1 CPUs"),
        ({"elsewhere": True}, {"storage": "here"}, "storage: 'here' is relative"),
        ({"elsewhere": True}, {"tracking_uri": "sqlite:///here.db"}, "tracking.uri: sqlite"),
    ],
)
def test_where_a_sweep_cannot_run_no_trial_begins(
    spec: SweepSpec,
    company: Company,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    where: dict[str, Any],
    change: dict[str, Any],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in where.items():
        setattr(company, name, value)
    if "tracking_uri" in change:
        change = {"tracking": spec.tracking.model_copy(update={"uri": change["tracking_uri"]})}
    with pytest.raises(InputError, match=complaint):
        ran(spec.model_copy(update=change))
    assert not any("search" in asked for asked in company.asked)


def test_what_is_refused_leaves_no_sweep(
    spec: SweepSpec, company: Company, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(uri: str) -> None:
        raise InputError(f"another password at {uri}")

    with pytest.raises(InputError, match="--address 'ray://' names no host"):
        ran(spec, address="ray://")
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
@pytest.mark.parametrize("search", [interrupt, search_here])
def test_a_server_that_takes_nothing_more_is_waited_for_as_it_deserves(
    spec: SweepSpec,
    company: Company,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
    search: Callable[..., None],
) -> None:
    """What an earlier run has delivered says nothing of whether the server is there now."""
    company.search, company.drained = search, False
    monkeypatch.setattr(run, "STALLED_SECONDS", 0.0)
    monkeypatch.setattr(run, "listens", lambda uri: there and uri == SERVER)
    outcome, said = ran(spec)
    assert not outcome.tracked
    assert (NOT_THERE in said) == (search is search_here)
    left_at_work = there and search is interrupt
    assert company.asked.count(WAIT) == 1
    assert (company.asked[-1] == "stop") != left_at_work


@pytest.mark.parametrize("when", ["prepare_data", "pending_evaluations"])
def test_a_scheduler_that_ends_the_process_is_the_one_who_watches(
    spec: SweepSpec, company: Company, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before and after the search, too, whose own answer to signals is told of elsewhere."""
    unheard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: unheard.append(number))

    def end(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    monkeypatch.setattr(run, when, end)
    try:
        if when == "prepare_data":
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
    names = [ran(one, fresh=fresh)[0].spec.name for one, fresh in runs]
    assert names == ["flow", "flow-2", "flow", "flow-3"]
    assert [asked[1] for asked in company.asked if asked[0] == "ship"] == names
