"""The repeated optimiser runs against the same runs written out with plain PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.calibrators import _released, build_calibrator, build_objective

Rows = tuple[Tensor, Tensor]
# Step sizes and iterations, fewer than the published ones.
STEADY, FALLING = ((0.02, 30),), ((0.005, 10), (0.003, 15), (0.001, 5))
PLANS = {"ce": STEADY, "cls": STEADY, "ls": FALLING, "fl": FALLING}


@pytest.fixture
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_released, "CONSTANT", STEADY)
    monkeypatch.setattr(_released, "SCHEDULE", FALLING)


def test_the_plans_are_the_published_ones() -> None:
    assert _released.CONSTANT == ((0.02, 1000),)
    assert _released.SCHEDULE == ((0.005, 200), (0.003, 400), (0.001, 400))


def weighted(objective: str, labels: Tensor, seen: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the loss of log-probabilities; ``seen`` gets the row losses of each evaluation."""
    classwise = build_objective("cls")

    def loss(log_probs: Tensor) -> Tensor:
        own = F.nll_loss(log_probs, labels, reduction="none")
        seen.append(own.detach())
        if objective == "ls":
            return (0.95 * own - 0.05 * log_probs.mean(1)).mean()
        if objective == "fl":
            return ((1 - (-own).exp()) ** 3 * own).mean()
        if objective == "ce":
            return own.mean()
        if len(seen) <= 2:
            adapt = classwise.begin if len(seen) == 1 else classwise.freeze
            adapt(own.detach(), labels, log_probs.shape[1])
        return (classwise.row_weights(own.detach(), labels, log_probs.shape[1]) * own).sum()

    return loss


@pytest.mark.usefixtures("shorter")
@pytest.mark.parametrize("objective", PLANS)
@pytest.mark.parametrize("name", ["ts", "cts"])
def test_temperatures_stop_where_the_plain_run_does(rows: Rows, name: str, objective: str) -> None:
    logits, labels = rows[0][:200].float(), rows[1][:200]
    temperature = torch.ones(1 if name == "ts" else 5, requires_grad=True)
    seen: list[Tensor] = []
    loss = weighted(objective, labels, seen)
    for rate, iterations in PLANS[objective]:
        search = torch.optim.LBFGS([temperature], lr=rate, max_iter=iterations)

        def closure(search: torch.optim.Optimizer = search) -> Tensor:
            search.zero_grad()
            value = loss(F.log_softmax(logits / temperature, dim=1))
            value.backward()
            return value

        search.step(closure)
    own = {"cts": {"assignment": "logit"}}.get(name, {})
    fitted = build_calibrator(name, objective, variant="released", **own).fit(logits, labels)
    (found,) = (value for key, value in fitted.state_dict().items() if key != "num_classes")
    torch.testing.assert_close(found, temperature.detach().double(), rtol=1e-3, atol=0)
    assert fitted.report is not None
    assert fitted.report.iterations == len(seen)
    assert fitted.report.note == "fixed-length run as released"
    if objective == "ce":  # Of the others the value is no plain mean of the row losses.
        assert fitted.report.objective == pytest.approx(float(seen[-1].mean()), rel=1e-4)


@pytest.mark.usefixtures("shorter")
@pytest.mark.parametrize("objective", ["ce", "cls", "ls"])
def test_the_released_pts_network_equals_a_plain_training_loop(rows: Rows, objective: str) -> None:
    logits, labels = rows[0][:200].float(), rows[1][:200]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    loss = weighted(objective, labels, [])
    for rate, iterations in PLANS[objective]:
        search = torch.optim.Adam(network.parameters(), lr=rate)
        for _ in range(iterations):
            search.zero_grad()
            loss(F.log_softmax(logits / network(logits.topk(3).values), dim=1)).backward()
            search.step()
    shape = {"top": 3, "nodes": 4, "layers": 2}
    fitted = build_calibrator("pts", objective, variant="released", **shape).fit(logits, labels)
    with torch.no_grad():
        expected = F.log_softmax(logits / network(logits.topk(3).values), dim=1)
    torch.testing.assert_close(fitted(logits), expected, rtol=1e-3, atol=1e-3)
    assert fitted.summary()["temperature"] == 1.0  # The network alone gives it.
