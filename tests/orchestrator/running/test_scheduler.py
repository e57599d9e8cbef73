"""The edge to Tune: studies kept apart, weak trials stopped, failures kept."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.tune import PlacementGroupFactory
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from orchestrator import run_sweep
from orchestrator.running.cluster.local import require_room, slots
from orchestrator.running.searcher import (
    REAPED,
    CountingScheduler,
    StudySchedulers,
    SweepSearcher,
    make_scheduler,
)
from orchestrator.search.state import SweepState
from orchestrator.storage.events import TrialFinished
from orchestrator.storage.journal import read_events
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from tests.orchestrator.databases import place_database
from trainables.common.errors import InputError, StorageError
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.stages import StageRequest
from trainables.store.artifacts import Artifact, ArtifactStore

STOP, CONTINUE = TrialScheduler.STOP, TrialScheduler.CONTINUE
TASK = "digits/convnet/digits"


def make_spec(recipes: str = "ce, mbls", resources: str = "{}", **search: Any) -> SweepSpec:
    kept = {"objective": "ece", "accuracy_tolerance": None, "keep_default": False}
    rules = str({"trials": 4, **kept, **search}).replace("None", "null").replace("False", "false")
    return parse_sweep(
        "name: edge\ntasks: [{dataset: digits, model: convnet, protocol: digits}]\n"
        f"recipes: [{recipes}]\nsearch: {rules}\nresources: {resources}\n",
        "edge",
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreparedData]:
    folder = tmp_path_factory.mktemp("data")
    return {TASK: prepare("digits", folder, SplitSpec(), folder / "prepared")}


# -- the schedulers


def trial_of(study: str, number: int, role: str = "search") -> Any:
    config = {"study": study, "role": role}
    metadata = SimpleNamespace(num_failures=2, last_result={})
    return SimpleNamespace(trial_id=f"{study}-{number}", config=config, run_metadata=metadata)


def report(schedulers: StudySchedulers, trial: Any, epoch: int, score: float) -> str:
    return schedulers.on_trial_result(None, trial, {"epoch": epoch, "score": score})


def test_asha_stops_the_weaker_two_thirds_of_a_studys_trials() -> None:
    schedulers = StudySchedulers({"a": 9})
    trials = [trial_of("a", number) for number in range(6)]
    for trial in trials:
        schedulers.on_trial_add(None, trial)
    scores = [0.1, 0.2, 0.3, 0.16, 0.05, 0.14]
    decisions = [report(schedulers, *pair) for pair in zip(trials, [1] * 6, scores, strict=True)]
    assert decisions == [CONTINUE, STOP, STOP, CONTINUE, CONTINUE, STOP]


def test_one_study_never_stops_the_trials_of_another() -> None:
    schedulers = StudySchedulers({"good": 9, "bad": 9})
    for number in range(6):
        trial = trial_of("good", number)
        schedulers.on_trial_add(None, trial)
        report(schedulers, trial, 1, 0.001 * number)
    alone = StudySchedulers({"bad": 9})
    for number in range(3):
        score = 0.9 - 0.1 * number
        decisions = []
        for each in (schedulers, alone):
            trial = trial_of("bad", number)
            each.on_trial_add(None, trial)
            decisions.append(report(each, trial, 1, score))
        assert decisions == [CONTINUE, CONTINUE]
    assert len(schedulers._schedulers) == 2


@pytest.mark.parametrize(("epochs", "first"), [(1, 1), (9, 1), (90, 10), (350, 38)])
def test_trials_are_judged_first_after_a_ninth_of_their_epochs(epochs: int, first: int) -> None:
    schedulers = StudySchedulers({"a": epochs})
    best, worst = trial_of("a", 0), trial_of("a", 1)
    for trial in (best, worst):
        schedulers.on_trial_add(None, trial)
    for epoch in range(1, first):
        assert report(schedulers, best, epoch, 0.1) == CONTINUE
        assert report(schedulers, worst, epoch, 0.9) == CONTINUE
    assert report(schedulers, best, first, 0.1) == CONTINUE
    assert report(schedulers, worst, first, 0.9) == STOP


def test_a_trial_is_never_stopped_for_reaching_its_last_epoch() -> None:
    schedulers = StudySchedulers({"a": 5})
    trial = trial_of("a", 0)
    schedulers.on_trial_add(None, trial)
    assert [report(schedulers, trial, epoch, 0.5) for epoch in range(1, 6)] == [CONTINUE] * 5


def test_further_seeds_of_the_chosen_configuration_are_never_stopped() -> None:
    schedulers = StudySchedulers({"a": 9})
    best, seed = trial_of("a", 0), trial_of("a", 1, role="seed")
    for trial in (best, seed):
        schedulers.on_trial_add(None, trial)
    for epoch in range(1, 10):
        assert report(schedulers, best, epoch, 0.1) == CONTINUE
        assert report(schedulers, seed, epoch, 0.9) == CONTINUE


def test_waiting_and_failed_trials_count_for_nothing() -> None:
    """They report epoch 0 and an infinite score."""
    schedulers = StudySchedulers({"a": 9})
    lost, good = trial_of("a", 0), trial_of("a", 1)
    for trial in (lost, good):
        schedulers.on_trial_add(None, trial)
    assert report(schedulers, lost, 0, float("inf")) == CONTINUE
    schedulers.on_trial_complete(None, lost, {"epoch": 0, "score": float("inf")})
    assert report(schedulers, good, 1, 0.9) == CONTINUE
    schedulers.on_trial_error(None, good)
    assert schedulers.failures == {good.trial_id: 2}


def test_what_a_trial_ended_with_counts_for_those_after_it() -> None:
    """Tune hands over the last report where it ends a trial, not before."""
    schedulers = StudySchedulers({"a": 9})
    ended, weak = trial_of("a", 0), trial_of("a", 1)
    for trial in (ended, weak):
        schedulers.on_trial_add(None, trial)
    schedulers.on_trial_complete(None, ended, {"epoch": 1, "score": 0.1})
    assert report(schedulers, weak, 1, 0.9) == STOP


def test_the_sweep_file_chooses_the_scheduler() -> None:
    for name, kind in (("none", CountingScheduler), ("asha", StudySchedulers)):
        spec = make_spec("mbls, mbls+macal, mbls+ts", scheduler=name)
        made = make_scheduler(make_plan(spec))
        assert type(made) is kind
    assert isinstance(made, StudySchedulers)
    assert made._epochs == {f"{TASK}|mbls": 30, f"{TASK}|mbls+macal": 40, f"{TASK}|mbls+ts": 1}


NODES = [
    {"NodeID": "a", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0}},
    {"NodeID": "b", "Alive": True, "Resources": {"CPU": 2.0}},
    {"NodeID": "c", "Alive": False, "Resources": {"CPU": 8.0, "GPU": 1.0}},
]


@pytest.mark.parametrize("make", [CountingScheduler, lambda: StudySchedulers({"a": 9})])
@pytest.mark.parametrize(
    ("wanted", "failed", "avoided"),
    [
        ({"CPU": 2.0}, ["a"], "a"),
        ({"CPU": 2.0}, ["b"], "b"),
        ({"CPU": 3.0}, ["a"], ""),  # No other living node has as much.
        ({"CPU": 1.0, "GPU": 0.5}, ["a"], ""),
        ({"CPU": 1.0, "GPU": 0.5}, ["b"], "b"),
        ({"CPU": 1.0}, ["b", "a"], ""),
        ({"CPU": 1.0}, ["z", "b", "z"], "b,z"),
    ],
)
def test_a_trial_avoids_the_nodes_that_failed_it_if_another_has_room(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], CountingScheduler],
    wanted: dict[str, float],
    failed: list[str],
    avoided: str,
) -> None:
    monkeypatch.setattr("orchestrator.running.searcher.ray.nodes", lambda: NODES)
    trial, scheduler = trial_of("a", 0), make()
    trial.placement_group_factory = PlacementGroupFactory([wanted])
    trial.update_resources = lambda given: setattr(trial, "placement_group_factory", given)
    scheduler.on_trial_add(None, trial)
    assert trial.placement_group_factory == PlacementGroupFactory([wanted])
    for node in failed:
        trial.run_metadata.last_result = {"status": "broken", "node": node}
        scheduler.on_trial_add(None, trial)
    labels = {"ray.io/node-id": f"!in({avoided})"}
    kept = {"bundle_label_selector": [labels]} if avoided else {}
    assert trial.placement_group_factory == PlacementGroupFactory([wanted], **kept)


def test_a_trial_that_was_given_up_has_failed_once_at_least() -> None:
    """Of a process that dies while it is changed over Tune counts no failure."""
    scheduler = CountingScheduler()
    for name, count in (("a", 0), ("b", 1), ("c", 3)):
        told = SimpleNamespace(trial_id=name, run_metadata=SimpleNamespace(num_failures=count))
        scheduler.on_trial_error(None, told)
    assert scheduler.failures == {"a": 1, "b": 1, "c": 3}


# -- the searcher


class Pages:
    """A journal that can be told to be full."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.full = False

    def append(self, event: Any, durable: bool = True) -> None:
        if self.full:
            raise InputError("journal.jsonl cannot be written: no space left")
        self.events.append(event)


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def searcher(data: dict[str, PreparedData], pages: Pages) -> SweepSearcher:
    spec = make_spec("mbls")
    state = SweepState(make_plan(spec), "sweep", data, pages.append)
    return SweepSearcher(state, pages)  # type: ignore[arg-type]


