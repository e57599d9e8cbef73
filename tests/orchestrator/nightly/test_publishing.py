import json
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from nights import ECE, history, record, write_night

from orchestrator.cli import main
from orchestrator.nightly import Book, CellKey, Finding, Verdict, publish, run_night
from orchestrator.nightly.book import DELIVERED
from orchestrator.nightly.page import (
    Block,
    failure_junit,
    night_junit,
    night_summary,
    series_chart,
    to_html,
    to_markdown,
)

NASTY = '<script>alert(1)</script> | x\n# y \x00 "q" & `z`'
FIRST = "2026-11-21"


def nasty_verdict() -> Verdict:
    found = Finding(ECE, "hard", "failed", NASTY, since="2026-01-01", causes=(NASTY,))
    return Verdict("2026-01-02", "regression", alarms=(found,), notes=(NASTY,))


def test_texts_stay_texts_in_html():
    blocks = night_summary(
        "n", [*history(range(1)), record(1, environment={NASTY: NASTY})], nasty_verdict()
    )
    page = to_html(blocks, [series_chart(history(range(1)), CellKey(NASTY, NASTY, "ece"))])
    assert "<script" not in page
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)
    parser.feed(page)
    around = {"html", "head", "meta", "link", "title", "style", "body", "header", "main", "footer"}
    table = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "small"}
    inside = {"section", "h1", "h2", "p", "figure", "figcaption", "img", *table}
    assert set(tags) <= around | inside
    assert not any(word in page for word in ("http:", "https:", "url("))
    assert page.count("src=") == page.count('src="data:image/svg+xml;base64,') == 1


def test_no_sign_of_markdown_is_left_bare():
    text = to_markdown([Block("h", ("a\\b `c` *d* _e_ [f] |g| #h <i> & 'j' \"k\"",))])
    plain = r"a\\b \`c\` \*d\* \_e\_ \[f\] \|g\| \#h &lt;i&gt; &amp;"
    assert text == f"# h\n\n- {plain} 'j' \"k\"\n"


def test_texts_stay_texts_in_markdown():
    text = to_markdown([Block("h", (NASTY,), (("a", "b"), (NASTY, "c")))])
    assert "<script" not in text
    row = next(line for line in text.splitlines() if line.endswith("| c |"))
    assert row.replace("\\|", "").count("|") == 3
    assert len(text.splitlines()) == 6


def test_junit_replaces_characters_that_xml_cannot_hold():
    nasty = replace(record(1), environment={NASTY: NASTY})
    ElementTree.fromstring(night_junit(NASTY, nasty, nasty_verdict()))
    known = "\t\n\r ~ \ud7ff\ue000\ufffd\U00010000\U0010ffff"
    unknown = "\x00\x08\x0b\x0c\x0e\x1f\ud800\udfff\ufffe\uffff"
    error = ElementTree.fromstring(failure_junit("n", FIRST, 0.0, known + unknown)).find(".//error")
    assert error.attrib["message"] == known + "\ufffd" * len(unknown)


@pytest.fixture
def posts():
    """Serve an address that keeps what is posted to it."""
    kept: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            kept.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/secret", kept
    server.shutdown()
    server.server_close()


def mail_to(path: Path) -> list[str]:
    code = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + chr(10) + sys.stdin.read())"
    return [sys.executable, "-c", code, str(path), "{subject}"]


def test_an_alarm_is_sent_once_by_webhook_and_mail(make_benchmark, told_sweep, posts, tmp_path):
    letters = tmp_path / "letters; touch $(oops)"
    report = {"webhook": posts[0], "mail": mail_to(letters)}
    told_sweep.failures["ce+ts"] = "it diverged"
    benchmark = make_benchmark(sweep={"name": "telling"}, report=report)
    for _ in range(2):
        assert run_night(benchmark, FIRST).messages == ()
    (body,) = posts[1]
    assert (body["nightly"], body["night"], body["code"]) == ("telling", FIRST, 3)
    assert body["alarms"][0]["cell"][:2] == ["ce+ts", "d"]
    assert f"nightly telling, {FIRST}: results are missing" in body["text"]
    text = letters.read_text()
    assert text.startswith(body["text"])
    assert "it diverged" in text


