import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from orchestrator.cli import main
from orchestrator.cluster.local import require_shared
from orchestrator.nightly import BusyError, Nightly, book, run_night
from orchestrator.nightly.book import Acceptance
from orchestrator.nightly.record import CellKey
from orchestrator.sweep.spec import SweepSpec
from tests.buckets import impatient, log_in, make_bucket
from trainables.common.errors import InputError
from trainables.store import cache, locks

FIRST, SECOND, THIRD = "2026-11-21", "2026-11-22", "2026-11-23"


@pytest.fixture
def weather(disturbed, monkeypatch):
    log_in(disturbed[0], monkeypatch)
    shorter = {f"{locks.__name__}.BEAT_SECONDS": 0.2, f"{locks.__name__}.SILENT_SECONDS": 2.0}
    impatient(monkeypatch, **shorter, **{f"{book.__name__}.LAST_SECONDS": 1.0})
    yield disturbed[1]
    disturbed[1].away, disturbed[1].share = False, 0.0


@pytest.fixture
def on(tmp_path, monkeypatch):
    """Return what moves the test to a machine, by its name."""

    def go(machine: str) -> None:
        monkeypatch.setenv("CALSWEEP_CACHE", str(tmp_path / machine))

    go("one")
    return go


@pytest.fixture
def benchmark(disturbed, weather, on, make_benchmark):
    return make_benchmark(sweep={"storage": f"s3://{make_bucket(disturbed[0])}/of/us"})


def nights(benchmark: Nightly) -> list[tuple[str, str]]:
    return [(record.night, verdict.status) for record, verdict in benchmark.book().judged()]


def test_machines_that_share_a_bucket_run_and_read_the_same_nights(
    benchmark, told_sweep, weather, on, capsys
):
    weather.share, weather.random = 0.2, Random(1)
    run_night(benchmark, FIRST)
    on("two")
    outcome = run_night(benchmark, SECOND)
    assert (outcome.verdict.status, outcome.night.number) == ("ok", 2)
    on("one")
    assert not run_night(benchmark, SECOND).fresh
    assert told_sweep.runs == [f"told-{FIRST}", f"told-{SECOND}"]
    on("three")
    file = str(benchmark.path)
    assert main(["nightly", "status", file]) == 0
    shown = capsys.readouterr().out
    assert FIRST in shown
    assert SECOND in shown
    assert nights(benchmark) == [(FIRST, "ok"), (SECOND, "ok")]
    assert (benchmark.folder / "report.md").read_text().startswith(f"# nightly told, {SECOND}")
    assert not list(benchmark.folder.glob("nights/*/sweeps"))
    weather.share = 0.0
    assert main(["nightly", "accept", "ce on d: ece", "--why", "meant", "--file", file]) == 0
    on("one")
    assert set(map(str, benchmark.book().restarts())) == {"ce on d: ece"}


def test_a_night_computes_on_one_machine(benchmark, told_sweep):
    told_sweep.before_end = require_shared
    with pytest.raises(InputError, match=r"^storage: nights with a storage in a bucket compute on"):
        run_night(benchmark, FIRST)


def test_a_second_machine_is_refused_while_a_night_runs(benchmark, told_sweep, on):
    refused = []

    def another(spec: SweepSpec) -> None:
        on("two")
        with pytest.raises(BusyError, match=r"another run is in progress: .*process") as found:
            run_night(benchmark, SECOND)
        refused.append(str(found.value))
        on("one")

    told_sweep.before_end = another
    run_night(benchmark, FIRST)
    assert len(refused) == 1
    assert told_sweep.runs == [f"told-{FIRST}"]


def test_a_night_interrupted_on_another_machine_is_computed_again(benchmark, told_sweep, on):
    told_sweep.break_off(benchmark, FIRST)
    on("two")
    run_night(benchmark, SECOND)
    assert told_sweep.runs == [f"told-{FIRST}", f"told-{FIRST}", f"told-{SECOND}"]
    assert nights(benchmark) == [(FIRST, "ok"), (SECOND, "ok")]
    assert benchmark.book().night(FIRST).number == 1


