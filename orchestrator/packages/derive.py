"""``table.csv`` and ``cells.json``, derived from a package's other files for other programs."""

import json
from typing import Any

from orchestrator.packages.package import CELLS, TABLE, TEST, Cell, Package
from orchestrator.tables.arrange import build_table
from orchestrator.tables.make import render
from trainables.metrics import METRICS


def derive(package: Package) -> None:
    """Write ``table.csv`` and ``cells.json`` into a package's folder."""
    for name, text in derived_texts(package).items():
        (package.folder / name).write_text(text, encoding="utf-8")


def derived_texts(package: Package) -> dict[str, str]:
    """Return the texts of ``table.csv`` and ``cells.json``, by name.

    They do not depend on the plugins and other sweeps that this process knows.
    """
    cells = [cell_record(package, cell) for cell in package.cells]
    text = json.dumps(cells, indent=1, ensure_ascii=False, allow_nan=False)
    studies = (study for ledger in package.ledgers for study in ledger.studies.values())
    with METRICS.only(study.origin.get("metrics", {}) for study in studies):
        table = render(build_table(package.results), "csv")
    return {TABLE: table, CELLS: f"{text}\n"}


def cell_record(package: Package, cell: Cell) -> dict[str, Any]:
    """Return a cell and its origin as plain values; figures are fractions, or nats for NLL."""
    study, trial = cell.study, cell.trial
    origin = study.origin
    split = origin.get("splits", {}).get(str(trial.seed), origin.get("split"))
    return {
        "sweep": cell.sweep,
        "task": study.task,
        "recipe": study.recipe,
        "seed": trial.seed,
        "figures": dict(trial.test),
        "validation": {k: v for k, v in trial.metrics.items() if k.startswith("val_")},
        "configuration": trial.configuration,
        "trial": trial.key,
        "predictions": f"{TEST}/{trial.key}.npz",
        "command": f"calsweep package verify package.zip --retrain 0 --trial {trial.key[:12]}",
        "dataset": origin.get("dataset"),
        "data": study.fingerprint,
        "split": split,
        "model": study.model,
        "protocol": origin.get("protocol"),
        "rule": study.rule,
        "bins": package.header.get("bins"),
        "code": trial.code,
        "versions": study.versions,
        "trials": {"finished": study.finished, "failed": study.failed},
    }
