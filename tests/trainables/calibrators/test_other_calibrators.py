"""Edges of calibrators; what they make of usual rows, tests/reference holds."""

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from torch.nn import functional as F

from trainables.calibrators import FitWarning, build_calibrator
from trainables.common.errors import InputError
from trainables.contracts import draw_rows


def test_cts_with_cls_converges_although_classes_push_each_other():
    draw = np.random.default_rng(3)
    logits = draw.normal(0, 3, (480, 5)).astype(np.float32)
    labels = (logits / 2 + draw.gumbel(size=logits.shape)).argmax(1)
    report = build_calibrator("cts", "cls").fit(logits, labels).report
    assert report.converged, report.note


@pytest.mark.parametrize("shrinkage", [0.0, 30.0])
def test_cts_leaves_a_class_that_is_never_predicted_at_the_common_temperature(rows, shrinkage):
    logits, labels = rows
    logits = logits.clone()
    logits[:, 2] -= 50
    labels = torch.where(labels == 2, 1, labels)
    fitted = build_calibrator("cts", shrinkage=shrinkage).fit(logits, labels)
    common = build_calibrator("ts").fit(logits, labels).summary()["temperature"]
    assert float(fitted.temperatures[2]) == pytest.approx(common)


def test_vector_scaling_converges_if_the_slope_of_a_class_has_no_effect():
    """Of two classes one logit is often left at 0: its slope changes nothing."""
    logits, labels = draw_rows(rows=300, classes=2, temperature=4.0)
    logits = torch.stack([logits[:, 0] - logits[:, 1], torch.zeros(300).double()], 1) + 0.0
    fitted = build_calibrator("vs", weight_decay=0.0, variant="paper").fit(logits, labels)
    slope, bias = (t.clone().requires_grad_() for t in (fitted.slope, fitted.bias))
    F.cross_entropy(logits * slope + bias, labels).backward()
    assert float(torch.cat([slope.grad, bias.grad]).abs().max()) < 1e-7


def test_the_network_of_pts_sees_standardised_log_probabilities(rows):
    logits, labels = rows
    state = build_calibrator("pts", top=3).fit(logits, labels).state_dict()
    seen = logits.log_softmax(1).sort(1, descending=True).values[:, :3].numpy()
    np.testing.assert_allclose(state["centre"], seen.mean(0))
    np.testing.assert_allclose(state["scale"], seen.std(0))