def flat(**changes: Any) -> dict[str, Any]:
    """Return a last report as Tune hands it over."""
    return {
        "status": "finished",
        "reason": "",
        "reused": False,
        "storage_failed": False,
        "seconds": 1.25,
        "metrics/val_ece": 0.25,
        "metrics/val_acc": 0.5,
        "history": [{"step": 2, "metrics": {"val_ece": 0.25}}],
        **changes,
    }


def ends(pages: Pages) -> list[tuple[str, str, float]]:
    return [
        (event.status, event.reason, event.seconds)
        for event in pages.events
        if event.event == "trial_finished"
    ]


@pytest.mark.parametrize("graph", [True, False])
def test_a_suggestion_holds_all_that_a_trial_needs(
    data: dict[str, PreparedData], pages: Pages, graph: bool
) -> None:
    flags = f"deterministic: {not graph}, graph: {graph}".lower()
    resources = f"{{{flags}, train: {{cpu: 3}}, refine: {{cpu: 2, gpu: 0.5}}}}"
    spec = make_spec("mbls+macal", resources=resources)
    state = SweepState(make_plan(spec), "sweep", data, pages.append)
    searcher = SweepSearcher(state, pages)  # type: ignore[arg-type]
    config = searcher.suggest("0")
    request = config.pop("request")
    assert config == {
        "study": f"{TASK}|mbls",
        "number": 0,
        "role": "search",
        "together": [],
        "cpus": 3,
        "gpus": 0.0,
        "deterministic": not graph,
        "graph": graph,
        "score": "val_ece",
    }
    assert request["parts"] == {"mbls": {"margin": 6.0, "weight": 0.1, "variant": "released"}}
    assert request["data"] == str(data[TASK].directory)
    number = 0
    while config["study"] == f"{TASK}|mbls":
        searcher.on_trial_complete(str(number), flat())
        number += 1
        config = searcher.suggest(str(number))
    assert (config["cpus"], config["gpus"], len(config["together"])) == (2, 0.5, 3)


