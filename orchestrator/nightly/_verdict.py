"""What a night came to: the outcome of comparing it with the nights before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from orchestrator.nightly._record import CellKey, number_from_json, number_to_json

__all__ = ["KINDS", "REASONS", "STATUSES", "Finding", "Verdict"]

STATUSES = ("ok", "suspicious", "regression", "incomplete")
KINDS = ("hard", "soft")
REASONS = ("failed", "missing", "unexpected", "not finite", "limit", "twin", "nights", "step")
_NUMBERS = ("value", "expected", "lower", "upper", "threshold")


@dataclass(frozen=True)
class Finding:
    """One cell that differs from the nights before, or breaks a hard limit.

    Attributes:
        cell: Which; without a metric if it is about a recipe on a task as a whole.
        kind: ``hard`` (one night is enough) or ``soft`` (outside the control limits and beyond the
            practical threshold).
        reason: One of ``REASONS``: ``twin`` for a recipe that has come to equal another one,
            ``nights`` for two nights in a row, ``step`` for a step or a drift in the series.
        text: What is wrong, in one sentence.
        value: Tonight's figure over the seeds, in the metric's unit.
        expected: What the nights before let expect, in the same unit.
        lower: Lower control limit, or the hard limit; None if that side is open.
        upper: Upper control limit, or the hard limit; None if that side is open.
        threshold: Difference that matters in practice, in the same unit.
        nights: Nights of history behind ``expected``.
        since: The night on which it began.
        causes: Changes of hardware, libraries, code or data between the last good night and
            ``since``, such as ``torch: 2.11.0 -> 2.12.0``.
    """

    cell: CellKey
    kind: str
    reason: str
    text: str
    value: float | None = None
    expected: float | None = None
    lower: float | None = None
    upper: float | None = None
    threshold: float | None = None
    nights: int = 0
    since: str = ""
    causes: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Tonight's figure less the expected one, in the metric's unit."""
        if self.value is None or self.expected is None:
            return None
        return self.value - self.expected

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        numbers = {
            name: None if row[name] is None else number_to_json(row[name]) for name in _NUMBERS
        }
        return {**row, **numbers, "cell": list(self.cell), "causes": list(self.causes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """Return what ``to_json`` wrote."""
        numbers = {
            name: None if data[name] is None else number_from_json(data[name]) for name in _NUMBERS
        }
        row = {**data, **numbers, "cell": CellKey(*data["cell"]), "causes": tuple(data["causes"])}
        return cls(**row)


@dataclass(frozen=True)
class Verdict:
    """What a night came to.

    Attributes:
        night: Which.
        status: ``ok``; ``suspicious`` (something is worse, for one night so far); ``regression``
            (an alarm about figures); ``incomplete`` (alarms about missing results alone).
        alarms: What raises the alarm, hard ones first.
        suspicions: What would raise it if tomorrow night were the same.
        improvements: What got better by as much, two nights in a row or more; never an alarm.
        notes: What a reader must know about the judgement, such as a short history.
    """

    night: str
    status: str
    alarms: tuple[Finding, ...] = ()
    suspicions: tuple[Finding, ...] = ()
    improvements: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} is not one of {', '.join(STATUSES)}")

    @property
    def raised(self) -> bool:
        """Whether people must be told: status ``regression`` or ``incomplete``."""
        return bool(self.alarms)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        lists = {name: [item.to_json() for item in getattr(self, name)] for name in _LISTS}
        return {"night": self.night, "status": self.status, **lists, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Return what ``to_json`` wrote."""
        lists = {name: tuple(Finding.from_json(row) for row in data[name]) for name in _LISTS}
        return cls(data["night"], data["status"], **lists, notes=tuple(data["notes"]))


_LISTS = ("alarms", "suspicions", "improvements")
