import importlib
import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nights import ACC, ECE, SPEED, TASK, name, record, write_night

from orchestrator import nightly
from orchestrator.cli import main
from orchestrator.nightly import (
    Book,
    BusyError,
    CellKey,
    Finding,
    Nightly,
    NightOutcome,
    NightRecord,
    Verdict,
)
from trainables.common.errors import InputError

OTHER, GONE = CellKey("ce", TASK, "ece"), CellKey("ce+ts", TASK, "ece")


@pytest.fixture
def benchmark(make_benchmark):
    return make_benchmark(history=5)


def judged(benchmark: Nightly, own: NightRecord, verdict: Verdict | None = None) -> None:
    write_night(Book(benchmark.folder), own, verdict)


def found(cell: CellKey, since: int | None) -> Finding:
    return Finding(cell, "soft", "nights", "is worse", since="" if since is None else name(since))


def lines(text: str) -> list[list[str]]:
    return [
        [part.strip() for part in line.split("  ") if part.strip()] for line in text.split("\n")
    ]


@pytest.fixture
def command(benchmark, capsys):
    """Return what runs a command about the benchmark and returns its code, output and errors."""

    def run(name, *options):
        code = main(["nightly", name, str(benchmark.path), *options])
        return (code, *capsys.readouterr())

    return run


def test_status_lists_the_last_nights_with_any_outcome(benchmark, command, monkeypatch):
    book = Book(benchmark.folder)
    both = (found(ECE, 1), found(ACC, 1))
    judged(benchmark, record(0))
    judged(benchmark, record(1), Verdict(name(1), "suspicious", suspicions=both))
    judged(benchmark, record(2), Verdict(name(2), "regression", both[1:], both[:1]))
    book.give_up(book.begin(name(3), 0.0, {}), "the code has changed")
    book.begin(name(4), 0.0, {})
    code, out, _ = command("status", "--last", "4")
    assert (code, lines(out)[:5]) == (
        0,
        [
            ["night", "verdict", "findings"],
            [name(1), "suspicious", "is worse, and 1 more figure with it"],
            [name(2), "regression", "is worse"],
            [name(3), "given up", "the code has changed"],
            [name(4), "unfinished", "the next start resumes it"],
        ],
    )
    told = json.loads(command("status", "--last", "2", "--json")[1])
    assert told["nights"] == [
        {"night": name(3), "status": "given up", "text": "the code has changed"},
        {"night": name(4), "status": "unfinished", "text": "the next start resumes it"},
    ]
    assert [each["values"] for each in told["series"] if each["recipe"] == "ls"] == [
        [record(day).mean(ECE) for day in range(3)]
    ]
    book.give_up(book.begin(name(5), 0.0, {}), "§" * 300)
    # A terminal that is too narrow cuts nothing off.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    assert command("status")[1].count("§") == 300


def test_status_draws_the_trend_of_one_metric(benchmark, command):
    falling = (9.0, 9.0, 2.0, 1.6, 1.3, 1.1, 1.0)
    Book(benchmark.folder).begin("2025-12-31", 0.0, {})  # One more than are listed.
    for day, factor in enumerate(falling):
        judged(benchmark, record(day, factors={SPEED: 3.0 - factor, ECE: factor}))
    shown = lines(command("status", "--metric", "images_per_second")[1])
    assert shown[1:8] == [[name(day), "ok"] for day in range(7)]
    assert shown[8] == ["recipe", "task", "images_per_second, 5 nights", "last"]
    assert ["ls", TASK, "▁▄▆▇█", "10150"] in shown[9:]
    assert len(shown[9:-1]) == 3
    assert ["ls", TASK, "█▅▃▂▁", "0.0203"] in lines(command("status")[1])
    aece = {ECE._replace(metric="aece"): {0: 0.5}}
    judged(benchmark, replace(last := record(7), cells={**last.cells, **aece}))
    assert "0.5000" not in command("status")[1]
    known = "acc, ece, nll, images_per_second, peak_memory, aece"
    said = f"calsweep: --metric: 'beauty' is not recorded; there are: {known}\n"
    assert command("status", "--metric", "beauty")[::2] == (2, said)


