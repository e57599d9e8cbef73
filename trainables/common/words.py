"""Counts and durations as texts."""

HOUR = 3600.0


def many(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, such as ``1 trial`` or ``2 studies``."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def have(count: int) -> str:
    """Return ``has`` or ``have``."""
    return "has" if count == 1 else "have"


def duration(seconds: float) -> str:
    """Return a duration in hours and minutes, minutes and seconds, or seconds."""
    if 0 < seconds < 1:
        return f"{seconds:.1g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
