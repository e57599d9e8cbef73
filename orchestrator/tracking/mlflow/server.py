"""Stores and reads runs on an MLflow server or in an MLflow database.

Importing MLflow takes seconds; the sweep's own process does not need this module during trials.
"""

import json
import logging
import os
import re
import shlex
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import TypeVar

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
# If MLflow repeats a POST, a run may be created twice. Callers check for the run and then repeat.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")

import mlflow.entities as mlf
from mlflow import MlflowClient
from mlflow.entities.model_registry import RegisteredModel
from mlflow.exceptions import MlflowException
from mlflow.store.entities import PagedList
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.sweep.tracking_uri import mlflow_uri, sqlite_file, sqlite_uri
from orchestrator.tracking import _names as names
from orchestrator.tracking._changes import Change
from orchestrator.tracking.mlflow.reader import PARENT
from orchestrator.tracking.mlflow.sqlite import exclusive, relocate, renewal, require_readable
from orchestrator.tracking.tracker import (
    MODEL_PLACE,
    BlockedError,
    Experiment,
    LoginError,
    RefusedError,
    Run,
    RunQuery,
    Tracker,
    UnreachableError,
    model_name,
)
from trainables.common.errors import InputError
from trainables.common.files import drafted, inherit
from trainables.common.paths import redacted, scrubbed

# MLflow also logs a traceback of each error that it raises; the caller reports it in one line.
logging.getLogger("mlflow.store").setLevel(logging.CRITICAL)

T = TypeVar("T")
LANES = 4
"""Parallel requests to a server, which hide its latency."""


MAX_NAME = 250  # Characters in the name of a metric or parameter.
MAX_DIGEST = 36
# A database keeps 200 characters of the path of a run's files, which ends in "/RUN_ID/artifacts".
MAX_PLACE = 200 - 43
_FORBIDDEN = re.compile(r"[^\w\-. :/]")