def test_status_and_history_cope_with_a_night_on_which_all_failed(benchmark, command):
    judged(benchmark, replace(record(0), cells={}))
    assert command("status")[0] == 0
    said = "calsweep: told has no figures in any night: all recipes failed\n"
    assert command("history") == (2, "", said)
    judged(benchmark, record(1))
    judged(benchmark, replace(record(2), cells={}))
    shown = lines(command("status")[1])
    assert ["recipe", "task", "ece, 3 nights", "last"] in shown
    assert ["ls", TASK, "·▅·", "-"] in shown


def test_a_command_without_a_file_is_about_the_shipped_benchmark(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["nightly", "status"]) == 0
    assert capsys.readouterr().out.startswith("nightly: no night has run yet\n")


class Plot:
    """Stands in for a drawing; knows what was to be drawn, and where it was saved."""

    def __init__(self, records: Any, cells: Any, alarmed: Any) -> None:
        self.drawn = [r.night for r in records], list(cells), dict(alarmed)

    def save(self, path: Path) -> None:
        path.write_text(repr(self.drawn))


def test_history_holds_the_series_asked_for_and_marks_their_alarms(benchmark, command, monkeypatch):
    monkeypatch.setattr(nightly, "plotted", Plot)
    alarms = (found(ECE, 1), found(ECE, 2), found(CellKey(*ECE.pair), 1))
    for day in range(4):
        suspicions = (found(OTHER, 1),)  # Those are not marked.
        raised = Verdict(name(day), "regression", alarms[: 2 if day == 1 else 3], suspicions)
        judged(benchmark, record(day), raised if day in (1, 3) else None)
    folder, deep = benchmark.folder, benchmark.path.parent / "a/b"
    asked = ["--cell", f"ls on {TASK}", "--cell", str(OTHER), "--cell", str(ECE)]
    said = f"4 nights, 6 series: {folder / 'history.csv'}, .png\n"
    assert command("history", *asked) == (0, said, "")
    cells = [CellKey("ls", TASK, metric) for metric in record(0).shape.metrics]
    alarmed = {ECE: [1, 3], CellKey(*ECE.pair): [3]}
    drawn = ([name(day) for day in range(4)], [*cells, OTHER], alarmed)
    assert (folder / "history.png").read_text() == repr(drawn)
    rows = (folder / "history.csv").read_text()
    assert rows == nightly.to_csv([record(day) for day in range(4)], [*cells, OTHER])
    said = f"4 nights, 15 series: {deep / 'history.csv'}, .png\n"
    assert command("history", "--out", str(deep)) == (0, said, "")
    assert {path.name for path in deep.iterdir()} == {"history.csv", "history.png"}
    monkeypatch.chdir(folder)
    file = str(benchmark.path)
    some = ", ".join(f"'ce on {TASK}: {metric}'" for metric in ("acc", "ece", "nll"))
    for options, error in (
        (("--cell", "fl on e"), f"no cell 'fl on e'; there are 15, such as {some}"),
        (
            ("--cell", f"ls on {TASK}: ec"),
            f"no cell 'ls on {TASK}: ec'; there are 15, such as {some}",
        ),
        (("--cell", "fl"), "cell='fl' is not RECIPE on TASK: METRIC"),
        (("--out", file), f"Invalid value for '--out': dir '{file}' is a file."),
        (("--out", "s3://b/x"), "--out: 's3://b/x' is a URL; use a path on this machine"),
    ):
        assert command("history", *options) == (2, "", f"calsweep: {error}\n")


@pytest.mark.parametrize("command", ["history", "accept"])
def test_a_benchmark_without_a_verdict_is_refused(benchmark, command, capsys):
    Book(benchmark.folder).begin(name(0), 0.0, {})
    more = [str(OTHER), "--why", "x", "--file"] if command == "accept" else []
    assert main(["nightly", command, *more, str(benchmark.path)]) == 2
    said = f"told has no night with a verdict in {benchmark.folder}\n"
    assert capsys.readouterr().err.endswith(f": {said}")


