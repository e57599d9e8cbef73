import base64
import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import psutil
import pytest
import yaml

from orchestrator.cli import main
from orchestrator.cli._doctor import _tracking
from orchestrator.sweep.spec import parse_sweep
from orchestrator.tracking import __main__ as program
from orchestrator.tracking import best_trials, check_login, open_tracker, sync, tracked_trial
from orchestrator.tracking._comparable import StudyFilter
from orchestrator.tracking.tracker import RunQuery
from trainables.common.errors import InputError

PASSWORD, TOKEN = "pl@nted/Passw0rd", "planted-t0ken"
SECRET = quote(PASSWORD, safe="")
SPELLINGS = [PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), TOKEN]
SPELLINGS += [base64.b64encode(f"ada:{PASSWORD}".encode()).decode()]
SWEEP = """
name: secretive
tasks:
  - name: d
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 1}}
    split: {{train_limit: 100, test_limit: 50}}
recipes: [ce]
search: {{trials: 1, accuracy_tolerance: null}}
tracking: {{uri: "{uri}"}}
resources: {{concurrent: 1}}
storage: {storage}
"""


class Gossip(BaseHTTPRequestHandler):
    """Refuses every request for now, and repeats whatever came with it."""

    protocol_version = "HTTP/1.1"
    logins: list[str] = []  # noqa: RUF012 - of all requests

    def do_GET(self) -> None:
        login = self.headers.get("Authorization", "Basic ").removeprefix("Basic ")
        self.logins.append(base64.b64decode(login).decode())
        text = f"cannot serve http://{self.logins[-1]}@{self.path} ({unquote(self.path)})"
        body = json.dumps({"error_code": "TEMPORARILY_UNAVAILABLE", "message": text}).encode()
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gossip():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gossip)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def revealed(texts: dict[str, bytes]) -> set[str]:
    return {
        name for name, text in texts.items() if any(word.encode() in text for word in SPELLINGS)
    }


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def command_lines(process: psutil.Process) -> dict[str, bytes]:
    found = {}
    for child in [process, *process.children(recursive=True)]:
        try:
            if words := child.cmdline():  # A process that is ending has none left.
                found[f"process {child.pid}"] = " ".join(words).encode()
        except psutil.Error:
            continue  # It has ended meanwhile.
    return found


