from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from small_stages import Workshop

from tests.trainables.worker.bench_here import fault_of, finish
from trainables.calibrators import build_calibrator
from trainables.common.devices import computed_on
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.jobs import Cost, FitWork, Job, Report, Status, TestWork
from trainables.metrics import calibration_report
from trainables.stages import evaluate_on_test
from trainables.store.artifacts import Artifact
from trainables.worker import Bench, Worker, _computations
from trainables.worker._computations import chain_of, chain_seconds


def run(root: Path, work: Any) -> Report:
    worker = Worker(Bench(root, sealed=False))
    worker.open(Job(key="k", group="g", number=0, work=work))
    (report,) = finish(worker)
    return report


@pytest.fixture(scope="module")
def chain(workshop: Workshop) -> Any:
    return workshop.chain()


def measure(workshop: Workshop, artifact: Any, **more: Any) -> Report:
    data = str(workshop.prepared.directory)
    work = TestWork(artifact=artifact.ref, data=data, **more)
    return run(workshop.store.root, work)


def test_measurement_reports_metrics_and_predictions(workshop, chain):
    _, _, calibrated = chain
    report = measure(workshop, calibrated)
    metrics, found = evaluate_on_test(
        workshop.store, ArtifactRef("calibrate", calibrated.key), workshop.prepared
    )
    assert (report.status, report.metrics, report.artifact) == (Status.FINISHED, metrics, found.key)
    assert report.measured.seconds is None  # These stages do not know what they cost.
    computed = computed_on(torch.device("cpu"))
    assert report.measured.computed == dict.fromkeys(("calibrate", "refine", "train"), computed)
    assert report.measured.files == {}


def test_default_is_measured_if_it_is_there(workshop, chain):
    trained, _, _ = chain
    (_, found) = evaluate_on_test(workshop.store, trained.ref, workshop.prepared)
    for default, expected in (
        (trained.ref, found.key),
        (ArtifactRef("train", "0" * 64), None),
        (None, None),
    ):
        report = measure(workshop, trained, default=default)
        assert report.measured.default == expected
        excluded = [text for text in report.notices if "excludes the published default: " in text]
        assert len(excluded) == (default is not None and expected is None)


def test_diagram_and_configuration_are_written(workshop, chain, tmp_path):
    folder = tmp_path / "chosen" / "seed-0"
    document = {"task": "t", "fixed": {"ce": {}}}
    report = measure(
        workshop, chain[0], folder=str(folder), title="ce on $t", configuration=document
    )
    assert report.measured.files == {
        name: str(folder / name) for name in ("reliability.png", "configuration.yaml")
    }
    assert yaml.safe_load((folder / "configuration.yaml").read_text()) == document
    with Image.open(folder / "reliability.png") as image:
        assert len(image.convert("RGB").getcolors(10**6)) > 20


def test_folder_that_cannot_be_written_is_the_storages_fault(workshop, chain, tmp_path):
    (tmp_path / "chosen").write_text("")
    report = measure(workshop, chain[0], folder=str(tmp_path / "chosen" / "seed-0"))
    kind, reason = fault_of(report)
    assert kind == "storage"
    assert reason.startswith(f"{tmp_path / 'chosen' / 'seed-0'} cannot be written: ")


def link(stage: str, upstream: tuple[str, str] | None, seconds: float | None) -> Any:
    before = dict(zip(("upstream_stage", "upstream"), upstream or (None, None), strict=True))
    record = {"request": before, "seconds": seconds}
    return Artifact(ArtifactRef(stage, ""), Path(), record)


ALL = ["calibrate", "refine", "train"]
CHAIN = {
    ("calibrate", "k"): link("calibrate", ("refine", "r"), 0.25),
    ("refine", "r"): link("refine", ("train", "t"), 2.0),
    ("train", "t"): link("train", None, 30.5004),
}