def test_no_more_trials_are_given_out_than_the_limit_says(
    data: dict[str, PreparedData], pages: Pages
) -> None:
    state = SweepState(make_plan(make_spec("mbls")), "sweep", data, pages.append)
    searcher = SweepSearcher(state, pages, limit=lambda: 2)  # type: ignore[arg-type]
    given = [searcher.suggest(str(number)) for number in range(3)]
    assert [bool(config) for config in given] == [True, True, False]
    searcher.on_trial_complete("0", flat())
    assert searcher.suggest("3")["number"] == 2


def test_what_a_person_should_know_is_said_once(
    data: dict[str, PreparedData], pages: Pages
) -> None:
    told: list[str] = []
    changes: list[None] = []
    searcher = SweepSearcher(
        SweepState(make_plan(make_spec("mbls")), "sweep", data, pages.append),
        pages,  # type: ignore[arg-type]
        changed=lambda: changes.append(None),
        notice=told.append,
    )
    for number in ("0", "1"):
        searcher.suggest(number)
        searcher.on_trial_result(number, flat(status="running", notices=["damaged", number]))
    searcher.on_trial_complete("1", flat(notices=["damaged", "at the end"]))
    assert told == ["damaged", "0", "1", "at the end"]
    assert len(changes) == 3


def test_what_one_pass_has_stored_needs_no_trial_of_its_own(
    data: dict[str, PreparedData], pages: Pages
) -> None:
    stored: dict[str, Artifact] = {}
    changes: list[None] = []
    spec = make_spec("ce+macal")
    state = SweepState(make_plan(spec), "sweep", data, pages.append)
    searcher = SweepSearcher(
        state,
        pages,  # type: ignore[arg-type]
        changed=lambda: changes.append(None),
        find=lambda stage, key: stored.get(key),
    )
    number = 0
    while (config := searcher.suggest(str(number)))["request"]["stage"] == "train":
        searcher.on_trial_complete(str(number), flat())
        number += 1
    steps = [{"step": step, "metrics": {"val_ece": 1 / step}} for step in (1, 2)]
    record = {"metrics": {"val_ece": 0.5, "val_acc": 0.5}, "history": steps}
    for fields in config["together"]:
        key = StageRequest(**fields).key()
        stored[key] = Artifact("refine", key, Path(), record)
    assert len(stored) > 1
    searcher.on_trial_complete(str(number), flat())
    changes.clear()
    following = searcher.suggest("next")
    assert len(changes) == len(stored)
    assert following == Searcher.FINISHED or following["study"] != config["study"]
    taken = [event for event in pages.events if getattr(event, "artifact", "") in stored]
    assert [(event.reused, event.seconds, event.metrics["val_ece"]) for event in taken] == [
        (True, 0.0, 0.5)
    ] * len(stored)
    for end in taken:
        told = [e for e in pages.events if e.event == "epoch" and e.key == end.key]
        assert [(e.step, e.metrics["val_ece"]) for e in told] == [(1, 1.0), (2, 0.5)]


