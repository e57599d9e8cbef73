"""The files of a package that are derived from others, for programs other than this one."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from orchestrator.packages.bibliography import bibliography
from orchestrator.packages.package import (
    BIBLIOGRAPHY,
    CELLS,
    CRATE,
    TABLE,
    TEST,
    Cell,
    Package,
)
from orchestrator.tables.arrange import build_table
from orchestrator.tables.make import render
from trainables.common.files import file_facts

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
CONFORMS = "https://w3id.org/ro/crate/1.1"
KINDS = {".csv": "text/csv", ".json": "application/json", ".jsonl": "application/jsonl"}
KINDS |= {".npz": "application/x-numpy", ".bib": "text/x-bibtex"}


def derive(package: Package) -> None:
    """Write the derived files of a package, from all others.

    Raises:
        InputError: If these are damaged.
    """
    for name, text in derived_texts(package).items():
        (package.folder / name).write_text(text, encoding="utf-8")
    (package.folder / CRATE).write_text(crate(package), encoding="utf-8")


def derived_texts(package: Package) -> dict[str, str]:
    """Return the derived files but for the crate, by name."""
    return {
        TABLE: render(build_table(package.results), "csv"),
        CELLS: _json([cell_record(package, cell) for cell in package.cells]),
        BIBLIOGRAPHY: bibliography(_parts(package)),
    }


def _parts(package: Package) -> Iterator[str]:
    """Yield the methods, refinements and calibrators of the rows, of variants what they vary."""
    for cell in package.cells:
        variants = cell.study.origin.get("variants", {})
        yield from (variants.get(part, part) for part in cell.study.recipe.split("+"))


def cell_record(package: Package, cell: Cell) -> dict[str, Any]:
    """Return what a cell is and how it was computed, as plain values; figures are fractions."""
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
        "command": f"calsweep verify package.zip --retrain 0 --trial {trial.key[:12]}",
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


def crate(package: Package) -> str:
    """Return the RO-Crate metadata of all other files (version 1.1, JSON-LD)."""
    files = [name for name in package.files() if name != CRATE]
    return _json({"@context": CONTEXT, "@graph": [*_entities(package, files)]})


def _entities(package: Package, files: list[str]) -> Iterator[Mapping[str, Any]]:
    ledgers = package.ledgers
    last = max(ledger.ended or ledger.began for ledger in ledgers)
    names = ", ".join(dict.fromkeys(ledger.sweep for ledger in ledgers))
    yield {
        "@id": CRATE,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": CONFORMS},
    }
    yield {
        "@id": "./",
        "@type": "Dataset",
        "name": f"calsweep results: {names}",
        "description": "Figures of calibration methods with the predictions that they are "
        "computed from, the search behind each configuration, and the splits of the data.",
        "datePublished": datetime.fromtimestamp(last / 1000, UTC).isoformat(timespec="seconds"),
        "license": package.header.get("license"),
        "hasPart": [{"@id": name} for name in files],
        "mentions": [{"@id": f"#{ledger.sweep_id}"} for ledger in ledgers],
    }
    for name in files:
        facts = file_facts(package.folder / name)
        yield {
            "@id": name,
            "@type": "File",
            "name": name.rpartition("/")[2],
            "encodingFormat": KINDS.get(PurePosixPath(name).suffix, "text/plain"),
            "contentSize": str(facts["bytes"]),
            "sha256": facts["sha256"],
        }
    for ledger in ledgers:
        versions = ledger.provenance.get("versions") or {}
        software = f"#calsweep-{ledger.sweep_id}"
        yield {
            "@id": software,
            "@type": "SoftwareApplication",
            "name": "calsweep",
            "version": f"{versions.get('calsweep', '')} {ledger.git_commit}".strip(),
            "softwareRequirements": [f"{name} {number}" for name, number in versions.items()],
        }
        yield {
            "@id": f"#{ledger.sweep_id}",
            "@type": "CreateAction",
            "name": f"sweep {ledger.sweep}",
            "instrument": {"@id": software},
            "result": [
                {"@id": f"{TEST}/{cell.trial.key}.npz"}
                for cell in package.cells
                if cell.study.sweep_id == ledger.sweep_id
            ],
        }


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
