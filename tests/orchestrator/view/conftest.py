"""A made-up sweep with all that a report can show, and hostile text in every place."""

import shutil

import pytest
import torch
from playwright.sync_api import sync_playwright

from orchestrator.storage.storage import Storage
from orchestrator.view import from_folder, render_report
from trainables.common.stages import ArtifactRef
from trainables.metrics import evaluation_report
from trainables.store.artifacts import ArtifactStore, stage_key

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NAME = "night"
TASK = 'task <script>window.stolen = "task"</script>'
EVIL = "\"><img src=x onerror='window.stolen=1'><script>window.stolen='recipe'</script>"
REASON = "</td></table><script>window.stolen = 'reason'</script> & \"so on\""
LABELS = torch.arange(120) % 4
SHARPNESS = {"ce": 1.0, "mbls": 4.0, "mbls+macal": 0.9, "ce+ts": 0.8, "dfl": 1.5, EVIL: 2.0}


def predictions(recipe, seed, sharper=1):
    generator = torch.Generator().manual_seed(seed + 10 * sorted(SHARPNESS).index(recipe))
    noise = torch.randn(len(LABELS), 4, generator=generator)
    signal = 1.5 * torch.nn.functional.one_hot(LABELS, 4)
    return (sharper * SHARPNESS[recipe] * (signal + noise)).log_softmax(1)


def search(writer, study, stage, count):
    """Run a search in which gamma decides and the width does not; trial 2 fails."""
    keys, part = [], study.split("|")[1].split("+")[-1]
    for number in range(count):
        parameters = {"gamma": 0.5 + number / 40, "hidden": 64 * (1 + number % 3)}
        named = {f"{part}.{name}": value for name, value in parameters.items()}
        configuration = {"ce": {}, part: parameters}
        key = writer.begin(
            study, number, configuration=configuration, stage=stage, parameters=named
        )
        for step in range(1, 5):
            figures = {"val_ece": 0.1 / step, "val_acc": 0.9, "q": 1 - step * number / 100}
            writer.write("epoch", key=key, step=step, metrics=figures)
        if number == 2:
            writer.finish(key, status="failed", reason=REASON)
        else:
            writer.finish(key, val_ece=0.02)
            writer.score(key, 0.02 + (parameters["gamma"] - 0.7) ** 2)
        keys.append(key)
    return keys


def evaluated(writer, store, study, recipe, keys, sharper):
    """Close a study with its first trial, and measure that with two seeds."""
    configuration = {"ce": {}, recipe.split("+")[-1]: {"gamma": 0.5, "hidden": 64}}
    again = writer.begin(study, 0, role="seed", seed=1, configuration=configuration)
    writer.finish(again, val_ece=0.02)
    writer.close(study, keys[0], finished=len(keys) - 1, failed=1, reason=REASON)
    for seed, key in enumerate((keys[0], again)):
        rows = {"log_probs": predictions(recipe, seed, sharper), "labels": LABELS}
        artifact = stage_key("evaluate", study=study, seed=seed)
        store.write(ArtifactRef("evaluate", artifact), {"test": rows}, {})
        report = evaluation_report(logits=rows["log_probs"], labels=LABELS)
        writer.evaluate(
            key,
            study,
            seed=seed,
            facts={"predictions": artifact, "seconds": 10.0 + seed},
            **{f"test_{name}": value for name, value in report.items()},
        )


@pytest.fixture(scope="session")
def make_sweep(journal_writer):
    """Return a function that writes a sweep into a storage folder and gives its source."""

    def make(root, tasks=(TASK,)):
        store = ArtifactStore(root / "artifacts")
        writer = journal_writer(root / "sweeps" / NAME, NAME)
        writer.start(
            spec={
                "name": NAME,
                "search": {"objective": "ece", "pareto": ["acc"], "trials": 12, "sampler": "tpe"},
                "seeds": [0, 1],
                "tags": {"note": REASON, "place": "Zürich"},
                "tracking": {"uri": "postgresql://me:secret@host/db"},
                **dict.fromkeys(("storage", "data_root"), "secret"),
            },
            hardware=EVIL,
        )
        for number, task in enumerate(tasks):
            place = {"dataset": f"data{number}", "model": "convnet", "protocol": "digits"}
            for recipe in SHARPNESS:
                study = writer.open(recipe, trials=12, task=task, **place)
                stage = "calibrate" if recipe.endswith("ts") else "train"
                keys = search(writer, study, stage, 12 if recipe == "mbls+macal" else 4)
                evaluated(writer, store, study, recipe, keys, sharper=1 + number)
            lost = writer.open("acls", task=task, **place)
            writer.finish(writer.begin(lost, 0), status="failed", reason=REASON)
            writer.close(lost, None, finished=0, failed=1, reason=f"no trial finished: {REASON}")
        writer.end()
        return from_folder(Storage(root).sweep(NAME))

    return make


@pytest.fixture(scope="session")
def storage(tmp_path_factory):
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="session")
def source(make_sweep, storage):
    return make_sweep(storage)


@pytest.fixture(scope="session")
def page(source):
    return render_report(source)


@pytest.fixture(scope="module")
def browser():
    """Return a real browser; without one the tests that ask for it skip."""
    installed = next(filter(None, map(shutil.which, BROWSERS)), None)
    if installed is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with sync_playwright() as play:
        # The sandbox of the browser does not start for root or in most containers.
        found = play.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        yield found
        found.close()
