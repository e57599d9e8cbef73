r"""The events of a sweep, and their format as lines of its journal.

A line is an object with ``event``, ``time`` (milliseconds since 1970) and the fields of the event.
It begins with ``{"event":`` and ends with its checksum, ``,"crc":"1a2b3c4d"}``: the CRC-32 of the
bytes before that comma. Numbers are strict JSON: neither NaN nor infinity.

Fields without a default are required; other fields that are missing or null get their default.
Unknown fields are ignored.
"""

import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from sys import intern
from typing import Any, ClassVar

from pydantic_core import from_json

TEST_PREFIX = "test_"
"""Prefix of metrics that were measured on test data; only ``Evaluated`` may have them."""

SEAL = b',"crc":"%08x"}\n'
SEAL_BYTES = len(SEAL % 0)
NAMED = b'{"event":"'

# Fields that are left out of a line if they are None.
SPARSE = frozenset(
    ("epoch_seconds", "peak_memory", "host", "traceback", "error", "margin", "default_predictions")
)


@dataclass(slots=True, kw_only=True)
class Event:
    """Something that happened in a sweep; ``time`` is 0 until it is written."""

    event: ClassVar[str]
    time: int = field(default=0, compare=False)


@dataclass(slots=True, kw_only=True)
class SweepStarted(Event):
    """A run started or resumed the sweep.

    Attributes:
        spec: The resolved sweep file.
        provenance: ``git_commit``, ``versions``, ``hardware``.
    """

    event: ClassVar[str] = "sweep_started"
    sweep: str
    sweep_id: str
    spec: Mapping[str, Any]
    provenance: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class StudyOpened(Event):
    """A study was opened.

    Attributes:
        study: ``<task>|<recipe>``.
        block: Number of trials suggested at once; None in the oldest journals.
        row: Whether it is a row of the table; False if only other studies need it.
        fingerprint: Hash of the data and their split.
        setting: Hash of data, model and protocol.
        origin: All settings that are needed to compute a trial again, except its configuration;
            and ``seeds``, ``metrics`` and ``copies`` for tables.
    """

    event: ClassVar[str] = "study_opened"
    study: str
    task: str
    recipe: str
    trials: int
    block: int | None = None
    upstream: str | None = None
    row: bool
    fingerprint: str = ""
    dataset: str = ""
    model: str = ""
    protocol: str = ""
    setting: str = ""
    rule: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TrialStarted(Event):
    """A trial was started.

    Attributes:
        number: Counted from 0 within the study; further seeds follow the trials of the search.
        key: Unique id (hex).
        role: ``search``, or ``seed`` for the choice of the search with a further seed.
        stage: ``train``, ``refine``, ``calibrate`` or ``given``.
        parameters: Parameters that this study searches, such as ``{"mbls.margin": 6.0}``.
        configuration: Parameters of the whole chain by part, such as
            ``{"mbls": {"margin": 6.0, "weight": 0.1}, "macal": {...}}``.
    """

    event: ClassVar[str] = "trial_started"
    study: str
    number: int
    key: str
    role: str
    seed: int
    stage: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    configuration: Mapping[str, Mapping[str, Any]]


@dataclass(slots=True, kw_only=True)
class TrialPlaced(Event):
    """A worker on ``host`` started an attempt; not written if its first report ended the trial."""

    event: ClassVar[str] = "trial_placed"
    key: str
    host: str


@dataclass(slots=True, kw_only=True)
class Epoch(Event):
    """A trial has completed a step (an epoch); steps rise.

    A resumed trial may report a step again; the repetition is ignored.
    """

    event: ClassVar[str] = "epoch"
    key: str
    step: int
    metrics: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class TrialFinished(Event):
    """A trial ended.

    Attributes:
        reused: Whether the trial's artifact was already in the store.
        epoch_seconds, peak_memory: Mean seconds per epoch, and bytes; None if unknown or
            ``reused``.
        status: ``finished``, ``failed`` or ``pruned``.
        fault: ``machine`` if the machine caused the failure, so that a resumed sweep tries the
            trial again; else empty.
        host, traceback: Machine and traceback of a failure, if known.
    """

    event: ClassVar[str] = "trial_finished"
    key: str
    reused: bool = False
    seconds: float | None = None
    epoch_seconds: float | None = None
    peak_memory: float | None = None
    host: str | None = None
    traceback: str | None = None
    status: str
    metrics: Mapping[str, float]
    artifact: str = ""
    reason: str = ""
    fault: str = ""


@dataclass(slots=True, kw_only=True)
class TrialScored(Event):
    """A trial was scored: its validation objective with the accuracy guard, lower is better.

    Attributes:
        error: Paired standard error of the difference in accuracy from the guard's reference, if
            the guard uses it.
    """

    event: ClassVar[str] = "trial_scored"
    key: str
    objective: float
    error: float | None = None


