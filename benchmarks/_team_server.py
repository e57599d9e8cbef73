"""A team's tracking server as the plain commands of deploy/README.md start it."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import psycopg2
from _servers import mlflow_server, postgres_server
from sqlalchemy.engine import make_url

AUTH = Path(__file__).parents[1] / "deploy" / "auth.ini"
ADMIN = "admin"
LINE = re.compile(r'^(\S+ \S+) INFO: .* "(\w+) (\S+) HTTP/1.1" (\d+)')


@dataclass(frozen=True)
class TeamServer:
    """A running one.

    Attributes:
        uri: Its address.
        database: Address of its database, password included.
        password: The administrator's.
        log: What the server writes.
        process: Its first process.
        postgres: PostgreSQL's first process.
    """

    uri: str
    database: str
    password: str
    log: Path
    process: psutil.Process
    postgres: psutil.Process

    def login(self, password: str | None = None) -> dict[str, str]:
        """Return the environment of a client; with another password than the right one if given."""
        return {
            "MLFLOW_TRACKING_USERNAME": ADMIN,
            "MLFLOW_TRACKING_PASSWORD": self.password if password is None else password,
        }

    def connect(self) -> psycopg2.extensions.connection:
        """Return a connection to the database, in which every statement is its own transaction."""
        url = make_url(self.database)
        connection = psycopg2.connect(url.set(drivername="postgresql").render_as_string(False))
        connection.autocommit = True
        return connection

    def requests(self, since: float, until: float) -> tuple[Counter[str], int]:
        """Return the requests between two times by kind, and the number of errors."""
        asked, errors = Counter[str](), 0
        for line in self.log.read_text(encoding="utf-8").splitlines():
            found = LINE.match(line)
            if found is None:
                continue
            time, method, path, status = found.groups()
            if since <= datetime.strptime(time, "%Y/%m/%d %H:%M:%S").timestamp() < until:
                asked[f"{method} {path.partition('?')[0].rpartition('/mlflow/')[2]}"] += 1
                errors += int(status) >= 400
        return asked, errors


@contextmanager
def team_server(folder: Path, mlflow: str) -> Iterator[TeamServer]:
    """Run PostgreSQL and, in front of it, MLflow with logins, both on the loopback.

    Args:
        folder: Holds everything that they write.
        mlflow: The ``mlflow`` of an installation with ``mlflow[auth]`` and ``psycopg2``.
    """
    password = secrets.token_hex(16)
    with postgres_server(folder, secrets.token_hex(16)) as owner:
        database = _database(owner)
        environment = {
            "MLFLOW_BACKEND_STORE_URI": database,
            "MLFLOW_AUTH_CONFIG_PATH": str(AUTH),
            "MLFLOW_AUTH_ADMIN_PASSWORD": password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32),
        }
        words = ["--app-name", "basic-auth", "--workers", "4"]
        words += ["--uvicorn-opts", "--timeout-worker-healthcheck 60"]
        words += ["--artifacts-destination", str(folder / "mlflow-artifacts")]
        with mlflow_server(folder, *words, mlflow=mlflow, **environment) as (uri, process):
            log, postgres = folder / "server.log", _listener(make_url(owner).port)
            yield TeamServer(uri, database, password, log, psutil.Process(process), postgres)


def _database(owner: str) -> str:
    """Do what ``createuser`` and ``createdb`` do; return the new database's address."""
    password, url = secrets.token_hex(16), make_url(owner)
    connection = psycopg2.connect(url.set(drivername="postgresql").render_as_string(False))
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE mlflow LOGIN PASSWORD %s", (password,))
        cursor.execute("CREATE DATABASE mlflow OWNER mlflow")
    connection.close()
    return url.set(username="mlflow", password=password, database="mlflow").render_as_string(False)


def _listener(port: int | None) -> psutil.Process:
    """Return this process's child that listens on a port."""
    for child in psutil.Process().children():
        listening = [c.laddr.port for c in child.net_connections() if c.status == "LISTEN"]
        if port in listening:
            return child
    raise RuntimeError(f"nothing listens on port {port}")
