import json
import math
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from nights import ACC, ECE, SPEED, TASK, record, write_night

from orchestrator.nightly import Book, CellKey, Finding, Nightly, Verdict, publish
from orchestrator.nightly.book import DELIVERED, RECORD, VERDICT, Night
from orchestrator.nightly.publish import Publisher, publish_failure
from orchestrator.storage.storage import Storage
from trainables.common.errors import InputError
from trainables.common.words import many

REPORTS = ("report.md", "report.html", "junit.xml")
WAYS = {"webhook": "http://h/hook", "mail": ["mail", "me"]}
ALARM = Finding(ECE, "soft", "nights", "is worse")
FAILED = Finding(CellKey("ce", TASK), "hard", "failed", "it failed")
RAISED = ("regression", (FAILED, ALARM), (Finding(ACC, "soft", "nights", "is worse"),))


@dataclass
class World:
    """What was sent; ``deaf`` ways and a server that is ``away`` take nothing."""

    sent: list[tuple[str, Any]] = field(default_factory=list)
    deaf: set[str] = field(default_factory=set)
    away: bool = False

    def way(self, name: str) -> Callable[..., str]:
        def send(*said: Any) -> str:
            self.sent.append((name, said))
            return f"{name} failed" if name in self.deaf else ""

        return send

    def server(self, name: str) -> Callable[..., None]:
        def deliver(*said: Any, **more: Any) -> None:
            self.sent.append((name, (*said, *more.items())))
            if self.away:
                raise InputError("the server is away")

        return deliver

    def took(self, *names: str) -> list[Any]:
        found = [said for name, said in self.sent if name in names]
        self.sent = [entry for entry in self.sent if entry[0] not in names]
        return found


@pytest.fixture
def world(monkeypatch):
    world = World()
    for way in WAYS:
        monkeypatch.setattr(publish, "_post" if way == "webhook" else "_mail", world.way(way))
    monkeypatch.setattr(publish, "sync", world.server("sync"))
    monkeypatch.setattr(publish, "deliver_run", world.server("run"))
    return world


def judged(benchmark: Nightly, day: int, *verdict: Any, **changes: Any) -> Night:
    own = replace(record(day), **changes)
    return write_night(Book(benchmark.folder), own, Verdict(own.night, *(verdict or ("ok",))))


def publisher(benchmark: Nightly) -> Publisher:
    return Publisher(benchmark, Book(benchmark.folder))


@pytest.mark.parametrize(("written", "ended"), [(100.25, 100_250), (40.0, 86_400)])
def test_a_night_is_a_run_with_all_its_figures(make_benchmark, world, written, ended):
    login = {"tracking": {"uri": "http://ada:planted@127.0.0.1:9/"}}
    benchmark = make_benchmark(sweep=login)
    cells = {
        ECE: {0: 0.02, 1: 0.04},
        ACC: {0: math.nan},
        SPEED: {0: math.inf},
        CellKey("ce", TASK, "ece"): {0: 0.0, 1: 0.0},
        CellKey("*", "*", "total_seconds"): {0: 9.0},
    }
    night = judged(benchmark, 0, *RAISED, (ALARM,) * 3, cells=cells, started=86.4)
    os.utime(night.folder / VERDICT, (written, written))
    journal = benchmark.sweep_folder(night.name).journal
    journal.parent.mkdir(parents=True)
    journal.touch()
    assert publisher(benchmark).publish(night) == []
    uri, files = benchmark.sweep.tracking_uri, Storage.of(benchmark.sweep).tracked_files
    assert world.took("sync") == [(journal, uri, files, ("interrupted", True))]
    ((*place, run, root),) = world.took("run")
    assert (place, root) == ([uri, "told-nights", "nights"], files)
    # What else a run is told stands in test_whole_nights.
    assert (run.key, run.started, run.ended) == ("told 2026-01-01", 86_400, ended)
    assert run.files == {name: night.folder / name for name in (*REPORTS, RECORD, VERDICT)}
    assert run.metrics == {
        **{"alarms": 2.0, "suspicions": 1.0, "improvements": 3.0, f"{TASK}/ce/ece": 0.0},
        **{f"{TASK}/ls/ece": pytest.approx(0.03), "all/all/total_seconds": 9.0},
    }
    assert night.read(DELIVERED) == {"uri": "http://127.0.0.1:9/"}
    assert publisher(benchmark).publish(night) == []
    assert world.sent == []


