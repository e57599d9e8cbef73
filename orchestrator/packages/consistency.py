"""Contradictions inside a package, found without data, search or training; a line per fault."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, zip_longest
from unicodedata import category

from orchestrator.packages.checks import tested
from orchestrator.packages.package import HEADER, JOURNALS, Cell, Package, header_of
from orchestrator.packages.predictions import RowPredictions
from orchestrator.packages.publish import journal_lines
from orchestrator.sweep.recipes import parse_recipe
from trainables.calibrators import calibrator_from_recipe
from trainables.calibrators._base import first_argmax

UNPRINTABLE = ("Cc", "Cf", "Zl", "Zp")
"""Unicode's categories of characters that change how a terminal or a page shows a text."""


def check_form(package: Package) -> Iterator[str]:
    """Compare header and journals with the form that publishing gives them."""
    for key in sorted({*package.header} - {*header_of("")}):
        yield f"{HEADER} has the unknown key {key!r}"
    if _unprintable(package.header):
        yield f"{HEADER} holds an unprintable character"
    for ledger in package.ledgers:
        name = f"{JOURNALS}/{ledger.sweep_id}.jsonl"
        path = package.folder / name
        lines = path.read_bytes().splitlines(keepends=True)
        pairs = zip_longest(lines, journal_lines(path), fillvalue=b"")
        differing = (number for number, (found, ours) in enumerate(pairs, 1) if found != ours)
        for number in differing:
            yield f"{name}: line {number} is not as publishing writes it"
            break
        for number, line in enumerate(lines, 1):
            if _unprintable(json.loads(line)):
                yield f"{name}: line {number} holds an unprintable character"
        if ledger.sweep != ledger.spec.get("name"):
            told = ledger.spec.get("name")
            yield f"{name}: its sweep is called {ledger.sweep!r}, the sweep file {told!r}"


def _unprintable(value: object) -> bool:
    """Return True if a text in a JSON value would not be shown as it is."""
    if isinstance(value, dict):
        return any(map(_unprintable, (*value, *value.values())))
    if isinstance(value, list):
        return any(map(_unprintable, value))
    return isinstance(value, str) and any(
        category(sign) in UNPRINTABLE for sign in value if sign not in "\n\t"
    )


def check_predictions(package: Package) -> Iterator[str]:
    """Compare predictions of one recipe over its seeds, and with those that it calibrates."""
    rows: dict[tuple[str, str, str], dict[int, tuple[Cell, RowPredictions]]] = defaultdict(dict)
    for cell in package.cells:
        study = cell.study
        rows[study.sweep_id, study.task, study.recipe][cell.trial.seed] = (
            cell,
            tested(package, cell),
        )
    for (sweep, task, name), seeds in rows.items():
        variants = next(iter(seeds.values()))[0].study.origin.get("variants", {})
        recipe = parse_recipe(name, variants)
        if not recipe.given:  # Given logits are the same for every seed.
            yield from _copied(seeds)
        if recipe.calibrator and recipe.upstream:
            base = recipe.upstream.name
            before = rows.get((sweep, task, base), {})
            yield from _moved(recipe.calibrator, base, seeds, before)


def _copied(seeds: dict[int, tuple[Cell, RowPredictions]]) -> Iterator[str]:
    """Yield pairs of seeds with equal predictions: two trainings never end at the same bits."""
    for (cell, one), (other, two) in combinations(seeds.values(), 2):
        if one.logits.equal(two.logits):
            yield f"{cell.title}: the predictions are those of seed {other.trial.seed}"


def _moved(
    part: str,
    base: str,
    seeds: dict[int, tuple[Cell, RowPredictions]],
    before: dict[int, tuple[Cell, RowPredictions]],
) -> Iterator[str]:
    """Yield rows whose predicted class a calibrator changed that keeps it."""
    for seed in sorted({*seeds} & {*before}):
        (cell, after), (_, network) = seeds[seed], before[seed]
        calibrator = calibrator_from_recipe(part, cell.trial.configuration.get(part, {}))
        if not calibrator.preserves_accuracy or after.logits.shape != network.logits.shape:
            continue
        changed = int((first_argmax(after.logits) != first_argmax(network.logits)).sum())
        if changed:
            yield (
                f"{cell.title}: {part} keeps the predicted class, but {changed} of "
                f"{len(after.logits)} rows have another one than {base}"
            )