def test_what_was_stored_for_another_objective_is_scored_by_this_one(
    data: dict[str, PreparedData], pages: Pages, tmp_path: Path
) -> None:
    store, scored = ArtifactStore(tmp_path), flat(**{"metrics/val_brier": 0.75})
    state = SweepState(
        make_plan(make_spec("ce+macal", objective="brier")), "sweep", data, pages.append
    )
    searcher = SweepSearcher(state, pages, find=store.find)  # type: ignore[arg-type]
    searcher.suggest("train")
    searcher.on_trial_complete("train", scored)
    request = StageRequest(**searcher.suggest("refine")["together"][0])
    rows = {"logits": torch.zeros(4, 2), "labels": torch.zeros(4, dtype=torch.long)}
    record = {"metrics": {"val_ece": 0.5, "val_acc": 0.5}, "history": []}
    store.write("refine", request.key(), {"validation": rows}, record)
    searcher.on_trial_complete("refine", scored)
    searcher.suggest("next")
    (end,) = (e for e in pages.events if getattr(e, "artifact", "") == request.key())
    assert end.metrics == {**record["metrics"], "val_brier": 0.5}


def test_what_is_stored_is_taken_over_without_holding_up_what_runs(
    data: dict[str, PreparedData], pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: 0.3 * next(ticks))
    monkeypatch.setattr("orchestrator.running.searcher.time", clock)
    record = {"metrics": {"val_ece": 0.5, "val_acc": 0.5}, "history": []}
    state = SweepState(make_plan(make_spec("ce+macal, ls, ls+macal")), "sweep", data, pages.append)
    searcher = SweepSearcher(
        state,
        pages,  # type: ignore[arg-type]
        find=lambda stage, key: Artifact(stage, key, Path(), record),
    )
    trained = [searcher.suggest(str(number)) for number in range(5)]
    assert [config["request"]["stage"] for config in trained] == ["train"] * 5
    searcher.on_trial_complete("0", flat())  # Plain cross-entropy, which refinements build on.
    before = len(ends(pages))
    assert searcher.suggest("5") is None
    assert len(ends(pages)) == before + 2  # More than half a second is gone.
    for number in "1234":
        searcher.on_trial_complete(number, flat())
    assert searcher.suggest("5") == Searcher.FINISHED  # Nothing runs that could be held up.
    assert len(ends(pages)) == before + 4 + 4 + 4


