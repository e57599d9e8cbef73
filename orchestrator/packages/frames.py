"""Parquet tables of a package, derived from its other files for pandas and ``calsweep ui``."""

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.packages.package import BINS, PREDICTIONS, RESULTS, TRIALS, Cell, Package
from orchestrator.packages.predictions import RowPredictions, tested
from orchestrator.storage.results import cells_of
from trainables.metrics import predicted_rows

TEXT, NUMBER, FLOAT = pa.string(), pa.int64(), pa.float32()
CELL = [("task", TEXT), ("recipe", TEXT), ("seed", NUMBER)]
RESULT = pa.schema(
    [
        *(("sweep", TEXT), *CELL, ("status", TEXT), ("reason", TEXT), ("dataset", TEXT)),
        *(("model", TEXT), ("trial", TEXT), ("configuration", TEXT)),
    ]
)
TRIAL = pa.schema(
    [
        *(("sweep", TEXT), *CELL, ("trial", TEXT), ("number", NUMBER), ("role", TEXT)),
        *(("stage", TEXT), ("status", TEXT), ("reason", TEXT), ("objective", pa.float64())),
        *(("chosen", pa.bool_()), ("configuration", TEXT)),
    ]
)
ROW = pa.schema(
    [
        *(*CELL, ("row", NUMBER), ("label", pa.int32()), ("prediction", pa.int32())),
        *(("confidence", FLOAT), ("confidence_in_label", FLOAT), ("bin", pa.uint8())),
    ]
)
SPLIT = dict.fromkeys(("confidence", "confidence_in_label"), "BYTE_STREAM_SPLIT")
EDGE = 1e-6  # A float32 confidence closer than this to the edge of a bin may be in either bin.
REPEATED = [name for name in ROW.names if name not in SPLIT]

Parts = Iterator[pa.Table]


def write_frames(package: Package) -> None:
    """Write the Parquet tables into a package's folder; each part becomes a row group."""
    for name, (schema, parts) in frames(package).items():
        own = {"use_dictionary": REPEATED, "column_encoding": SPLIT} if name == PREDICTIONS else {}
        with pq.ParquetWriter(package.folder / name, schema, compression="zstd", **own) as writer:
            for part in parts:
                writer.write_table(part, row_group_size=len(part))


def frames(package: Package) -> dict[str, tuple[pa.Schema, Parts]]:
    """Return the schema and the parts (row groups) of each Parquet table, by file name."""
    found: dict[str, tuple[pa.Schema, Parts]] = {}
    for name, schema, lines in (
        (RESULTS, RESULT, list(_results(package))),
        (TRIALS, TRIAL, [trial_line(cell) for cell in package.trials]),
    ):
        metrics = sorted({metric for line in lines for metric in line} - {*schema.names})
        columns = pa.schema([*schema, *((metric, pa.float64()) for metric in metrics)])
        found[name] = columns, iter([pa.Table.from_pylist(lines, columns)])
    return {
        **found,
        PREDICTIONS: (ROW, (prediction_rows(tested(package, cell)) for cell in package.cells)),
    }


def _results(package: Package) -> Iterator[Mapping[str, Any]]:
    """Yield a line for each cell, and for each study of the table that has no cell."""
    for ledger in package.ledgers:
        cells = cells_of(ledger)
        for study in ledger.studies.values():
            found = [trial for own, trial in cells if own.name == study.name]
            about = {
                **{"sweep": ledger.sweep, "task": study.task, "recipe": study.recipe},
                **{"status": study.status, "reason": study.reason, "model": study.model},
                "dataset": study.origin.get("dataset"),
            }
            for trial in found:
                figures = {**trial.metrics, **trial.test}
                own = {"seed": trial.seed, "trial": trial.key, **_parts(trial.configuration)}
                yield {**figures, **about, **own}
            if study.row and not found:
                yield about


def trial_line(cell: Cell) -> dict[str, Any]:
    """Return a trial and its study as one row, by column; the configuration is JSON."""
    trial, study = cell.trial, cell.study
    names = ("seed", "number", "role", "stage", "status", "reason", "objective")
    return {
        **trial.metrics,
        **{name: getattr(trial, name) for name in names},
        **{"sweep": cell.sweep, "task": study.task, "recipe": study.recipe},
        **{"trial": trial.key, "chosen": trial.key == study.chosen},
        **_parts(trial.configuration),
    }


def _parts(configuration: Mapping[str, Any]) -> dict[str, str]:
    return {"configuration": json.dumps(configuration, ensure_ascii=False, sort_keys=True)}


def prediction_rows(found: RowPredictions) -> pa.Table:
    """Return a table with the columns ``ROW`` and one row per test row of a cell."""
    scored = predicted_rows(found.logits.numpy(), found.labels.numpy(), BINS)
    count = len(found.labels)
    kinds = zip((found.task, found.recipe, found.seed), CELL, strict=True)
    columns = [
        *(pa.repeat(pa.scalar(value, kind), count) for value, (_, kind) in kinds),
        found.rows.numpy(),
        found.labels.numpy().astype(np.int32),
        scored.predicted.astype(np.int32),
        scored.confidence,
        scored.true,
        scored.bins,
    ]
    return pa.table(columns, schema=ROW)


def check_frames(package: Package, tolerance: float) -> Iterator[str]:
    """Create the Parquet tables again and compare them."""
    for name, (schema, parts) in frames(package).items():
        path = package.folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif not _same(path, schema, parts, tolerance * (name == PREDICTIONS)):
            yield f"{name} does not agree with the journals and predictions"


def _same(path: Path, schema: pa.Schema, parts: Parts, tolerance: float) -> bool:
    """Return True if a file has this schema and equals ``parts``; see ``_equal``."""
    with pq.ParquetFile(path) as file:
        groups = file.metadata.num_row_groups
        if not file.schema_arrow.equals(schema):
            return False
        return all(
            part is not None
            and number is not None
            and file.metadata.row_group(number).num_rows == len(part)
            and _equal(file.read_row_group(number), part, tolerance)
            for number, part in zip_longest(range(groups), parts)
        )


def _equal(one: pa.Table, other: pa.Table, tolerance: float) -> bool:
    """Return True if tables are equal.

    Floats may differ by ``tolerance``; a confidence near the edge of a bin may be in either bin.
    """
    for name in other.column_names:
        ours, theirs = (table[name].to_pandas().to_numpy() for table in (one, other))
        if pa.types.is_floating(other.schema.field(name).type):
            if not np.allclose(ours, theirs, rtol=0.0, atol=tolerance, equal_nan=True):
                return False
        elif name == "bin":
            edges = other["confidence"].to_numpy()[ours != theirs].astype(np.float64) * BINS
            if (np.abs(edges - np.round(edges)) > BINS * max(tolerance, EDGE)).any():
                return False
        elif not one[name].equals(other[name]):
            return False
    return True
