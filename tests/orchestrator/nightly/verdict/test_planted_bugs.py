from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from laboratory import Laboratory
from torch import Tensor

from orchestrator.nightly import CellKey, NightRecord, Shape, judge
from trainables.calibrators.ts import TemperatureScaling
from trainables.data import SplitSpec
from trainables.losses.ls import LabelSmoothingLoss
from trainables.refinements.macal import MaskedHead

TASK = "digits/convnet/short"
TRAINING: dict[str, Any] = {"epochs": 6, "batch_size": 64, "lr": 0.1, "schedule": "cosine"}
RECIPES = ("ce", "ls", "ce+ts", "ce+macal")
METRICS = ("acc", "ece", "aece", "cwece", "nll")
GOOD_NIGHTS = 8


def night_of_stages(folder: Path) -> NightRecord:
    """Compute every recipe and return the figures, of validation data."""
    compute = Laboratory(folder, SplitSpec(validation=0.25, train_limit=512)).compute
    plain = compute("train", {"ce": {}}, TRAINING, seed=0)
    base = plain.artifact()
    outcomes = {
        "ce": plain,
        "ls": compute("train", {"ls": {"smoothing": 0.1}}, TRAINING, seed=0),
        "ce+ts": compute("calibrate", {"ts": {}}, TRAINING, base, seed=0),
        "ce+macal": compute("refine", {"macal": {"epochs": 6}}, TRAINING, base, seed=0),
    }
    cells = {
        CellKey(recipe, TASK, metric): {0: outcomes[recipe].metrics[f"val_{metric}"]}
        for recipe in RECIPES
        for metric in METRICS
    }
    shape = Shape(RECIPES, (TASK,), METRICS, (0,))
    return NightRecord("2026-01-01", 0.0, cells, shape=shape, environment={"code": "good"})


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return night_of_stages(tmp_path_factory.mktemp("good"))


def dated(record: NightRecord, day: int, **changes: Any) -> NightRecord:
    return replace(record, night=f"2026-01-{day:02d}", **changes)


def smoothing_off(patch: pytest.MonkeyPatch) -> None:
    whole = LabelSmoothingLoss.per_row

    def per_row(self: LabelSmoothingLoss, logits: Tensor, targets: Tensor) -> Tensor:
        self.smoothing = 0.0
        return whole(self, logits, targets)

    patch.setattr(LabelSmoothingLoss, "per_row", per_row)


def mask_not_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MaskedHead, "_masked", MaskedHead._tensor)


def temperature_stuck(patch: pytest.MonkeyPatch) -> None:
    def stuck(self: TemperatureScaling, logits: Tensor) -> Tensor:
        return torch.ones_like(self.temperature)

    patch.setattr(TemperatureScaling, "_temperatures", stuck)


@pytest.mark.full
@pytest.mark.parametrize(
    ("plant", "recipe"),
    [(smoothing_off, "ls"), (mask_not_applied, "ce+macal"), (temperature_stuck, "ce+ts")],
)
def test_a_planted_bug_raises_the_alarm_and_names_the_cell(
    plant, recipe, good, tmp_path, monkeypatch
):
    plant(monkeypatch)
    bad = replace(night_of_stages(tmp_path), environment={"code": "bad"})
    changed = {cell.recipe for cell in bad.cells if bad.cells[cell] != good.cells[cell]}
    assert changed == {recipe}
    history = [dated(good, day) for day in range(1, GOOD_NIGHTS + 1)]
    first, second = (dated(bad, day) for day in (GOOD_NIGHTS + 1, GOOD_NIGHTS + 2))
    early = judge(history, first)
    alarm = judge([*history, first], second)
    # Two recipes that are suddenly the same raise the alarm on the first night.
    assert {found.cell.recipe for found in (*early.alarms, *early.suspicions)} == {recipe}
    assert alarm.status == "regression"
    assert {found.cell.recipe for found in alarm.alarms} == {recipe}
    assert any("code: good -> bad" in cause for found in alarm.alarms for cause in found.causes)


def test_the_same_code_raises_none(good, tmp_path):
    again = night_of_stages(tmp_path)
    assert again.cells == good.cells
    history = [dated(good, day) for day in range(1, GOOD_NIGHTS + 1)]
    assert judge(history, dated(again, GOOD_NIGHTS + 1)).status == "ok"