@pytest.mark.parametrize(
    ("cell", "options", "night"),
    [
        (str(ECE), [], 3),
        (str(ACC), [], 2),
        (str(SPEED), [], 6),
        (f"ls on {TASK}", [], 2),
        (str(OTHER), [], 6),
        (str(ECE), ["--from", name(4)], 4),
        (str(ECE), ["--from", name(7)], None),
        (str(GONE), [], None),
        (str(ECE), ["--from", name(0)], 0),
    ],
)
def test_an_accepted_change_starts_where_it_began(benchmark, cell, options, night, capsys):
    for day in range(6):
        judged(benchmark, record(day), Verdict(name(day), "regression", (found(OTHER, 0),)))
    # Of the night on which the last one began nothing is left.
    changes = (found(ECE, 3),), (found(ACC, 2), found(GONE, 7)), (found(SPEED, None),)
    last = {cell: values for cell, values in record(6).cells.items() if cell != OTHER}
    judged(benchmark, replace(record(6), cells=last), Verdict(name(6), "regression", *changes))
    accept = ["nightly", "accept", cell, "--why", " a \n b ", "--file", str(benchmark.path)]
    before = datetime.now(UTC) - timedelta(seconds=1)
    assert main([*accept, *options]) == (2 if night is None else 0)
    if night is None:
        said = f"calsweep: --from: night '{name(7)}' has no verdict; the last one is {name(6)}\n"
        assert capsys.readouterr().err == said
        assert not (benchmark.folder / "accepted.jsonl").exists()
        return
    said = json.loads((benchmark.folder / "accepted.jsonl").read_text())
    assert before <= datetime.fromisoformat(said.pop("time")) <= datetime.now(UTC)
    assert said == {"cell": cell, "night": name(night), "why": "a b"}
    assert capsys.readouterr().out == f"{cell}: the series restarts on {name(night)}\n"


def test_an_accepted_pair_starts_on_the_first_night_that_ran_not_the_first_name(benchmark, capsys):
    for day in (4, 9, 2, 5):  # The clock was set back.
        similar = ACC._replace(task=f"{TASK}-2")
        alarms = (found(ACC, 2), found(ECE, 9), found(OTHER, 4), found(similar, 4))
        judged(benchmark, record(day), Verdict(name(day), "regression", alarms))
    pair = str(CellKey(*ECE.pair))
    accept = ["nightly", "accept", pair, "--why", "meant", "--file", str(benchmark.path)]
    assert main(accept) == 0
    assert f"restarts on {name(9)}\n" in capsys.readouterr().out


def test_a_change_is_accepted_with_a_reason_alone(benchmark, capsys):
    judged(benchmark, record(0))
    accept = ["nightly", "accept", str(ECE), "--file", str(benchmark.path)]
    for why in ("", " \n "):
        assert main([*accept, "--why", why]) == 2
        said = "--why: give a reason, for those who read the series later\n"
        assert capsys.readouterr().err.endswith(f": {said}")
    assert not (benchmark.folder / "accepted.jsonl").exists()


