"""Suites in sweep files: refused early, measured once, in journal, MLflow and table alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from orchestrator import run_sweep
from orchestrator.cli import main
from orchestrator.running import data
from orchestrator.running.data import prepare_data, preview_data
from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.results import StudyResult, results_of
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tracking import study_results
from tests.orchestrator.one_process import one_process
from trainables.common.errors import InputError
from trainables.data import ImageShape
from trainables.worker import _computations as measuring
from trainables.worker import worker

SWEEP = """
name: suites
tasks:
  - dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 2}}
    name: digits
    suites: {suites}
recipes: [ce]
search: {{trials: 1}}
resources: {{concurrent: 1}}
storage: {folder}/storage
data_root: {folder}/data
"""


def make_spec(folder: Path, *suites: str) -> SweepSpec:
    return parse_sweep(SWEEP.format(folder=folder, suites=list(suites)), "suites")


def write_noise(path: Path, seed: int) -> str:
    images = np.random.default_rng(seed).integers(0, 256, (40, 9, 9), dtype=np.uint8)
    labels = np.arange(20) % 10
    np.savez(path, x_train=images[:20], y_train=labels, x_test=images[20:], y_test=labels)
    return f"ood-npz:{path}"


@pytest.mark.parametrize(
    ("suites", "text"),
    [
        (["cifar10c"], r"tasks\[0\]\.suites: unknown suite 'cifar10c'; near are: cifar10-c"),
        (["ood-shvn"], r"tasks\[0\]\.suites: unknown suite 'ood-shvn'; near are: ood-svhn"),
        (["ood-svhn", "ood-svhn"], r"tasks\[0\]\.suites: .* have the same label 'ood-svhn'"),
    ],
)
def test_names_are_checked_with_the_file(tmp_path: Path, suites: list[str], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make_spec(tmp_path, *suites)


@pytest.mark.parametrize(
    ("suite", "text"),
    [
        (
            "cifar10-c",
            "suite 'cifar10-c': has 32 x 32 images of 3 channels, but 'digits' has 8 x 8",
        ),
        (
            "generated-c",
            "suite 'generated-c': expected images of 3 channels and at least 32 pixels",
        ),
        ("ood-digits", "suite 'ood-digits': has the images of the task itself"),
        ("ood-npz:nowhere.npz", "does not exist"),
        ("ood-imagenet", "get ILSVRC2012 from"),
    ],
)
def test_a_suite_that_does_not_fit_is_refused(tmp_path, suite, text, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(folder=tmp_path, suites=[suite]))
    assert main(["run", str(path)]) == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if not line.startswith("preparing")]
    assert text in line
    assert "tasks[0] (digits)" in line
    assert not (tmp_path / "storage" / "sweeps" / "suites" / "journal.jsonl").exists()


def test_suites_are_stored_next_to_the_data(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trainables.data._prepared.SECONDS_BETWEEN_NOTICES", -1.0)
    suite = write_noise(tmp_path / "a.npz", 1)
    spec = make_spec(tmp_path, suite)
    prepare_data(spec, Console())
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "preparing digits: reading"
    assert {line.partition(": ")[0] for line in told[:-1]} == {"preparing digits"}
    assert told[-1] == f"preparing {suite}: images: 20 of 20 images"
    (manifest,) = (tmp_path / "storage" / "data" / "suites").glob("*/suite.json")
    before = manifest.stat().st_mtime_ns
    prepare_data(spec)
    assert manifest.stat().st_mtime_ns == before


def test_a_refused_suite_leaves_none_stored(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, write_noise(tmp_path / "a.npz", 1), "cifar10-c")
    with pytest.raises(InputError, match="suite 'cifar10-c': has 32 x 32 images"):
        prepare_data(spec)
    assert not (tmp_path / "storage" / "data" / "suites").exists()
    # A plan tells of it as well, once the data are there.
    with pytest.raises(InputError, match=r"^tasks\[0\] \(digits\): suite 'cifar10-c': has 32 x 32"):
        preview_data(spec)


def test_each_download_is_listed_once_for_all_tasks(tmp_path: Path) -> None:
    usual = {"model": "resnet20", "protocol": "digits", "suites": ["ood-svhn"]}
    tasks = [{"dataset": name, **usual} for name in ("cifar10", "cifar100", "cifar10-lt:50")]
    text = f"name: x\ntasks: {tasks}\nrecipes: [ce]\nstorage: {tmp_path}\ndata_root: {tmp_path}"
    missing = preview_data(parse_sweep(text, "x")).missing
    told = [text.split("'")[1] for text in missing]
    assert told == ["cifar10", "svhn", "cifar100", "cifar10-lt:50"]


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("timm:resnet18@pretrained", "no weights$"),
        ("gpool-cnn", "model 'gpool-cnn' takes texts, got images"),
    ],
)
def test_an_unusable_network_is_refused_before_any_trial(tmp_path, monkeypatch, model, complaint):
    def build(name: str, classes: int, shape: ImageShape) -> Any:
        assert (name, classes, shape) == (model, 10, ImageShape(1, 8))
        if name.endswith("@pretrained"):
            raise InputError("no weights")
        return real(name, classes, shape)

    real, spec = data.build_model, make_spec(tmp_path)
    monkeypatch.setattr(data, "build_model", build)
    task = spec.tasks[0].model_copy(update={"model": model})
    with pytest.raises(InputError, match=rf"^tasks\[0\] \(digits\): {complaint}"):
        prepare_data(spec.model_copy(update={"tasks": (task,)}))


@one_process()
def test_a_sweep_measures_suites_and_later_more(tmp_path, monkeypatch):
    place, measure, places = torch.device("cpu", 0), measuring.evaluate_suite, []

    def seeing(*given: Any) -> Any:
        places.append(given[-1])
        return measure(*given)

    monkeypatch.setattr(worker, "trial_device", lambda *asked: place)
    monkeypatch.setattr(measuring, "evaluate_suite", seeing)
    paths = (tmp_path / f"{name}.npz" for name in ("ab", "a"))
    first, second = (write_noise(path, seed) for seed, path in enumerate(paths))
    outcome = run_sweep(make_spec(tmp_path, first))
    (before,) = outcome.results
    assert places == [place]
    names = {"ood-ab/auroc", "ood-ab/fpr95"}
    assert {name for name in before.test[0] if "/" in name} == names

    again = run_sweep(make_spec(tmp_path, first, second))
    (result,) = again.results
    extra = {"ood-a/auroc", "ood-a/fpr95", "ood/auroc", "ood/fpr95"}
    assert {name for name in result.test[0] if "/" in name} == names | extra
    assert before.test[0].items() <= result.test[0].items()
    mean = (result.test[0]["ood-ab/auroc"] + result.test[0]["ood-a/auroc"]) / 2
    assert result.test[0]["ood/auroc"] == pytest.approx(mean)
    assert trained(again.journal) == 1

    assert tuple(results_of(read_ledger(again.journal))) == again.results
    (tracked,) = study_results(again.spec.tracking_uri, "suites")
    assert measured(tracked) == measured(result)


def trained(journal: Path) -> int:
    ended = [event for event in read_events(journal)[0] if event.event == "trial_finished"]
    return sum(not event.reused for event in ended)


def measured(result: StudyResult) -> list[dict[str, float]]:
    return [{name: round(value, 9) for name, value in row.items()} for row in result.test]
