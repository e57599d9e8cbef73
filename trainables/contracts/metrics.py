"""Checks of the metrics of plugins."""

from collections.abc import Callable

import torch
from torch import Tensor

from trainables.contracts.maps import draw_rows
from trainables.contracts.require import require
from trainables.metrics import METRICS, registered_report


def _value(name: str, logits: Tensor, labels: Tensor) -> float:
    return registered_report(logits, labels)[name]


def is_finite_within_its_bounds(name: str) -> None:
    """The metric is in its bounds, also for one row, and for certain, wrong or uniform rows."""
    logits, labels = draw_rows()
    low, high = METRICS[name].bounds
    certain = 1e4 * torch.eye(logits.shape[1], dtype=torch.float64)
    for what, rows, truth in (
        ("drawn rows", logits, labels),
        ("one row", logits[:1], labels[:1]),
        ("rows without a class", logits[labels != 3], labels[labels != 3]),
        ("certain, right rows", certain[labels], labels),
        ("certain, wrong rows", certain[labels - 1], labels),
        ("uniform rows", torch.zeros_like(logits), labels),
    ):
        value = _value(name, rows, truth)
        require(low <= value <= high, f"{value:g} for {what} is outside [{low:g}, {high:g}]")


def does_not_depend_on_order(name: str) -> None:
    """The order of rows has no effect, and rows are not changed."""
    logits, labels = draw_rows()
    kept = logits.clone(), labels.clone()
    first, second = (_value(name, rows, truth) for rows, truth in ((logits, labels),) * 2)
    require(first == second, f"a second call gives {second} instead of {first}")
    turned = _value(name, logits.flip(0), labels.flip(0))
    require(abs(turned - first) < 1e-9, f"reversed rows give {turned} instead of {first}")
    same = torch.equal(logits, kept[0]) and torch.equal(labels, kept[1])
    require(same, "the rows are changed")


METRIC_CHECKS: tuple[Callable[[str], None], ...] = (
    is_finite_within_its_bounds,
    does_not_depend_on_order,
)
