from pathlib import Path
from typing import Any

import pytest

from orchestrator.storage.events import from_fields
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.pace import Work, costs_of, seconds_left
from orchestrator.storage.status import status_of, time_left
from orchestrator.storage.storage import Storage


def work(study: str, search: int, *costs: float, **fields: Any) -> Work:
    given = {"task": "t", "stage": "train", "seeds": 0, "together": 4, **fields}
    return Work(study=study, search=search, costs=costs, **given)


def test_no_time_left_is_estimated_before_a_trial_has_ended() -> None:
    assert seconds_left([work("a", 3)], 2) is None
    assert seconds_left([work("a", 0, 5.0)], 2) == 0


@pytest.mark.parametrize(
    ("works", "places", "seconds"),
    [
        ([work("a", 8, 5.0, 15.0)], 1, 80.0),
        ([work("a", 8, 10.0)], 4, 20.0),
        ([work("a", 8, 10.0, together=2)], 4, 40.0),
        ([work("a", 4, 10.0, seeds=2)], 4, 20.0),
        ([work("a", 2, 10.0), work("b", 4)], 1, 60.0),
        ([work("a", 2, 10.0), work("b", 4, 100.0)], 1, 420.0),
        ([work("a", 1, 10.0, task="t"), work("b", 1, 90.0, task="u"), work("c", 1)], 1, 110.0),
        ([work("a", 4, 10.0), work("b", 4, 10.0, reference="a")], 8, 20.0),
        ([work("a", 2, 10.0), work("a+ts", 5, stage="calibrate", upstream="a")], 2, 10.5),
        ([work("a", 0, 10.0), work("a+m", 5, stage="refine", upstream="a")], 1, 10.0),
        ([work("a", 2, 10.0, begun=12.0)], 1, 8.0),
        ([work("a", 0, 10.0, seeds=2, begun=12.0)], 1, 8.0),
        ([work("a", 1, 10.0, begun=500.0)], 1, 1.0),
    ],
)
def test_trials_are_laid_out_on_places(works: list[Work], places: int, seconds: float) -> None:
    assert seconds_left(works, places) == pytest.approx(seconds)


def test_stored_outcomes_tell_the_cost_of_a_pass_only() -> None:
    ended = [(10.0, False), (0.1, True), (None, False)]
    assert costs_of("train", ended) == [10.0]
    assert costs_of("refine", ended) == [10.0, 0.1]


def journal(*events: dict[str, Any]) -> Ledger:
    spec = {"seeds": [0, 1], "search": {"parallel_trials": 4, "accuracy_tolerance": None}}
    begun = {"event": "sweep_started", "sweep": "s", "sweep_id": "1", "provenance": {}}
    study = {"event": "study_opened", "study": "t|ls", "task": "t", "recipe": "ls", "trials": 4}
    origin = {"protocol": {"epochs": 40}}
    laid_out = [{**begun, "spec": spec, "time": 1000}, {**study, "row": True, "origin": origin}]
    return Ledger(map(from_fields, [*laid_out, *events]))


def trial(number: int, time: int, *later: dict[str, Any]) -> list[dict[str, Any]]:
    key = f"k{number}"
    started = {"event": "trial_started", "study": "t|ls", "number": number, "role": "search"}
    rest = {"seed": 0, "stage": "train", "configuration": {"ls": {}}, "time": time}
    placed = {"event": "trial_placed", "host": "h", "time": time}
    return [{**event, "key": key} for event in ({**started, **rest}, placed, *later)]


END = {"event": "trial_finished", "status": "finished", "metrics": {}}


def test_epochs_of_running_trials_give_an_estimate_before_any_trial_has_ended() -> None:
    epoch = {"event": "epoch", "step": 10, "metrics": {}}
    ledger = journal(*trial(0, 1000, epoch))
    assert ledger.trials["k0"].last_step == 10
    # The report that said where it runs told of all ten: that took no second of those since.
    assert time_left(ledger, 2.0) is None
    # 20 of 80 seconds are over; three more trials and a further seed follow.
    assert time_left(ledger, 21.0) == pytest.approx(4 * 80 + 60)


def test_an_earlier_run_tells_costs_but_not_places() -> None:
    events = [*trial(0, 1000, {**END, "seconds": 30.0}), *trial(1, 1000), *trial(2, 1000)]
    again = {"event": "sweep_started", "sweep": "s", "sweep_id": "1", "provenance": {}}
    spec = {"seeds": [0, 1], "search": {"parallel_trials": 4, "accuracy_tolerance": None}}
    ledger = journal(*events, {**again, "spec": spec, "time": 100_000})
    assert time_left(ledger, 100.0) == pytest.approx(4 * 30)
    for number in (1, 2):
        for event in trial(number, 100_000):
            ledger.apply(from_fields(event))
    # Both run, ten seconds by now: (90 - 20) / 2 for the search, then 30 for the seed.
    assert time_left(ledger, 110.0) == pytest.approx(35 + 30)


def test_a_clock_that_was_set_back_does_not_lengthen_the_estimate(tmp_path: Path) -> None:
    ledger = journal(*trial(0, 3_600_000, {**END, "seconds": 30.0}), *trial(1, 3_600_000))
    assert time_left(ledger, 10.0) == pytest.approx(4 * 30)
    folder = Storage(tmp_path).sweep("s")
    folder.path.mkdir(parents=True)
    future = journal(*trial(1, 10**14))
    with folder.owned():
        assert [each.seconds for each in status_of(folder, future).running] == [0.0]


def test_a_study_without_a_choice_waits_for_no_seeds() -> None:
    closed = {"event": "study_closed", "study": "t|ls", "chosen": None, "finished": 0, "failed": 1}
    ledger = journal(*trial(0, 1000, {**END, "seconds": 30.0}), closed)
    assert time_left(ledger, 40.0) == 0


def test_status_counts_measurements_on_test_data(tmp_path: Path) -> None:
    """All trials have ended: there is no time left to tell while choices are measured."""
    end = {**END, "seconds": 30.0}
    seed = trial(9, 5000, end)
    seed[0] |= {"role": "seed", "seed": 1}
    closed = {"event": "study_closed", "study": "t|ls", "chosen": "k1", "finished": 4, "failed": 0}
    ended = [event for number in range(4) for event in trial(number, 1000, end)]
    folder = Storage(tmp_path).sweep("s")
    folder.path.mkdir(parents=True)

    def told(*events: dict[str, Any]) -> tuple[int, int, bool]:
        with folder.owned():
            status = status_of(folder, journal(*ended, *events))
        assert status.state == "running"
        return status.measured, status.measurements, status.seconds_left is None

    assert told() == (0, 2, False)
    assert told(closed, *seed) == (0, 2, True)
    measured = {"event": "evaluated", "study": "t|ls", "seed": 0, "metrics": {"test_ece": 0.1}}
    assert told(closed, *seed, {**measured, "key": "k1"}) == (1, 2, True)
    # What was chosen and measured before counts no more.
    assert told(closed, *seed, {**measured, "key": "k0"}) == (0, 2, True)
    assert told(closed, *seed[:2], {**seed[2], "status": "failed"}) == (0, 1, True)
    assert told({**closed, "chosen": None, "reason": "not measured"}) == (0, 0, False)