class MlflowTracker(Tracker):
    """A tracking server, or a database without a server; a missing SQLite file is created."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        file = sqlite_file(uri)
        self.lanes = LANES if file is None else 1
        only_read = file is not None and file.exists() and not os.access(file, os.W_OK)
        with translated(uri), nullcontext() if file is None or only_read else exclusive(file):
            if file is not None and not (file.exists() and file.stat().st_size):
                _create(file)
            if file is not None:
                require_readable(file)
            address = mlflow_uri(uri)
            self.client = MlflowClient(tracking_uri=address, registry_uri=address)

    def open_experiment(
        self, name: str, artifact_root: Path, kind: str = "sweep"
    ) -> tuple[Experiment, bool]:
        place = (artifact_root.resolve() / re.sub(r"[^\w.-]", "_", name)).as_uri()
        with translated(self.uri):
            found = self.client.get_experiment_by_name(name)
            if found is None:
                own = self.uri.startswith("http")  # A server chooses the place of its files.
                if len(place) > MAX_PLACE and not own and sqlite_file(self.uri) is None:
                    raise RefusedError(
                        f"artifacts at {place}: {len(place)} characters, but {redacted(self.uri)} "
                        f"allows at most {MAX_PLACE}; use a storage with a shorter path"
                    )
                made = self.client.create_experiment(
                    name, None if own else place, tags={names.KIND: kind}
                )
                found = self.client.get_experiment(made)
                return Experiment(made, found.creation_time or 0), True
        if fault := self._deletion(found):
            raise BlockedError(fault)
        file = sqlite_file(self.uri)
        # The database may have been moved together with the files next to it.
        if file and file.resolve().parent == artifact_root.resolve().parent:
            with translated(self.uri):
                relocate(file, found.experiment_id, found.artifact_location, place)
        return Experiment(found.experiment_id, found.creation_time or 0), False

    def sweeps(self) -> dict[str, str]:
        condition = f"tags.`{names.KIND}` = 'sweep'"
        ask = partial(self.client.search_experiments, filter_string=condition)
        return {found.name: found.experiment_id for found in self._pages(ask)}

    def deletion(self, sweep: str) -> str:
        with translated(self.uri):
            found = self.client.get_experiment_by_name(sweep)
        return "" if found is None else self._deletion(found)

    def _deletion(self, found: mlf.Experiment) -> str:
        if found.lifecycle_stage == "active":
            return ""
        store = shlex.quote(mlflow_uri(redacted(self.uri)))
        return (
            f"experiment {found.name!r} is deleted; restore it with `MLFLOW_TRACKING_URI={store} "
            f"mlflow experiments restore -x {found.experiment_id}`"
        )

    def runs(self, query: RunQuery) -> Iterator[Run]:
        # The first condition should be the rarest: a database starts its search from it.
        conditions = [f"tags.`{query.marked}` != ''"] if query.marked else []
        conditions += [f"attributes.status = '{query.status}'"] if query.status else []
        conditions += [f"tags.`{name}` = {_quoted(value)}" for name, value in query.tags.items()]
        by = query.order and [f"metrics.{name} ASC" for name in query.order]
        ask = partial(
            self.client.search_runs,
            list(query.experiments),
            " AND ".join(conditions),
            max_results=query.page,
            order_by=None if by is None else [*by, "attributes.start_time ASC"],
        )
        return map(_run, self._pages(ask) if query.experiments else ())

    def _pages(self, ask: Callable[..., PagedList[T]]) -> Iterator[T]:
        """Yield the results of a search, page by page."""
        page = None
        while page is None or page.token:
            with translated(self.uri):
                page = ask(page_token=page and page.token)
            yield from page

    def run(self, run_id: str) -> Run:
        with translated(self.uri):
            return _run(self.client.get_run(run_id))

    def create_run(
        self,
        experiment: str,
        name: str,
        tags: Mapping[str, str],
        started: int,
        parent: str | None = None,
    ) -> str:
        whole = {**tags} if parent is None else {**tags, PARENT: parent}
        with translated(self.uri):
            return self.client.create_run(experiment, started, whole, name).info.run_id

    def log(self, run_id: str, change: Change) -> None:
        metrics = [mlf.Metric(allowed_name(p.name), p.value, p.time, p.step) for p in change.points]
        params = [mlf.Param(allowed_name(name), value) for name, value in change.params.items()]
        tags = [mlf.RunTag(name, value) for name, value in change.tags.items()]
        if metrics or params or tags:
            with translated(self.uri):
                # The client splits this into requests within the server's limits.
                self.client.log_batch(run_id, metrics, params, tags, synchronous=True)
                if data := _dataset(change.tags):
                    self.client.log_inputs(run_id, [mlf.DatasetInput(data)])

    def upload(self, run_id: str, name: str, path: Path) -> None:
        if not path.is_file():
            raise RefusedError(f"artifact {name}: {path} does not exist")
        with tempfile.TemporaryDirectory() as folder, translated(self.uri):
            copy = Path(folder) / Path(name).name
            copyfile(path, copy)
            self.client.log_artifact(run_id, str(copy))

    def set_status(self, run_id: str, status: str, time: int) -> None:
        with translated(self.uri):
            if status == names.RUNNING:
                self.client.update_run(run_id, status=status)
            else:
                self.client.set_terminated(run_id, status, time)

    def delete_run(self, run_id: str) -> None:
        with translated(self.uri):
            self.client.delete_run(run_id)

    def register(
        self, task: str, run_id: str, folder: Path, tags: Mapping[str, str], alias: str
    ) -> tuple[str, str, bool]:
        name = model_name(task)
        with translated(self.uri):
            model = self._model(name, task)
            known = self.client.search_model_versions(
                f"name = {_quoted(name)} AND run_id = {_quoted(run_id)}"
            )
            if not known:
                self.client.log_artifacts(run_id, str(folder), MODEL_PLACE)
                self.client.log_text(run_id, _mlmodel(run_id), f"{MODEL_PLACE}/MLmodel")
                source = f"runs:/{run_id}/{MODEL_PLACE}"
                made = self.client.create_model_version(name, source, run_id, tags=dict(tags))
            version = str((known[0] if known else made).version)
            moved = str(model.aliases.get(alias, "")) != version
            if moved:
                self.client.set_registered_model_alias(name, alias, version)
        return name, version, moved

    def _model(self, name: str, task: str) -> RegisteredModel:
        try:
            model = self.client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return self.client.create_registered_model(name, tags={names.TASK: task})
        if model.tags.get(names.TASK) != task:
            raise InputError(
                f"registered model {name!r} belongs to another task than {task!r}; rename or "
                "delete it"
            )
        return model


def probe(uri: str, timeout: float) -> str:
    """Send one request to a server; return a line about it, or raise ``UnreachableError``."""
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


def allowed_name(name: str) -> str:
    """Return a name that MLflow allows; it refuses a whole batch if one name is invalid."""
    return _FORBIDDEN.sub("_", name)[:MAX_NAME]


def _dataset(tags: Mapping[str, str]) -> mlf.Dataset | None:
    """Return the data set in a run's tags, for MLflow's list of inputs; None if they have none."""
    if not (tags.get(names.DATASET) and tags.get(names.FINGERPRINT)):
        return None
    name, digest = tags[names.DATASET], tags[names.FINGERPRINT]
    return mlf.Dataset(name, digest[:MAX_DIGEST], "calsweep", json.dumps({"fingerprint": digest}))


def _mlmodel(run_id: str) -> str:
    """Return the MLmodel file with which ``mlflow.pyfunc.load_model`` loads a champion."""
    from mlflow.models import Model  # Both take a second to import.
    from mlflow.pyfunc import add_to_model

    model = Model(artifact_path=MODEL_PLACE, run_id=run_id)
    add_to_model(model, loader_module="orchestrator.tracking.mlflow.champion")
    return str(model.to_yaml())


def _run(run: mlf.Run) -> Run:
    info, tags = run.info, run.data.tags
    return Run(
        info.run_id,
        info.experiment_id,
        tags.get(PARENT),
        info.status,
        info.start_time,
        tags,
        run.data.metrics,
    )


def _quoted(value: str) -> str:
    """Quote a value for MLflow's filter language, which has no escape character."""
    mark = '"' if "'" in value else "'"
    if mark in value:
        raise InputError(f"{value!r} cannot be searched: it has both ' and \"")
    return f"{mark}{value}{mark}"


