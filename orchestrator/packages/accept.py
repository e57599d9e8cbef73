"""Decides whether a change is kept: compares the packages from before and after it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.packages.package import Package, UnfitError, opened
from orchestrator.packages.predictions import RowPredictions, tested
from orchestrator.statistics import Contrast, Measured, contrast, measure
from trainables.common.errors import InputError
from trainables.common.files import file_hash, write_whole
from trainables.common.later import torch
from trainables.metrics import METRICS, of_sets

LEVEL, DRAWS = 0.05, 2000
ENDING = ".tries.json"
Name: TypeAlias = tuple[str, str]  # A task and a recipe.
Seeds: TypeAlias = dict[int, RowPredictions]


@dataclass(frozen=True)
class Decision:
    """The decision on a change.

    Attributes:
        keep: Whether the improvement of the metric is significant.
        difference: Metric of the change minus metric of the base, the mean over cells and seeds;
            fractions (nats for NLL).
        p_value: Probability of such an improvement by chance alone (one-sided).
        level: Largest p-value at which a change is kept: ``LEVEL / (tries (tries + 1))``.
        tries: Number of this change among those compared with the base, from 1.
        cells: Tasks and recipes that both packages have.
        seeds: Seeds that all these cells have in both packages.
    """

    keep: bool
    metric: str
    difference: float
    p_value: float
    level: float
    tries: int
    cells: tuple[str, ...]
    seeds: tuple[int, ...]


def accept(
    base: Path, new: Path, metric: str = "ece", draws: int = DRAWS, seed: int = 0
) -> Decision:
    """Compare two packages on the same test rows, and record the try next to ``base``.

    The test is paired by seed and test row. The level of try k is ``LEVEL / (k (k + 1))``, so over
    any number of tries the chance to keep a change without effect is at most ``LEVEL``. Repeating a
    package and metric is not another try.
    """
    known = [m for m in METRICS.measurable if METRICS[m].better != "neither" and not of_sets(m)]
    if metric not in known:
        raise InputError(f"--metric {metric!r} cannot be compared; use one of {', '.join(known)}")
    with opened(base) as before, opened(new) as after:
        pairs = _pairs(_cells(before), _cells(after))
        seeds = sorted(set.intersection(*({*own} for own, _ in pairs.values())))
        found = _contrast(list(pairs.values()), seeds, metric, draws, seed)
    book = _Book(base)
    tries = book.number({"new": file_hash(new), "metric": metric})
    better = found.centre > 0 if METRICS[metric].better == "higher" else found.centre < 0
    p_value = found.p_value() / 2 if better else 1 - found.p_value() / 2
    level = LEVEL / (tries * (tries + 1))
    cells = tuple(f"{recipe} on {task}" for task, recipe in pairs)
    keep = p_value <= level
    decision = Decision(keep, metric, found.value, p_value, level, tries, cells, tuple(seeds))
    book.write(tries, {"package": new.name, **asdict(decision)})
    return decision


class _Book:
    """The tries so far, in a file next to the base; if the base has changed, there are none."""

    def __init__(self, base: Path) -> None:
        self._path, self._base = base.with_name(f"{base.name}{ENDING}"), file_hash(base)
        self._tries = list(self._read())

    def _read(self) -> Iterator[dict[str, Any]]:
        if not self._path.is_file():
            return
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
            if known["base"] == self._base:
                yield from known["tries"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"{self._path}: the earlier tries cannot be read: {error}; restore the file"
            ) from error

    def number(self, change: dict[str, str]) -> int:
        """Return the number of a try, from 1; append it if it is new."""
        for number, known in enumerate(self._tries, 1):
            if change.items() <= known.items():
                return number
        self._tries.append(dict(change))
        return len(self._tries)

    def write(self, number: int, outcome: dict[str, Any]) -> None:
        """Set the outcome of a try, and write all tries."""
        self._tries[number - 1] |= outcome
        text = json.dumps({"base": self._base, "tries": self._tries}, indent=2)
        write_whole(self._path, f"{text}\n")


def _cells(package: Package) -> dict[Name, Seeds]:
    found: dict[Name, Seeds] = {}
    for cell in package.cells:
        own = found.setdefault((cell.study.task, cell.study.recipe), {})
        own[cell.trial.seed] = tested(package, cell)
    return found


def _pairs(base: dict[Name, Seeds], new: dict[Name, Seeds]) -> dict[Name, tuple[Seeds, Seeds]]:
    """Return the predictions of the cells that both packages have, for the seeds they share.

    Raises:
        UnfitError: If there are no such cells, no seed is in all of them, or test rows differ.
    """
    pairs: dict[Name, tuple[Seeds, Seeds]] = {}
    for name in (name for name in base if name in new):
        common = sorted({*base[name]} & {*new[name]})
        for seed in common:
            _check_rows(base[name][seed], new[name][seed])
        before, after = ({seed: own[name][seed] for seed in common} for own in (base, new))
        pairs[name] = before, after
    if not pairs or not set.intersection(*({*own} for own, _ in pairs.values())):
        raise UnfitError(
            "the packages have no task, recipe and seed in common; run the same sweep file before "
            "and after the change"
        )
    return pairs


def _check_rows(base: RowPredictions, new: RowPredictions) -> None:
    same = torch.equal(base.rows, new.rows) and torch.equal(base.labels, new.labels)
    if not same or base.logits.shape != new.logits.shape:
        raise UnfitError(
            f"{base.recipe} on {base.task}, seed {base.seed}: the packages were tested on "
            "different rows; run both on the same data and split"
        )


def _contrast(
    pairs: Sequence[tuple[Seeds, Seeds]], seeds: Sequence[int], metric: str, draws: int, seed: int
) -> Contrast:
    """Return the difference of new and base, averaged over all cells and paired by seed."""
    measured = []
    for pair in pairs:
        tables = {
            name: [own[one].logits for one in seeds]
            for name, own in zip(("base", "new"), pair, strict=True)
        }
        own = [pair[0][one] for one in seeds]
        rows, labels = [each.rows for each in own], [each.labels for each in own]
        measured.append(measure(tables, labels, metric, draws=draws, seed=seed, numbers=rows))
    base, new = (_mean([each[name] for each in measured]) for name in ("base", "new"))
    return contrast(new, base)


def _mean(cells: Sequence[Measured]) -> Measured:
    values, draws = zip(*cells, strict=True)
    return Measured(torch.stack(values).mean(0), torch.stack(draws).mean(0))
