"""``smart`` against a direct transcription of the paper's method."""

import math

import pytest
import torch
from torch import Tensor, nn

from trainables.calibrators import FitWarning, build_calibrator
from trainables.calibrators.smart import smooth_ece
from trainables.contracts import draw_rows

STEPS = 30


def summed_by_bins(confidences: Tensor, correct: Tensor) -> float:
    """Return the smooth ECE, a row and a bin at a time."""
    total, rows = 0.0, len(confidences)
    shares = []
    for confidence in confidences.tolist():
        away = [confidence - (2 * b + 1) / 30 for b in range(15)]
        near = [math.exp(-200 * each**2) for each in away]
        shares.append([each / (sum(near) + 1e-6) for each in near])
    for b in range(15):
        weights = [share[b] for share in shares]
        mass = sum(weights)
        means = [
            sum(w * v for w, v in zip(weights, values.tolist(), strict=True)) / (mass + 1e-6)
            for values in (confidences, correct)
        ]
        total += (((means[0] - means[1]) ** 2 + 1e-6) ** 0.5 - 1e-3) * mass / (rows + 1e-6)
    return total


def test_the_objective_is_the_sum_over_gaussian_bins() -> None:
    draw = torch.Generator().manual_seed(3)
    confidences = torch.rand(40, generator=draw, dtype=torch.float64)
    correct = (torch.rand(40, generator=draw) < 0.6).double()
    found = float(smooth_ece(confidences, correct))
    assert found == pytest.approx(summed_by_bins(confidences, correct), abs=1e-7)


def transcribed(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log-probabilities of the fitting rows after ``STEPS`` steps, in float32."""
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softplus()
    )
    ordered = logits.sort(descending=True).values
    gap = ordered[:, :1] - ordered[:, 1:2]
    gap = (gap - gap.mean()) / (gap.std() + 1e-8)
    weights = list(network.parameters())
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
    for step in range(1, STEPS + 1):
        confidence, chosen = (logits / (network(gap) + 0.1)).softmax(1).max(1)
        slopes = torch.autograd.grad(smooth_ece(confidence, (chosen == labels).float()), weights)
        for weight, slope, (first, second) in zip(weights, slopes, moments, strict=True):
            first.copy_(0.9 * first + 0.1 * slope)
            second.copy_(0.999 * second + 0.001 * slope**2)
            root = (second / (1 - 0.999**step)).sqrt() + 1e-8
            weight.data -= 0.005 * first / (1 - 0.9**step) / root
    return (logits / (network(gap) + 0.1)).log_softmax(1).detach()


def test_the_network_takes_the_steps_of_the_paper() -> None:
    logits, labels = draw_rows(rows=200, classes=4)
    with torch.random.fork_rng():
        expected = transcribed(logits.float(), labels)
    fitted = build_calibrator("smart", steps=STEPS, variant="paper").fit(logits, labels)
    assert fitted.report.iterations == STEPS
    torch.testing.assert_close(fitted(logits.float()), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, logits.float().log_softmax(1), atol=1e-2)


def test_the_fit_stops_where_twenty_steps_gain_nothing() -> None:
    logits, labels = draw_rows(rows=250, classes=4)
    fitted = build_calibrator("smart", variant="paper").fit(logits, labels)
    assert 20 < fitted.report.iterations < 200


def test_a_single_row_and_a_masked_class_are_taken() -> None:
    build_calibrator("smart", steps=2).fit(torch.tensor([[1.0, 3.0]]), torch.tensor([0]))
    logits, labels = draw_rows(rows=60, classes=4)
    logits[:, 3] = -torch.inf
    kept = labels < 3
    mapped = build_calibrator("smart", steps=2).fit(logits[kept], labels[kept])(logits)
    assert float(mapped[:, 3].max()) < -1e3
    assert bool(mapped.isfinite().all())


@pytest.mark.parametrize("name", ["smart", "mcct"])
def test_a_mixture_doubts_a_temperature_that_its_rows_do_not_determine(name: str) -> None:
    labels = torch.arange(30) % 3
    logits = 40 * nn.functional.one_hot(labels, 3).double()
    with pytest.warns(FitWarning, match="the rows do not determine the temperature"):
        build_calibrator(name).fit(logits, labels)