def test_a_tag_names_as_many_alarms_as_a_server_takes(make_benchmark, world):
    benchmark = make_benchmark()
    assert publisher(benchmark).publish(judged(benchmark, 0, "regression", (ALARM,) * 400)) == []
    ((_, _, _, run, _),) = world.took("run")
    whole = ", ".join([str(ECE)] * 400)
    assert run.tags["calsweep.night.alarms"] == whole[:5000] != whole
    assert world.sent == [], "the server was asked about a sweep of which no journal is left"


def test_an_unavailable_server_is_asked_once_per_start(make_benchmark, world):
    benchmark = make_benchmark()
    nights = [judged(benchmark, day) for day in (0, 1)]
    world.away = True
    start = publisher(benchmark)
    waits = "was not tracked; the next start tries again: the server is away"
    assert start.publish(nights[0]) == [f"the verdict on {nights[0].name} {waits}"]
    assert start.publish(nights[1]) == []
    assert len(world.took("run")) == 1
    assert not any(night.delivered for night in nights)
    world.away, start = False, publisher(benchmark)
    assert [start.publish(night) for night in nights] == [[], []]
    assert [run.key for _, _, _, run, _ in world.took("run")] == [
        f"told {night.name}" for night in nights
    ]


def test_a_night_without_a_verdict_waits(make_benchmark, world):
    benchmark = make_benchmark()
    night = judged(benchmark, 0)
    for name in (RECORD, VERDICT):
        text = (night.folder / name).read_text()
        (night.folder / name).unlink()
        assert publisher(benchmark).publish(night) == []
        assert (world.sent, (night.folder / "report.md").exists()) == ([], False)
        (night.folder / name).write_text(text)


def test_a_summary_is_that_of_its_own_night_and_the_latest_that_of_the_last(make_benchmark, world):
    benchmark = make_benchmark(history=5)
    better = (Finding(SPEED, "soft", "nights", "is better"),)
    book, nights = Book(benchmark.folder), []
    for day in range(7):
        nights.append(judged(benchmark, day, *RAISED, better))
        if day == 4:  # One without figures does not count among the nights that are shown.
            book.give_up(book.begin(f"{nights[-1].name}.1", 0.0, {}), "the code has changed")
    book.begin("2026-02-01", 0.0, {}).write(RECORD, record(8).to_json())
    for number in (6, 3):
        publisher(benchmark).publish(nights[number])
        for name in REPORTS:
            own = (nights[number].folder / name).read_text()
            assert nights[number].name in own
            latest = (benchmark.folder / name).read_text() == own
            assert latest == (number == 6)
    for number, count in ((6, 5), (3, 4)):
        page = (nights[number].folder / "report.html").read_text()
        titles = [f"{f.cell}, {many(count, 'night')}, last" for f in (ALARM, RAISED[2][0])]
        assert all(title in page for title in titles)
        assert page.count("<figure>") == 2


def test_the_latest_summary_is_of_the_night_that_ran_last_whatever_it_is_called(
    make_benchmark, world
):
    benchmark = make_benchmark()
    nights = [judged(benchmark, day, *RAISED) for day in (5, 3)]  # The clock was set back.
    for night in reversed(nights):
        assert publisher(benchmark).publish(night) == []
    for name in REPORTS:
        assert (benchmark.folder / name).read_text() == (nights[1].folder / name).read_text()
    for count, night in enumerate(nights, 1):
        assert f"{ECE}, {many(count, 'night')}, last" in (night.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("when", "verdict", "told"),
    [
        ("alarm", RAISED, True),
        ("alarm", ("suspicious", (), (ALARM,)), False),
        ("always", ("ok",), True),
    ],
)
def test_a_night_is_reported_once_in_every_requested_way(
    make_benchmark, world, when, verdict, told
):
    benchmark = make_benchmark(report={**WAYS, "when": when})
    night = judged(benchmark, 0, *verdict)
    title = {"regression": "something got worse: it failed; 1 more finding", "ok": "as before"}.get(
        verdict[0]
    )
    for _ in range(2):
        assert publisher(benchmark).publish(night) == []
        (night.folder / DELIVERED).unlink()
    body = {"nightly": "told", "code": 3 if night.verdict.raised else 0}
    body |= {**night.verdict.to_json(), "text": f"nightly told, {night.name}: {title}"}
    text = (night.folder / "report.md").read_text()
    expected = [("http://h/hook", body), (("mail", "me"), body["text"], text)]
    assert world.took("webhook", "mail") == (expected if told else [])
    assert night.read("told.json") == {"problems": [], "left": []}


