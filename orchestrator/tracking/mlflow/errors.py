"""MLflow's errors, told apart by what can be done about them, on one line without secrets."""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.sweep.tracking_uri import sqlite_file
from orchestrator.tracking.mlflow.sqlite import renewal
from orchestrator.tracking.tracker import BlockedError, LoginError, RefusedError, UnreachableError
from trainables.common.paths import redacted, scrubbed

MAX_TEXT = 180
"""About how many characters are shown of MLflow's own words; the reason stands at their end."""

SERVER_LOGIN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
DATABASE_LOGIN = "set PGPASSWORD, or write the password into ~/.pgpass"
"""How to log in: an address is stored without its password, so that a resumed sweep needs it."""

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
    """Raise the errors of MLflow and its database as those of ``Tracker``."""
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
    """Raise a ``BlockedError`` if a SQLite file cannot be used until someone mends it."""
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
    # SQLAlchemy, and MLflow after it, put the driver's own words between others.
    causes = (getattr(each, "orig", None) for each in (error, error.__cause__))
    said = str(next(filter(None, causes), error))
    text = " ".join(scrubbed(said, uri).split())
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"
