"""Predictions of made-up recipes, stored as an evaluation stores them."""

from contextlib import contextmanager

import pytest
import torch

import orchestrator.tracking
from orchestrator.cli import main
from orchestrator.storage.results import StudyResult
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore, stage_key

TASK = "digits/convnet/digits"


@pytest.fixture
def progress(monkeypatch):
    """Return a function that has a command's progress written down, and gives where."""

    def watch(module):
        steps = []

        @contextmanager
        def bar(text):
            steps.append(text)
            yield lambda done, total: steps.append((done, total))

        monkeypatch.setattr(f"orchestrator.cli.{module}.progress_bar", bar)
        return steps

    return watch


@pytest.fixture
def command_on(monkeypatch, capsys, tmp_path):
    """Return a function that gives one which runs a command on a sweep of the results given."""

    def on(results):
        monkeypatch.setattr(
            orchestrator.tracking, "study_results", lambda uri, sweep: results, raising=False
        )

        def call(*arguments):
            code = main([*map(str, arguments), "--storage", str(tmp_path)])
            return code, *capsys.readouterr()

        return call

    return on


@pytest.fixture
def artifacts(tmp_path):
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def evaluated(artifacts):
    """Return a function that stores predictions of a recipe and gives its result."""

    def store(recipe, seeds, labels, task=TASK, images=None, numbers=None, **fields):
        keys = []
        for number, log_probs in enumerate(seeds):
            key = stage_key("evaluate", recipe=recipe, task=task, number=number)
            own = labels if isinstance(labels, torch.Tensor) else labels[number]
            rows = {"log_probs": log_probs.float(), "labels": own}
            rows |= {} if images is None else {"images": images}
            rows |= {} if numbers is None else {"rows": numbers[number]}
            artifacts.write(ArtifactRef("evaluate", key), {"test": rows}, {})
            keys.append(key)
        fields = {"sweep": "s", "status": "finished", **fields}
        return StudyResult(task=task, recipe=recipe, predictions=tuple(keys), **fields)

    return store


@pytest.fixture
def made_up():
    """Return a function giving log-probabilities that are right more or less often."""

    def make(labels, seed, sharpness=1.0, classes=4):
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(labels), classes, generator=generator)
        signal = 1.5 * torch.nn.functional.one_hot(labels, classes)
        return (sharpness * (signal + noise)).log_softmax(1)

    return make
