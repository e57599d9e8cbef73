import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference_values import Goldens
from torch import Tensor
from torch.nn import functional as F

from tests.reference import losses as reference
from trainables.losses import build_loss
from trainables.losses.cpc import binary_exclusion, pairs_at_once, pairs_in_blocks, split_logits
from trainables.losses.esd import esd
from trainables.losses.kde_xe import (
    BANDWIDTHS,
    FORMS,
    clamp_inside,
    ece_kde,
    leave_one_out_bandwidth,
    log_inner,
)

Case = dict[str, Any]
Value = Callable[[Tensor, Tensor], Tensor]


def everything(targets: Tensor) -> Tensor:
    return torch.ones_like(targets, dtype=torch.bool)


def term(name: str, **options: Any) -> Value:
    loss: Any = build_loss(name, **options)
    return lambda x, y: loss.penalty(x, x.softmax(dim=1), y, everything(y))


def batch(rows: int, classes: int, seed: int = 0, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (rows,), generator=generator)
    right = torch.rand(rows, generator=generator) < 0.5
    return logits, torch.where(right, logits.argmax(dim=1), targets)


def tied_batch() -> tuple[Tensor, Tensor]:
    logits, targets = batch(6, 5)
    logits = torch.cat([logits, logits, logits, 1e4 * logits[:2]])
    return logits, torch.cat([targets, targets.roll(1), targets.flip(0), targets[:2]])


