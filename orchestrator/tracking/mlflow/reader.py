"""Reads runs from MLflow's SQLite file without MLflow, which takes seconds to import."""

import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.tracking import _names as names
from orchestrator.tracking.mlflow.sqlite import opened
from orchestrator.tracking.tracker import RefusedError, Run, RunQuery, RunReader, UnreachableError

PARENT = "mlflow.parentRunId"
SCHEMA = "dc11669786a5"  # MLflow 3.17; files with another schema are read with MLflow.
MOST = 500  # Runs per query for tags: SQLite limits the number of values.
Row: TypeAlias = tuple[Any, ...]
FIELDS = "SELECT r.run_uuid, r.experiment_id, r.status, r.start_time FROM runs r"


def is_readable(file: Path) -> bool:
    """Return True if a database can be opened and has the schema of this module."""
    try:
        with closing(opened(file)) as database:
            found = database.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.Error:
        return False  # MLflow then opens the database and reports the fault.
    return found == [(SCHEMA,)]


class DatabaseReader(RunReader):
    """Reads the runs of a database that ``is_readable``; queries skip deleted runs."""

    def __init__(self, uri: str, file: Path) -> None:
        self.uri, self._file = uri, file

    def sweeps(self) -> dict[str, str]:
        statement = (
            "SELECT e.name, e.experiment_id FROM experiments e JOIN experiment_tags t "
            "ON t.experiment_id = e.experiment_id AND t.key = ? AND t.value = 'sweep' "
            "WHERE e.lifecycle_stage = 'active' ORDER BY e.creation_time DESC"
        )
        return {name: str(number) for name, number in self._ask(statement, [names.KIND])}

    def runs(self, query: RunQuery) -> Iterator[Run]:
        text, values = _statement(query)
        found = iter(self._ask(text, values) if query.experiments else ())
        while page := list(islice(found, query.page)):
            yield from self._whole(page)

    def run(self, run_id: str) -> Run:
        live = f"{FIELDS} WHERE r.run_uuid = ?"
        if not (found := self._ask(live, [run_id])):
            raise RefusedError(f"Run with id={run_id} not found")
        return next(self._whole(found))

    def _whole(self, rows: Sequence[Row]) -> Iterator[Run]:
        """Yield the runs of these rows, with tags and metrics read for ``MOST`` runs at a time."""
        for start in range(0, len(rows), MOST):
            some = rows[start : start + MOST]
            tags = self._values("SELECT run_uuid, key, value FROM tags", some)
            # MLflow stores 0 for NaN, and sets is_nan.
            kept = "SELECT run_uuid, key, iif(is_nan, NULL, value) FROM latest_metrics"
            metrics = self._values(kept, some)
            for run_id, experiment, status, started in some:
                own = tags.get(run_id, {})
                figures = {k: math.nan if v is None else v for k, v in metrics[run_id].items()}
                yield Run(run_id, str(experiment), own.get(PARENT), status, started, own, figures)

    def _values(self, select: str, rows: Sequence[Row]) -> Mapping[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {run_id: {} for run_id, *_ in rows}
        for run_id, key, value in self._ask(f"{select} WHERE run_uuid IN ({_marks(rows)})", found):
            found[run_id][key] = value
        return found

    def _ask(self, text: str, values: Iterable[object]) -> list[Row]:
        try:
            with closing(opened(self._file)) as database:
                return database.execute(text, list(values)).fetchall()
        except sqlite3.Error as error:
            raise UnreachableError(f"tracking database {self._file}: {error}") from error


def _statement(query: RunQuery) -> tuple[str, list[object]]:
    """Return the SQL statement of a query, and its values."""
    joins = ""
    values: list[object] = []
    for number, (name, value) in enumerate(query.tags.items()):
        joins += f" JOIN tags t{number} ON t{number}.run_uuid = r.run_uuid"
        joins += f" AND t{number}.key = ? AND t{number}.value = ?"
        values += [name, value]
    if query.marked:
        joins += " JOIN tags m ON m.run_uuid = r.run_uuid AND m.key = ? AND m.value != ''"
        values.append(query.marked)
    order = "r.start_time DESC, r.run_uuid"
    if query.order is not None:
        figures = range(len(query.order))
        first = [f"coalesce(o{number}.is_nan, 2), o{number}.value" for number in figures]
        order = ", ".join([*first, "r.start_time, r.run_uuid"])
        for number, name in enumerate(query.order):
            joins += f" LEFT JOIN latest_metrics o{number} ON o{number}.run_uuid = r.run_uuid"
            joins += f" AND o{number}.key = ?"
            values.append(name)
    where = f"r.lifecycle_stage = 'active' AND r.experiment_id IN ({_marks(query.experiments)})"
    values += map(int, query.experiments)
    if query.status:
        where += " AND r.status = ?"
        values.append(query.status)
    return f"{FIELDS}{joins} WHERE {where} ORDER BY {order}", values


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
