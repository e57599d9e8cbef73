"""When nights begin, and which night a moment belongs to."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from trainables.common.errors import InputError

AT = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
# A clock that is set back a little, or two machines that disagree a little, must not lose a night.
EARLY = timedelta(minutes=5)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Schedule:
    """Every night at one time of the day.

    A night is named by the date on which it was to begin, and runs once under that name. So one at
    02:30 runs once where the clock shows 02:30 twice, and the second start finds its verdict; and
    where the clock jumps from 02:00 to 03:00, the start at 03:00 or later is that night's. Without
    a zone the time of the day is the machine's.
    """

    at: time = time(0)
    zone: ZoneInfo | None = None

    def night_of(self, moment: datetime) -> str:
        """Return the night that a moment belongs to, ``YYYY-MM-DD``.

        That is the date of the last beginning before it, or of one at most five minutes later.

        Raises:
            ValueError: If ``moment`` has no time zone.
        """
        if moment.tzinfo is None:
            raise ValueError(f"moment={moment} has no time zone")
        day = (moment + EARLY).astimezone(self.zone).date() + DAY
        while self._instant(day, earliest=True) > moment + EARLY:
            day -= DAY
        return day.isoformat()

    def next_start(self, moment: datetime) -> datetime:
        """Return the first beginning after a moment, in the schedule's time zone."""
        day = moment.astimezone(self.zone).date() - DAY
        while self._instant(day) <= moment:
            day += DAY
        return self._instant(day).astimezone(self.zone)

    def in_a_gap(self, first: date, days: int = 800) -> bool:
        """Return True if clocks are set forward over this time of some day from ``first`` on."""
        starts = (self._instant(first + n * DAY).astimezone(self.zone) for n in range(days))
        return any(start.time() != self.at for start in starts)

    def _instant(self, day: date, earliest: bool = False) -> datetime:
        """Return when a day's night begins, in UTC.

        A time that does not exist becomes the one an hour later, and of a time that exists twice
        the first counts; ``earliest`` takes what does not exist an hour before: any start after the
        jump is then that night's.
        """
        local = datetime.combine(day, self.at)
        both = [local.replace(fold=fold) for fold in ((0, 1) if earliest else (0,))]
        aware = [t.astimezone() if self.zone is None else t.replace(tzinfo=self.zone) for t in both]
        return min(t.astimezone(UTC) for t in aware)


def make_schedule(at: str, time_zone: str | None = None) -> Schedule:
    """Read a schedule.

    Args:
        at: ``HH:MM``, 24 hours.
        time_zone: Such as ``Europe/Berlin``; None for the machine's own.

    Raises:
        InputError: If either is not understood.
    """
    if not AT.fullmatch(at):
        raise InputError(f"--at: {at!r} is no time of the day; allowed is HH:MM, 00:00 to 23:59")
    try:
        zone = None if time_zone is None else ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InputError(
            f"--time-zone: {time_zone!r} is no time zone known here; allowed are names such as "
            "Europe/Berlin"
        ) from error
    return Schedule(time.fromisoformat(at), zone)