def test_the_study_waits_and_ends(searcher: SweepSearcher, pages: Pages) -> None:
    given = [searcher.suggest(f"t{number}") for number in range(4)]
    assert all(isinstance(config, dict) for config in given)
    assert searcher.suggest("t4") is None
    for number in range(4):
        searcher.on_trial_complete(f"t{number}", flat())
    assert searcher.suggest("t5") == Searcher.FINISHED
    assert ends(pages) == [("finished", "", 1.25)] * 4


@pytest.mark.parametrize(
    ("result", "error", "status", "reason"),
    [
        (flat(), False, "finished", ""),
        (flat(status="failed", reason="ValueError: x"), False, "failed", "ValueError: x"),
        (flat(status="running"), False, "pruned", ""),
        (None, True, "failed", REAPED),
        (None, False, "failed", REAPED),
    ],
)
def test_the_last_report_says_how_a_trial_ended(
    searcher: SweepSearcher,
    pages: Pages,
    result: dict[str, Any] | None,
    error: bool,
    status: str,
    reason: str,
) -> None:
    searcher.suggest("one")
    searcher.on_trial_complete("one", result, error)
    ((found, why, _),) = ends(pages)
    assert (found, why) == (status, reason)


COST = {"epoch_seconds": 0.5, "peak_memory": 9.0}
PLACE = {"host": "node7", "traceback": "File a.py"}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({**COST, **PLACE, "seconds": 1.23456}, {**COST, "seconds": 1.235}),
        ({**COST, "reused": True}, {"reused": True}),  # What was found has cost nothing.
        ({"epoch_seconds": 0.0, "peak_memory": 9.0}, {}),
        (
            {**COST, **PLACE, "status": "failed", "reason": "ValueError: x"},
            {**COST, **PLACE, "status": "failed", "reason": "ValueError: x", "artifact": ""},
        ),
        (
            {"status": "failed", "reason": "x", "host": "", "traceback": ""},
            {"status": "failed", "reason": "x", "artifact": ""},
        ),
        ({**COST, **PLACE, "status": "running"}, {**COST, "status": "pruned", "artifact": ""}),
    ],
)
def test_an_end_tells_what_the_last_report_does(
    searcher: SweepSearcher, pages: Pages, last: dict[str, Any], expected: dict[str, Any]
) -> None:
    request = StageRequest(**searcher.suggest("one")["request"])
    searcher.on_trial_complete("one", flat(**last))
    (end,) = (event for event in pages.events if event.event == "trial_finished")
    plain = {"status": "finished", "reused": False, "seconds": 1.25, "artifact": request.key()}
    metrics = {"val_ece": 0.25, "val_acc": 0.5}
    assert end == TrialFinished(key=end.key, metrics=metrics, **{**plain, **expected})


def test_every_epoch_is_written_once(searcher: SweepSearcher, pages: Pages) -> None:
    searcher.suggest("one")
    first = [{"step": 1, "metrics": {"val_ece": 0.5}}]
    searcher.on_trial_result("one", flat(status="running", history=first))
    searcher.on_trial_complete("one", flat())
    steps = [event.step for event in pages.events if event.event == "epoch"]
    assert steps == [1, 2]


def test_a_trial_whose_process_died_keeps_its_time(searcher: SweepSearcher, pages: Pages) -> None:
    searcher.suggest("one")
    searcher.on_trial_result("one", flat(status="running"))
    searcher.on_trial_complete("one", None, error=True)
    assert ends(pages) == [("failed", REAPED, 1.25)]


def test_a_trial_that_tune_gave_up_early_is_handed_out_until_its_failures_are_spent(
    data: dict[str, PreparedData], pages: Pages
) -> None:
    spec, failures = make_spec("mbls"), {}
    state = SweepState(make_plan(spec), "sweep", data, pages.append)
    searcher = SweepSearcher(state, pages, failures=failures)  # type: ignore[arg-type]
    first = searcher.suggest("one")
    failures |= {"one": spec.resources.max_failures - 1, "two": 1, "three": 1}
    for number in ("one", "two"):
        searcher.on_trial_complete(number, None, error=True)
        assert searcher.suggest({"one": "two", "two": "three"}[number]) == first
    assert ends(pages) == []
    searcher.on_trial_complete("three", None, error=True)
    assert [end[:2] for end in ends(pages)] == [("failed", REAPED)]


