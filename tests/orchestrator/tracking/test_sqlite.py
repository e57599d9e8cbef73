import os
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from filelock import FileLock

from orchestrator.sweep.tracking_uri import sqlite_uri
from orchestrator.tracking.mlflow import server, sqlite
from orchestrator.tracking.mlflow.server import MlflowTracker
from orchestrator.tracking.mlflow.sqlite import (
    damage_of,
    describe_database,
    exclusive,
    relocate,
    require_database,
    require_readable,
    set_aside,
    undelivered,
)
from orchestrator.tracking.tracker import BlockedError, UnreachableError
from tests.orchestrator.databases import place_database
from tests.orchestrator.disks import files_of_at_most
from trainables.common.errors import InputError
from trainables.common.paths import ELSEWHERE, SYNC


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0 and more"])
def test_a_database_or_an_empty_file_is_accepted(tmp_path, content):
    file = tmp_path / "mlflow.db"
    file.write_bytes(content)
    require_database(file)


def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    file, own, text = (tmp_path / name for name in ("mlflow.db", "my.db", "text"))
    text.write_bytes(b"SQLite format 2\0")
    for path, told in (
        (file, f"no sweep in {tmp_path / 'sweeps'} {ELSEWHERE}"),
        (own, f"no tracking database at {own} {ELSEWHERE}; `{SYNC}` builds it"),
        (tmp_path, f"tracking database {tmp_path} cannot be read: Is a directory"),
        (
            text,
            f"{text} is not a SQLite database; rename it, then `{SYNC}` for each sweep builds it "
            "again",
        ),
    ):
        with pytest.raises(InputError) as refusal:
            require_database(path)
        assert str(refusal.value) == told


def test_the_remedy_for_a_lost_database_delivers_every_sweep(tmp_path):
    for name in ("b", "a"):
        journal = tmp_path / "sweeps" / name / "journal.jsonl"
        journal.parent.mkdir(parents=True)
        journal.touch()
    commands = " && ".join(f"calsweep storage sync {tmp_path}/sweeps/{name}" for name in "ab")
    with pytest.raises(InputError, match=f"; `{commands}` builds it$"):
        require_database(tmp_path / "mlflow.db")
    uri = sqlite_uri(tmp_path / "mlflow.db")
    assert undelivered(uri, "b") == f"`calsweep storage sync {tmp_path}/sweeps/b` delivers it"
    assert undelivered(uri, "c") == undelivered("http://127.0.0.1:9", "b") == ""
    assert undelivered(sqlite_uri(tmp_path / "my.db"), "b") == ""


def test_a_damaged_database_is_found_and_set_aside_with_its_journal(tmp_path):
    file = place_database(tmp_path) / "mlflow.db"
    assert damage_of(file) == damage_of(tmp_path / "absent.db") == ""
    require_readable(file)
    os.truncate(file, 40_000)
    assert damage_of(file) == "database disk image is malformed"
    with pytest.raises(sqlite3.DatabaseError, match="malformed"):
        require_readable(file)
    file.write_text("no database, and long enough to be seen as none")
    assert damage_of(file) == "file is not a database"
    file.with_name("mlflow.db-journal").touch()
    aside = set_aside(file)
    assert aside.name.startswith("mlflow.db.damaged-")
    assert {each.name for each in tmp_path.iterdir()} == {
        aside.name,
        f"{aside.name}-journal",
        "mlflow.db.lock",
    }


def test_mlflow_makes_a_database_whatever_the_current_folder_is_called(tmp_path, monkeypatch):
    folder = place_database(tmp_path / 'it\'s "50%20" :x #?é')
    monkeypatch.chdir(folder)
    file = folder / "mlflow.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DELETE FROM experiments")  # The last thing that MLflow writes.
    monkeypatch.setattr(server, "drafted", nullcontext)
    server._create(file)
    with closing(sqlite3.connect(file)) as database:
        (made,) = database.execute("SELECT name, artifact_location FROM experiments").fetchall()
    assert made == ("Default", f"{folder.as_uri()}/mlflow-artifacts/0")


def test_a_full_disk_under_a_database_is_reported_at_once(tmp_path):
    tracker = MlflowTracker(f"sqlite:///{place_database(tmp_path)}/mlflow.db")
    with files_of_at_most(4096), pytest.raises(BlockedError, match=r"mlflow\.db cannot be used: "):
        tracker.open_experiment("new", tmp_path)
    assert tracker.open_experiment("new", tmp_path)[1]


def test_a_database_is_described_by_its_schema(tmp_path):
    file = tmp_path / "50%41 #1" / "mlflow.db"
    assert describe_database(file) == f"{file} does not exist yet; the first sweep creates it"
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE more (x)")
    with pytest.raises(InputError) as refusal:
        describe_database(file)
    assert str(refusal.value) == (
        f"{file} is not an MLflow database (no such table: alembic_version); "
        "move it away or name another file"
    )
    for rows, schema in (([], "unknown"), (["c0de"], "c0de")):
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS alembic_version (version_num)")
            database.executemany("INSERT INTO alembic_version VALUES (?)", [rows] if rows else [])
        assert describe_database(file) == f"{file}, schema {schema}"


def test_only_an_experiment_and_its_runs_get_the_new_path(tmp_path, monkeypatch):
    file = tmp_path / "mlflow.db"
    before = {("1", "old/e"), ("2", "old/e"), ("3", "else")}
    runs = {("1", "old/e/r/artifacts"), ("1", "s3://b/old/e"), ("2", "old/e/r/artifacts")}
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE experiments (experiment_id, artifact_location)")
        database.execute("CREATE TABLE runs (experiment_id, artifact_uri)")
        database.executemany("INSERT INTO experiments VALUES (?, ?)", before)
        database.executemany("INSERT INTO runs VALUES (?, ?)", runs)
    waits, connect = [], sqlite3.connect

    def note(path: Path, timeout: float) -> sqlite3.Connection:
        waits.append(timeout)
        return connect(path, timeout=timeout)

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", note)
        relocate(file, "1", "old/e", "newer/place")
    assert waits == [120.0]  # Another sweep may be writing there.
    with closing(sqlite3.connect(file)) as database:
        places = set(database.execute("SELECT * FROM experiments").fetchall())
        moved = set(database.execute("SELECT * FROM runs").fetchall())
    assert places == before - {("1", "old/e")} | {("1", "newer/place")}
    assert moved == runs - {("1", "old/e/r/artifacts")} | {("1", "newer/place/r/artifacts")}


def test_the_wait_for_a_locked_database_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "OPEN_WAIT", 0.1)
    file = tmp_path / "kept" / "well" / "mlflow.db"
    with exclusive(file), pytest.raises(TimeoutError), exclusive(file):
        pytest.fail("two hold it")
    with (
        FileLock(file.with_name("mlflow.db.lock"), timeout=0),
        pytest.raises(UnreachableError) as away,
    ):
        MlflowTracker(f"sqlite:///{file}")
    assert str(away.value).startswith(f"tracking sqlite:///{file} gives no answer: ")
