import math

import pytest
import torch
from torch.nn import functional as F

from trainables.calibrators import build_calibrator, build_objective
from trainables.calibrators._minimize import TemperaturePasses, row_terms
from trainables.calibrators.objectives.cls import ClasswiseScaling, normalize

ALL = [("ce", {}), ("ls", {"smoothing": 0.1}), ("fl", {"gamma": 2.0}), ("mse", {}), ("cls", {})]


@pytest.mark.parametrize(("name", "parameters"), ALL)
def test_slopes_of_a_pass_are_those_of_autograd(rows, name, parameters):
    logits, labels = rows
    objective = build_objective(name, **parameters)
    theta = torch.linspace(-0.5, 1.0, len(labels), dtype=torch.float64).requires_grad_()
    log_probs = F.log_softmax(logits / theta.exp().unsqueeze(1), dim=1)
    loss = objective.per_row(row_terms(log_probs, labels, objective))
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    found = TemperaturePasses(logits, labels, objective)(theta.detach())
    torch.testing.assert_close(found.loss, loss.detach())
    torch.testing.assert_close(found.slope, slope)


def test_the_released_focal_gradient_holds_the_weight_still(rows):
    logits, labels = rows
    paper, released = (
        build_calibrator("ts", "fl", {"detach": d}).fit(logits, labels).summary()["temperature"]
        for d in (False, True)
    )
    log_t = torch.tensor(math.log(released), dtype=torch.float64, requires_grad=True)
    log_p = -F.cross_entropy(logits / log_t.exp(), labels, reduction="none")
    (-((1 - log_p.exp().detach()) ** 3) * log_p).mean().backward()
    assert abs(float(log_t.grad)) < 1e-9
    assert released > paper > 0


@pytest.mark.parametrize(
    ("reduction", "totals", "rows"),
    [("mean", [2.0, 0.5, 5.0], [3.0, 1.0, 2.0]), ("sum", [6.0, 0.5, 10.0], [6.0, 6.0, 6.0])],
)
def test_cls_weights_sum_the_classes_and_favour_the_worst(reduction, totals, rows):
    objective = ClasswiseScaling(reduction=reduction)
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    losses = torch.tensor([1.0, 2.0, 3.0, 0.5, 4.0, 6.0], dtype=torch.float64)
    weights = objective.row_weights(losses, labels, 4)
    of_class = torch.tensor(totals, dtype=torch.float64)
    x = (of_class - of_class.mean()) / of_class.std()
    scale = 1.5 * (torch.sigmoid(x) - 0.5) + 1
    counted = torch.tensor(rows)
    torch.testing.assert_close(weights, (scale / counted)[labels])
    assert weights[4] * counted[2] > weights[0] * counted[0] > weights[3] * counted[1]


@pytest.mark.parametrize(("deviation", "spread"), [("population", 2.0), ("sample", 8**0.5)])
def test_class_losses_are_divided_by_either_deviation(deviation, spread):
    """Of 1 and 5 the population's deviation is 2 (eq. 4), the sample's the root of 8."""
    objective = ClasswiseScaling(deviation=deviation)
    losses = torch.tensor([1.0, 5.0], dtype=torch.float64)
    x = torch.tensor([-2.0, 2.0], dtype=torch.float64) / spread
    expected = 1.5 * (torch.sigmoid(x) - 0.5) + 1
    torch.testing.assert_close(objective.row_weights(losses, torch.tensor([0, 1]), 2), expected)


def test_equal_class_losses_are_normalised_to_none():
    for how in ("nd", "cm", "mm"):
        assert normalize(torch.ones(3), how).tolist() == [0.0, 0.0, 0.0]


def test_cls_of_equal_classes_is_cross_entropy():
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.0]]).double()
    labels = torch.tensor([0, 1, 0, 1])
    plain, scaled = (
        build_calibrator("ts", name).fit(logits, labels).summary()["temperature"]
        for name in ("ce", "cls")
    )
    assert scaled == pytest.approx(plain, rel=1e-8)


@pytest.mark.parametrize("name", ["ts", "cts", "logit"])
def test_cls_is_set_by_the_class_losses_around_the_first_step(rows, name):
    logits, labels = rows
    winner = logits.argmax(1, keepdim=True)

    def losses_at(t):
        divisor = t[winner] if name == "cts" else t
        return F.cross_entropy(logits / divisor, labels, reduction="none")

    expected = ClasswiseScaling()
    start = torch.ones(1 if name == "ts" else 5, dtype=torch.float64, requires_grad=True)
    before = losses_at(start)
    expected.begin(before.detach(), labels, 5)
    weights = expected.row_weights(before.detach(), labels, 5)
    (slope,) = torch.autograd.grad((weights * before).sum(), start)
    step = 0.02 * min(1.0, 1 / float(slope.abs().sum())) * slope
    expected.freeze(losses_at(start - step).detach(), labels, 5)
    own = {"assignment": "logit"} if name == "logit" else {}
    fitted = build_calibrator("ts" if name == "ts" else "cts", "cls", **own).fit(logits, labels)
    assert fitted.objective.state() == pytest.approx(expected.state(), rel=1e-4)


def test_adaptive_fits_are_fixed_points(rows):
    logits, labels = rows
    fitted = build_calibrator("cts", "cls", assignment="logit").fit(logits, labels)
    leaf = fitted.temperatures.clone().requires_grad_()
    losses = F.cross_entropy(logits / leaf, labels, reduction="none")
    weights = fitted.objective.row_weights(losses.detach(), labels, 5)
    (slope,) = torch.autograd.grad((weights * losses).sum(), leaf)
    assert float(slope.abs().max()) < 0.01 * float((weights * losses).sum().detach())


def test_cls_begins_each_fit_with_the_published_scaling():
    objective, labels = build_objective("cls"), torch.arange(30) % 3
    assert objective.state() == {"alpha": 1.0, "beta": 1.5}
    losses = 1.0 + labels.double()
    objective.begin(losses, labels, 3)
    objective.freeze(0.9 * losses, labels, 3)
    assert objective.state()["alpha"] != 1.0
    objective.begin(losses, labels, 3)
    assert objective.state() == {"alpha": 1.0, "beta": 1.5}


@pytest.mark.parametrize(
    ("step", "released"), [(0.05, {"alpha": 0.1, "beta": 2.0}), (-0.05, {"beta": 1.5})]
)
def test_the_scaling_of_cls_goes_no_further_than_its_bounds(step, released):
    """Where losses hardly move, the scaling that would do the most, or the least, is the best."""
    labels = torch.arange(40) % 4
    losses = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)[labels]
    bounded, free = build_objective("cls"), build_objective("cls", bounds="paper")
    for objective in (bounded, free):
        objective.begin(losses, labels, 4)
        objective.freeze(losses + step, labels, 4)
    expected = {"alpha": math.log(4) / 2, **released}
    assert bounded.state() == pytest.approx(expected, rel=1e-6)
    if step > 0:
        assert free.state()["beta"] > 2.5
    else:
        assert 0 <= free.state()["beta"] < 1.4
    assert free.state()["alpha"] > 0


def test_an_objective_is_restored_only_from_a_complete_state():
    objective = build_objective("cls")
    objective.restore({"alpha": 0.3, "beta": 1.7})
    assert objective.state() == {"alpha": 0.3, "beta": 1.7}
    with pytest.raises(KeyError, match="beta"):
        objective.restore({"alpha": 0.3})