def _create(file: Path) -> None:
    """Create all of MLflow's tables or none: MLflow cannot complete an incomplete database."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # Servers do not need it.

    for remainder in file.parent.glob(f".{file.name}.*.tmp*"):
        remainder.unlink()
    # Each draft has a new name: after a failure MLflow keeps its connection to the file.
    with drafted(file) as draft:
        # Without a folder for files MLflow puts the current folder, unquoted, into its SQL.
        place = file.parent.absolute() / "mlflow-artifacts"
        SqlAlchemyStore(mlflow_uri(sqlite_uri(draft)), place.as_uri())
        inherit(draft)


MAX_TEXT = 180
"""Characters shown of MLflow's message: its start and its end, where the reason is."""

SERVER_LOGIN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
DATABASE_LOGIN = "set PGPASSWORD, or write the password into ~/.pgpass"
"""Sweeps store addresses without passwords, so the password must come from elsewhere."""

_DATABASE_DENIED = re.compile("authentication failed|no password supplied")
_DAMAGED = re.compile("disk image is malformed|file is not a database")
_BLOCKED = re.compile(
    "unable to open database|out-of-date database schema|disk is full|disk I/O|readonly database"
    "|No space left|Permission denied|Read-only file system"
)
_FINAL = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST")
_DENIED = ("UNAUTHENTICATED", "PERMISSION_DENIED")


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Raise the errors of MLflow and its database as errors of a ``Tracker``."""
    try:
        yield
    except MlflowException as error:
        _raise_blocked(error, uri)
        if error.error_code in _FINAL:
            raise RefusedError(_one_line(error, uri)) from error
        if error.error_code in _DENIED:
            raise LoginError(_denied(uri, error.error_code)) from error
        raise UnreachableError(_no_answer(error, uri)) from error
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        _raise_blocked(error, uri)
        if uri.startswith("postgresql") and _DATABASE_DENIED.search(str(error)):
            text = f"tracking {redacted(uri)} refuses the login; {DATABASE_LOGIN}"
            raise LoginError(text) from error
        raise UnreachableError(_no_answer(error, uri)) from error


def _raise_blocked(error: Exception, uri: str) -> None:
    """Raise ``BlockedError`` if a SQLite file is unusable until someone repairs it."""
    file, text = sqlite_file(uri), _one_line(error, uri)
    if file is not None and _DAMAGED.search(text):
        raise BlockedError(
            f"tracking database {file} is damaged ({text}); {renewal(file)}"
        ) from error
    if file is not None and _BLOCKED.search(text):
        raise BlockedError(f"tracking database {file} cannot be used: {text}") from error


def _denied(uri: str, code: str) -> str:
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    if code == "PERMISSION_DENIED":
        whom = f"user {user!r}" if user else "this login"
        return f"tracking {redacted(uri)} does not let {whom} do this"
    whose = f" of user {user!r}" if user else ""
    return f"tracking {redacted(uri)} refuses the login{whose}; {SERVER_LOGIN}"


def _no_answer(error: Exception, uri: str) -> str:
    return f"tracking {redacted(uri)} gives no answer: {_one_line(error, uri)}"


def _one_line(error: Exception, uri: str) -> str:
    # SQLAlchemy and MLflow wrap the driver's message, which is the useful part.
    causes = (getattr(each, "orig", None) for each in (error, error.__cause__))
    message = str(next(filter(None, causes), error))
    text = " ".join(scrubbed(message, uri).split())
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"
