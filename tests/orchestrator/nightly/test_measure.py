from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.nightly import Book, CellKey, Nightly, NightRecord
from orchestrator.nightly.measure import artifacts_with_costs, current_environment, measure_night
from orchestrator.storage.ledger import Ledger, read_ledger
from trainables.data import PreparedData

Make = Callable[..., Nightly]
STAGES = {"ce": "train", "ls": "refine", "ce+ts": "calibrate"}


def prepared(**facts: Any) -> dict[str, PreparedData]:
    return {"d": cast(PreparedData, SimpleNamespace(**facts))}


class Told:
    """A journal of studies on one task."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        writer.start()

    def study(
        self, recipe: str, chosen: bool = True, row: bool = True, task: str = "d", **closed: Any
    ) -> str:
        study: str = self._writer.open(recipe, row=row, task=task)
        if chosen or closed:
            self.close(study, f"{study} 0" if chosen else None, **closed)
        return study

    def close(self, study: str, chosen: str | None, **closed: Any) -> None:
        self._writer.close(study, chosen, **closed)

    def trial(self, study: str, seed: int, stage: str = "train", **ended: Any) -> None:
        key, role = f"{study} {seed}", "seed" if seed else "search"
        self._writer.begin(study, seed, role, seed, key=key, stage=stage)
        known = {"status": "finished", "metrics": {}, "seconds": 1.0, "artifact": f"of {key}"}
        self._writer.write("trial_finished", key=key, **{**known, **ended})

    def test(self, study: str, seed: int, seconds: float | None = None, **metrics: float) -> None:
        tested = {f"test_{name}": value for name, value in metrics.items()}
        facts = {"seconds": seconds}
        self._writer.evaluate(f"{study} {seed}", study, seed, facts=facts, **tested)

    def ledger(self) -> Ledger:
        return read_ledger(self._writer.path)


@pytest.fixture
def told(writer):
    return Told(writer)


def measured(
    make_benchmark: Make, told: Told, tmp_path: Path, seconds: float | None
) -> tuple[Nightly, NightRecord]:
    benchmark = make_benchmark(metrics=["acc", "ece"])
    night = Book(tmp_path).begin("2026-11-21", 7.0, {"torch": "1"})
    data = prepared(counts={"train": 100, "validation": 40, "test": 30})
    return benchmark, measure_night(benchmark, night, told.ledger(), data, seconds)


def test_a_record_holds_every_seeds_figures_by_stage(make_benchmark, told, tmp_path):
    for recipe, stage in STAGES.items():
        study = told.study(recipe)
        for seed in (0, 1):
            costs = {"epoch_seconds": 0.5 + seed, "peak_memory": 64.0 + seed}
            told.trial(study, seed, stage, **costs)
            told.test(study, seed, 12.0 + seed, acc=0.9 + seed / 100, nll=0.3)
    told.trial(told.study("fl", row=False, chosen=False, reason="it diverged"), 0)
    benchmark, record = measured(make_benchmark, told, tmp_path, 30.0)
    rows = {"train": 100, "refine": 100, "calibrate": 40}
    figures = {
        recipe: {
            "acc": {0: 0.9, 1: 0.91},
            "wall_seconds": {0: 12.0, 1: 13.0},
            "images_per_second": {0: rows[stage] / 0.5, 1: rows[stage] / 1.5},
            "peak_memory": {0: 64.0, 1: 65.0},
        }
        for recipe, stage in STAGES.items()
    }
    cells = {
        CellKey(recipe, "d", metric): values
        for recipe, own in figures.items()
        for metric, values in own.items()
    }
    whole = {CellKey("*", "*", "total_seconds"): {0: 30.0}}
    shape, environment = benchmark.shape, {"torch": "1"}
    assert record == NightRecord(
        "2026-11-21", 7.0, cells | whole, {}, shape, environment, benchmark.rows
    )


def test_costs_that_nobody_knows_are_left_out(make_benchmark, told, tmp_path):
    study = told.study("ce")
    told.trial(study, 0, epoch_seconds=0.5)
    told.trial(study, 1, peak_memory=64.0)
    for seed in (0, 1):
        told.test(study, seed, acc=0.9)
    record = measured(make_benchmark, told, tmp_path, None)[1]
    found = {cell.metric: values for cell, values in record.cells.items()}
    speed, peak = {"images_per_second": {0: 200.0}}, {"peak_memory": {0: 0.0}}
    assert found == {"acc": {0: 0.9, 1: 0.9}, **speed, **peak}
    assert artifacts_with_costs(told.ledger()) == {"of d|ce 0"}


def test_a_recipe_without_a_seed_has_failed_with_the_reason(make_benchmark, told, tmp_path):
    told.study("ce", chosen=False, reason="it diverged")
    told.study("ls", chosen=False)
    for recipe, reason in (("fl", "out of memory"), ("ce+ts", "")):
        study = told.study(recipe)
        told.trial(study, 0)
        told.test(study, 0, acc=0.9)
        told.trial(study, 1, status="failed" if reason else "finished", reason=reason)
    study = told.study("mbls")
    told.trial(study, 1)
    told.test(study, 1, acc=0.9)
    record = measured(make_benchmark, told, tmp_path, None)[1]
    assert record.failed == {
        ("ce", "d"): "it diverged",
        ("ls", "d"): "it has no finished trial",
        ("fl", "d"): "seed 1: out of memory",
        ("ce+ts", "d"): "seed 1: no test metrics",
        ("mbls", "d"): "seed 0: no test metrics",
    }
    assert record.cells == {}


def test_the_time_of_the_whole_night_belongs_to_the_first_seed_of_the_table(
    make_benchmark, told, tmp_path
):
    search = {"trials": 1, "seed": 7}  # That seed is in no table.
    benchmark = make_benchmark(sweep={"seeds": [5, 3], "search": search})
    night = Book(tmp_path).begin("2026-11-21", 7.0, {})
    record = measure_night(benchmark, night, told.ledger(), {}, 30.0)
    assert record.cells == {CellKey("*", "*", "total_seconds"): {5: 30.0}}


def test_a_seed_with_rows_of_its_own_is_measured_by_them(make_benchmark, told, tmp_path):
    task = {"dataset": "digits", "model": "convnet", "protocol": "digits", "split": {"vary": True}}
    tasks = [{"name": "d", **task}, {"name": "e", **task, "split": {}}, {"name": "f", **task}]
    search = {"trials": 1, "seed": 7}  # Its data are of the night, too.
    benchmark = make_benchmark(sweep={"tasks": tasks, "seeds": [5, 3], "search": search})
    rows = {"d 7": 400, "d 5": 100, "d 3": 200, "e": 300, "f 7": 400, "f 5": 100, "f 3": 200}
    data = {
        name: cast(PreparedData, SimpleNamespace(counts={"train": own}, key=f"{own}_digits_more"))
        for name, own in rows.items()
    }
    for study in [told.study("ce", chosen=False, task=name) for name in "ed"]:
        told.close(study, f"{study} 5")
        for seed in (5, 3):
            told.trial(study, seed, epoch_seconds=0.5)
            told.test(study, seed, acc=0.9)
    night = Book(tmp_path).begin("2026-11-21", 7.0, {})
    record = measure_night(benchmark, night, told.ledger(), data, None)
    for name, speeds in (("d", {5: 200.0, 3: 400.0}), ("e", {5: 600.0, 3: 600.0})):
        assert record.cells[CellKey("ce", name, "images_per_second")] == speeds
    environment = current_environment(benchmark, data)
    expected = "100_digits_m, 200_digits_m, 300_digits_m, 400_digits_m"
    assert environment["data digits"] == expected


@pytest.mark.parametrize(
    ("gpus", "commit", "named"),
    [(["A", "B"], "c0ffee", ("A, B", "c0ffee")), ([], "", ("none", "not from a repository"))],
)
def test_an_environment_is_everything_that_may_explain_a_change(
    make_benchmark, monkeypatch, gpus, commit, named
):
    hardware = {"cpus": 2, "gpus": gpus}
    facts = {"git_commit": commit, "versions": {"torch": "2"}, "hardware": hardware}
    monkeypatch.setattr("orchestrator.nightly.measure.provenance", lambda: facts)
    benchmark = make_benchmark()
    found = current_environment(benchmark, prepared(key="0123456789abcdef"))
    assert list(found.items()) == [
        ("torch", "2"),
        ("hardware cpus", "2"),
        ("hardware gpus", named[0]),
        ("code", named[1]),
        ("data digits", "0123456789ab"),
        ("benchmark", benchmark.fingerprint),
    ]