def test_a_way_that_failed_is_tried_again_by_the_next_start_alone(make_benchmark, world):
    benchmark = make_benchmark(report={**WAYS, "when": "always"})
    nights = [judged(benchmark, day) for day in (0, 1)]
    world.deaf = {"mail"}
    start = publisher(benchmark)
    assert [start.publish(night) for night in nights] == [["mail failed"], []]
    assert (len(world.took("webhook")), len(world.took("mail"))) == (2, 1)
    assert nights[0].read("told.json") == {"problems": ["mail failed"], "left": ["mail"]}
    assert nights[1].read("told.json") == {"problems": [], "left": ["mail"]}
    assert all(night.delivered for night in nights)
    world.deaf, start = set(), publisher(benchmark)
    assert [start.publish(night) for night in nights] == [[], []]
    assert (len(world.took("webhook")), len(world.took("mail"))) == (0, 2)
    assert publisher(benchmark).publish(nights[0]) == []
    assert world.took("webhook", "mail") == []


def test_a_report_added_later_is_sent_only_for_later_nights(make_benchmark, world):
    benchmark = make_benchmark()
    night = judged(benchmark, 0, *RAISED)
    assert publisher(benchmark).publish(night) == []
    benchmark = make_benchmark(report={**WAYS, "when": "always"})
    nights = [night, judged(benchmark, 1)]
    assert [publisher(benchmark).publish(known) for known in nights] == [[], []]
    assert [body["night"] for _, body in world.took("webhook")] == [nights[1].name]


def test_a_summary_that_cannot_be_written_waits_for_the_next_start(make_benchmark, world, tmp_path):
    (tmp_path / "taken").touch()
    benchmark = make_benchmark(report={**WAYS, "html": str(tmp_path / "taken/x.html")})
    nights = [judged(benchmark, day, *RAISED) for day in (0, 1)]
    start = publisher(benchmark)
    assert start.publish(nights[0]) == []
    (problem,) = start.publish(nights[1])
    waits = f"the verdict on {nights[1].name} was not written; the next start tries again: "
    assert problem == f"{waits}{tmp_path / 'taken/x.html'} cannot be written: File exists"
    assert len(world.took("run")) == len(world.took("webhook")) == 2
    (tmp_path / "taken").unlink()
    assert publisher(benchmark).publish(nights[1]) == []
    assert (tmp_path / "taken/x.html").read_text() == (nights[1].folder / REPORTS[1]).read_text()
    assert [night.delivered for night in nights] == [True, True]
    assert world.took("webhook") == []


def test_a_night_that_could_not_run_is_reported_and_written(
    make_benchmark, world, tmp_path, monkeypatch
):
    benchmark = make_benchmark(report={**WAYS, "html": str(tmp_path / "out" / "x.html")})
    world.deaf = {"webhook"}
    assert publish_failure(benchmark, "2026-01-01", "the disk is full") == ["webhook failed"]
    title = "nightly told, 2026-01-01: could not run"
    body = {"nightly": "told", "night": "2026-01-01", "status": "could not run", "code": 4}
    text = (benchmark.folder / "report.md").read_text()
    assert world.took("webhook", "mail") == [
        ("http://h/hook", {**body, "reason": "the disk is full", "text": title}),
        (("mail", "me"), title, text),
    ]
    assert title in (tmp_path / "out/x.html").read_text()
    assert not (benchmark.folder / "report.html").exists()
    cases = (benchmark.folder / "junit.xml").read_text()
    assert '<testcase name="2026-01-01" classname="night"' in cases
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    benchmark = make_benchmark(report={**WAYS, "markdown": "file/x.md"})
    (problem,) = publish_failure(benchmark, "2026-01-01", "the disk is full")[:-1]
    missing = f"{tmp_path / 'file/x.md'} cannot be written: File exists"
    assert problem == f"the summary is missing: {missing}"
    assert len(world.took("webhook", "mail")) == 2


