import os
import re
import sqlite3
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import DBAPIError

from orchestrator.tracking import check_login, ping
from orchestrator.tracking.mlflow import server
from orchestrator.tracking.mlflow.server import MAX_TEXT, translated
from orchestrator.tracking.tracker import BlockedError, LoginError, RefusedError, UnreachableError

ESCAPED = "sqlite:////my%2520project/m.db"
URI = "http://ada:planted@host"


def said(code: str, text: str = "no") -> MlflowException:
    error = MlflowException(text)
    error.error_code = code
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (said("INVALID_PARAMETER_VALUE"), RefusedError),
        (said("RESOURCE_DOES_NOT_EXIST"), RefusedError),
        (said("BAD_REQUEST"), RefusedError),
        (said("UNAUTHENTICATED"), LoginError),
        (said("PERMISSION_DENIED"), LoginError),
        (said("INTERNAL_ERROR"), UnreachableError),
        (said("TEMPORARILY_UNAVAILABLE"), UnreachableError),
        (sqlite3.OperationalError("locked"), UnreachableError),
        (sqlite3.DatabaseError("malformed"), UnreachableError),
        (ConnectionResetError("by peer"), UnreachableError),
        (DBAPIError("SELECT", {}, Exception("closed")), UnreachableError),
        (ZeroDivisionError("ours"), ZeroDivisionError),
    ],
)
def test_errors_are_classified(error, kind):
    with pytest.raises(kind) as caught, translated(URI):
        raise error
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (sqlite3.DatabaseError("database disk image is malformed"), BlockedError, "is damaged ("),
        (said("BAD_REQUEST", "file is not a database"), BlockedError, "is damaged ("),
        (sqlite3.OperationalError("unable to open database file"), BlockedError, "cannot be used"),
        (said("TEMPORARILY_UNAVAILABLE", "disk I/O error"), BlockedError, "cannot be used"),
        (said("TEMPORARILY_UNAVAILABLE", "disk is full"), BlockedError, "cannot be used"),
        (said("INTERNAL_ERROR", "out-of-date database schema"), BlockedError, "cannot be used"),
        (PermissionError(13, "Permission denied"), BlockedError, "cannot be used"),
        (sqlite3.OperationalError("database is locked"), UnreachableError, "gives no answer"),
        (TimeoutError("the lock of a file"), UnreachableError, "gives no answer"),
    ],
)
def test_a_database_that_needs_repair_is_a_blocked_error(error, kind, text):
    told = re.escape(text)
    with pytest.raises(UnreachableError, match=told) as caught, translated(ESCAPED):
        raise error
    assert type(caught.value) is kind
    assert "/my%20project/m.db" in str(caught.value) or kind is UnreachableError


@pytest.mark.parametrize(
    ("uri", "text", "kind"),
    [
        ("postgresql://ada@h/m", 'password authentication failed for user "ada"', LoginError),
        ("postgresql://ada@h/m", "no password supplied", LoginError),
        ("postgresql://ada@h/m", "connection refused", UnreachableError),
        ("sqlite:///m.db", "authentication failed", UnreachableError),
    ],
)
def test_a_database_that_is_away_refuses_no_login(uri, text, kind):
    with pytest.raises((LoginError, UnreachableError)) as caught, translated(uri):
        raise DBAPIError("SELECT", {}, Exception(text))
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (said("INTERNAL_ERROR", "a\n  planted b"), "a *** b"),
        (OSError("x" * MAX_TEXT), "x" * MAX_TEXT),
        (OSError("x" * 91 + "y" * 90), f"{'x' * 90} ... {'y' * 90}"),
        (DBAPIError("SELECT", {}, Exception("the reason")), "the reason"),
        (said("BAD_REQUEST", "a\n  planted b"), "a *** b"),
    ],
)
def test_errors_are_one_short_line_without_secrets(error, text):
    with pytest.raises((UnreachableError, RefusedError)) as caught, translated(URI):
        raise error
    away = isinstance(caught.value, UnreachableError)
    assert str(caught.value) == f"{'tracking http://host gives no answer: ' if away else ''}{text}"


@pytest.mark.parametrize(("timeout", "seconds"), [(0.2, "1"), (2.6, "3")])
def test_a_short_timeout_does_not_change_later_ones(monkeypatch, timeout, seconds):
    asked = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            asked.append(tracking_uri)

        def search_experiments(self, max_results: int) -> None:
            asked.append(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"])
            raise OSError("gone")

    monkeypatch.setattr(server, "MlflowClient", Client)
    before = os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]
    with pytest.raises(UnreachableError):
        server.probe(URI, timeout)
    assert asked == [URI, seconds]
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == before


@pytest.mark.parametrize(("timeout", "seconds"), [(0.2, 1), (2.6, 3)])
def test_a_probe_of_a_database_has_a_timeout_and_closes_the_connection(
    monkeypatch, timeout, seconds
):
    asked: list[object] = []
    connection = SimpleNamespace(close=lambda: asked.append("closed"))
    engine = SimpleNamespace(connect=lambda: connection, dispose=lambda: asked.append("disposed"))
    monkeypatch.setattr(server, "create_engine", lambda *a, **o: asked.append((a, o)) or engine)
    uri = "postgresql+psycopg2://ada:planted@host/m"
    assert server.probe(uri, timeout) == "postgresql+psycopg2://ada@host/m answers"
    question = ((uri,), {"connect_args": {"connect_timeout": seconds}})
    assert asked == [question, "closed", "disposed"]


@pytest.mark.parametrize("ask", [ping, check_login])
def test_ping_has_a_timeout(monkeypatch, ask):
    asked = []
    monkeypatch.setattr(server, "probe", lambda *question: asked.append(question) or "answers")
    monkeypatch.setattr("orchestrator.tracking._kinds.listens", lambda uri: True)
    ask(URI, 2.5)
    ask(URI)
    assert asked == [(URI, 2.5), (URI, 5.0)]


@pytest.mark.parametrize("user", ["", "bob"])
def test_a_denied_user_is_named(monkeypatch, user):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
    with pytest.raises(LoginError) as caught, translated(URI):
        raise said("PERMISSION_DENIED")
    whom = "user 'bob'" if user else "this login"
    assert str(caught.value) == f"tracking http://host does not let {whom} do this"