@pytest.mark.full
def test_the_next_night_uploads_files_that_did_not_reach_the_bucket(
    benchmark, told_sweep, weather, on, monkeypatch, caplog
):
    with monkeypatch.context() as patch:
        patch.setattr(cache.Cache, "keep", lambda *_: None)  # As if the process had died before.
        assert run_night(benchmark, FIRST).verdict.status == "ok"
    assert "11 files are not in s3://" in caplog.text
    on("two")
    assert nights(benchmark) == []
    weather.away = True
    with pytest.raises(InputError, match="storage s3://"):
        run_night(benchmark, SECOND)
    weather.away = False
    on("one")
    run_night(benchmark, SECOND)
    on("two")
    assert nights(benchmark) == [(FIRST, "ok"), (SECOND, "ok")]


def test_changes_that_are_accepted_at_once_are_all_kept(benchmark, weather, on):
    weather.share, weather.random = 0.1, Random(1)
    books = []
    for machine in ("one", "two", "three"):
        on(machine)
        books.append(benchmark.book())
    cells = [
        CellKey.parse(f"{recipe} on d: ece") for recipe in ("ce", "ls", "fl", "au", "mbls", "acls")
    ]
    entries = [Acceptance(cell, FIRST, "meant", "2026-11-21T00:00:00+00:00") for cell in cells]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda own, entry: own.accept(entry), books * 2, entries))
    weather.share = 0.0
    assert set(benchmark.book().restarts()) == set(cells)


@pytest.mark.full
def test_a_late_verdict_does_not_replace_that_of_another_machine(benchmark, told_sweep, on, caplog):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache.Cache, "keep", lambda *_: None)  # As if the process had died before.
        run_night(benchmark, FIRST)
    on("two")
    told_sweep.failures = {"ce+ts": "it is too hot there"}
    run_night(benchmark, FIRST)
    told_sweep.failures = {}
    theirs = benchmark.book().night(FIRST)
    kept = {path.name: path.read_bytes() for path in theirs.folder.iterdir() if path.is_file()}
    on("one")
    run_night(benchmark, SECOND)
    assert f"night {FIRST}: another machine has run it too" in caplog.text
    for machine in ("one", "two"):
        on(machine)
        benchmark.book().fetch()
        found = benchmark.book().night(FIRST).folder
        assert {name: (found / name).read_bytes() for name in kept} == kept
        assert nights(benchmark)[0] == (FIRST, theirs.verdict.status) != (FIRST, "ok")


def test_reading_sends_nothing(benchmark, told_sweep, weather):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache.Cache, "keep", lambda *_: None)
        run_night(benchmark, FIRST)
    before = len(weather.log)
    assert main(["nightly", "status", str(benchmark.path)]) == 0
    assert {line.partition(" ")[0] for line in weather.log[before:]} == {"GET"}


@pytest.mark.full
def test_runs_are_tracked_by_the_machine_that_has_them(benchmark, told_sweep, on, monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise InputError("tracking gives no answer")

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.nightly.publish.sync", away)
        (problem,) = run_night(benchmark, FIRST).messages
    assert f"the verdict on {FIRST} was not tracked; the next start tries again" in problem
    on("two")
    run_night(benchmark, SECOND)
    assert not benchmark.book().night(FIRST).delivered
    on("one")
    run_night(benchmark, THIRD)
    assert benchmark.book().night(FIRST).delivered
    runs = Path(benchmark.sweep.tracking_uri.removeprefix("folder:"), "experiments")
    assert list(runs.glob(f"told-{FIRST}/runs/*.json"))


@pytest.mark.full
def test_a_run_that_was_taken_over_stops(benchmark, told_sweep, on, monkeypatch):
    def taken_over(spec: SweepSpec) -> None:
        with monkeypatch.context() as patch:
            # As of a machine that slept for a minute.
            patch.setattr(locks, "_is_free", lambda told: True)
            on("two")
            with benchmark.book(fresh=False).held():
                time.sleep(1.0)  # Some beats of the first.
            on("one")

    told_sweep.before_end = taken_over
    with pytest.raises(BusyError, match=r" has taken over the nights; this run stops$"):
        run_night(benchmark, FIRST)