class Clock(datetime):
    """Shows half past midnight in summer, UTC."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2026, 7, 2, 0, 30, tzinfo=UTC)


class Runs:
    """Stands in for nights: knows how each was started, and ends them all in one way."""

    def __init__(self, benchmark: Nightly, outcome: Any) -> None:
        self.nights: list[tuple[str, Any]] = []
        self.failures: list[str] = []
        self._benchmark, self._outcome = benchmark, outcome

    def night(self, benchmark: Nightly, name: str, **options: Any) -> NightOutcome:
        self.nights.append((name, options))
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return replace(self._outcome, night=Book(self._benchmark.folder).night(name))

    def failure(self, benchmark: Nightly, name: str, reason: str) -> list[str]:
        self.failures.append(f"{name}: {reason}")
        return ["the webhook is deaf"]


@pytest.fixture
def start(benchmark, monkeypatch):
    """Return a function that starts the command, half past midnight, and tells what it did."""
    module = importlib.import_module("orchestrator.cli.nightly")
    monkeypatch.setattr(module, "datetime", Clock)
    quiet = NightOutcome(Book(benchmark.folder).night("n"), Verdict("n", "ok"), True)

    def started(*options: str, code: int = 0, outcome: Any = quiet) -> Runs:
        runs = Runs(benchmark, outcome)
        monkeypatch.setattr(nightly, "run_night", runs.night)
        monkeypatch.setattr(nightly, "publish_failure", runs.failure)
        assert main(["nightly", "run", str(benchmark.path), *options]) == code
        return runs

    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield started
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "options", "night"),
    [
        ("UTC", [], "2026-07-02"),
        ("Europe/Berlin", [], "2026-07-02"),
        ("America/New_York", [], "2026-07-01"),
        ("UTC", ["--night", "2025-01-31.12"], "2025-01-31.12"),
    ],
)
def test_tonight_is_the_date_on_the_machines_clock(start, zone, options, night, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    runs = start(*options, "--quiet", "--address", "auto")
    assert runs.nights == [(night, {"address": "auto", "console": None})]


NAMELESS = ("2026-7-2", "2026-07-02.", "x2026-07-02", "2026-07-02x", "")
NO_DATE = "is not a valid date: "


@pytest.mark.parametrize(
    ("night", "why"),
    [
        *((night, "is not YYYY-MM-DD or YYYY-MM-DD.N\n") for night in NAMELESS),
        ("2026-02-29", f"{NO_DATE}day is out of range for month"),
        ("2026-02-29.2", f"{NO_DATE}day is out of range for month"),
        ("2026-13-01", f"{NO_DATE}month must be in 1..12"),
    ],
)
def test_a_night_is_named_by_a_date(start, night, why, capsys):
    assert start("--night", night, code=2).nights == []
    assert capsys.readouterr().err.startswith(f"calsweep: --night: {night!r} {why}")


def test_nightly_run_prints_its_verdict_and_the_path_of_the_report(benchmark, start, capsys):
    night = Book(benchmark.folder).night("n")
    alarms = (found(ECE, 1), found(ACC, 2))
    verdict = Verdict("n", "regression", alarms, alarms[:1])
    outcome = NightOutcome(night, verdict, True, ("the webhook is deaf", "so is the mail"))
    start(code=3, outcome=outcome)
    said = capsys.readouterr()
    head = "nightly told, 2026-07-02: something got worse: is worse; 1 more finding"
    cells = ["  is worse", "  is worse"]
    file = f"  {benchmark.folder / 'nights/2026-07-02/report.md'}"
    assert said.out.splitlines() == [head, *cells, file]
    complaints = [f"calsweep nightly: {message}" for message in outcome.messages]
    assert said.err.splitlines() == complaints
    start(code=3, outcome=replace(outcome, fresh=False))
    again = "  (this night has run before; it was not run again)"
    assert capsys.readouterr().out.splitlines() == [head, *cells, again, file]


@pytest.mark.parametrize(
    ("error", "told", "details"),
    [
        (BusyError("another run is in progress"), None, False),
        (InputError("the disk\n is full"), "the disk is full", False),
        (OSError("the disk\n is full"), "OSError: the disk is full", True),
    ],
)
def test_a_night_that_could_not_run_is_reported_unless_another_one_runs(
    benchmark, start, error, told, details, capsys
):
    benchmark.folder.mkdir(parents=True)
    runs = start(code=4, outcome=error)
    assert runs.failures == ([f"2026-07-02: {told}"] if told else [])
    kept = benchmark.folder / "error.txt"
    complaints = [f"could not run: {told}"] if told else ["another run is in progress"]
    complaints += [f"details: {kept}"] if details else []
    complaints += ["the webhook is deaf"] if told else []
    errors = capsys.readouterr().err.splitlines()
    assert errors == [f"calsweep nightly: {complaint}" for complaint in complaints]
    assert kept.exists() == details
    if details:
        said = kept.read_text()
        assert said.startswith("Traceback (most recent call last):\n")
        assert said.endswith("OSError: the disk\n is full\n")


def test_a_failed_night_is_reported_even_if_error_txt_cannot_be_written(benchmark, start, capsys):
    runs = start(code=4, outcome=OSError("the disk is away"))
    kept = benchmark.folder / "error.txt"
    assert runs.failures == ["2026-07-02: OSError: the disk is away"]
    assert capsys.readouterr().err.splitlines() == [
        "calsweep nightly: could not run: OSError: the disk is away",
        f"calsweep nightly: {kept} cannot be written: No such file or directory",
        "calsweep nightly: the webhook is deaf",
    ]