def test_a_trial_that_the_machine_failed_says_where(searcher: SweepSearcher, pages: Pages) -> None:
    searcher.suggest("one")
    told = {"reason": "OSError: x", "host": "node7", "traceback": "File a.py"}
    searcher.on_trial_result("one", flat(status="broken", **told))
    searcher.on_trial_complete("one", None, error=True)
    assert ends(pages) == [("failed", "OSError: x", 1.25)]
    end = next(event for event in pages.events if event.event == "trial_finished")
    assert (end.fault, end.host, end.traceback) == ("machine", "node7", "File a.py")


def test_what_fails_on_every_device_is_the_configurations(
    searcher: SweepSearcher, pages: Pages
) -> None:
    searcher.suggest("one")
    reason = "AcceleratorError: CUDA error: device-side assert triggered"
    searcher.on_trial_result("one", flat(status="broken", reason=reason, host="node7"))
    searcher.on_trial_complete("one", None, error=True)
    end = next(event for event in pages.events if event.event == "trial_finished")
    assert (end.status, end.fault, end.reason) == ("failed", "", reason)


def test_a_trial_that_broke_once_may_finish(searcher: SweepSearcher, pages: Pages) -> None:
    searcher.suggest("one")
    searcher.on_trial_result("one", flat(status="broken", reason="OSError: x", host="node7"))
    searcher.on_trial_complete("one", flat())
    assert ends(pages) == [("finished", "", 1.25)]
    end = next(event for event in pages.events if event.event == "trial_finished")
    assert (end.fault, end.host) == ("", None)


def test_a_configuration_that_failed_says_where(searcher: SweepSearcher, pages: Pages) -> None:
    searcher.suggest("one")
    told = {"reason": "ValueError: x", "host": "node7", "traceback": "File a.py"}
    searcher.on_trial_complete("one", flat(status="failed", **told))
    end = next(event for event in pages.events if event.event == "trial_finished")
    assert (end.fault, end.host, end.traceback) == ("", "node7", "File a.py")


OUT_OF_MEMORY = {"status": "failed", "reason": "OutOfMemoryError: x", "memory_failed": True}


@pytest.fixture
def sharing(data: dict[str, PreparedData], pages: Pages) -> SweepSearcher:
    """Return the searcher of a sweep whose trainings take half a GPU each."""
    plan = make_plan(make_spec("mbls", resources="{train: {gpu: 0.5}}"))
    notices: list[str] = []
    searcher = SweepSearcher(
        SweepState(plan, "sweep", data, pages.append),
        pages,  # type: ignore[arg-type]
        notice=notices.append,
    )
    searcher.told = notices  # type: ignore[attr-defined]
    return searcher


def test_what_runs_out_of_its_share_of_a_gpu_is_tried_once_more_alone(
    sharing: SweepSearcher, pages: Pages
) -> None:
    crowded = sharing.suggest("one")
    sharing.suggest("beside")
    assert crowded["gpus"] == 0.5
    sharing.on_trial_complete("one", flat(**OUT_OF_MEMORY))
    assert ends(pages) == []
    alone = sharing.suggest("again")
    assert alone == {**crowded, "gpus": 1.0}
    assert sharing.told == [  # type: ignore[attr-defined]
        f"{TASK}|mbls: trial 0 ran out of memory on 0.5 of a GPU; "
        "it is tried once more, alone on one"
    ]
    # Nothing new takes the GPU that it waits for.
    assert sharing.suggest("later") is None
    sharing.on_trial_complete("beside", flat())
    assert sharing.suggest("later") is None
    sharing.on_trial_result("again", flat(status="running"))
    assert sharing.suggest("later")["gpus"] == 0.5
    sharing.on_trial_complete("again", flat(**OUT_OF_MEMORY))
    assert [(status, reason) for status, reason, _ in ends(pages)] == [
        ("finished", ""),
        ("failed", "OutOfMemoryError: x"),
    ]