@dataclass(slots=True, kw_only=True)
class StudyClosed(Event):
    """A study has chosen a trial, or failed.

    Attributes:
        chosen: Key of the trial, or None.
        finished, failed: Number of search trials that finished or failed.
        reason: Reason of the first failed trial, or why no trial could run; else empty.
        margin: ``difference`` between the published default and the best trial, and its paired
            standard ``error``, if the choice depended on them.
    """

    event: ClassVar[str] = "study_closed"
    study: str
    chosen: str | None
    finished: int
    failed: int
    reason: str = ""
    margin: Mapping[str, float] | None = None


@dataclass(slots=True, kw_only=True)
class Evaluated(Event):
    """A chosen configuration was measured on test data.

    Attributes:
        metrics: Metrics on test data, ``test_*``.
        predictions: Key of the ``evaluate`` artifact.
        default_predictions: Key of the ``evaluate`` artifact of the published default; None if it
            was not measured.
        seconds: Cost of computing the chain of stages, if known.
        computed: Code and hardware of each stage of the chain; see ``computed_on``.
        artifacts: Absolute paths by file name.
    """

    event: ClassVar[str] = "evaluated"
    key: str
    study: str
    seed: int
    metrics: Mapping[str, float]
    predictions: str = ""
    default_predictions: str | None = None
    seconds: float | None = None
    computed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SweepEnded(Event):
    """A run of the sweep ended: ``finished``, ``failed`` or ``interrupted``."""

    event: ClassVar[str] = "sweep_ended"
    status: str


_KINDS: tuple[type[Event], ...] = (
    SweepStarted,
    StudyOpened,
    TrialStarted,
    TrialPlaced,
    Epoch,
    TrialFinished,
    TrialScored,
    StudyClosed,
    Evaluated,
    SweepEnded,
)
_KIND_OF = {kind.event: kind for kind in _KINDS}
_NAMES = {kind: [entry.name for entry in fields(kind)] for kind in _KINDS}
_REQUIRED = {
    kind: {e.name for e in fields(kind) if e.default is MISSING and e.default_factory is MISSING}
    for kind in _KINDS
}

DECISIONS: frozenset[type[Event]] = frozenset(_KINDS) - {Epoch}
"""All kinds of events except epochs, which are most of a journal."""


def fields_of(event: Event, kind: type[Event]) -> dict[str, Any]:
    """Return the fields of ``kind`` from an event, or from a subclass such as ``Trial``."""
    return {name: getattr(event, name) for name in _NAMES[kind]}


def to_fields(event: Event) -> dict[str, Any]:
    """Return an event as plain values, in the order in which they are written."""
    values = {"event": event.event, **fields_of(event, type(event))}
    return {key: value for key, value in values.items() if value is not None or key not in SPARSE}


def from_fields(values: Any) -> Event:
    """Return the event of plain values; raise ``ValueError`` if they are not an event."""
    name = values.get("event") if isinstance(values, Mapping) else None
    if not isinstance(name, str) or name not in _KIND_OF:
        raise ValueError(f"event={name!r} is not one of {', '.join(_KIND_OF)}")
    kind = _KIND_OF[name]
    names, required = _NAMES[kind], _REQUIRED[kind]
    if missing := required - values.keys():
        listing = ", ".join(field for field in names if field in missing)
        raise ValueError(f"event {name!r} lacks {listing}")
    get = values.get
    known = {
        field: value for field in names if (value := get(field)) is not None or field in required
    }
    if isinstance(known.get("metrics"), dict):
        # Thousands of trials have metrics of the same names.
        known["metrics"] = {intern(metric): value for metric, value in known["metrics"].items()}
    return kind(**known)


def to_line(event: Event) -> bytes:
    """Return the line of an event.

    Raises:
        ValueError: If it has NaN, infinity, or test metrics in an event other than ``Evaluated``.
    """
    name = event.event
    if isinstance(event, Epoch | TrialFinished):
        tests = [metric for metric in event.metrics if metric.startswith(TEST_PREFIX)]
        if tests:
            raise ValueError(f"event {name!r} has {tests[0]}: only 'evaluated' has test metrics")
    try:
        text = json.dumps(
            to_fields(event), allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except ValueError as error:
        raise ValueError(f"event {name!r}: {error}") from error
    return _sealed(text.encode()[:-1])


def from_line(line: bytes, kinds: Collection[type[Event]] | None = None) -> Event | None:
    """Return the event of a line that includes its line end; None if not one of ``kinds``.

    Raises:
        ValueError: If the line is damaged; the message says how.
    """
    if line != _sealed(line[:-SEAL_BYTES]):
        raise ValueError("it does not match its checksum")
    kind = None if kinds is None else _kind(line)
    if kinds is not None and kind is not None and kind not in kinds:
        return None
    try:
        event = from_fields(from_json(line))  # Three times as fast as json.loads.
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError("not one whole event") from error
    return event if kinds is None or type(event) in kinds else None


def _kind(line: bytes) -> type[Event] | None:
    name = line[len(NAMED) : line.find(b'"', len(NAMED))]
    return _KIND_OF.get(name.decode(errors="replace"))


def _sealed(content: bytes) -> bytes:
    """Add the checksum and the line end to an object without its closing brace."""
    return content + SEAL % zlib.crc32(content)