def test_an_unexpected_error_of_one_report_gets_one_line_and_stops_no_other_report(
    make_benchmark, world, monkeypatch
):
    def fail(*_: Any) -> None:
        raise RuntimeError("no\n template")

    monkeypatch.setattr(publish.page, "to_html", fail)
    benchmark = make_benchmark(report=WAYS)
    night = judged(benchmark, 0, *RAISED)
    (night.folder / "report.md").touch()
    waits = f"the verdict on {night.name} was not written; the next start tries again: "
    assert publisher(benchmark).publish(night) == [f"{waits}RuntimeError: no template"]
    assert len(world.took("webhook", "mail")) == 2
    assert len(world.took("run")) == 1
    untold = judged(benchmark, 1, *RAISED)  # Nor is there a summary of an earlier start.
    gone = f"FileNotFoundError: [Errno 2] No such file or directory: '{untold.folder / REPORTS[0]}'"
    assert publisher(benchmark).publish(untold) == [
        f"the verdict on {untold.name} was not {step}; the next start tries again: {reason}"
        for step, reason in (("written", "RuntimeError: no template"), ("sent", gone))
    ]
    assert world.took("webhook", "mail") == []
    assert len(world.took("run")) == 1


def test_a_summary_may_go_to_the_home_folder(make_benchmark, world, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    benchmark = make_benchmark(report={"markdown": "~/out/night.md"})
    assert publisher(benchmark).publish(judged(benchmark, 0)) == []
    assert (tmp_path / "home/out/night.md").read_text().startswith("# nightly told, ")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (HTTPError("http://h/secret", 404, "secret", {}, None), "it answered with status 404"),
        (URLError(ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (URLError("secret"), "URLError"),
        (TimeoutError("secret"), "TimeoutError"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
    ],
)
def test_a_fault_is_named_in_no_words_of_the_other_side(error, expected):
    assert publish._fault(error) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (r"import os; [os.write(n, b'\xff\xfe' * 99999) for n in (1, 2)]", ""),
        ("raise SystemExit(3)", " failed with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", " failed with exit code -9"),
        ("import time; time.sleep(60)", " failed: TimeoutExpired"),
    ],
)
def test_a_mail_command_that_fails_in_any_way_is_named(code, expected, monkeypatch):
    monkeypatch.setattr(publish, "MAIL_SECONDS", 0.5 if "sleep" in code else 60)
    said = f"mail command {sys.executable!r}{expected}" if expected else ""
    assert publish._mail([sys.executable, "-c", code], "title", "text \ud800") == said


def test_a_webhook_that_says_nothing_leaves_no_thread_that_waits_for_ever(monkeypatch):
    tried = []

    def connect(place: tuple[str, int], timeout: float, *_: Any) -> None:
        tried.append((place, timeout, threading.current_thread().daemon))
        raise TimeoutError("secret")

    monkeypatch.setattr(socket, "create_connection", connect)
    said = publish._post("http://h:81/hook", {})
    assert said == "webhook at h failed: TimeoutError"
    assert tried == [(("h", 81), 10, True)]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a..b/x", "a..b failed: Unicode(Encode)?Error"),  # By Python's version.
        ("http://127.0.0.1:9/secret", "127.0.0.1 failed: Connection refused"),
    ],
)
def test_a_webhook_that_cannot_be_reached_is_named(url, said):
    assert re.fullmatch(f"webhook at {said}", publish._post(url, {}))


@pytest.mark.parametrize(
    ("program", "said"), [("a\0b", "ValueError"), ("no-such-program", "No such file or directory")]
)
def test_a_mail_command_that_no_system_takes_is_named(program, said):
    assert publish._mail([program], "title", "text") == f"mail command {program!r} failed: {said}"


def test_a_mail_command_gets_title_and_text(tmp_path, capfd):
    code = (
        "import json, sys; json.dump([*sys.argv[2:], sys.stdin.read()], open(sys.argv[1], 'w')); "
        "print('sent'); print('sent', file=sys.stderr)"
    )
    letter = tmp_path / "letter"
    command = [sys.executable, "-c", code, str(letter), "-s", "{subject}", "a {subject}"]
    assert publish._mail(command, "title", "text") == ""
    assert json.loads(letter.read_text()) == ["-s", "title", "a {subject}", "text"]
    assert capfd.readouterr() == ("", "")
