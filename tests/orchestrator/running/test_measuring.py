"""Measurements on test data: which are pending, in which order, and what comes of them."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from orchestrator.loop import Pause
from orchestrator.running.drive import Measurement, MeasuringSource, pending_measurements
from orchestrator.storage.events import Evaluated
from orchestrator.storage.ledger import Ledger
from orchestrator.sweep.spec import parse_sweep
from tests.network_folder import Client
from trainables.common.stages import ArtifactRef
from trainables.jobs import Fault, FaultKind, Job, Measured, Report, Status, TestWork
from trainables.store.artifacts import ArtifactStore


def chosen_one(key: str, upstream: str | None = None, before: str | None = None) -> Any:
    """Return a chosen trial that builds on another, which may build on a third."""
    request = SimpleNamespace(
        data="d", stage="train", seed=0, upstream=upstream, upstream_request={"upstream": before}
    )
    trial = SimpleNamespace(
        key=key, study=f"t|{key}", number=3, request=request, configuration={"mbls": {"margin": 6}}
    )
    return SimpleNamespace(trial=trial, ref=ArtifactRef("train", f"a{key}"), objective=0.5)


DEFAULT = ArtifactRef("train", "dd")


def state_of(seeds: Sequence[Any], default: ArtifactRef | None = None) -> Any:
    plan = SimpleNamespace(
        row=True,
        stage="train",
        task=SimpleNamespace(id="t", suites=()),
        recipe=SimpleNamespace(name="r"),
    )
    study = SimpleNamespace(
        plan=plan, chosen=seeds[0], seeds=dict(enumerate(seeds)), default_artifact=default
    )
    no_row = SimpleNamespace(plan=SimpleNamespace(row=False), seeds={0: chosen_one("base")})
    spec = SimpleNamespace(data_root="")
    return SimpleNamespace(
        plan=SimpleNamespace(spec=spec), studies={"t|base": no_row, "t|r": study}
    )


def test_rows_that_chose_something_are_measured() -> None:
    pending = pending_measurements(state_of([chosen_one("a"), None, chosen_one("b")]), Ledger())
    assert [one.chosen.trial.key for one in pending] == ["a", "b"]


def test_default_that_is_there_is_measured_once() -> None:
    state = state_of([chosen_one("a"), chosen_one("b")], default=DEFAULT)
    assert [one.default for one in pending_measurements(state, Ledger())] == [DEFAULT, None]
    past: Any = SimpleNamespace(trials={})
    for key in "ab":
        past.trials[key] = SimpleNamespace(
            test={"ece": 0.1}, predictions=f"of {key}", default_predictions=""
        )
    assert [one.default for one in pending_measurements(state, past)] == [DEFAULT]
    assert pending_measurements(state, past, lambda ref: ref.stage == "evaluate") == []
    past.trials["a"].default_predictions = "p"
    assert pending_measurements(state, past) == []
    # Predictions that are damaged count as gone, and are needed to compare.
    (lost,) = pending_measurements(state, past, lambda ref: ref.key != "of b")
    assert lost.chosen.trial.key == "b"
    (lost,) = pending_measurements(state, past, lambda ref: ref.key != "p")
    assert (lost.chosen.trial.key, lost.default) == ("a", DEFAULT)


def test_default_that_another_machine_has_just_stored_is_measured(tmp_path: Path) -> None:
    store, client = ArtifactStore(tmp_path), Client()
    with client.reading():
        assert not store.contains(DEFAULT)
    store.write(DEFAULT, {}, {})
    state = state_of([chosen_one("a")], default=DEFAULT)
    with client.reading():
        (one,) = pending_measurements(state, Ledger(), store.contains)
    assert one.default == DEFAULT


def source_of(
    storage: Path, pending: Sequence[Measurement]
) -> tuple[MeasuringSource, list[Evaluated], dict[str, str]]:
    spec = parse_sweep(
        "name: e\ntasks: [{dataset: digits, model: convnet, protocol: digits}]\nrecipes: [ce]\n"
        f"storage: {storage}\nresources: {{deterministic: true, train: {{gpu: 0.5}}}}\n",
        "e",
    )
    events, given_up = list[Evaluated](), dict[str, str]()
    return MeasuringSource(pending, spec, events.append, given_up.__setitem__), events, given_up


PENDING = [
    Measurement(chosen_one("a"), "t", "ce"),
    Measurement(chosen_one("b"), "t", "ls"),
    Measurement(chosen_one("y", "ab"), "t", "ls+ts"),
    Measurement(chosen_one("z", "aa"), "t", "ce+ts"),
    Measurement(chosen_one("x", "0", "ab"), "t", "ls+macal+ts"),
]


def job_of(source: MeasuringSource) -> Job:
    job = source.next()
    assert isinstance(job, Job)
    return job


MEASURED = Report(
    status=Status.FINISHED,
    metrics={"ece": 0.25, "ood/auroc": 0.5},
    artifact="p",
    measured=Measured("q", 2.5, {"train": {"device": "cpu"}}, {"reliability.png": "/x"}),
)


def test_one_training_is_measured_by_one_worker_at_a_time(tmp_path: Path) -> None:
    source, events, _ = source_of(tmp_path, PENDING)
    first, second = job_of(source), job_of(source)
    assert (first.key, second.key, source.next()) == ("a", "b", Pause.WAIT)
    source.ended(second, MEASURED)
    third = job_of(source)
    assert third.key == "y"  # Of the same training as what was just measured.
    source.ended(first, MEASURED)
    assert [job_of(source).key, source.next()] == ["z", Pause.WAIT]
    source.ended(third, MEASURED)
    assert [job_of(source).key, source.next()] == ["x", Pause.DONE]
    assert [event.key for event in events] == ["b", "a", "y"]


def test_job_and_event_hold_all_that_is_known(tmp_path: Path) -> None:
    chosen = chosen_one("a")
    pending = [Measurement(chosen, "t", "mbls", {"ood": "/suite"}, DEFAULT)]
    source, events, _ = source_of(tmp_path, pending)
    job = job_of(source)
    assert (job.group, job.number, job.cpus, job.gpus) == ("t|a", 3, 1, 0.5)
    assert job.deterministic
    assert job.work == TestWork(
        artifact=ArtifactRef("train", "aa"),
        data="d",
        default=DEFAULT,
        suites={"ood": "/suite"},
        folder=str(tmp_path / "sweeps" / "e" / "chosen" / "t" / "mbls" / "seed-0"),
        title="mbls on t",
        configuration={
            "task": "t",
            "recipe": "mbls",
            "seed": 0,
            "objective": 0.5,
            "fixed": {"mbls": {"margin": 6}},
        },
    )
    source.ended(job, MEASURED)
    assert events == [
        Evaluated(
            key="a",
            study="t|a",
            seed=0,
            metrics={"test_ece": 0.25, "test_ood/auroc": 0.5},
            predictions="p",
            default_predictions="q",
            seconds=2.5,
            computed={"train": {"device": "cpu"}},
            artifacts={"reliability.png": "/x"},
        )
    ]


def test_a_trial_that_cannot_be_measured_is_given_up(tmp_path: Path) -> None:
    source, events, given_up = source_of(tmp_path, PENDING[:1])
    fault = Fault(FaultKind.CONFIGURATION, "InputError: rows are gone")
    source.ended(job_of(source), Report(status=Status.FAILED, fault=fault))
    reason = "not measured on test data: InputError: rows are gone"
    assert (events, given_up, source.next()) == ([], {"t|a": reason}, Pause.DONE)
