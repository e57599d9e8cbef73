"""The one module that speaks to MLflow: explicit run ids, no active run, one error for "away".

Importing it imports MLflow, which takes seconds; the sweep's own process has no need to.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import copyfile

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
# A POST that MLflow itself repeats may create a run twice; whoever calls repeats after looking.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.tracking import _names as names
from orchestrator.tracking._ledger import Change
from orchestrator.tracking._uri import SQLITE, sqlite_file
from trainables.addresses import redacted, scrubbed
from trainables.errors import InputError

PAGE = 1000
"""Runs asked for at once."""

OPEN_WAIT = 120.0
"""Seconds that another process may take to create a SQLite store."""

MAX_TEXT = 180
"""About how many characters are shown of a store's own words; the reason stands at their end."""

SERVER_LOGIN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
DATABASE_LOGIN = "set PGPASSWORD, or write the password into ~/.pgpass"
"""How to log in: an address is stored without its password, so that a resumed sweep needs it."""

_DATABASE_DENIED = re.compile("authentication failed|no password supplied")
_FINAL = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST")
_DENIED = ("UNAUTHENTICATED", "PERMISSION_DENIED")


class UnreachableError(InputError):
    """The tracking store gave no answer, or one that may be another the next time."""


class LoginError(UnreachableError):
    """The tracking server wants another login, unless whoever runs it lets this one in."""


class RefusedError(ValueError):
    """The tracking store will never take this, however often it is sent."""


class Server:
    """A tracking store.

    Args:
        uri: See ``check_tracking_uri``. For a SQLite file that does not exist, the file and its
            folders are created, which takes seconds.

    Raises:
        UnreachableError: If the store cannot be opened.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        file = sqlite_file(uri)
        with translated(uri), _alone(file):
            if file is not None and not (file.exists() and file.stat().st_size):
                _create(file)
            self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def experiment(self, name: str) -> Experiment | None:
        """Return the experiment of that name, deleted ones included, or None."""
        with translated(self.uri):
            return self.client.get_experiment_by_name(name)

    def ensure_experiment(
        self, name: str, artifact_root: Path | None, kind: str = "sweep"
    ) -> tuple[Experiment, bool]:
        """Return the experiment of that name, and whether it had to be created.

        A database that was moved together with ``artifact_root`` beside it is told so.

        Raises:
            UnreachableError: If it has been deleted on the server, until it is restored.
        """
        found = self.experiment(name)
        place = None if artifact_root is None else (artifact_root / _slug(name)).as_uri()
        if found is None:
            with translated(self.uri):
                made = self.client.create_experiment(name, place, tags={names.KIND: kind})
                return self.client.get_experiment(made), True
        if found.lifecycle_stage != "active":
            raise UnreachableError(
                f"experiment {name!r} is deleted on {redacted(self.uri)}; restore it with "
                f"`mlflow experiments restore -x {found.experiment_id}`"
            )
        file = sqlite_file(self.uri)
        if file and artifact_root and file.resolve().parent == artifact_root.parent:
            with translated(self.uri):
                _relocate(file, found, str(place))
        return found, False

    def experiments(self) -> list[Experiment]:
        """Return the experiments that hold sweeps."""
        found: list[Experiment] = []
        token = None
        while True:
            with translated(self.uri):
                page = self.client.search_experiments(
                    filter_string=f"tags.`{names.KIND}` = 'sweep'", page_token=token
                )
            found += page
            token = page.token
            if not token:
                return found

    def runs(
        self,
        experiments: Sequence[str],
        tags: Mapping[str, str],
        extra: Sequence[str] = (),
        order: Sequence[str] = (),
        limit: int | None = None,
        page: int = PAGE,
    ) -> Iterator[Run]:
        """Ask for runs by their tags, a page at a time.

        Args:
            experiments: Ids of experiments.
            tags: Tags with the values they must have.
            extra: Further conditions in MLflow's filter language.
            order: MLflow's order-by clauses.
            limit: Stop after so many.
            page: Ask for so many at once.
        """
        conditions = [f"tags.`{name}` = {quoted(value)}" for name, value in tags.items()]
        condition, token = " AND ".join([*extra, *conditions]), None
        while experiments:
            with translated(self.uri):
                answer = self.client.search_runs(
                    list(experiments),
                    condition,
                    max_results=min(page, limit or page),
                    order_by=list(order) or None,
                    page_token=token,
                )
            yield from answer[:limit]
            limit = None if limit is None else limit - len(answer)
            token = answer.token
            if not token or limit == 0:
                return

    def create_run(
        self, experiment: str, name: str, tags: Mapping[str, str], start_time: int
    ) -> str:
        """Create a run and return its id."""
        with translated(self.uri):
            run = self.client.create_run(experiment, start_time, dict(tags), name)
        return run.info.run_id

    def log(self, run_id: str, change: Change) -> None:
        """Add what is new to a run; saying it again changes nothing."""
        metrics = [Metric(names.allowed(p.name), p.value, p.time, p.step) for p in change.points]
        params = [Param(names.allowed(name), value) for name, value in change.params.items()]
        tags = [RunTag(name, value) for name, value in change.tags.items()]
        if metrics or params or tags:
            with translated(self.uri):
                # The client cuts this into as few requests as the server's limits allow.
                self.client.log_batch(run_id, metrics, params, tags, synchronous=True)

    def upload(self, run_id: str, name: str, path: Path) -> None:
        """Store a file with a run under the name given.

        Raises:
            RefusedError: If there is no such file.
        """
        if not path.is_file():
            raise RefusedError(f"artifact {name}: {path} does not exist")
        with tempfile.TemporaryDirectory() as folder, translated(self.uri):
            copy = Path(folder) / Path(name).name
            copyfile(path, copy)
            self.client.log_artifact(run_id, str(copy))

    def set_status(self, run_id: str, status: str, time: int) -> None:
        """Set a run's status, and when it ended unless it is RUNNING (again)."""
        with translated(self.uri):
            if status == names.RUNNING:
                self.client.update_run(run_id, status=status)
            else:
                self.client.set_terminated(run_id, status, time)

    def run(self, run_id: str) -> Run:
        """Return a run by its id.

        Raises:
            RefusedError: If there is none.
        """
        with translated(self.uri):
            return self.client.get_run(run_id)

    def delete_run(self, run_id: str) -> None:
        """Delete a run, as the user interface would."""
        with translated(self.uri):
            self.client.delete_run(run_id)


