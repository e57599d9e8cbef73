"""Rich calibrators on few rows a class: hardly worse than one temperature, never than nothing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators import CALIBRATORS, build_calibrator
from trainables.calibrators._mixing import likeliest_share
from trainables.calibrators._shrinkage import PULLS, choose_pull, validation_folds

RICH = ("ms", "dirichlet", "vs")
MIXED = ("cir", "histogram-binning", "isotonic", "kernel", "spline")
# Meta-Cal makes rows uniform on purpose: accuracy on the others is what it promises.
DEFAULTS = [name for name in CALIBRATORS.names() if not name.startswith("meta-")]
NOISE, HARM, HARMED = 0.01, 0.001, 0.2
OUTPUTS = ("lenet-5-cifar-100", "wideresnet-16-4-cifar-10", "wideresnet-16-4-cifar-100")


def losses(names: tuple[str, ...], rows: tuple[Tensor, Tensor], fitted: int, **more: str):
    """Fit on the first rows; return the mean ``-log p_y`` of the others, by name."""
    logits, labels = rows
    maps = {
        name: build_calibrator(name, **more).fit(logits[:fitted], labels[:fitted]) for name in names
    }
    return {
        name: float(F.nll_loss(fit(logits[fitted:]), labels[fitted:])) for name, fit in maps.items()
    }


@pytest.fixture(scope="module")
def hundred_classes() -> tuple[Tensor, Tensor]:
    """An overconfident network whose mistakes fall on neighbours: 2,600 rows."""
    draw = torch.Generator().manual_seed(0)
    honest = torch.randn(2600, 100, generator=draw, dtype=torch.float64)
    favoured = torch.randint(100, (2600, 1), generator=draw)
    honest.scatter_add_(1, favoured, 3 + 4 * torch.rand(2600, 1, generator=draw).double())
    labels = torch.multinomial(honest.softmax(1), 1, generator=draw).squeeze(1)
    return 1.7 * honest, labels


@pytest.mark.parametrize("name", RICH)
def test_six_rows_a_class_are_no_worse_than_one_temperature(name, hundred_classes) -> None:
    ts = losses(("ts",), hundred_classes, 600)["ts"]
    assert losses((name,), hundred_classes, 600)[name] < ts + NOISE
    assert losses((name,), hundred_classes, 600, variant="paper")[name] > ts + HARMED


@pytest.mark.parametrize("name", MIXED)
def test_six_rows_a_class_are_mixed_with_one_temperature(name, hundred_classes) -> None:
    ts = losses(("ts",), hundred_classes, 600)["ts"]
    assert losses((name,), hundred_classes, 600)[name] < ts + NOISE
    if name not in ("kernel", "spline"):
        assert losses((name,), hundred_classes, 600, variant="paper")[name] > ts + HARMED


def test_no_default_is_worse_than_no_calibration(hundred_classes) -> None:
    logits, labels = 0.7 * hundred_classes[0], hundred_classes[1]  # Overconfident by a fifth.
    plain = float(F.cross_entropy(logits[300:], labels[300:]))
    found = losses(tuple(DEFAULTS), (logits, labels), 300)
    assert {name: loss for name, loss in found.items() if loss > plain + HARM} == {}


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(("count", "splits"), [(300, 2), (1000, 1), (5000, 1)])
@pytest.mark.parametrize("file", OUTPUTS)
def test_no_default_is_worse_than_no_calibration_on_real_outputs(
    file: str, count: int, splits: int, shared: Path
) -> None:
    with np.load(shared / "data" / "logits" / f"{file}.npz") as arrays:
        logits = torch.from_numpy(arrays["predictions"]).double().clamp(min=1e-30).log()
        labels = torch.from_numpy(arrays["ground_truth"]).reshape(-1).long()
    excess = dict.fromkeys(DEFAULTS, 0.0)
    for split in range(splits):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(split))
        plain = float(F.cross_entropy(logits[order[count:]], labels[order[count:]]))
        found = losses(tuple(DEFAULTS), (logits[order], labels[order]), count)
        for name, loss in found.items():
            excess[name] += (loss - plain) / splits
        assert max(found[name] for name in RICH) < found["ts"] + NOISE
    assert {name: gap for name, gap in excess.items() if gap > HARM} == {}


def test_the_likeliest_share_is_that_of_the_mixture_that_was_drawn() -> None:
    draw = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 50_000, 6, generator=draw, dtype=torch.float64).softmax(2)
    labels = torch.multinomial(0.3 * first + 0.7 * second, 1, generator=draw)
    of_labels = [p.gather(1, labels).squeeze(1).log() for p in (first, second)]
    assert likeliest_share(*of_labels) == pytest.approx(0.3, abs=0.05)
    low, high = torch.full((5,), -3.0), torch.full((5,), -1.0)
    assert likeliest_share(low.double(), high.double()) == 0.0
    assert likeliest_share(high.double(), low.double()) == 1.0


@pytest.mark.parametrize("name", ["ms", "dirichlet"])
def test_a_map_that_rows_do_show_is_found(name, synthetic) -> None:
    logits, _ = synthetic(rows=6000, classes=4)
    mixed = logits + 0.6 * logits.roll(1, 1)
    draw = torch.Generator().manual_seed(1)
    labels = torch.multinomial(mixed.softmax(1), 1, generator=draw).squeeze(1)
    found = losses(("ts", name), (logits, labels), 3000)
    best = float(F.cross_entropy(mixed[3000:], labels[3000:]))
    assert found[name] < best + NOISE < found["ts"]


@pytest.mark.parametrize("name", [*RICH, *MIXED])
def test_where_nothing_is_gained_it_is_temperature_scaling(name, rows) -> None:
    logits, labels = rows[0][:1], rows[1][:1]
    fitted, ts = (build_calibrator(n).fit(logits, labels) for n in (name, "ts"))
    torch.testing.assert_close(fitted(rows[0]), ts(rows[0]))
    assert "temperature scaling" in fitted.report.note


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_the_pull_does_not_know_the_scale_of_the_logits(scale, rows) -> None:
    logits, labels = rows
    free = {"weight_offdiag": 0.0, "weight_bias": 0.0}
    plain = build_calibrator("ms", **free).fit(logits, labels)(logits)
    scaled = build_calibrator("ms", **free).fit(scale * logits, labels)(scale * logits)
    torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-2)


def test_the_lowest_held_out_loss_decides_and_worse_than_nothing_ends_it() -> None:
    asked = []

    def score(pull: float) -> float:
        asked.append(pull)
        return {30.0: 0.9, 10.0: 0.95, 3.0: 0.8, 1.0: 1.0}[pull]

    assert choose_pull(score, 1.0) == 3.0
    assert asked == list(PULLS[:4])
    assert choose_pull(lambda _: 1.1, 1.0) == math.inf


@pytest.mark.parametrize(
    ("rows", "folds", "held"), [(1, 0, 0), (3, 3, 3), (7, 5, 7), (5000, 2, 2000)]
)
def test_rows_are_held_out_once_until_there_are_enough(rows: int, folds: int, held: int) -> None:
    masks = list(validation_folds(rows, torch.device("cpu")))
    assert len(masks) == folds
    counts = sum((mask.long() for mask in masks), torch.zeros(rows, dtype=torch.long))
    assert int(counts.sum()) == held
    assert int(counts.max()) <= 1
