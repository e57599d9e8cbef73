"""Histories of a small benchmark, for tests of the verdict."""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta

import numpy as np

from orchestrator.nightly import Book, CellKey, Night, NightRecord, Shape, Verdict, judge
from orchestrator.nightly.book import RECORD, VERDICT

LEVELS = {"acc": 0.95, "ece": 0.02, "nll": 0.2, "images_per_second": 5000.0, "peak_memory": 1e9}
RECIPES = ("ce", "ls", "ce+ts")
TASK = "digits/convnet/digits"
SEEDS = (0, 1, 2)
SHAPE = Shape(RECIPES, (TASK,), tuple(LEVELS), SEEDS)
ECE = CellKey("ls", TASK, "ece")
ACC = CellKey("ls", TASK, "acc")
SPEED = CellKey("ls", TASK, "images_per_second")

Cells = dict[CellKey, dict[int, float]]


def name(night: int) -> str:
    return (date(2026, 1, 1) + timedelta(days=night)).isoformat()


def record(
    night: int,
    noise: float = 0.0,
    factors: Mapping[CellKey, float] | None = None,
    environment: Mapping[str, str] | None = None,
) -> NightRecord:
    """Return figures fixed by recipe, metric and seed, times noise and factors."""
    rng = np.random.default_rng(night)
    cells: Cells = {}
    for row, recipe in enumerate(RECIPES):
        for metric, level in LEVELS.items():
            cell = CellKey(recipe, TASK, metric)
            common = np.exp(noise * rng.normal()) * (factors or {}).get(cell, 1.0)
            usual = [level * (1 + 0.01 * row + 0.005 * seed) for seed in SEEDS]
            cells[cell] = {
                seed: float(value * common) for seed, value in zip(SEEDS, usual, strict=True)
            }
    return NightRecord(
        name(night), 86400.0 * night, cells, shape=SHAPE, environment=environment or {"torch": "1"}
    )


def history(nights: Iterable[int], noise: float = 0.0) -> list[NightRecord]:
    return [record(night, noise) for night in nights]


def write_night(book: Book, own: NightRecord, verdict: Verdict | None = None) -> Night:
    """Write a night with a verdict that nobody has heard of."""
    night = book.begin(own.night, own.started, own.environment)
    night.write(RECORD, own.to_json())
    night.write(VERDICT, (verdict or Verdict(own.night, "ok")).to_json())
    return night


def write_judged(book: Book, records: list[NightRecord]) -> None:
    for number, own in enumerate(records):
        write_night(book, own, judge(records[:number], own))