def answer_within(uri: str, timeout: float) -> str:
    """Ask a server one small question and return one line about it.

    Raises:
        UnreachableError: If it does not answer within ``timeout`` seconds.
    """
    seconds = max(1, round(timeout))
    with translated(uri):
        if uri.startswith("postgresql"):
            engine = create_engine(uri, connect_args={"connect_timeout": seconds})
            engine.connect().close()
            engine.dispose()
        else:
            before = os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]
            os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(seconds)
            try:
                MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
            finally:
                os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = before
    return f"{redacted(uri)} answers"


def quoted(value: str) -> str:
    """Quote a value for MLflow's filter language, which has no way to escape.

    Raises:
        InputError: If it holds both kinds of quotation mark.
    """
    mark = '"' if "'" in value else "'"
    if mark in value:
        raise InputError(f"{value!r} cannot be looked up: it holds both ' and \"")
    return f"{mark}{value}{mark}"


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)


def _create(file: Path) -> None:
    """Have MLflow make its tables, all or none: it never mends a part of them."""
    for left in file.parent.glob(f"{file.name}.*.tmp*"):
        left.unlink()
    # A name of its own: MLflow keeps the connection to a file that it failed with.
    draft = file.with_name(f"{file.name}.{uuid.uuid4().hex}.tmp")
    MlflowClient(tracking_uri=f"{SQLITE}{draft}", registry_uri=f"{SQLITE}{draft}")
    os.replace(draft, file)


def _relocate(file: Path, experiment: Experiment, place: str) -> None:
    """Have files of an experiment looked for and written in a place, which MLflow cannot change."""
    before = experiment.artifact_location
    if before == place:
        return
    with closing(sqlite3.connect(file, timeout=OPEN_WAIT)) as database, database:
        database.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
            (place, experiment.experiment_id),
        )
        database.execute(
            "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
            "WHERE experiment_id = ? AND instr(artifact_uri, ?) = 1",
            (place, len(before) + 1, experiment.experiment_id, before),
        )


@contextmanager
def _alone(file: Path | None) -> Iterator[None]:
    """Keep others from creating the same SQLite file at the same time, which breaks its schema."""
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f"{file.name}.lock"), timeout=OPEN_WAIT):
        yield


@contextmanager
def translated(uri: str) -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        text = _one_line(error, uri)
        if error.error_code in _FINAL:
            raise RefusedError(text) from error
        if error.error_code in _DENIED:
            raise LoginError(_denied(uri, error.error_code)) from error
        raise UnreachableError(f"tracking {redacted(uri)} gives no answer: {text}") from error
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        text = _one_line(error, uri)
        if uri.startswith("postgresql") and _DATABASE_DENIED.search(str(error)):
            raise LoginError(f"tracking {redacted(uri)} refuses the login; {DATABASE_LOGIN}") from (
                error
            )
        raise UnreachableError(f"tracking {redacted(uri)} gives no answer: {text}") from error


def _denied(uri: str, code: str) -> str:
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    if code == "PERMISSION_DENIED":
        whom = f"user {user!r}" if user else "this login"
        return f"tracking {redacted(uri)} does not let {whom} do this"
    whose = f" of user {user!r}" if user else ""
    return f"tracking {redacted(uri)} refuses the login{whose}; {SERVER_LOGIN}"


def _one_line(error: Exception, uri: str) -> str:
    # SQLAlchemy puts the driver's own words between others.
    said = str(getattr(error, "orig", None) or error)
    text = " ".join(scrubbed(said, uri).split())
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"