def value_and_gradient(compute: Value, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    value = compute(logits, targets)
    return value.detach(), torch.autograd.grad(value, logits)[0]


def best_bandwidth(logits: Tensor, *, over: bool) -> float:
    probs, valid = clamp_inside(logits.softmax(dim=1)), everything(logits[:, 0])
    inner = log_inner(probs, valid)
    return leave_one_out_bandwidth(probs, valid, inner, over_bandwidth=over).item()


def mdca_total(hyper: Case) -> Value:
    base = {"NLL+MDCA": "ce", "FL+MDCA": "fl", "LS+MDCA": "ls"}[hyper["loss"]]
    extra = {"gamma": hyper.get("gamma", 1.0), "smoothing": hyper.get("alpha", 0.1)}
    return build_loss("mdca", weight=hyper["beta"], base=base, **extra)


def besides(loss: Value) -> Value:
    return lambda x, y: loss(x, y) - F.cross_entropy(x, y)


def ece_kde_of(hyper: Case) -> Value:
    def compute(logits: Tensor, targets: Tensor) -> Tensor:
        probs = clamp_inside(logits.softmax(dim=1))
        valid, form = everything(targets), hyper["mc_type"]
        return ece_kde(probs, targets, valid, hyper["bandwidth"], p=hyper["p"], form=form)

    return compute


GOLDENS: dict[str, Callable[[Case], Value]] = {
    "mmce": lambda hyper: term("mmce"),
    "mmce_weighted": lambda hyper: term("mmce-w"),
    "ce_plus_mmce": lambda hyper: build_loss("mmce", weight=hyper["lamda"]),
    "ce_plus_mmce_weighted": lambda hyper: build_loss("mmce-w", weight=hyper["lamda"]),
    "cpc": lambda hyper: build_loss(
        "cpc", weight_1v1=hyper["lambd_bdc"], weight_be=hyper["lambd_bec"]
    ),
    "cpc_bdc_term": lambda hyper: besides(build_loss("cpc", weight_1v1=1.0, weight_be=0.0)),
    "cpc_bec_term": lambda hyper: lambda x, y: binary_exclusion(split_logits(x, y)[1]).mean(),
    "mdca_term": lambda hyper: term("mdca"),
    "mdca_balcal": lambda hyper: term("mdca"),
    "mdca_total": mdca_total,
    "dca": lambda hyper: build_loss("dca", weight=hyper["beta"]),
    "esd_as_released": lambda hyper: build_loss("esd", weight=hyper["lamda"], variant="released"),
    "esd_term_on_probabilities": lambda hyper: besides(build_loss("esd", weight=1.0)),
    "ece_kde": ece_kde_of,
    "kde_xe_han": lambda hyper: build_loss(
        "kde-xe", weight=hyper["gamma"], p=hyper["p"], form=hyper["mc_type"], variant="released"
    ),
}


def golden_batch(goldens: Goldens, case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    where = f"in/{case['case']}"
    return goldens.tensor(f"{where}/logits").to(dtype), goldens.tensor(f"{where}/targets")


@pytest.mark.shared
@pytest.mark.parametrize("loss", GOLDENS)
def test_value_and_gradient_of_the_released_code(loss_goldens: Goldens, loss: str) -> None:
    cases = loss_goldens.of(loss)
    assert cases
    # The one reference that was run in float32 only; its search for the bandwidth depends on it.
    dtype = torch.float32 if loss == "kde_xe_han" else torch.float64
    for case in cases:
        logits, targets = golden_batch(loss_goldens, case, dtype)
        value, gradient = value_and_gradient(GOLDENS[loss](case["hyper"]), logits, targets)
        assert value.isfinite()
        assert gradient.isfinite().all()
        if "error" in case:
            continue
        if math.isfinite(float(case["value"])):
            assert value.item() == pytest.approx(case["value"], rel=1e-5, abs=1e-12), case["id"]
        expected = loss_goldens.tensor(case["grad"]).to(dtype)
        if expected.isfinite().all():
            scale = expected.abs().max().item()
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.shared
def test_bandwidths_of_both_released_searches(loss_goldens: Goldens) -> None:
    cases = [case for case in loss_goldens.of("kde_xe_han") if "error" not in case]
    assert cases
    for case in cases:
        logits, _ = golden_batch(loss_goldens, case, torch.float32)
        for over, key in ((False, "bandwidth_chosen"), (True, "bandwidth_original_code")):
            assert best_bandwidth(logits, over=over) == pytest.approx(case[key], rel=1e-5)


def exclusion_over_pairs(logits: Tensor, targets: Tensor) -> Tensor:
    others = split_logits(logits, targets)[1]
    pairs = F.softplus(others.unsqueeze(1) - others.unsqueeze(2), threshold=800).sum(dim=(1, 2))
    return 0.5 * pairs.mean() / (others.shape[1] * (others.shape[1] - 1))


def ece_kde_over_pairs(logits: Tensor, targets: Tensor, form: str, bandwidth: float) -> Tensor:
    probs = clamp_inside(logits.softmax(dim=1))
    outcome = F.one_hot(targets, logits.shape[1]).double()
    if form == "top_label":
        probs, predicted = probs.max(dim=1, keepdim=True)
        outcome = (predicted.squeeze(1) == targets).double().unsqueeze(1)
    if form == "canonical":
        density = torch.distributions.Dirichlet(probs / bandwidth + 1, validate_args=False)
        points = (probs / probs.sum(dim=1, keepdim=True)).unsqueeze(1)
        kernel = density.log_prob(points).unsqueeze(2)
    else:
        beta = torch.distributions.Beta(probs / bandwidth + 1, (1 - probs) / bandwidth + 1)
        kernel = beta.log_prob(probs.unsqueeze(1))
    itself = torch.eye(len(probs), dtype=torch.bool).unsqueeze(2)
    kernel = kernel.masked_fill(itself, -math.inf)
    share = kernel.softmax(dim=1)
    if form == "canonical" and logits.shape[1] <= 60:  # The reference keeps densities off 0.
        share = share * (kernel.logsumexp(dim=1, keepdim=True) - math.log(1e-10)).clamp(max=0).exp()
    return ((share * outcome).sum(dim=1) - probs).abs().sum(dim=1).mean()


@pytest.mark.parametrize("make", [lambda: batch(16, 5), tied_batch])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mmce", {}),
        ("mmce-w", {}),
        ("mmce-w", {"variant": "paper"}),
        ("cpc", {}),
        ("esd", {"weight": 5.0}),
    ],
)
def test_sorted_sums_equal_sums_over_pairs(make, name, options):
    logits, targets = make()
    found = value_and_gradient(build_loss(name, **options), logits, targets)
    value, gradient = reference.value_and_gradient(
        name, options, logits.numpy(), targets.tolist(), [None] * len(targets)
    )
    assert found[0].item() == pytest.approx(value, rel=1e-9)
    torch.testing.assert_close(found[1], torch.from_numpy(gradient), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("classes", [3, 33, 34, 90])
def test_exclusion_in_blocks_equals_sum_over_pairs(classes: int) -> None:
    logits, targets = batch(5, classes, scale=30.0)
    found = value_and_gradient(
        lambda x, y: binary_exclusion(split_logits(x, y)[1]).mean(), logits, targets
    )
    expected = value_and_gradient(exclusion_over_pairs, logits, targets)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


def test_two_classes_have_no_pair_to_exclude() -> None:
    logits, targets = batch(5, 2)
    ours = value_and_gradient(build_loss("cpc", weight_1v1=0.0), logits, targets)
    torch.testing.assert_close(ours, value_and_gradient(F.cross_entropy, logits, targets))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("classes", "scale"), [(4, 1.0), (4, 3.0), (60, 0.5), (60, 10.0), (61, 10.0), (70, 1.0)]
)
def test_kernel_estimate_equals_densities_of_all_pairs(form, classes, scale):
    logits, targets = batch(12, classes, scale=scale)
    hyper = {"bandwidth": 0.05, "p": 1, "mc_type": form}
    ours, gradient = value_and_gradient(ece_kde_of(hyper), logits, targets)
    theirs, expected = value_and_gradient(
        lambda x, y: ece_kde_over_pairs(x, y, form, 0.05), logits, targets
    )
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_kde_xe_does_not_depend_on_the_number_of_classes_per_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits, targets = batch(12, 5, scale=1.0)
    compute = ece_kde_of({"bandwidth": 0.05, "p": 1, "mc_type": "marginal"})
    whole = value_and_gradient(compute, logits, targets)
    monkeypatch.setattr("trainables.losses.kde_xe._CLASSES_AT_ONCE", 2 * 12**2)
    torch.testing.assert_close(value_and_gradient(compute, logits, targets), whole)


