import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.tracking import Change, open_tracker, sync
from orchestrator.tracking import _names as names
from orchestrator.tracking._changes import Point
from orchestrator.tracking._kinds import read_tracker
from orchestrator.tracking.mlflow.reader import SCHEMA, DatabaseReader
from orchestrator.tracking.tracker import RefusedError, RunQuery
from tests.orchestrator.databases import empty_database, place_database


@pytest.fixture
def uri(tmp_path: Path, journal_writer) -> str:
    """Return a database with two sweeps, a deleted run and metrics that are not finite."""
    address = f"sqlite:///{place_database(tmp_path / 'store')}/mlflow.db"
    for name in ("one", "two"):
        writer = journal_writer(tmp_path / name, name, name)
        writer.start()
        for recipe in ("ce", "mbls"):
            study = writer.open(recipe, trials=3)
            keys = [writer.trial(study, number, 0.3 - number / 10) for number in range(3)]
            writer.close(study, keys[2], finished=3)
            writer.evaluate(keys[2], study, test_ece=0.1)
        writer.end()
        sync(writer.path, address, tmp_path / "files")
    tracker = open_tracker(address)
    odd, last, *_ = tracker.runs(RunQuery([tracker.sweeps()["two"]], {names.KIND: "trial"}))
    points = [Point("test_ece", math.nan, 1, 9), Point("test_nll", math.inf, 1, 9)]
    tracker.log(odd.id, Change(odd.id, points))
    tracker.delete_run(last.id)
    return address


QUERIES = (
    {"tags": {names.KIND: "trial"}},
    {"tags": {names.KIND: "trial"}, "page": 2, "status": "FINISHED"},
    {"tags": {names.KIND: "study", names.RECIPE: "mbls"}},
    {"tags": {}, "marked": names.BEST_OF},
    {"tags": {names.KIND: "trial"}, "order": (names.OBJECTIVE, names.TRIAL_NUMBER)},
    {"tags": {}, "order": ("test_ece",)},
    {"tags": {}, "order": ()},
    {"tags": {names.KIND: "it's"}},
)


@pytest.mark.full
def test_the_database_reader_gives_the_answers_of_mlflow(uri: str) -> None:
    light, whole = read_tracker(uri), open_tracker(uri)
    assert isinstance(light, DatabaseReader)
    assert light.sweeps() == whole.sweeps()
    assert [*light.runs(RunQuery([], {}))] == []
    every = [*light.sweeps().values()]
    found = 0
    for fields in QUERIES:
        for experiments in (every, every[:1]):
            query = RunQuery(experiments, **fields)
            ours, theirs = [*light.runs(query)], [*whole.runs(query)]
            assert repr(ours) == repr(theirs), fields  # NaN is not equal to itself.
            found += len(ours)
    assert found > 100
    some = next(iter(light.runs(RunQuery(every, {}))))
    assert repr(light.run(some.id)) == repr(whole.run(some.id)) == repr(some)
    with pytest.raises(RefusedError, match=r"^Run with id=absent not found$"):
        light.run("absent")


def test_mlflow_itself_reads_another_schema(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    file.write_bytes(empty_database())
    with closing(sqlite3.connect(file)) as database, database:
        known = database.execute("SELECT version_num FROM alembic_version").fetchall()
        assert known == [(SCHEMA,)]  # Else read the new schema in reader.py, and name it there.
        assert isinstance(read_tracker(f"sqlite:///{file}"), DatabaseReader)
        database.execute("UPDATE alembic_version SET version_num = 'other'")
    with pytest.raises(Exception, match="out-of-date database schema"):
        read_tracker(f"sqlite:///{file}")