@pytest.mark.parametrize("error", [False, True])
def test_a_trial_alone_on_a_gpu_makes_room_where_it_ends_at_once(
    sharing: SweepSearcher, error: bool
) -> None:
    sharing.suggest("one")
    sharing.on_trial_complete("one", flat(**OUT_OF_MEMORY))
    assert sharing.suggest("again")["gpus"] == 1.0
    assert sharing.suggest("later") is None
    sharing.on_trial_complete("again", None if error else flat(), error)
    assert sharing.suggest("later")["number"] == 1


def test_each_stage_has_a_share_of_its_own(data: dict[str, PreparedData], pages: Pages) -> None:
    plan = make_plan(make_spec("ce+macal", resources="{train: {gpu: 1}, refine: {gpu: 0.25}}"))
    state = SweepState(plan, "sweep", data, pages.append)
    told: list[str] = []
    searcher = SweepSearcher(state, pages, notice=told.append)  # type: ignore[arg-type]
    assert searcher.suggest("train")["gpus"] == 1
    searcher.on_trial_complete("train", flat())
    assert searcher.suggest("refine")["gpus"] == 0.25
    searcher.on_trial_complete("refine", flat(**OUT_OF_MEMORY))
    assert searcher.suggest("again")["gpus"] == 1.0
    assert [line.partition(": ")[2][:36] for line in told] == [
        "trial 0 ran out of memory on 0.25 of"
    ]


@pytest.mark.parametrize("gpu", [0, 1])
def test_what_had_a_gpu_for_itself_or_none_is_not_tried_again(
    data: dict[str, PreparedData], pages: Pages, gpu: float
) -> None:
    plan = make_plan(make_spec("mbls", resources=f"{{train: {{gpu: {gpu}}}}}"))
    state = SweepState(plan, "sweep", data, pages.append)
    searcher = SweepSearcher(state, pages)  # type: ignore[arg-type]
    searcher.suggest("one")
    searcher.on_trial_complete("one", flat(**OUT_OF_MEMORY))
    assert [status for status, _, _ in ends(pages)] == ["failed"]


def test_asha_does_not_stop_a_trial_that_has_to_end_its_process() -> None:
    schedulers = StudySchedulers({"a": 9})
    good, broken = trial_of("a", 0), trial_of("a", 1)
    for trial in (good, broken):
        schedulers.on_trial_add(None, trial)
    assert report(schedulers, good, 1, 0.1) == CONTINUE
    told = {"epoch": 1, "score": 0.9, "status": "broken"}
    assert schedulers.on_trial_result(None, broken, told) == CONTINUE
    assert report(schedulers, broken, 1, 0.9) == STOP


@pytest.mark.parametrize("when", ["at a report", "at the end", "at the start"])
def test_a_journal_that_cannot_be_written_ends_the_sweep(
    searcher: SweepSearcher, pages: Pages, when: str
) -> None:
    """Tune swallows what is raised when a trial reports or ends."""
    searcher.suggest("one")
    pages.full = True
    if when == "at a report":
        searcher.on_trial_result("one", flat(status="running"))
    elif when == "at the end":
        searcher.on_trial_complete("one", flat())
    with pytest.raises(InputError, match=r"journal\.jsonl cannot be written"):
        searcher.suggest("two")


def test_a_storage_that_cannot_be_written_ends_the_sweep_and_no_trial(
    searcher: SweepSearcher, pages: Pages
) -> None:
    """A resumed sweep computes it. What failed first is what is told."""
    for number in ("one", "two"):
        searcher.suggest(number)
    for number in ("one", "two"):
        reason = f"cannot write artifact {number}: no space left"
        searcher.on_trial_complete(
            number, flat(status="failed", storage_failed=True, reason=reason)
        )
    assert ends(pages) == []
    with pytest.raises(StorageError, match=r"^cannot write artifact one: no space left$"):
        searcher.suggest("three")


def test_tunes_snapshots_leave_the_state_out(searcher: SweepSearcher, tmp_path: Path) -> None:
    assert set(searcher.__getstate__()) == {"_metric", "_mode"}
    searcher.save(str(tmp_path / "snapshot"))
    assert (tmp_path / "snapshot").read_text() == '{"sweep_id": "sweep"}'
    with pytest.raises(RuntimeError, match="resumes from its journal"):
        searcher.restore(str(tmp_path / "snapshot"))


