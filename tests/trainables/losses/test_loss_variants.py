import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.reference.losses import CASES, FORMULAS, Batch
from trainables.contracts import losses as contract
from trainables.losses import Loss, build_loss, loss_aside
from trainables.losses.au import histogram

ROWS, CLASSES = 12, 5


def batch(scale: float = 4.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    return logits, torch.randint(CLASSES, (ROWS,), generator=generator)


def tied_batch() -> tuple[Tensor, Tensor]:
    """Rows of which half have several largest logits, the target's among them or not."""
    logits, targets = batch(1.5, seed=3)
    logits = 4.0 * logits.round()
    ties = (logits == logits.amax(1, keepdim=True)).sum(1)
    assert 3 < int((ties > 1).sum()) < ROWS - 3
    return logits, targets


# Rows that are sure of class 0 beyond what the released codes tell from 1, and some that are not.
SURE = torch.tensor(
    [
        *([60.0, 0, 0, 0], [50.0, 0, 0, 0], [40.0, 0, 0, 0], [22.0, 0, 0, 0]),
        *([22.0, 1, -30, 0], [2.0, 1, 0, -1]),
    ],
    dtype=torch.float64,
)


BY_ROWS = [
    (name, parameters)
    for name, parameters in CASES
    if name in ("ce", "ls", "fl", "ifl", "flsd", "dfl", "brier", "ecp", "mbls", "acls")
    and parameters.get("parts") != "ranking"
]


@pytest.mark.parametrize("scale", [0.02, 0.5, 4.0, None])
@pytest.mark.parametrize(("name", "parameters"), BY_ROWS)
def test_rows_follow_their_formula(name, parameters, scale):
    logits, targets = batch(scale) if scale else tied_batch()
    z = logits.numpy()
    expected = FORMULAS[name](Batch(z, z, targets.tolist(), []), **parameters)
    found = build_loss(name, **parameters)(logits, targets)
    assert found.item() == pytest.approx(expected, rel=1e-7)


def test_probabilities_are_clamped_as_far_as_the_released_codes_do() -> None:
    for row in SURE:
        p, log_p = row.softmax(0), row.log_softmax(0)
        near, nearer = p.clamp(1e-9, 1 - 1e-9), p.clamp(1e-10, 1 - 1e-10)
        for target in range(2):
            own, given = -log_p[target], (row[None], torch.tensor([target]))
            torch.testing.assert_close(
                build_loss("ifl", gamma=2.5)(*given),
                (1 + near[target]) ** 2.5 * own,
                rtol=1e-11,
                atol=0,
            )
            torch.testing.assert_close(
                build_loss("ecp", weight=0.3)(*given),
                own + 0.3 * (nearer * nearer.log()).mean(),
                rtol=1e-6,
                atol=0,
            )


@pytest.mark.parametrize("score", ["msp", "margin", "neg_entropy"])
def test_the_confidence_of_crl_is_that_of_probabilities_however_small(score: str) -> None:
    loss = build_loss("crl", weight=3.0, condition="margin", margin=0.0, score=score)
    for row in SURE:
        p, log_p = row.softmax(0), row.log_softmax(0)
        first, second = p.topk(2).values
        confidence = {
            "msp": first,
            "margin": first - second,
            "neg_entropy": (p * log_p).sum() / math.log(4),
        }[score]
        found = loss(row[None], torch.tensor([0]))
        torch.testing.assert_close(found, -log_p[0] + 3 * confidence, rtol=1e-9, atol=0)


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("score", ["msp", "margin", "neg_entropy"])
def test_rows_with_the_highest_distinguishable_confidence_have_equal_ranks(
    score: str, variant: str
) -> None:
    p = SURE.softmax(1).clamp(1e-9, 1 - 1e-9)
    if variant == "released":
        p = p.softmax(1)
    first, second = p.topk(2, 1).values.unbind(1)
    scores = {"msp": first, "margin": first - second, "neg_entropy": (p * p.log()).sum(1)}[score]
    assert len(scores[:4].unique()) == 1
    targets = torch.tensor([0, 1, 2, 3, 1, 2])
    weights = torch.tensor([harmonic(6) - harmonic(5 - int(r)) for r in scores.argsort().argsort()])
    losses = torch.nn.functional.cross_entropy(SURE, targets, reduction="none")
    value = build_loss("aurc", score=score, variant=variant)(SURE, targets)
    torch.testing.assert_close(value, (losses * weights).mean(), rtol=1e-6, atol=0)


def test_an_ignored_row_counts_for_nothing_whatever_its_logits() -> None:
    logits, targets = batch()
    whole = build_loss("ce")(logits[1:], targets[1:])
    logits[0], targets[0] = math.inf, -100
    torch.testing.assert_close(build_loss("ce")(logits, targets), whole)


def test_thresholds_of_the_focal_schedule_are_strict():
    # Two, respectively five equal logits give exactly 0.5 and 0.2.
    half, fifth = torch.zeros(1, 2).double(), torch.zeros(1, 5).double()
    target = torch.tensor([0])
    loss = build_loss("flsd", gamma=1.0)
    assert loss(half, target).item() == pytest.approx(0.5 * math.log(2))
    assert loss(fifth, target).item() == pytest.approx(0.8**3 * math.log(5))


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("name", ["fl", "flsd", "dfl", "ifl"])
def test_a_certain_row_has_no_gradient(name: str, gamma: float) -> None:
    logits = torch.tensor([[80.0, 0.0, 0.0]], requires_grad=True)
    build_loss(name, gamma=gamma)(logits, torch.tensor([0])).backward()
    torch.testing.assert_close(logits.grad, torch.zeros(1, 3), rtol=0, atol=1e-6)


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


@pytest.mark.parametrize("batch_size", [None, ROWS, 20])
def test_aurc_weighs_by_harmonic_numbers(batch_size: int | None) -> None:
    logits, targets = batch()
    n = batch_size or ROWS
    order = logits.softmax(1).max(1).values.argsort()
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")[order]
    weights = [harmonic(n) - harmonic(n - rank) for rank in range(1, ROWS + 1)]
    loss = build_loss("aurc", variant="paper", batch_size=batch_size)
    expected = (losses * torch.tensor(weights, dtype=torch.float64)).mean()
    torch.testing.assert_close(loss(logits, targets), expected)


def test_tied_confidences_are_ranked_as_the_released_code_ranks_them() -> None:
    logits = torch.zeros(100, 3, dtype=torch.float64)
    logits[::2] = torch.tensor([1.0, 0.0, 0.0])
    targets = torch.arange(100) % 3
    scores = logits.softmax(1).max(1).values
    ranks = scores.argsort().argsort() + 1
    weights = torch.tensor([harmonic(100) - harmonic(100 - int(rank)) for rank in ranks])
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    value = build_loss("aurc", variant="paper")(logits, targets)
    torch.testing.assert_close(value, (losses * weights).mean(), rtol=1e-6, atol=0)


def test_the_tied_rival_that_topk_returns_gets_the_gradient() -> None:
    logits = torch.zeros(1, 50, dtype=torch.float64)
    logits[0, 7] = 1.0
    given = logits.clone().requires_grad_()
    build_loss("dfl", gamma=2.0)(given, torch.tensor([7])).backward()
    probs = logits.softmax(1)
    rivals = torch.where(probs < probs[0, 7], probs, 0.0)
    # The wrong classes have one gradient, but for the rival.
    assert given.grad is not None
    odd = (given.grad[0] - given.grad[0].median()).abs()
    odd[7] = 0.0
    assert int(odd.argmax()) == int(rivals.topk(1).indices)


def test_aurc_refuses_a_batch_above_the_configured_size() -> None:
    with pytest.raises(ValueError, match=r"^expected at most batch_size=8 rows, got 12$"):
        build_loss("aurc", batch_size=8)(*batch())


def test_au_counts_over_an_epoch_or_over_a_batch() -> None:
    kept, fresh = build_loss("au", variant="paper"), build_loss("au", variant="paper")
    each = build_loss("au", variant="paper", histogram="batch")
    first, second = batch(seed=1), batch(seed=2)
    assert kept(*first) == each(*first)
    assert kept(*second) != each(*second)
    kept(*batch(seed=3))
    assert kept.counts.sum() == 3 * len(first[1])
    kept.start_epoch(1)
    assert kept(*second) == fresh(*second) == each(*second)


def test_au_counts_a_score_at_an_edge_in_the_bin_above_and_none_that_is_ignored() -> None:
    scores = torch.tensor([0.0, 0.25, 0.3, 0.5, 1.0, 0.6], dtype=torch.float64)
    found = histogram(scores, torch.tensor([True] * 5 + [False]), 4)
    assert found.tolist() == [1, 2, 1, 1]


def test_au_gives_the_gradient_of_the_quantile_to_one_of_the_tied_rows() -> None:
    scale = torch.tensor([0.5, 0.7, 1.0, 1.0, 3.0], dtype=torch.float64)
    logits, targets = scale[:, None] * torch.eye(3)[[0] * 5], torch.tensor([0, 1, 1, 1, 2])
    given = logits.clone().requires_grad_()
    build_loss("au", coverage=0.5, variant="paper", smoothness=0.5)(given, targets).backward()
    assert given.grad is not None
    # Without a gradient of the weight it is that of cross-entropy, times the quantile's weight.
    steepness = given.grad / (logits.softmax(1) - torch.eye(3)[targets])
    alike = [i for i in range(5) if torch.allclose(steepness[i], steepness[4, 0], rtol=1e-9)]
    assert alike in ([2, 4], [3, 4])


def test_au_counts_more_pixels_than_single_precision_can() -> None:
    loss = build_loss("au", variant="paper")
    many = torch.full((64,), 2.0**25, dtype=torch.float64)
    loss.load_state_dict({"counts": many})
    loss(*(part[:1] for part in batch()))
    assert float((loss.counts - many).sum()) == 1


def test_au_does_not_count_rows_of_an_evaluation() -> None:
    loss = build_loss("au").eval()
    assert loss(*batch()) == loss(*batch())
    assert loss.counts.sum() == 0


def test_au_with_the_released_entropy_is_a_multiple_of_cross_entropy() -> None:
    loss = build_loss("au", score="neg_entropy", histogram="batch", variant="released")
    plain = build_loss("ce")
    ratios = [loss(*batch(seed=seed)) / plain(*batch(seed=seed)) for seed in range(3)]
    torch.testing.assert_close(torch.stack(ratios), ratios[0].expand(3))


def ready_crl(**parameters: Any) -> Loss:
    loss = build_loss("crl", **parameters)
    loss.prepare(4, CLASSES)
    return loss


def test_crl_needs_to_know_the_training_set() -> None:
    logits, targets = batch()
    whole = r"^indices=None: the loss needs each sample's position in the training set$"
    with pytest.raises(ValueError, match=whole):
        ready_crl()(logits, targets)
    whole = r"^prepare\(num_samples, num_classes\) must come before the first batch$"
    with pytest.raises(ValueError, match=whole):
        build_loss("crl")(logits, targets, torch.arange(ROWS))
    for wrong, shape in (
        (torch.arange(5), r"\(5,\)"),
        (torch.arange(0), r"\(0,\)"),
        (torch.arange(12)[:, None], r"\(12, 1\)"),
    ):
        with pytest.raises(ValueError, match=rf"^indices {shape} do not fit 12 rows$"):
            ready_crl()(logits, targets, wrong)
    with pytest.raises(ValueError, match=r"^epoch=-1 is outside \[0, inf\)$"):
        ready_crl().start_epoch(-1)


def test_crl_measures_histories_from_the_worst_to_the_epochs_that_passed() -> None:
    loss = ready_crl()
    logits = torch.zeros(4, CLASSES, dtype=torch.float64)
    logits[:, 0] = torch.tensor([1.0, 3.0, 2.0, 0.5])
    right = [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1]]  # By epochs: 3, 2, 1 and 2 times.
    for epoch, of_epoch in enumerate(right):
        loss.start_epoch(epoch)
        loss(logits, 1 - torch.tensor(of_epoch), torch.arange(4))
    loss.start_epoch(3)
    c, share = logits.softmax(1)[:, 0], [1.0, 0.5, 0.0, 0.5]
    total = 0.0
    for i, j in ((0, 1), (1, 2), (2, 3), (3, 0)):
        sign = 1 if share[i] > share[j] else -1
        total += max(0.0, abs(share[i] - share[j]) - sign * float(c[i] - c[j]))
    targets = torch.zeros(4, dtype=torch.int64)
    value = loss(logits, targets, torch.arange(4)) - build_loss("ce")(logits, targets)
    assert value.item() == pytest.approx(total / 4)