def test_dirichlet_is_blind_to_a_constant_a_row(rows):
    logits, labels = rows
    shift = torch.linspace(-5, 5, len(labels)).double().unsqueeze(1)
    plain = build_calibrator("dirichlet").fit(logits, labels)(logits)
    shifted = build_calibrator("dirichlet").fit(logits + shift, labels)(logits + shift)
    torch.testing.assert_close(plain, shifted, rtol=1e-3, atol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("name", ["ms", "dirichlet"])
def test_affine_fits_of_many_classes_end_where_the_gradient_vanishes(name):
    logits, labels = draw_rows(rows=300, classes=60)
    logits = logits - 8.0
    fitted = build_calibrator(name, variant="paper").fit(logits, labels)
    features = F.log_softmax(logits, dim=1) if name == "dirichlet" else logits
    matrix, bias = (t.clone().requires_grad_() for t in (fitted.matrix, fitted.bias))

    def objective(matrix: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        outside = matrix - torch.diag(matrix.diagonal())
        penalty = 0.01 * (outside.square().sum() + bias.square().sum())
        return F.cross_entropy(features @ matrix.T + bias, labels) + penalty

    value = float(objective(matrix, bias).detach())
    assert value == pytest.approx(fitted.report.objective, rel=1e-5)
    stepped = [p.detach().clone().requires_grad_() for p in (matrix, bias)]
    search = torch.optim.LBFGS(stepped, max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        search.zero_grad()
        loss = objective(*stepped)
        loss.backward()
        return loss

    search.step(closure)
    assert value - float(objective(*stepped).detach()) < 1e-4


def test_isotonic_of_ties_is_scikit_learns_curve_a_class_normalised(rows):
    logits, labels = rows[0][:40].repeat(15, 1), rows[1]
    probs = logits.softmax(1).numpy()
    curves = [
        IsotonicRegression(out_of_bounds="clip").fit(probs[:, k], labels.numpy() == k)
        for k in range(5)
    ]
    mapped = np.stack([c.predict(probs[:, k]) for k, c in enumerate(curves)], 1) + 1e-9 * probs
    expected = mapped / mapped.sum(1, keepdims=True)
    found = build_calibrator("isotonic", variant="paper").fit(logits, labels)(logits).exp().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_probability_at_an_edge_belongs_to_the_bin_below():
    # Half of the rows lie at the edge and are all right, half above it and all wrong.
    logits = torch.tensor([[0.0, 0.0]] * 10 + [[2.0, 0.0]] * 10)
    labels = torch.tensor([0] * 10 + [1] * 10)
    fitted = build_calibrator("histogram-binning", bins=2).fit(logits, labels)
    assert fitted.shares.tolist() == [[1.0, 0.0], [0.5, 0.75]]  # The last is empty: its middle.


def test_spline_of_rows_that_are_all_wrong_leaves_nothing_to_tell_classes_by(rows):
    logits = rows[0]
    wrong = (logits.argmax(1) + 1) % 5
    found = build_calibrator("spline", variant="paper").fit(logits, wrong)(logits).exp()
    torch.testing.assert_close(found, torch.full_like(found, 1 / 5))


@pytest.mark.parametrize(("shift", "value"), [(0, 1 - 1e-6), (1, 1e-6)])
def test_spline_of_rows_that_are_all_right_or_wrong_leaves_a_millionth_of_doubt(rows, shift, value):
    labels = (rows[0].argmax(1) + shift) % 5
    ends = build_calibrator("spline", variant="paper").fit(rows[0], labels).summary()
    assert ends == pytest.approx({"lowest": value, "highest": value}, rel=1e-9)


def test_meta_mis_returns_uniform_probabilities_from_the_threshold_on():
    logits, labels = draw_rows(rows=2000, classes=4)
    fitted = build_calibrator("meta-mis", alpha=0.1).fit(logits, labels)
    log_probs = logits.double().log_softmax(1)
    entropies = -(log_probs.exp() * log_probs).sum(1)
    # It is the entropy of a row, the fitting rows being no others.
    place = (entropies - fitted.threshold).abs().argmin()
    assert float(entropies[place]) == pytest.approx(float(fitted.threshold), abs=1e-12)
    out = fitted(logits[place : place + 1])
    torch.testing.assert_close(out.exp(), torch.full_like(out, 0.25))


def test_meta_acc_refuses_an_accuracy_that_is_out_of_reach():
    logits, labels = draw_rows(rows=2000, temperature=20.0)
    with pytest.raises(InputError, match=r"accuracy=0\.999 is out of reach"):
        build_calibrator("meta-acc", accuracy=0.999).fit(logits, labels)
    easy = build_calibrator("meta-acc", accuracy=0.01).fit(logits, labels)
    ts = build_calibrator("ts").fit(logits, labels)(logits)
    torch.testing.assert_close(easy(logits), ts, rtol=0.1, atol=0.1)


def test_meta_acc_takes_the_highest_accuracy_within_reach():
    """All rows are right: of 20 bins of a row each, the first, which is empty, counts as 0."""
    margins = torch.linspace(1, 5, 200, dtype=torch.float64)
    logits, labels = torch.stack([margins, torch.zeros(200)], 1), torch.zeros(200).long()
    with pytest.raises(InputError) as refused:
        build_calibrator("meta-acc", accuracy=0.951).fit(logits, labels)
    assert str(refused.value) == (
        "meta-acc: accuracy=0.951 is out of reach on these rows; use at most 0.95"
    )
    with pytest.warns(FitWarning, match="meta-acc: loss below 1e-05"):
        fitted = build_calibrator("meta-acc", accuracy=0.95).fit(logits, labels)
    drawn = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:20]
    log_probs = logits[drawn].log_softmax(1)
    entropies = -(log_probs.exp() * log_probs).sum(1)
    # Entropies rise with accuracies: the best curve that does not rise is their mean.
    expected = (entropies.sum() - entropies.min()) / 20
    assert fitted.summary()["threshold"] == pytest.approx(float(expected))


@pytest.mark.parametrize(("label", "scale", "bound"), [(1, 5.0, 100), (0, 0.05, 0.01)])
def test_cts_tells_how_many_of_its_temperatures_are_on_a_bound(label, scale, bound):
    """Of the rows predicted as the first class none is right, or all; of the others most are."""
    predicted = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    labels = torch.tensor([label, label, label, 1, 1, 1, 2, 2, 2, 2, 0])
    fitted = build_calibrator("cts", shrinkage=0.0)
    with pytest.warns(FitWarning, match=r"cts: 1 of 3 temperatures on the bound of \[0.01, 100\]"):
        fitted.fit(scale * torch.eye(3)[predicted], labels)
    assert float(fitted.temperatures[0]) == pytest.approx(bound)


@pytest.mark.parametrize(("common", "temperature"), [(10.0, 100.0), (-10.0, 0.01)])
def test_no_temperature_of_pts_is_beyond_the_bounds(common, temperature):
    fitted = build_calibrator("pts", layers=1, nodes=1, top=1)
    ones = {key: torch.ones(1, 1).double() for key in ("weight_0", "weight_1")}
    state = {key: torch.ones(1).double() for key in ("centre", "scale", "bias_0", "bias_1")}
    known = {"common": torch.tensor([common]).double(), "num_classes": torch.tensor(3)}
    fitted.load_state_dict({**ones, **state, **known})
    logits = torch.tensor([[0.3, 0.1, -0.2], [-1.0, 2.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(fitted(logits), F.log_softmax(logits / temperature, dim=1))


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("svs", {"weight_diag": 20.0}),
        ("sms", {"weight_diag": 20.0, "weight_offdiag": 10.0}),
        ("pts", {"weight_decay": 0.01}),
    ],
)
def test_with_cls_a_penalty_counts_as_much_as_all_classes(name, own):
    """Where two classes are each other's mirror images, class losses are equal: it is ``ce``."""
    logits, labels = draw_rows(rows=60, classes=2, temperature=4.0)
    both = torch.cat([logits, logits.flip(1)]), torch.cat([labels, 1 - labels])
    plain, weighted = (build_calibrator(name, o, **own).fit(*both) for o in ("ce", "cls"))
    torch.testing.assert_close(weighted(logits), plain(logits), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("rows", "drawn"), [(1, 1), (19, 1), (20, 2), (4990, 499), (5000, 500), (9000, 500)]
)
def test_a_tenth_of_the_rows_but_no_more_than_500_give_the_threshold(rows, drawn):
    found = build_calibrator("meta-mis", seed=1)._draw(torch.arange(rows))
    assert len(found.unique()) == len(found) == drawn
    other = build_calibrator("meta-mis", seed=2)._draw(torch.arange(rows))
    assert drawn == 1 or not torch.equal(found, other)


def test_meta_calibrators_that_keep_no_row_say_so():
    # Of e, 1 and 1 over their sum.
    whole = (
        r"^meta-mis: no fitting row has an entropy below the threshold 0\.9753; "
        "relax the constraint or use more rows$"
    )
    with pytest.raises(InputError, match=whole):
        build_calibrator("meta-mis").fit(torch.eye(3), torch.arange(3))


def test_meta_mis_without_a_right_row_is_an_error():
    calibrator = build_calibrator("meta-mis")
    whole = r"^meta-mis: no fitting row is classified correctly; use other rows$"
    with pytest.raises(InputError, match=whole):
        calibrator.fit(torch.eye(3), torch.tensor([1, 2, 0]))
    with pytest.raises(InputError, match="this meta-mis is not fitted"):
        calibrator(torch.eye(3))
