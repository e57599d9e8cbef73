"""The state of each study, and why it waits or failed."""

import pytest

from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger
from orchestrator.view import study_lines


@pytest.fixture
def states(tmp_path, journal_writer):
    """Return a function that gives the state and reason of each study of three."""
    writer = journal_writer(tmp_path / "night", "night")
    writer.start()
    first = writer.open("ce", trials=2)
    writer.open("ce+ts", upstream=first)

    def read(state, reason=""):
        ledger = Ledger(iterate_events(writer.path))
        return [(each.state, each.reason) for each in study_lines(ledger, state, reason)]

    return writer, first, read


def test_a_study_that_has_not_begun_waits(states):
    writer, first, read = states
    assert read("running") == [
        ("waiting", "for its first trial"),
        ("waiting", f"for the choice of {first}"),
    ]
    assert read("queued", "Priority") == [("queued", "Priority")] * 2
    key = writer.begin(first, 0)
    assert read("running")[0] == ("running", "")
    assert read("pausing") == [("pausing", ""), ("pausing", "")]
    assert read("paused")[0] == ("paused", "")
    assert read("died") == [("interrupted", "")] * 2
    writer.finish(key, val_ece=0.1)
    writer.close(first, key, failed=1, reason="trial 1 failed")
    assert read("running") == [("finished", ""), ("waiting", "for its first trial")]


def test_a_study_that_failed_says_why(states):
    writer, first, read = states
    writer.finish(writer.begin(first, 0), status="failed", reason="out of memory")
    writer.close(first, None, finished=0, failed=1, reason="no trial finished: out of memory")
    assert read("running")[0] == ("failed", "no trial finished: out of memory")


def test_time_and_gpu_hours_are_counted_by_study(tmp_path, journal_writer):
    writer = journal_writer(tmp_path / "night", "night")
    writer.start(spec={"resources": {"train": {"gpu": 0.5}, "calibrate": {"gpu": 0.25}}})
    for recipe, stage, seconds in (("ce", "train", 5400.0), ("ce+ts", "calibrate", 3600.0)):
        study = writer.open(recipe)
        for number, reused in enumerate((False, True)):
            key = writer.begin(study, number, stage=stage)
            told = {"key": key, "status": "finished", "metrics": {}, "reason": ""}
            writer.write("trial_finished", **told, seconds=seconds, reused=reused)
    lines = study_lines(Ledger(iterate_events(writer.path)), "running")
    assert [(line.hours, line.gpu_hours) for line in lines] == [(1.5, 0.75), (1.0, 0.25)]
