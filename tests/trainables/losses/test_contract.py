"""What every loss keeps to, whatever its formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from no_waiting import NoWaiting
from standin_card import CARD, standin_card
from torch import Tensor

from search_spaces import Parameter, load_space
from trainables.common.errors import InputError
from trainables.losses import LOSSES, Loss, build_loss, loss_aside

NAMES = LOSSES.names()
ROWS, CLASSES = 24, 10
# Not hyper-parameters: they follow from the task.
OF_THE_TASK = {"reduction", "ignore_index", "batch_size"}
# Their value depends on which row follows which.
ORDERED = {"crl"}
# The default's gradient leaves something out on purpose; checked in another form of the loss.
GRADCHECK = {
    "acls": {"variant": "paper", "margin": 1.0},
    "au": {"histogram": "batch"},
    "cape": {"every": 3},
}
# What acts only where two others have certain values.
TOGETHER: dict[str, list[dict[str, Any]]] = {"patra": [{"every": 3, "pruned": 0.3}]}
# They ask what became of a sample before.
WITH_HISTORY = {"cape", "crl", "patra"}

Make = Callable[..., Loss]


def batch(
    scale: float = 3.0, rows: int = ROWS, classes: int = CLASSES, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (rows,), generator=generator)
    return logits, targets, torch.arange(rows)


def value_and_gradient(
    loss: Loss, logits: Tensor, targets: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor]:
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, targets, indices)
    value.backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


def alternatives(parameter: Parameter) -> list[Any]:
    """Return values that a sweep may choose, other than the default."""
    if parameter.type == "categorical":
        return [choice for choice in parameter.choices if choice != parameter.default]
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.scale == "log":
        inside = parameter.low * (parameter.high / parameter.low) ** 0.37
    else:
        inside = parameter.low + 0.37 * (parameter.high - parameter.low)
    return [parameter.check(int(inside) if parameter.type == "int" else inside)]


def settings(name: str) -> list[dict[str, Any]]:
    """Return the default and every change of a single parameter."""
    space = load_space("methods", name)
    changes = [{p: v} for p, q in space.parameters.items() for v in alternatives(q)]
    return [{}, *changes]


def parameters() -> Iterator[tuple[str, str]]:
    for name in NAMES:
        for parameter in load_space("methods", name).parameters:
            yield name, parameter


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: float(x.max()),
        lambda x: x[x > 0],
        lambda x: x[x.argmax()],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: torch.bincount(x.long().clamp(min=0)),
        lambda x: x.index_put((x > 0,), torch.zeros(())),
        lambda x: x.repeat_interleave(x.long().clamp(min=1)),
        lambda x: torch.unique(x),
    ],
)
def test_the_guard_against_waiting_notices(wait: Callable[[Tensor], Any]) -> None:
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        wait(torch.arange(-3.0, 3.0))


@pytest.mark.parametrize("name", NAMES)
def test_no_step_waits_for_the_device(name: str) -> None:
    for setting in settings(name):
        loss = build_loss(name, **setting)
        loss.prepare(ROWS, CLASSES)
        loss.start_epoch(0)
        logits, targets, indices = batch()
        targets[::5] = -100
        for _ in range(2):
            logits = logits.detach().float().requires_grad_()
            with NoWaiting():
                loss(logits, targets, indices).backward()


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_pixels_give_a_scalar(name: str, make_seasoned: Make) -> None:
    logits, targets, indices = batch(rows=24)
    flat = make_seasoned(name)(logits, targets, indices)
    image_logits = logits.view(2, 3, 4, CLASSES).movedim(-1, 1)
    image = make_seasoned(name)(image_logits, targets.view(2, 3, 4), torch.arange(2))
    assert flat.shape == image.shape == ()
    assert torch.isfinite(image)
    if name not in ORDERED:
        torch.testing.assert_close(image, flat)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_that_do_not_belong_together_are_refused(name: str) -> None:
    loss = build_loss(name)
    loss.prepare(ROWS, CLASSES)
    expected = r"expected \(N, K\) with \(N,\), or \(N, K, H, W\) with \(N, H, W\)$"
    for logits, targets, shapes in (
        ((24, 10), (23,), r"^logits \(24, 10\) and targets \(23,\)"),
        ((2, 10, 3, 4), (2, 4, 3), r"^logits \(2, 10, 3, 4\) and targets \(2, 4, 3\)"),
        ((10,), (), r"^logits \(10,\) and targets \(\)"),
    ):
        with pytest.raises(ValueError, match=f"{shapes} do not belong together: {expected}"):
            loss(torch.randn(logits), torch.zeros(targets, dtype=torch.int64), torch.arange(24))


@pytest.mark.parametrize("ignored", [-100, 255, 3])
@pytest.mark.parametrize("name", NAMES)
def test_ignored_rows_change_nothing(name: str, ignored: int, make_seasoned: Make) -> None:
    for setting in settings(name):
        logits, targets, indices = batch(scale=6.0)
        targets = torch.where(targets == ignored, 0, targets)
        drop = torch.arange(ROWS) % 3 == 1
        targets[drop] = ignored
        loss = make_seasoned(name, ignore_index=ignored, **setting)
        value, gradient = value_and_gradient(loss, logits, targets, indices)
        rest, rest_gradient = value_and_gradient(
            loss, logits[~drop], targets[~drop], indices[~drop]
        )
        torch.testing.assert_close(value, rest, rtol=1e-10, atol=1e-12, msg=str(setting))
        torch.testing.assert_close(
            gradient[~drop], rest_gradient, rtol=1e-8, atol=1e-12, msg=str(setting)
        )
        assert (gradient[drop] == 0).all(), setting


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_rows_that_count_has_no_gradient(name: str, make_seasoned: Make) -> None:
    for setting in settings(name):
        logits, targets, indices = batch()
        loss = make_seasoned(name, **setting)
        value, gradient = value_and_gradient(loss, logits, torch.full_like(targets, -100), indices)
        assert value == 0, setting
        assert (gradient == 0).all(), setting


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_stay_finite(name: str, dtype: torch.dtype, make_seasoned: Make) -> None:
    signs = batch(seed=1)[0].sign()
    one_sided = torch.full_like(signs, -1.0)
    one_sided[:, 2] = 1.0
    wide, targets, indices = batch()
    for setting in settings(name):
        loss = make_seasoned(name, **setting)
        for logits in (1e4 * signs, 1e4 * one_sided, 1e3 * wide, torch.zeros_like(wide)):
            value, gradient = value_and_gradient(loss, logits.to(dtype), targets, indices)
            assert torch.isfinite(value), setting
            assert torch.isfinite(gradient).all(), setting


@pytest.mark.parametrize("name", NAMES)
def test_the_value_has_at_least_single_precision(name: str, make_seasoned: Make) -> None:
    logits, targets, indices = batch()
    loss = make_seasoned(name)
    assert loss(logits, targets, indices).dtype == torch.float64
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert loss(logits.to(dtype), targets, indices).dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_lower_the_precision(name: str, make_seasoned: Make) -> None:
    logits, targets, indices = batch()
    loss = make_seasoned(name)
    plain, gradient = value_and_gradient(loss, logits.float(), targets, indices)
    cast_logits = logits.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        cast = loss(cast_logits, targets, indices)
    cast.backward()
    torch.testing.assert_close(cast, plain)
    torch.testing.assert_close(cast_logits.grad, gradient)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_the_value(name: str, make_seasoned: Make) -> None:
    logits, targets, indices = batch(rows=8, classes=5, scale=1.5, seed=5)
    loss = make_seasoned(name, **GRADCHECK.get(name, {}))
    assert torch.autograd.gradcheck(lambda x: loss(x, targets, indices), logits.requires_grad_())


@pytest.mark.parametrize("name", sorted(set(NAMES) - ORDERED))
def test_the_order_of_rows_does_not_matter(name: str, make_seasoned: Make) -> None:
    logits, targets, indices = batch()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    loss = make_seasoned(name)
    value, gradient = value_and_gradient(loss, logits, targets, indices)
    moved, moved_gradient = value_and_gradient(loss, logits[order], targets[order], indices[order])
    torch.testing.assert_close(moved, value)
    torch.testing.assert_close(moved_gradient, gradient[order])


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_may_be_a_single_row(name: str, make_seasoned: Make) -> None:
    value, gradient = value_and_gradient(make_seasoned(name), *batch(rows=1))
    assert bool(value.isfinite())
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_a_call_leaves_its_inputs_alone(name: str, make_seasoned: Make) -> None:
    given = batch()
    kept = tuple(part.clone() for part in given)
    make_seasoned(name).train()(*given)
    assert all(torch.equal(one, other) for one, other in zip(given, kept, strict=True))


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITH_HISTORY))
def test_a_loss_works_without_any_preparation(name: str) -> None:
    logits, targets, _ = batch()
    assert torch.isfinite(build_loss(name)(logits, targets))


@pytest.mark.parametrize("name", NAMES)
def test_state_survives_saving(name: str) -> None:
    first, second = build_loss(name), build_loss(name)
    for loss in (first, second):
        loss.prepare(ROWS, CLASSES)
    for epoch in range(3):
        first.start_epoch(epoch)
        for seed in range(2):
            first(*batch(seed=10 * epoch + seed))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(*batch(seed=99)), second(*batch(seed=99)))


def naive_means(values: Tensor, valid: Tensor) -> list[float]:
    """Average the values of each image's pixels that count; 0 where none does."""
    pairs = zip(values.flatten(1), valid.flatten(1), strict=True)
    return [float(v[counts].mean()) if counts.any() else 0.0 for v, counts in pairs]