@pytest.mark.slow
# Ray is told neither a sweep nor its address: starting it for its logs alone takes a minute.
@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.long)])
def test_a_sweep_leaves_and_shows_no_secret(gossip, tmp_path, executor):
    place = f"127.0.0.1:{gossip.server_port}"
    uri = f"http://ada:{quote(PASSWORD, safe='')}@{place}/?token={TOKEN}"
    file = tmp_path / "sweep.yaml"
    text = SWEEP.format(uri=uri, storage=tmp_path / "storage")
    file.write_text(f"{text}executor: {executor}\n")
    log = tmp_path / "storage/sweeps/secretive/shipper.log"
    ray_folder = Path(tempfile.mkdtemp(prefix="ray"))  # Short: it is part of a socket's name.
    run = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "run", str(file)],
        env={**os.environ, "RAY_TMPDIR": str(ray_folder), "COLUMNS": "400"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        seen: dict[str, bytes] = {}
        while run.poll() is None:
            seen |= command_lines(psutil.Process(run.pid)) if run.poll() is None else {}
            if log.is_file() and b"503" in log.read_bytes():
                gossip.server_close()  # Away: the sweep does not wait for it at its end.
            time.sleep(0.3)
        out, err = run.communicate()
        assert run.returncode == 0, err.decode()
        assert any("orchestrator.tracking" in line.decode() for line in seen.values())
        assert f"not everything has reached http://{place}/" in out.decode()
        assert f"ada:{PASSWORD}" in Gossip.logins, "the server never saw the password"
        files = contents(tmp_path / "storage") | contents(ray_folder)
        assert b"503" in log.read_bytes()
        assert revealed({"stdout": out, "stderr": err, **seen, **files}) == set()
    finally:
        run.kill()
        shutil.rmtree(ray_folder, ignore_errors=True)
    stored = yaml.safe_load((log.parent / "sweep.yaml").read_text())
    assert stored["tracking"]["uri"] == f"http://{place}/"


def test_unexpected_errors_are_logged_without_secrets(monkeypatch, caplog):
    uri, told = f"http://ada:{SECRET}@127.0.0.1:9?token={TOKEN}", dict[str, Any]()
    monkeypatch.setattr(logging, "basicConfig", lambda **options: told.update(options))
    monkeypatch.setattr(sys, "excepthook", None)
    program._log_without_secrets(uri)
    try:
        raise OSError(f"cannot reach {uri}")
    except OSError:
        sys.excepthook(*sys.exc_info())
    (handler,), (record,) = told["handlers"], caplog.records
    line = handler.format(record)
    assert told["level"] == logging.INFO
    assert line.splitlines()[0].endswith(" CRITICAL unforeseen")
    assert line.splitlines()[-1].startswith("OSError: cannot reach ")
    assert revealed({"log": line.encode()}) == set()


COMMANDS = [
    ["plan", "{file}"],
    ["run", "{file}", "--dry-run"],
    ["report", "secretive", "--tracking-uri", "{uri}"],
    ["submit", "{file}"],
    ["run", "{file}", "--address", "ray://{login}127.0.0.1:9"],
    ["submit", "{file}", "--address", "http://{login}127.0.0.1:9"],
    ["run", "{file}", "--address", "http://127.0.0.1:99999"],
]
ADDRESSES = [
    f"http://ada:{SECRET}@127.0.0.1:9",
    f"https://{SECRET}@127.0.0.1:9/mlflow?token={TOKEN}#{TOKEN}",
    f"http://ada:{PASSWORD}@127.0.0.1:9",
    f"http://ada:{SECRET}@127.0.0.1:99999",
    f"http://ada:{SECRET}@[::1",
    f"http://ada:{SECRET}@[::1]:port",
    f"http://ada:{SECRET}",
    f"postgresql+psycopg2://ada:{SECRET}@127.0.0.1:9/mlflow?password={TOKEN}",
    f"postgresql://ada:{PASSWORD}@127.0.0.1:9/mlflow",
    f"mysql://ada:{SECRET}@127.0.0.1/mlflow",
    f"ada:{PASSWORD}@127.0.0.1",
    f"sqlite:///mlflow.db?key={TOKEN}",
]


@pytest.mark.parametrize(
    ("command", "uri"),
    [
        pytest.param(command, uri, id=f"{' '.join(command[:3])}-{number}")
        for command in COMMANDS
        for number, uri in enumerate(ADDRESSES)
        # MLflow asks an absent database for a minute and a half.
        if command[0] != "report" or not uri.startswith("postgresql+")
    ],
)
def test_no_command_shows_a_secret(command, uri, tmp_path, capfd):
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP.format(uri=uri, storage=tmp_path / "storage"))
    words = {"file": file, "uri": uri, "login": f"ada:{SECRET}@"}
    code = main([word.format(**words) for word in command])
    out, err = capfd.readouterr()
    assert revealed({"stdout": out.encode(), "stderr": err.encode()}) == set()
    assert "Traceback" not in err
    if code == 2:
        assert err.count("\n") == 1
        assert err.isprintable() or err[:-1].isprintable()
        assert len(err) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("uri", ADDRESSES)
def test_the_doctor_shows_no_secret(uri):
    assert revealed({"finding": str(_tracking(uri, "storage")).encode()}) == set()


@pytest.mark.parametrize(
    "value", [f'"http://ada:{SECRET}@h"', f'{{uri: ["http://ada:{SECRET}@h"]}}', "{uri: 5}"]
)
def test_an_address_in_the_wrong_place_is_not_shown(value):
    text = SWEEP.format(uri="URI", storage="s").replace('{uri: "URI"}', value)
    with pytest.raises(InputError) as caught:
        parse_sweep(text, "sweep")
    assert str(caught.value).startswith("sweep: tracking")
    assert revealed({"error": str(caught.value).encode()}) == set()