@pytest.mark.parametrize(
    ("pairs", "limit"), [(pairs_at_once, "_LAUNCHED"), (pairs_in_blocks, "_CACHED")]
)
def test_cpc_does_not_depend_on_the_number_of_rows_per_block(pairs, limit, monkeypatch):
    values, _ = batch(5, 6)
    whole = pairs(values)
    monkeypatch.setattr(f"trainables.losses.cpc.{limit}", 2 * 6**2)
    torch.testing.assert_close(pairs(values), whole)


def test_three_rows_are_enough_for_the_squared_difference() -> None:
    confidence = torch.tensor([0.6, 0.7, 0.8], dtype=torch.float64)
    correct = torch.tensor([False, False, False])
    value = esd(confidence, correct, torch.ones(3, dtype=torch.bool))
    assert float(value) == pytest.approx(2 * 0.6 * 0.7 / 6)
    assert float(esd(confidence, correct, torch.tensor([True, False, True]))) == 0


@pytest.mark.parametrize("name", ["mmce", "mmce-w", "esd", "mdca", "dca"])
def test_memory_is_not_quadratic_in_the_rows(name):
    # An (N, N) matrix would take 40 GB.
    logits, targets = batch(100_000, 3)
    value, gradient = value_and_gradient(build_loss(name), logits.float(), targets)
    assert value > F.cross_entropy(logits, targets)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["mmce", "mmce-w", "esd", "kde-xe"])
def test_the_penalty_of_many_pixels_uses_a_sample_of_each_part(name, monkeypatch):
    loss: Any = build_loss(name, weight=0.7)
    logits, targets = batch(24, 4, scale=1.0)
    images = logits.view(2, 3, 4, 4).movedim(-1, 1), targets.view(2, 3, 4)
    base = F.cross_entropy(logits, targets)

    def penalty_of(places: Tensor) -> Tensor:
        some, own = logits[places], targets[places]
        return loss.penalty(some, some.softmax(dim=1), own, everything(own))

    assert loss.most_pixels == (512 if name == "kde-xe" else 4096)
    for most, runs in ((6, 4), (24, 1), (30, 1)):
        monkeypatch.setattr(type(loss), "most_pixels", most)
        torch.manual_seed(5)
        value = loss(*images)
        torch.manual_seed(5)
        places = torch.arange(24)
        if runs > 1:
            places = runs * torch.arange(most) + (runs * torch.rand(most)).long()
        torch.testing.assert_close(value, base + 0.7 * penalty_of(places))
        torch.testing.assert_close(loss(logits, targets), base + 0.7 * penalty_of(torch.arange(24)))


