import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.executors import _hung_actors
from orchestrator.executors._hung_actors import HungActors
from orchestrator.executors._silence import FACTOR, LEAST_SECONDS, Silence
from tests.orchestrator.executors.small_jobs import fit
from trainables.jobs import FaultKind, Report, Status, next_attempt
from trainables.ray_edge import Sign


class Watched:
    """Workers whose silence is looked at every second."""

    def __init__(self, hang_seconds: float | None) -> None:
        self.now = 0.0
        self.silence = Silence[str](hang_seconds, lambda: self.now)

    def passes(self, seconds: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for _ in range(seconds):
            self.now += 1
            found |= self.silence.hung()
        return found


def test_worker_hangs_after_the_seconds_that_are_given() -> None:
    watched = Watched(60.0)
    watched.silence.heard("a")
    assert watched.passes(60) == {}
    watched.silence.heard("b")
    assert watched.passes(1) == {"a": 61.0}
    watched.silence.over("a")
    assert watched.passes(60) == {"b": 61.0}


def test_default_is_ten_times_the_longest_silence_and_ten_minutes_at_least() -> None:
    watched = Watched(None)
    watched.silence.heard("a")
    assert watched.silence.limit == LEAST_SECONDS == 600
    assert watched.passes(599) == {}
    watched.silence.heard("a")
    assert watched.silence.limit == FACTOR * 599
    assert watched.passes(5990) == {}
    assert watched.passes(1) == {"a": 5991.0}


def test_nothing_hangs_without_a_limit_or_before_its_first_sign() -> None:
    endless, limited = Watched(0.0), Watched(60.0)
    endless.silence.heard("a")
    assert endless.passes(9000) == limited.passes(9000) == {}
    assert endless.silence.beat_seconds is None
    assert limited.silence.beat_seconds == 5.0


def test_a_pause_of_the_driver_does_not_make_workers_count_as_hanging() -> None:
    watched = Watched(60.0)
    watched.silence.heard("a")
    watched.now += 9000
    assert watched.silence.hung() == {}
    assert watched.passes(50) == {}
    assert watched.passes(1) == {"a": 61.0}


def test_worker_that_begins_after_a_long_pause_is_not_blamed_for_it() -> None:
    watched = Watched(8.0)
    watched.now += 10
    watched.silence.heard("a")
    assert watched.silence.hung() == {}


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return what Ray keeps, by name."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(_hung_actors, "_internal_kv_list", lambda prefix: list(kept))
    monkeypatch.setattr(_hung_actors, "_internal_kv_get", kept.get)
    monkeypatch.setattr(_hung_actors, "_internal_kv_del", kept.pop)
    monkeypatch.setattr(_hung_actors, "node_here", lambda: "here")
    return kept


def test_actor_that_hangs_is_killed_and_its_job_tried_elsewhere(signs, monkeypatch):
    now, killed = [0.0], list[Any]()
    monkeypatch.setattr(_hung_actors.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_hung_actors, "kill_tree", lambda *told: killed.append(told))
    actors, job = HungActors(60.0), fit(Path("data"), "0")
    actors._silence._clock = lambda: now[0]

    def sign(number: int, pid: int) -> bytes:
        return json.dumps(Sign(number, "here", "h", pid, 1.5, job.key, pid - 7)).encode()

    for second in range(0, 90, 5):
        now[0] = float(second)
        signs["sound"] = sign(second, 8)
        if second < 20:
            signs["stopped"] = sign(second, 7)
        actors.look()
    assert killed == [(7, 1.5)]
    assert list(signs) == ["sound"]
    report = actors.report(job, None)
    assert report is not None
    assert report.fault is not None
    assert report.fault.kind == FaultKind.MACHINE
    assert "no progress for 65 s on h, so its process was killed" in report.fault.reason
    assert report.notices == ("fits|0: no progress for 65 s on h, so its process was killed",)
    again = next_attempt(job, report, most_failures=1)
    assert again is not None
    assert (again.attempt, again.failures, again.avoided) == (1, 1, {"here"})
    assert next_attempt(again, report, most_failures=1) is None
    assert actors.report(again, Report(status=Status.RUNNING)) is None