@pytest.mark.parametrize("name", ["cape", "crl", "patra"])
def test_a_history_is_of_each_images_pixels_that_count(name: str) -> None:
    loss = build_loss(name).double()
    loss.prepare(6, CLASSES)
    sure, right, total, average = ([0.0] * 6 for _ in range(4))
    for epoch in range(3):
        loss.start_epoch(epoch)
        for part, places in enumerate(([4, 0, 5], [1, 3])):  # The image at 2 never comes.
            count = len(places)
            logits, targets, _ = batch(scale=1.0, rows=4 * count, classes=3, seed=2 * epoch + part)
            images = logits.view(count, 2, 2, 3).movedim(-1, 1)
            labels = targets.view(count, 2, 2)
            labels[0, 0, 1] = labels[1] = -100
            loss(images, labels, torch.tensor(places))
            largest, predicted = images.softmax(1).max(1)
            valid = labels != -100
            means = naive_means(largest, valid)
            hits = naive_means((predicted == labels).double(), valid)
            for place, mean, hit in zip(places, means, hits, strict=True):
                sure[place], right[place] = mean, hit
                total[place] += hit
                average[place] = 0.7 * average[place] + 0.3 * mean
    kept = {
        "cape": {"confidences": sure, "right": right},
        "crl": {"history.counts": total, "history.epoch": 2},
        "patra": {"average": average, "kept": [True] * 6},
    }[name]
    state = loss.state_dict()
    assert set(state) == set(kept)
    for key, expected in kept.items():
        assert state[key].tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_and_what_it_keeps_follow_the_batch_to_its_device(
    name: str, make_seasoned: Make
) -> None:
    for setting in settings(name):
        expected = make_seasoned(name, **setting).train()(*batch())
        loss = make_seasoned(name, **setting).train()
        with standin_card():
            logits, targets, indices = (part.to(CARD) for part in batch())
            found = loss(logits, targets, indices)
            assert found.device == CARD
            torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("rows", [ROWS - 8, ROWS])