@pytest.mark.parametrize("right", [True, False])
def test_weighted_mmce_needs_right_and_wrong_rows(right: bool) -> None:
    logits, _ = batch(6, 3)
    targets = logits.argmax(dim=1) if right else logits.argmin(dim=1)
    ours = value_and_gradient(build_loss("mmce-w"), logits, targets)
    plain = value_and_gradient(F.cross_entropy, logits, targets)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-15)


def test_kde_xe_clips_probabilities_at_a_billionth() -> None:
    logits = torch.tensor([[40.0, 0, 1], [21.0, 0, 0], [3.0, 0, -40], [0, 22, 0]]).double()
    targets = torch.tensor([0, 1, 1, 0])
    probs = logits.softmax(dim=1).clamp(1e-9, 1 - 1e-9)
    for form in FORMS:
        loss: Any = build_loss("kde-xe", bandwidth=0.1, form=form)
        found = loss.penalty(logits, logits.softmax(dim=1), targets, everything(targets))
        expected = ece_kde(probs, targets, everything(targets), 0.1, form=form)
        assert found.item() == pytest.approx(expected.item(), rel=1e-12), form


def test_searched_bandwidth_is_the_best_of_all() -> None:
    logits, _ = batch(30, 4, scale=1.0)
    probs = clamp_inside(logits.softmax(dim=1))

    def likelihood(bandwidth: float) -> float:
        density = torch.distributions.Dirichlet(probs / bandwidth + 1)
        points = (probs / probs.sum(dim=1, keepdim=True)).unsqueeze(1)
        kernel = density.log_prob(points).fill_diagonal_(-math.inf)
        return kernel.logsumexp(dim=1).sum().item()

    evenly = [10.0 ** (-5 + 4 * step / 14) for step in range(15)]  # From 1e-5 to 1e-1.
    candidates = list(BANDWIDTHS)
    assert candidates == pytest.approx([*evenly, 0.2, 0.4, 0.6, 0.8, 1.0])
    best = max(BANDWIDTHS, key=likelihood)
    assert best_bandwidth(logits, over=False) == pytest.approx(best)


@pytest.mark.parametrize("limit", [1, 7 * 900, 1 << 25])
def test_the_best_bandwidth_does_not_depend_on_the_block_size(limit, monkeypatch):
    found = []
    for scale in (0.3, 1.0, 5.0):
        logits, _ = batch(30, 4, scale=scale)
        found.append(best_bandwidth(logits, over=True))
        with monkeypatch.context() as patch:
            patch.setattr("trainables.losses.kde_xe._BANDWIDTHS_AT_ONCE", limit)
            found.append(best_bandwidth(logits, over=True))
    assert found[::2] == found[1::2]
    assert len(set(found)) > 1


@pytest.mark.parametrize(("rows", "classes"), [(5, 2), (40, 9), (12, 70)])
def test_pairs_of_classes_are_summed_alike_on_both_kinds_of_device(rows: int, classes: int) -> None:
    for scale in (0.1, 3.0, 300.0):
        values, _ = batch(rows, classes, scale=scale)
        for ours, theirs in zip(pairs_at_once(values), pairs_in_blocks(values), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("mdca", {"smoothing": 1.0}, r"smoothing=1.0 is outside \[0, 1\)"),
        ("kde-xe", {"bandwidth": 0.0}, r"bandwidth=0.0 is outside \(0, inf\)"),
        ("kde-xe", {"bandwidth": "auto"}, r"bandwidth='auto' is not loo or a number in \(0, inf\)"),
        ("kde-xe", {"p": 0.5}, r"p=0.5 is outside \[1, inf\)"),
    ],
)
def test_wrong_arguments_are_named(name: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build_loss(name, **options)


def test_pairwise_constraints_need_two_classes() -> None:
    with pytest.raises(ValueError, match="expected at least 2 classes, got K=1"):
        build_loss("cpc")(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