def test_crl_has_margins_of_single_precision_as_the_released_code() -> None:
    loss = ready_crl()
    logits = torch.zeros(4, CLASSES, dtype=torch.float64)
    right = [3, 5, 0, 7]  # Times of seven.
    for epoch in range(7):
        loss.start_epoch(epoch)
        loss(logits, torch.tensor([int(epoch >= times) for times in right]), torch.arange(4))
    loss.start_epoch(7)
    # With equal confidences the penalty is the margin.
    expected = sum(float(np.float32(gap)) for gap in (2 / 7, 5 / 7, 7 / 7, 4 / 7)) / 4
    value = loss(logits, torch.zeros(4, dtype=torch.int64), torch.arange(4)) - math.log(CLASSES)
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_crl_survives_a_sample_counted_twice_an_epoch() -> None:
    loss = ready_crl()
    logits, targets = 6 * torch.eye(CLASSES)[:4], torch.tensor([0, 1, 2, 0])
    for epoch in range(3):
        loss.start_epoch(epoch)
        for _ in range(2):
            value = loss(logits, targets, torch.arange(4)) - build_loss("ce")(logits, targets)
    # Three samples were always right and count as 1, the last never; confidences are equal.
    assert value.item() == pytest.approx((1 + 1) / 4)


def test_acls_with_the_ranking_condition_spares_images_that_are_ranked_well() -> None:
    loss = build_loss("acls", parts="ranking", weight_pos=0.3, weight_neg=0.0)
    loss.prepare(3, CLASSES)
    logits = torch.zeros(3, CLASSES, dtype=torch.float64)
    logits[:, 0] = torch.tensor([3.0, 2.0, 4.0])
    targets = torch.tensor([1, 0, 1])
    images = logits.view(3, CLASSES, 1, 1).expand(-1, -1, 1, 2)
    given = images, targets.view(3, 1, 1).expand(-1, 1, 2)
    loss(*given, torch.arange(3))
    loss.start_epoch(1)
    # Sample 0 was wrong and sample 1 right, but 0 is surer. Sample 2 was wrong as often as 0.
    expected = build_loss("ce")(logits, targets) + 0.3 * 3.0**2 / 3
    torch.testing.assert_close(loss(*given, torch.arange(3)), expected)