# -- what fits on a machine


@pytest.mark.parametrize(
    ("resources", "cpu", "gpu", "count"),
    [
        ({"CPU": 8.0}, 1, 0.0, 8),
        ({"CPU": 8.0}, 3, 0.0, 2),
        ({"CPU": 8.0, "GPU": 1.0}, 1, 0.25, 4),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 0.4, 4),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 0.6, 2),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 1.0, 2),
        ({"CPU": 8.0, "GPU": 4.0}, 1, 2.0, 2),
        ({"CPU": 2.0, "GPU": 4.0}, 1, 0.5, 2),
        ({"CPU": 64.0, "GPU": 3.0}, 1, 0.1, 30),
        ({"CPU": 2.0}, 4, 0.0, 1),
    ],
)
def test_slots(resources: dict[str, float], cpu: float, gpu: float, count: int) -> None:
    assert slots(resources, cpu, gpu) == count


@pytest.mark.parametrize(("cpu", "gpu"), [(3, 0.0), (1, 0.5), (1, 2.0)])
def test_a_trial_that_never_fits_is_refused(cpu: float, gpu: float) -> None:
    with pytest.raises(InputError) as caught:
        require_room({"CPU": 2.0}, "train", cpu, gpu)
    assert str(caught.value) == (
        f"resources.train: a trial of {cpu} CPUs and {gpu:g} GPUs does not fit on this machine "
        "with 2 CPUs and 0 GPUs"
    )
    require_room({"CPU": 2.0}, "train", 2, 0.0)
    require_room({"CPU": 2.0, "GPU": 1.0}, "train", 1, 1.0)


# -- a whole sweep

SWEEP = """
name: halving
tasks:
  - name: digits
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 9}}
    split: {{train_limit: 200}}
recipes: [ls, ls+macal]
search:
  trials: 6
  scheduler: asha
  accuracy_tolerance: null
  spaces: {{ls: {{smoothing: {{low: 0.0, high: 0.9}}}}}}
  fixed: {{macal: {{epochs: 6}}}}
seeds: [0, 1]
resources: {{concurrent: 1}}
storage: {storage}
"""


@pytest.mark.slow
def test_a_sweep_under_asha_runs_to_its_end(tmp_path: Path) -> None:
    outcome = run_sweep(parse_sweep(SWEEP.format(storage=place_database(tmp_path)), "halving"))
    assert outcome.status == "finished"
    events = read_events(outcome.journal)[0]
    ends = [event for event in events if event.event == "trial_finished"]
    studies = {e.key: e.study for e in events if e.event == "trial_started"}
    counts = Counter((studies[end.key], end.status) for end in ends)
    for study in ("digits|ls", "digits|ls+macal"):
        assert counts[study, "finished"] + counts[study, "pruned"] == 7  # one is a further seed
        assert counts[study, "finished"] >= 2
        assert counts[study, "pruned"] >= 1
    chosen = {event.chosen for event in events if event.event == "study_closed"}
    finished = {end.key for end in ends if end.status == "finished"}
    assert chosen <= finished
    for end in ends:
        steps = [e.step for e in events if e.event == "epoch" and e.key == end.key]
        epochs = 6 if "macal" in studies[end.key] else 9
        assert steps == list(range(1, len(steps) + 1))
        assert (len(steps) == epochs) == (end.status == "finished")
    assert all(len(result.test) == 2 for result in outcome.results)


WORKER = """
import sys

sys.modules["orchestrator"] = None
from ray import cloudpickle

wanted = cloudpickle.loads(open(sys.argv[1], "rb").read())
print(wanted({"cpus": 1, "gpus": 0.0}).bundles, wanted({"cpus": 2, "gpus": 0.5}).bundles)
"""


def test_what_goes_to_the_workers_does_not_import_the_orchestrator(tmp_path: Path) -> None:
    from ray import cloudpickle

    from orchestrator.running.tune import _resources

    (tmp_path / "sent").write_bytes(cloudpickle.dumps(_resources()))
    command = [sys.executable, "-c", WORKER, tmp_path / "sent"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[{'CPU': 1.0}] [{'CPU': 2.0, 'GPU': 0.5}]"
