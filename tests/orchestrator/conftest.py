"""One tracking store for all tests here (creating one takes seconds), and journals to ship."""

import hashlib
import itertools
import sqlite3
import time
import zlib
from contextlib import closing

import pytest

from orchestrator.storage.events import from_fields
from orchestrator.storage.journal import Journal
from tests.orchestrator import folder_kind  # noqa: F401  # Makes folder:/PATH known.
from tests.orchestrator.databases import place_database

TASK = "digits/convnet/digits"
START = 1_800_000_000_000


class Writer:
    """Writes the journal of a sweep, as the driver of one would."""

    def __init__(self, folder, sweep, sweep_id="5eed"):
        self.path = folder / "journal.jsonl"
        self.sweep, self.sweep_id = sweep, sweep_id
        self.journal = Journal(self.path)
        self.clock = itertools.count(START, 10)

    def write(self, event, **fields):
        self.now = next(self.clock)
        known = {"event": event, **fields, "time": self.now}
        self.journal.append(from_fields(known), durable=False)

    def start(self, code="c0ffee", spec=None, **provenance):
        told = {"sweep": self.sweep, "sweep_id": self.sweep_id}
        told["spec"] = {"name": self.sweep} if spec is None else spec
        known = {"git_commit": code, "versions": {"torch": "2.11.0"}, "hardware": "cpu"}
        self.write("sweep_started", **told, provenance=known | provenance)

    def open(self, recipe, trials=2, row=True, task=TASK, **facts):
        study = f"{task}|{recipe}"
        told = {"study": study, "task": task, "recipe": recipe, "trials": trials, "row": row}
        self.write("study_opened", **told, **{"upstream": None, "fingerprint": "f1", **facts})
        return study

    def begin(self, study, number, role="search", seed=0, configuration=None, key="", **facts):
        key = key or self.key(study, number, role)
        configuration = configuration or {study.split("|")[1]: {"margin": number + 0.5}}
        told = {"study": study, "number": number, "key": key, "role": role, "seed": seed}
        told |= {"stage": "train", "parameters": {}, "configuration": configuration}
        self.write("trial_started", **told | facts)
        return key

    def key(self, study, number, role="search"):
        return hashlib.sha256(f"{self.sweep_id} {study} {number} {role}".encode()).hexdigest()

    def epochs(self, key, count=2, first=0):
        for step in range(first, first + count):
            metrics = {"val_ece": 0.5 / (step + 1), "val_acc": 0.9, "train_loss": 1.0 / (step + 1)}
            self.write("epoch", key=key, step=step, metrics=metrics)

    def finish(self, key, status="finished", reason="", **metrics):
        told = {"key": key, "status": status, "metrics": metrics, "reason": reason}
        self.write("trial_finished", **told, reused=False, seconds=1.5)

    def score(self, key, objective):
        self.write("trial_scored", key=key, objective=objective)

    def trial(self, study, number, objective, **more):
        key = self.begin(study, number, **more)
        self.epochs(key)
        self.finish(key, val_ece=objective / 2, val_acc=0.91)
        self.score(key, objective)
        return key

    def close(self, study, chosen, finished=2, failed=0, reason=""):
        told = {"study": study, "chosen": chosen, "finished": finished, "failed": failed}
        self.write("study_closed", **told, reason=reason)

    def evaluate(self, key, study, seed=0, artifacts=None, facts=None, **metrics):
        told = {"key": key, "study": study, "seed": seed, "metrics": metrics}
        self.write("evaluated", **told, artifacts=artifacts or {}, **(facts or {}))

    def picture(self, name):
        """Return a file next to the chosen configurations."""
        path = self.path.parent / "chosen" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"png")
        return path

    def end(self, status="finished"):
        self.write("sweep_ended", status=status)


@pytest.fixture
def far_east(monkeypatch):
    """Have local time be far from universal time: on most of a day it has the next one's date."""
    monkeypatch.setenv("TZ", "EAST-20")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="session")
def database(tmp_path_factory):
    """Return the address of a SQLite database that several sweeps share."""
    return f"sqlite:///{place_database(tmp_path_factory.mktemp('store'))}/mlflow.db"


@pytest.fixture
def store(database):
    """Return the address of what tracks; some tests put another in its place."""
    return database


@pytest.fixture(scope="session")
def journal_writer():
    """Return the class that writes journals, for tests that place them themselves."""
    return Writer


@pytest.fixture
def writer(tmp_path, request):
    """Return a writer for a sweep that no other test uses."""
    # Short, so that no message is cut.
    return Writer(tmp_path / "sweep", f"s{zlib.crc32(request.node.nodeid.encode()):08x}")


@pytest.fixture(scope="session")
def rows():
    """Return a function that asks a SQLite store directly."""

    def ask(uri, query, *values):
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database:
            return database.execute(query, values).fetchall()

    return ask


@pytest.fixture(scope="session")
def snapshot(rows):
    """Return a function giving all that a SQLite store holds of one sweep, as sorted rows."""

    def take(uri, sweep):
        runs = (
            "SELECT run_uuid FROM runs JOIN experiments USING (experiment_id) "
            "WHERE experiments.name = ? AND runs.lifecycle_stage = 'active'"
        )
        columns = {
            "runs": "run_uuid, name, status, start_time, end_time",
            "metrics": "run_uuid, key, value, timestamp, step",
            "params": "run_uuid, key, value",
            "tags": "run_uuid, key, value",
        }
        return {
            table: sorted(
                rows(uri, f"SELECT {names} FROM {table} WHERE run_uuid IN ({runs})", sweep), key=str
            )
            for table, names in columns.items()
        }

    return take
