"""Which night a start belongs to: clocks that jump, repeat, and disagree a little."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from orchestrator.nightly import make_schedule
from trainables.common.errors import InputError

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_night_is_named_by_the_date_on_which_it_was_to_begin():
    late = make_schedule("23:50", "UTC")
    assert late.night_of(at("2026-11-21T23:50:01+00:00")) == "2026-11-21"
    # The machine slept: the start comes after midnight and is still that night's.
    assert late.night_of(at("2026-11-22T08:00:00+00:00")) == "2026-11-21"
    assert late.night_of(at("2026-11-22T23:50:00+00:00")) == "2026-11-22"


def test_a_clock_set_back_a_little_loses_no_night():
    schedule = make_schedule("02:00", "UTC")
    assert schedule.night_of(at("2026-11-21T01:59:57+00:00")) == "2026-11-21"
    assert schedule.night_of(at("2026-11-21T01:55:00+00:00")) == "2026-11-21"
    assert schedule.night_of(at("2026-11-21T01:54:59+00:00")) == "2026-11-20"


def test_the_next_start_comes_after_this_moment_on_the_schedules_clock():
    schedule = make_schedule("02:00", "Asia/Kolkata")
    for moment, expected in (
        ("2026-11-20T20:29:59+00:00", "2026-11-21T02:00:00+05:30"),
        ("2026-11-20T20:30:00+00:00", "2026-11-22T02:00:00+05:30"),
        ("2026-11-21T12:00:00+00:00", "2026-11-22T02:00:00+05:30"),
    ):
        assert schedule.next_start(at(moment)).isoformat() == expected
    twice = make_schedule("02:30", BERLIN)
    for moment, expected in (
        ("2026-10-25T00:00:00+00:00", "2026-10-25T02:30:00+02:00"),
        ("2026-10-25T00:30:00+00:00", "2026-10-26T02:30:00+01:00"),
    ):
        assert twice.next_start(at(moment)).isoformat() == expected
    # In Greenland the last hour of a day is left out: its night begins on the next.
    late = make_schedule("23:30", "America/Nuuk").next_start(at("2024-03-31T01:10:00+00:00"))
    assert late.isoformat() == "2024-03-31T00:30:00-01:00"


def test_a_time_that_exists_twice_is_one_night():
    schedule = make_schedule("02:30", BERLIN)
    first, second = at("2026-10-25T00:30:00+00:00"), at("2026-10-25T01:30:00+00:00")
    assert first.astimezone(ZoneInfo(BERLIN)).time() == second.astimezone(ZoneInfo(BERLIN)).time()
    assert schedule.night_of(first) == schedule.night_of(second) == "2026-10-25"


def test_a_time_that_does_not_exist_is_the_night_of_the_hour_after():
    schedule = make_schedule("02:30", BERLIN)
    for moment in ("2026-03-29T01:00:05+00:00", "2026-03-29T01:30:00+00:00"):
        assert schedule.night_of(at(moment)) == "2026-03-29"
    start = schedule.next_start(at("2026-03-28T12:00:00+00:00"))
    assert start.isoformat() == "2026-03-29T03:30:00+02:00"


@pytest.mark.parametrize("text", ["00:00", "02:00", "02:30", "03:00", "23:59"])
def test_every_date_of_a_year_is_one_night_whatever_the_clocks_do(text):
    schedule = make_schedule(text, BERLIN)
    moment = at("2026-01-01T12:00:00+00:00")
    nights = []
    for _ in range(365):
        moment = schedule.next_start(moment).astimezone(UTC)
        nights.append(schedule.night_of(moment))
        assert schedule.night_of(moment + timedelta(minutes=50)) == nights[-1]
    days = [date(2026, 1, 2 if text < "12:59" else 1) + timedelta(days=n) for n in range(365)]
    assert nights == [day.isoformat() for day in days]


def test_the_hours_that_do_not_exist_on_some_day_are_known():
    start = date(2026, 11, 21)
    assert make_schedule("02:30", BERLIN).in_a_gap(start)
    assert not make_schedule("03:30", BERLIN).in_a_gap(start)
    assert not make_schedule("02:30", "UTC").in_a_gap(start)
    night, day = make_schedule("02:30", BERLIN), date(2026, 3, 29)
    assert [night.in_a_gap(first, 1) for first in (day - timedelta(1), day)] == [False, True]
    assert not night.in_a_gap(day + timedelta(1), 360)
    assert night.in_a_gap(day + timedelta(1))  # A year later.


@pytest.mark.usefixtures("machine_in_new_york")
def test_the_machines_own_zone_is_the_default():
    schedule = make_schedule("02:30")
    assert schedule.night_of(at("2026-11-21T07:25:00+00:00")) == "2026-11-21"
    assert schedule.night_of(at("2026-11-21T07:24:59+00:00")) == "2026-11-20"
    start = schedule.next_start(at("2026-11-21T07:30:00+00:00"))
    assert start.isoformat() == "2026-11-22T02:30:00-05:00"
    days = date(2026, 3, 7), date(2026, 3, 8), date(2026, 3, 9)
    assert [schedule.in_a_gap(day, 1) for day in days] == [False, True, False]


@pytest.mark.parametrize(
    ("machine", "zone", "text", "expected"),
    [
        ("<-12>12", "Pacific/Kiritimati", "00:00", ("2026-11-22", "2026-11-23")),
        ("<+14>-14", "Etc/GMT+12", "23:30", ("2026-11-19", "2026-11-20")),
    ],
)
def test_another_zone_than_the_machines_may_be_two_dates_away(
    machine, zone, text, expected, monkeypatch
):
    schedule = make_schedule(text, zone)
    moment = at("2026-11-21T11:00:00+00:00")
    monkeypatch.setenv("TZ", machine)
    time.tzset()
    try:
        night, start = schedule.night_of(moment), schedule.next_start(moment)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (night, start.date().isoformat()) == expected


@pytest.mark.parametrize("text", ["24:00", "2:00", "02:60", "night", "02:00:00"])
def test_a_wrong_time_is_refused(text):
    with pytest.raises(InputError, match="HH:MM"):
        make_schedule(text)


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "../../etc/passwd", ""])
def test_a_wrong_zone_is_refused(zone):
    with pytest.raises(InputError, match=r"^--time-zone: .* such as Europe/Berlin$"):
        make_schedule("02:00", zone)


def test_a_moment_needs_a_zone():
    with pytest.raises(ValueError, match="has no time zone"):
        make_schedule("02:00").night_of(datetime(2026, 1, 1))