@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_is_prepared_again_knows_nothing_of_before(name: str, rows: int) -> None:
    first, second = build_loss(name), build_loss(name)
    first.prepare(rows, CLASSES)
    for epoch in range(21):
        first.start_epoch(epoch)
        first(*batch(rows=rows, seed=50 + epoch))
    for loss in (first, second):
        loss.prepare(ROWS, CLASSES)
        for epoch in range(6):
            loss.start_epoch(epoch)
            loss(*batch(seed=epoch))
    assert torch.equal(first(*batch(seed=99)), second(*batch(seed=99)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["au", "cape", "crl", "patra"])
def test_a_loss_taken_aside_counts_no_sample(
    name: str, training: bool, make_seasoned: Make
) -> None:
    loss = make_seasoned(name).train(training)
    before = {key: kept.clone() for key, kept in loss.state_dict().items()}
    value = loss_aside(loss, *batch())
    assert loss.training is training
    assert all(torch.equal(before[key], kept) for key, kept in loss.state_dict().items())
    assert torch.equal(value, loss.eval()(*batch()))
    loss.train(training)
    with pytest.raises(ValueError, match="do not belong"):
        loss_aside(loss, torch.zeros(2, 3), torch.zeros(4))
    assert loss.training is training


@pytest.mark.parametrize("name", [n for n in NAMES if "reduction" in LOSSES.parameter_names(n)])
def test_the_sum_is_the_mean_times_the_rows(name: str, make_seasoned: Make) -> None:
    logits, targets, indices = batch()
    targets[::4] = -100
    for setting in settings(name):
        mean = make_seasoned(name, **setting)(logits, targets, indices)
        total = make_seasoned(name, reduction="sum", **setting)(logits, targets, indices)
        counted = (targets != -100).sum()
        torch.testing.assert_close(total, mean * counted, msg=str(setting))


@pytest.mark.parametrize(("name", "parameter"), list(parameters()))
def test_a_bad_value_is_named(name: str, parameter: str) -> None:
    kind = load_space("methods", name).parameters[parameter].type
    bad = ["no-such-value"] if kind == "categorical" else [-1.0, math.nan, math.inf, "many"]
    for value in bad:
        with pytest.raises(ValueError, match=f"{parameter}={value!r}"):
            build_loss(name, **{parameter: value})


@pytest.mark.parametrize(
    ("name", "key"),
    [("au", "bins"), ("cape", "bins"), ("cape", "every"), ("patra", "every"), ("au", "batch_size")],
)
def test_one_is_the_least_number_of_anything(name: str, key: str) -> None:
    assert getattr(build_loss(name, **{key: 1}), key) == 1
    with pytest.raises(ValueError, match=rf"^{key}=0 is outside \[1, inf\)$"):
        build_loss(name, **{key: 0})


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_parameter_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="no parameter 'no_such'"):
        build_loss(name, no_such=1.0)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown loss 'mbl'.*mbls"):
        build_loss("mbl")


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="reduction='none' is not one of mean, sum"):
        build_loss("ce", reduction="none")