def test_acls_does_not_penalise_confidence_that_follows_accuracy() -> None:
    loss = build_loss("acls", parts="ranking", weight_pos=0.3, weight_neg=0.0)
    loss.prepare(3, CLASSES)
    logits = torch.zeros(3, CLASSES, dtype=torch.float64)
    logits[:, 0] = torch.tensor([0.5, 4.0, 3.0])
    for epoch in range(4):
        loss.start_epoch(epoch)
        loss(logits, torch.tensor([int(epoch == 0), 0, 1]), torch.arange(3))
    loss.start_epoch(4)
    targets = torch.zeros(3, dtype=torch.int64)
    # Right were 0 three times of four, 1 always and 2 never: 0 is less sure than 1 by more than
    # a quarter, 2 is surer than 0.
    expected = build_loss("ce")(logits, targets) + 0.3 * 3.0**2 / 3
    torch.testing.assert_close(loss(logits, targets, torch.arange(3)), expected)


@pytest.mark.parametrize("name", ["ls", "mbls", "acls"])
@pytest.mark.parametrize("mask", [-1e4, -1e9, -3.4e38, -math.inf])
def test_masked_classes_take_no_part_in_smoothing_and_margins(name: str, mask: float) -> None:
    for setting in contract.settings(name):
        logits, targets, indices = contract.batch(scale=6.0, classes=6)
        wider = torch.cat([logits, torch.full_like(logits[:, :2], mask)], 1)
        loss = contract.seasoned(name, **setting)
        value, gradient = contract.value_and_gradient(loss, logits, targets, indices)
        same, own = contract.value_and_gradient(loss, wider, targets, indices)
        torch.testing.assert_close(same, value)
        torch.testing.assert_close(own[:, :6], gradient)
        assert (own[:, 6:] == 0).all()


SPREADS = torch.tensor([[9.0, 0, 0], [7.0, 0, 0], [5.0, 0, 0], [0.0, 0, 0], [99.0, 0, 0]])


@pytest.mark.parametrize("name", ["mbls", "acls"])
def test_the_share_of_rows_without_penalty_is_a_figure_of_the_epoch(name):
    """Of the four rows that count, the logits of two spread by no more than the margin of 6."""
    loss, targets = build_loss(name), torch.tensor([0, 1, 2, 0, -100])
    before = loss.state_dict()
    loss.start_epoch(0)
    assert loss.end_epoch() == {}
    loss(SPREADS, targets)
    assert loss.end_epoch() == {"spared": 0.5}
    loss_aside(loss, SPREADS[2:4], targets[2:4])  # Not the training rows of a step.
    loss(SPREADS[:2], targets[:2])
    assert loss.end_epoch() == {"spared": 2 / 6}
    loss.start_epoch(1)
    loss(SPREADS[2:4], targets[2:4])
    assert loss.end_epoch() == {"spared": 1.0}
    assert loss.state_dict().keys() == before.keys()  # Checkpoints of older releases still fit.
