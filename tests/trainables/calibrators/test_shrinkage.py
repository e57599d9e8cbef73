"""Rich calibrators on few rows a class: hardly worse than one temperature, never than nothing."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators import CALIBRATORS, FitReport, build_calibrator
from trainables.calibrators._mixing import likeliest_share
from trainables.calibrators._shrinkage import PULLS, choose_pull, validation_folds
from trainables.contracts import draw_rows

RICH = ("ms", "dirichlet", "vs")
MIXED = ("cir", "histogram-binning", "isotonic", "kernel", "spline")
# Meta-Cal makes rows uniform on purpose: accuracy on the others is what it promises.
DEFAULTS = [name for name in CALIBRATORS.names() if not name.startswith("meta-")]
EQUAL_NOTE = "same as temperature scaling: a richer map does not improve held-out rows"
NOISE, HARM, HARMED = 0.01, 0.001, 0.2
OUTPUTS = {"lenet-5-cifar-100": 300, "wideresnet-16-4-cifar-10": 1000}


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


@pytest.mark.full
@pytest.mark.parametrize("name", RICH)
def test_six_rows_a_class_are_no_worse_than_one_temperature(name, hundred_classes) -> None:
    ts = losses(("ts",), hundred_classes, 600)["ts"]
    assert losses((name,), hundred_classes, 600)[name] < ts + NOISE
    assert losses((name,), hundred_classes, 600, variant="paper")[name] > ts + HARMED


@pytest.mark.full
@pytest.mark.parametrize("name", MIXED)
def test_six_rows_a_class_are_mixed_with_one_temperature(name, hundred_classes) -> None:
    ts = losses(("ts",), hundred_classes, 600)["ts"]
    assert losses((name,), hundred_classes, 600)[name] < ts + NOISE
    if name not in ("kernel", "spline"):
        assert losses((name,), hundred_classes, 600, variant="paper")[name] > ts + HARMED


@pytest.mark.full
def test_no_default_is_worse_than_no_calibration(hundred_classes) -> None:
    logits, labels = 0.7 * hundred_classes[0], hundred_classes[1]  # Overconfident by a fifth.
    plain = float(F.cross_entropy(logits[300:], labels[300:]))
    found = losses(tuple(DEFAULTS), (logits, labels), 300)
    assert {name: loss for name, loss in found.items() if loss > plain + HARM} == {}


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(("file", "count"), OUTPUTS.items())
def test_no_default_is_worse_than_no_calibration_on_real_outputs(file, count, shared):
    with np.load(shared / "data" / "logits" / f"{file}.npz") as arrays:
        logits = torch.from_numpy(arrays["predictions"]).double().clamp(min=1e-30).log()
        labels = torch.from_numpy(arrays["ground_truth"]).reshape(-1).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:4000]
    plain = float(F.cross_entropy(logits[order[count:]], labels[order[count:]]))
    found = losses(tuple(DEFAULTS), (logits[order], labels[order]), count)
    assert max(found[name] for name in RICH) < found["ts"] + NOISE
    assert {name: loss for name, loss in found.items() if loss > plain + HARM} == {}


def test_the_likeliest_share_is_that_of_the_mixture_that_was_drawn() -> None:
    draw = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 50_000, 6, generator=draw, dtype=torch.float64).softmax(2)
    labels = torch.multinomial(0.3 * first + 0.7 * second, 1, generator=draw)
    of_labels = [p.gather(1, labels).squeeze(1).log() for p in (first, second)]
    assert likeliest_share(*of_labels) == pytest.approx(0.3, abs=0.05)
    low, high = torch.full((5,), -3.0), torch.full((5,), -1.0)
    assert likeliest_share(low.double(), high.double()) == 0.0
    assert likeliest_share(high.double(), low.double()) == 1.0
    # One row that the second has for impossible, and one that it has for likelier.
    share = likeliest_share(torch.tensor([0.0, -3.0]).double(), torch.tensor([-1e4, -0.5]).double())
    assert share == pytest.approx(0.5 / (1 - math.exp(-2.5)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "own"),
    [("histogram-binning", {"bins": 4}), ("spline", {"knots": 4}), ("platt", {}), ("kernel", {})],
)
def test_the_share_is_the_one_under_which_held_out_rows_are_likeliest(name, own, rows) -> None:
    logits, labels = rows[0][:150], rows[1][:150]
    of_rows: dict[str, list[Tensor]] = {"alone": [], "scaled": []}
    for held in validation_folds(len(labels), labels.device):
        for key, fresh in (
            ("alone", build_calibrator(name, **own, variant="paper")),
            ("scaled", build_calibrator("ts")),
        ):
            found = fresh.fit(logits[~held], labels[~held])(logits[held])
            of_rows[key].append(found.gather(1, labels[held, None]).exp())
    alone, scaled = (torch.cat(values) for values in of_rows.values())
    shares = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    best = shares[(shares * alone + (1 - shares) * scaled).log().mean(0).argmax()]
    fitted = build_calibrator(name, **own).fit(logits, labels)
    assert float(fitted.share) == pytest.approx(float(best), abs=2e-4)
    assert float(fitted.share) == pytest.approx(
        likeliest_share(alone.log(), scaled.log()), rel=1e-9
    )
    paper = build_calibrator(name, **own, variant="paper").fit(logits, labels)(logits).exp()
    plain = build_calibrator("ts").fit(logits, labels)(logits).exp()
    mixed = fitted.share * paper + (1 - fitted.share) * plain
    torch.testing.assert_close(fitted(logits).exp(), mixed)


def pulled_loss(name: str, pull: float, rows: tuple[Tensor, Tensor], weights: Tensor) -> Tensor:
    """The penalised likelihood of a map under a pull, from its definition."""
    logits, labels = rows
    t = build_calibrator("ts").fit(logits, labels).summary()["temperature"]
    if name == "vs":
        slope, bias = weights.chunk(2)
        away = 0.02 * ((slope - 1 / t).square().sum() + bias.square().sum())
        pulled = (t * slope - 1).square().sum() + bias.square().sum()
        return F.cross_entropy(logits * slope + bias, labels) + (away + pull * pulled) / 2
    matrix, bias = weights[:, :-1], weights[:, -1]
    outside = (matrix - torch.diag(matrix.diagonal())).square().sum()
    own = 0.1 * ((t * matrix.diagonal() - 1).square().sum() + bias.square().sum())
    odir = 0.004 * outside + 0.03 * bias.square().sum()
    features = F.log_softmax(logits, dim=1) if name == "dirichlet" else logits
    loss = F.cross_entropy(features @ matrix.T + bias, labels)
    return loss + odir + pull * (t**2 * outside + own)


PULLED = {
    "vs": {"weight_decay": 0.02},
    "ms": {"weight_offdiag": 0.004, "weight_bias": 0.03},
    "dirichlet": {"weight_offdiag": 0.004, "weight_bias": 0.03},
}


@pytest.mark.parametrize("pull", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("name", RICH)
def test_a_pulled_fit_ends_where_the_gradient_vanishes(name, pull, rows) -> None:
    some = rows[0][:200] - 3, rows[1][:200]
    problem: Any = build_calibrator(name, **PULLED[name])
    found, report = problem._problem(*some).minimize(pull, None, 1e-12)
    leaf = found.clone().requires_grad_()
    value = pulled_loss(name, pull, some, leaf)
    (slope,) = torch.autograd.grad(value, leaf)
    assert report.objective == pytest.approx(float(value.detach()), rel=1e-9)
    assert float(slope.abs().max()) < 1e-4


def test_the_pull_is_the_one_under_which_held_out_rows_lose_least() -> None:
    logits, _ = draw_rows(rows=200, classes=3)
    draw = torch.Generator().manual_seed(1)
    mixed = logits * torch.tensor([0.3, 1.0, 1.0]) + torch.tensor([1.0, -1.0, 0.0])
    labels = torch.multinomial(mixed.softmax(1), 1, generator=draw).squeeze(1)
    fresh: Any = build_calibrator("vs")
    folds = [
        (fresh._problem(logits[~held], labels[~held]), fresh._problem(logits[held], labels[held]))
        for held in validation_folds(len(labels), labels.device)
    ]

    def loss(pull: float) -> float:
        return sum(held.loss(known.minimize(pull)[0]) for known, held in folds)

    best = choose_pull(loss, sum(held.loss(known.scaled) for known, held in folds))
    assert 0 < best < 30
    expected = fresh._problem(logits, labels).minimize(best)[0]
    fitted: Any = build_calibrator("vs").fit(logits, labels)
    torch.testing.assert_close(torch.cat([fitted.slope, fitted.bias]), expected)


@pytest.mark.parametrize("name", ["ms", "dirichlet"])
def test_a_map_that_rows_do_show_is_found(name) -> None:
    logits, _ = draw_rows(rows=6000, classes=4)
    mixed = logits + 0.6 * logits.roll(1, 1)
    draw = torch.Generator().manual_seed(1)
    labels = torch.multinomial(mixed.softmax(1), 1, generator=draw).squeeze(1)
    found = losses(("ts", name), (logits, labels), 3000)
    best = float(F.cross_entropy(mixed[3000:], labels[3000:]))
    assert found[name] < best + NOISE < found["ts"]


@pytest.mark.parametrize("name", [*RICH, *MIXED])
def test_a_rich_map_that_gains_nothing_equals_temperature_scaling(name, rows) -> None:
    logits, labels = rows[0][:1], rows[1][:1]
    fitted, ts = (build_calibrator(n).fit(logits, labels) for n in (name, "ts"))
    torch.testing.assert_close(fitted(rows[0]), ts(rows[0]))
    assert "temperature scaling" in fitted.report.note
    if name in MIXED:
        own = build_calibrator(name, variant="paper").fit(logits, labels).report
        note = "; ".join(filter(None, (EQUAL_NOTE, own.note)))
        expected = replace(own, note=note, doubt=fitted.report.doubt)
        assert str(fitted.report) == str(expected)  # The objective may be NaN.


@pytest.mark.parametrize("name", RICH)
def test_the_objective_of_a_map_that_gains_nothing_is_that_of_temperature_scaling(name) -> None:
    fitted = build_calibrator(name).fit(torch.ones(6, 3), torch.arange(6) % 3)
    unmoved = "the fit did not change the probabilities of the fitting rows"
    expected = FitReport(True, 0, fitted.report.objective, EQUAL_NOTE, unmoved)
    assert fitted.report == expected
    assert fitted.report.objective == pytest.approx(math.log(3))


@pytest.mark.full
@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_the_pull_does_not_know_the_scale_of_the_logits(scale, rows) -> None:
    logits, labels = rows
    free = {"weight_offdiag": 0.0, "weight_bias": 0.0}
    plain = build_calibrator("ms", **free).fit(logits, labels)(logits)
    scaled = build_calibrator("ms", **free).fit(scale * logits, labels)(scale * logits)
    torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-2)


def test_the_pull_with_the_lowest_held_out_loss_is_chosen() -> None:
    asked = []

    def score(pull: float) -> float:
        asked.append(pull)
        return {30.0: 0.9, 10.0: 0.95, 3.0: 0.8, 1.0: 1.0}[pull]

    assert choose_pull(score, 1.0) == 3.0
    assert asked == list(PULLS[:4])
    assert choose_pull(lambda _: 1.1, 1.0) == math.inf
    assert choose_pull(lambda _: 0.9, 1.0) == 30.0  # The strongest of those that do as well.
    assert choose_pull(lambda pull: pull, 31.0) == 0.0


@pytest.mark.parametrize(
    ("rows", "folds", "held"), [(1, 0, 0), (3, 3, 3), (7, 5, 7), (5000, 2, 2000)]
)
def test_each_row_is_held_out_at_most_once_and_at_most_2000_in_all(
    rows: int, folds: int, held: int
) -> None:
    masks = list(validation_folds(rows, torch.device("cpu")))
    assert len(masks) == folds
    counts = sum((mask.long() for mask in masks), torch.zeros(rows, dtype=torch.long))
    assert int(counts.sum()) == held
    assert int(counts.max()) <= 1