LINE = b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
ANSWERS = {
    "nothing": [b""],
    "bytes that mean nothing": [b"\x00\xff\xfe nonsense\r\n\r\n"],
    "half a status line": [b"HTTP/1."],
    "a port that is none": [LINE.replace(b"/again", b"http://127.0.0.1:port/")],
    "a redirection without end": [LINE],
    "a redirection with a large page": [LINE.replace(b": 0", b": 9999999999"), *[b"x" * 9999] * 99],
    "too many headers": [b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200],
    "a long line": [b"HTTP/1.1 200 " + b"x" * 70_000],
    "an answer in drops": [b"H", b"T", b"T", b"P", *[b"/"] * 30],
    "no welcome": [b"HTTP/1.1 500 \xff\r\n\r\n"],
}


class Stranger:
    """Serves an address that answers each request with the same bytes, a piece at a time."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.asked = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/secret"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client = self._socket.accept()[0]
            except OSError:
                return
            self.asked += 1
            threading.Thread(target=self._answer, args=(client, self.pieces), daemon=True).start()

    def _answer(self, client: socket.socket, pieces: list[bytes]) -> None:
        with client, suppress(OSError):
            while not client.recv(100_000).endswith(b"}"):
                pass
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.2 if len(piece) == 1 else 0)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def stranger():
    server = Stranger()
    yield server
    server.close()


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_strange_answer_of_a_webhook_is_one_line(answer, stranger, monkeypatch):
    monkeypatch.setattr(publish, "WEBHOOK_SECONDS", 1)
    stranger.pieces = ANSWERS[answer]
    problem = publish._post(stranger.url, {})
    assert problem.startswith(said := "webhook at 127.0.0.1 failed: ")
    assert problem.count(said) == 1
    # Not so if the answer is one that nobody was prepared for.
    assert problem.endswith(": no answer in time") == (answer == "an answer in drops")
    assert problem.isprintable()
    assert "secret" not in problem
    assert stranger.asked == 1, "it was followed to where it sends"


def test_a_night_writes_and_says_no_password(
    make_benchmark, told_sweep, tmp_path, posts, monkeypatch
):
    monkeypatch.setattr("orchestrator.tracking._shipper.PATIENCE_ONCE", 0.0)
    uri = "http://ada:planted-secret@127.0.0.1:9/?token=planted-secret"
    sweep = {"name": "secretive", "tracking": {"uri": uri}}
    report = {"webhook": posts[0], "mail": mail_to(tmp_path / "letters"), "when": "always"}
    outcome = run_night(make_benchmark(sweep=sweep, report=report), FIRST)
    (problem,) = outcome.messages
    assert "tries again: tracking http://127.0.0.1:9/ gives no answer" in problem
    assert len(posts[1]) == 1
    assert "planted-secret" not in f"{problem} {posts[1]}"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    holding = [path.name for path in files if b"planted-secret" in path.read_bytes()]
    assert holding == ["nightly.yaml"], "besides the file that says it"


def test_an_accepted_change_is_alarmed_no_more(make_benchmark, told_sweep, capsys):
    benchmark = make_benchmark(sweep={"name": "accepted"})
    file = str(benchmark.path)
    first = run_night(benchmark, "2026-12-01").night.record
    for day in range(2, 7):
        same = replace(first, night=f"2026-12-{day:02d}")
        write_night(Book(benchmark.folder), same).write(DELIVERED, {})
    told_sweep.changes["ce", "ece"] = 2.0
    run = ["nightly", "run", file, "--quiet", "--night"]
    assert [main([*run, f"2026-12-{day:02d}"]) for day in (7, 8)] == [0, 3]
    why = ["--why", "the loss was wrong before", "--file", file]
    assert main(["nightly", "accept", "ce on e: ece", *why]) == 2
    assert "no cell 'ce on e: ece'" in capsys.readouterr().err
    assert main(["nightly", "accept", "ce on d: ece", *why]) == 0
    assert run_night(benchmark, "2026-12-09").verdict.alarms == ()
