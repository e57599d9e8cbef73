"""Fits in common passes against fits one by one, for everything that is registered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from search_spaces import load_space
from trainables.calibrators import (
    CALIBRATORS,
    OBJECTIVES,
    Calibrator,
    build_calibrator,
    calibrator_from_recipe,
    cross_fit,
    cross_fit_together,
    parse_calibrator,
)
from trainables.calibrators._base import Fit
from trainables.calibrators._together import RowSets, fit_together
from trainables.errors import InputError

Rows = tuple[Tensor, Tensor]
Build = Callable[[], Calibrator]

RECIPES = [
    *(n for n in CALIBRATORS.names() if not CALIBRATORS.get(n).takes_objective),
    *(
        f"{name}-{objective}"
        for name in CALIBRATORS.names()
        if CALIBRATORS.get(name).takes_objective
        for objective in OBJECTIVES.names()
    ),
]
# Of a fitted parameter and of a log-probability. A common pass adds up in another order, and
# Newton's method ends at the minimum all the same. What shares no pass has the same bits: a solver
# that stops near its minimum makes 3e-3 of one unit in the last place of its start (``pts``).
ROUNDING, SAME = 1e-9, 0.0


def searched_points(recipe: str) -> list[dict[str, Any]]:
    """Return the lowest and the highest point of a recipe's search space."""
    name, objective = parse_calibrator(recipe)
    spaces = [load_space("calibrators", name)]
    spaces += [load_space("objectives", objective)] if objective else []
    searched = {key: entry for space in spaces for key, entry in space.searched().items()}
    points: list[dict[str, Any]] = [{}, {}]
    for key, entry in searched.items():
        ends = (entry.choices[0], entry.choices[-1]) if entry.choices else (entry.low, entry.high)
        for point, value in zip(points, ends, strict=True):
            point[key] = value
    return points


def joins(recipe: str) -> bool:
    return calibrator_from_recipe(recipe, {}).joins_pass


def check(builds: list[Build], rows: Rows) -> None:
    found = cross_fit_together(builds, *rows, folds=2)
    for build, (fitted, held_out) in zip(builds, found, strict=True):
        alone = build().fit(*rows)
        tolerance = ROUNDING if alone.joins_pass else SAME
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(fitted.state_dict()[name], tensor, atol=tolerance, rtol=0)
        expected = cross_fit(build, *rows, folds=2)
        torch.testing.assert_close(held_out, expected, atol=tolerance, rtol=0)
        assert fitted.report is not None
        assert alone.report is not None
        assert fitted.report.converged == alone.report.converged


@pytest.mark.parametrize("recipe", RECIPES)
def test_together_is_as_one_by_one(recipe: str, synthetic: Callable[..., Rows]) -> None:
    own = {"meta-acc": {"accuracy": 0.05}}.get(recipe, {})
    builds = [
        partial(calibrator_from_recipe, recipe, {**own, **point})
        for point in searched_points(recipe)
    ]
    check(builds, synthetic(rows=120, classes=3))


@pytest.mark.parametrize("recipe", [name for name in RECIPES if joins(name)])
def test_rows_outside_of_its_set_do_not_count(recipe: str, rows: Rows) -> None:
    """No calibrator may know rows that it is going to be scored on."""
    logits, labels = rows
    masks = torch.arange(len(labels)) % 3 != torch.arange(2).unsqueeze(1)
    known = masks[0].unsqueeze(1)
    others = torch.where(known, logits, -5 * logits), torch.where(masks[0], labels, 0)
    states = []
    for table in (rows, others):
        fits = [Fit(calibrator_from_recipe(recipe, {}), index) for index in (0, 1)]
        fit_together(fits, RowSets(*table, masks))
        states.append([fit.calibrator.state_dict() for fit in fits])
    for name, tensor in states[0][0].items():
        assert torch.equal(states[1][0][name], tensor)
    changed = [not torch.equal(states[1][1][name], states[0][1][name]) for name in states[0][1]]
    assert any(changed)


def test_different_calibrators_go_together(rows: Rows) -> None:
    names = ("cts-ls", "ts", "vs", "spline", "ts-fl", "ts-cls", "cts", "ets", "isotonic")
    check([partial(calibrator_from_recipe, name, {}) for name in names], rows)


def test_variants_that_share_no_pass_are_fitted_one_by_one(rows: Rows) -> None:
    builds = [
        partial(build_calibrator, "ts"),
        partial(build_calibrator, "ts", selection="ece"),
        partial(build_calibrator, "cts", assignment="logit"),
        partial(build_calibrator, "ets", variant="released"),
    ]
    check(builds, (rows[0][:100], rows[1][:100]))


def test_vector_scaling_of_many_classes_ends_where_newtons_method_does(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = [partial(build_calibrator, "vs", weight_decay=decay) for decay in (1e-4, 1e-2)]
    newton = [build().fit(*rows).state_dict() for build in builds]
    monkeypatch.setattr("trainables.calibrators.vs.NEWTON_CLASSES", 2)
    check(builds, rows)
    for build, expected in zip(builds, newton, strict=True):
        for name, tensor in build().fit(*rows).state_dict().items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-4, rtol=0)


@pytest.mark.parametrize("recipe", ["ts-fl", "cts-cls", "vs", "ets"])
def test_rows_that_hardly_determine_anything(recipe: str, rows: Rows) -> None:
    """Rows that are all right, rows without information, and classes without rows."""
    builds = [partial(calibrator_from_recipe, recipe, {})] * 2
    logits, labels = rows[0][:60], rows[1][:60]
    for table in (
        (logits, logits.argmax(1)),
        (torch.zeros_like(logits), labels),
        (logits, torch.zeros_like(labels)),
    ):
        check(builds, table)


def test_passes_are_cut_without_a_trace(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows and a single fit at a time give what all of them give."""
    names = ("ts-ls", "ts-mse", "cts", "vs")
    builds = [partial(calibrator_from_recipe, name, {}) for name in names] * 2
    whole = [fitted.state_dict() for fitted, _ in cross_fit_together(builds, *rows)]
    monkeypatch.setattr("trainables.calibrators._passes.BLOCK_VALUES", {"cpu": 300})
    monkeypatch.setattr("trainables.calibrators._vector_fit.AT_ONCE_VALUES", 1)
    cut = [fitted.state_dict() for fitted, _ in cross_fit_together(builds, *rows)]
    for one, other in zip(whole, cut, strict=True):
        for name, tensor in one.items():
            torch.testing.assert_close(other[name], tensor, atol=ROUNDING, rtol=0)


def test_it_refuses_what_cross_fitting_refuses(rows: Rows) -> None:
    builds = [partial(build_calibrator, "ts")]
    with pytest.raises(InputError, match="folds=5 needs at least as many rows, got 2"):
        cross_fit_together(builds, torch.zeros(2, 2), torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"accuracy=0\.99 is out of reach"):
        cross_fit_together([*builds, partial(build_calibrator, "meta-acc", accuracy=0.99)], *rows)
