import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from orchestrator.running.run import run_sweep
from orchestrator.sweep.spec import parse_sweep
from orchestrator.tracking import check_login, open_tracker
from orchestrator.tracking.tracker import UnreachableError
from trainables.common.errors import InputError

SWEEP = """
name: closed
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce]
tracking: {{uri: "{uri}"}}
storage: {storage}
"""
REFUSED = "refuses the login of user 'ada'"
REMEDY = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


class Refusal(BaseHTTPRequestHandler):
    status = 401

    def do_GET(self):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"You are not let in.")

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def closed(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    server = HTTPServer(("127.0.0.1", 0), Refusal)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_sweep_is_refused_before_anything_starts(closed, tmp_path):
    spec = parse_sweep(SWEEP.format(uri=closed, storage=tmp_path / "storage"), "closed")
    with pytest.raises(InputError) as caught:
        run_sweep(spec)
    assert str(caught.value) == f"tracking {closed} {REFUSED}; {REMEDY}"
    assert not (tmp_path / "storage").exists()


def test_without_a_user_the_remedy_is_named_as_well(closed, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    with pytest.raises(InputError, match=f"refuses the login; {REMEDY}"):
        check_login(closed)


def test_a_request_that_may_have_taken_effect_is_not_repeated_unseen(closed, monkeypatch):
    """Who asked for a run looks first whether it is there."""
    asked = []

    def answer(handler):
        asked.append(handler.rfile.read(int(handler.headers["Content-Length"])))
        handler.do_GET()

    monkeypatch.setattr(Refusal, "status", 503)
    monkeypatch.setattr(Refusal, "do_POST", answer)
    for name in ("FACTOR", "JITTER"):
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_BACKOFF_{name}", "0")
    tracker = open_tracker(closed)
    assert tracker.lanes == 4
    with pytest.raises(UnreachableError):
        tracker.create_run("1", "a run", {}, 1)
    assert len(asked) == 1


def test_an_unavailable_server_does_not_count_as_a_refused_login(closed, monkeypatch):
    check_login("http://127.0.0.1:9")
    monkeypatch.setattr(Refusal, "status", 503)
    check_login(closed)
    check_login("sqlite:////some/where/mlflow.db")