@pytest.mark.parametrize(
    ("change", "stages", "seconds"),
    [
        ({}, ALL, 32.75),
        ({("train", "t"): None}, ALL[:2], None),
        ({("refine", "r"): link("refine", ("train", "t"), None)}, ALL, None),
        ({("calibrate", "k"): link("calibrate", ("refine", "r"), 0.0)}, ALL, 32.5),
        ({("calibrate", "k"): None}, [], None),
    ],
)
def test_a_chain_costs_the_seconds_of_all_its_stages(change, stages, seconds):
    store: Any = SimpleNamespace(find={**CHAIN, **change}.get)
    found = chain_of(store, ArtifactRef("calibrate", "k"))
    assert [one.stage for one in found] == stages
    assert chain_seconds(found) == seconds


def prepared_logits(folder: Path, *, wrong: bool = False) -> PreparedData:
    """Return 90 rows with random labels; with ``wrong``, a row's label is never its argmax."""
    rng = np.random.default_rng(0)
    values, labels = 3 * rng.normal(size=(90, 3)), rng.integers(0, 3, 90)
    labels = (values.argmax(1) + 1) % 3 if wrong else labels
    np.savez(folder / "l.npz", logits=values, labels=labels)
    name = f"logits:{folder / 'l.npz'}"
    return prepare(name, folder, SplitSpec(validation=40, test=0.5), folder / "data")


@pytest.fixture(scope="module")
def logits(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepared_logits(tmp_path_factory.mktemp("logits"))


def tensors(rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(rows.values.copy()), torch.from_numpy(rows.labels.copy())


def test_fits_are_judged_on_test_rows(logits, tmp_path):
    parts = {"given": None, "ts": ("ts", {}), "platt": ("platt", {})}
    work = FitWork(data=str(logits.directory), calibrators=parts, metrics=("ece", "nll"))
    fits = run(tmp_path, work).fits
    assert list(fits) == list(parts)
    rows, labels = tensors(logits.search().validation)
    judged, truth = tensors(logits.test())
    for name, fit in fits.items():
        map_ = build_calibrator(name).fit(rows, labels) if name != "given" else lambda x: x
        expected = calibration_report(logits=map_(judged), labels=truth, metrics=("ece", "nll"))
        assert (dict(fit.metrics), fit.reason) == (expected, "")
        assert (fit.seconds > 0.0) == (name != "given") or fit.seconds < 1e-4


def test_fit_that_the_rows_do_not_allow_has_a_reason(tmp_path, monkeypatch):
    warm: list[int] = []
    real = _computations._fitted
    monkeypatch.setattr(_computations, "_warm", set())

    def fitted(name: str, parameters: Any, rows: Any, labels: Any) -> Any:
        warm.append(len(rows))
        return real(name, parameters, rows, labels)

    monkeypatch.setattr(_computations, "_fitted", fitted)
    parts = {"meta": ("meta-mis", {}), "ts": ("ts", {})}
    data = str(prepared_logits(tmp_path, wrong=True).directory)
    work = FitWork(data=data, calibrators=parts, metrics=("ece",))
    fits = run(tmp_path, work).fits
    assert warm == [64, 40, 64, 40]  # First on a few rows, which no seconds hold.
    assert fits["ts"].metrics
    assert (fits["meta"].metrics, fits["meta"].reason) == (
        {},
        "meta-mis: no fitting row is classified correctly; use other rows",
    )


@pytest.mark.parametrize(
    ("cost", "ending"),
    [
        (Cost(seconds=75.0), "finished after 1 min 15 s"),
        (Cost(), "finished after 4 s"),  # Measurements count no seconds of their own.
        (Cost(reused=True), "finished: its outcome was stored already"),
    ],
)
def test_the_log_ends_with_the_time_that_the_job_took(tmp_path, monkeypatch, cost, ending):
    bench = Bench(tmp_path, sealed=False)
    worker = Worker(bench)
    worker._opened = 10.0
    monkeypatch.setattr(bench, "clock", lambda: 14.0)
    report = Report(status=Status.FINISHED, cost=cost)
    assert worker._ending(report) == ending