def test_dumped_and_printed_sweeps_have_no_secret():
    uri = f"http://ada:{SECRET}@127.0.0.1:9?token={TOKEN}"
    spec = parse_sweep(SWEEP.format(uri=uri, storage="s"), "sweep")
    assert spec.tracking_uri == uri
    for text in (repr(spec), str(spec.model_dump()), spec.model_dump_json()):
        assert revealed({"spec": text.encode()}) == set()
    assert spec.model_dump()["tracking"] == {"uri": "http://127.0.0.1:9"}


def test_messages_about_missing_runs_have_no_login(writer, tmp_path, monkeypatch):
    writer.start()
    study = writer.open("ce")
    key = writer.begin(study, 0)
    sync(writer.path, f"folder:{tmp_path}/tracked")
    tracker = open_tracker(f"folder:{tmp_path}/tracked")
    uri = tracker.uri = f"http://ada:{SECRET}@host?token={TOKEN}"
    monkeypatch.setattr("orchestrator.tracking.best.read_tracker", lambda uri: tracker)
    monkeypatch.setattr("orchestrator.tracking._queries.open_tracker", lambda uri: tracker)
    task, _, recipe = study.partition("|")
    found = tracker.runs(RunQuery(list(tracker.sweeps().values()), {}))
    ids = {run.tags["calsweep.key"]: run.id for run in found}
    said = {
        "no sweep 'x' on http://host; ": lambda: best_trials(uri, task, recipe, "x"),
        "no task 'x' on http://host; ": lambda: best_trials(uri, "x", recipe),
        f"no recipe 'x' for {task!r} on http://host; ": lambda: best_trials(uri, task, "x"),
        f"no study of {recipe!r} on {task!r} on http://host fulfils --code x; ": lambda: (
            best_trials(uri, task, recipe, where=StudyFilter(code="x"))
        ),
        "no run 'r1' on http://host: ": lambda: tracked_trial(uri, "r1"),
        f"run {ids[study]!r} on http://host is not a trial ": lambda: tracked_trial(
            uri, ids[study]
        ),
        f"run {ids[key]!r} on http://host is not a finished ": lambda: tracked_trial(uri, ids[key]),
    }
    for text, ask in said.items():
        with pytest.raises(InputError) as refusal:
            ask()
        assert str(refusal.value).startswith(text)
        assert revealed({"error": str(refusal.value).encode()}) == set()


def test_a_resumed_sweep_logs_in_by_the_environment(gossip, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "grace")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    check_login(f"http://127.0.0.1:{gossip.server_port}")
    assert f"grace:{PASSWORD}" in Gossip.logins


@pytest.fixture
def closed_database():
    """Serve a PostgreSQL that lets nobody in; the value is its port."""
    fault = b'SFATAL\0C28P01\0Mpassword authentication failed for user "ada"\0\0'
    answer = b"E" + struct.pack("!i", len(fault) + 4) + fault
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client = server.accept()[0]
            except OSError:
                return
            with client, suppress(OSError):  # Some only look whether anything listens.
                if len(client.recv(1000)) == 8:  # It asks for TLS first.
                    client.sendall(b"N")
                    client.recv(1000)
                client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_a_database_that_refuses_the_login_gets_a_remedy_without_the_password(closed_database):
    uri = f"postgresql+psycopg2://ada:{SECRET}@127.0.0.1:{closed_database}/mlflow"
    with pytest.raises(InputError) as caught:
        check_login(uri)
    assert str(caught.value) == (
        f"tracking postgresql+psycopg2://ada@127.0.0.1:{closed_database}/mlflow refuses the "
        "login; set PGPASSWORD, or write the password into ~/.pgpass"
    )
