r"""The events of a sweep, and how each of them is written as one line of its journal.

A line is an object with ``event``, ``time`` (milliseconds since 1970) and the fields of that event.
It begins with ``{"event":`` and ends with its checksum, ``,"crc":"1a2b3c4d"}``: the CRC-32 of the
bytes before that comma. Numbers are strict JSON: neither NaN nor infinity.

A field without a default must be there; a missing one, or null, has its default, and unknown fields
are ignored.
"""

import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from sys import intern
from typing import Any, ClassVar

from pydantic_core import from_json

TEST_PREFIX = "test_"
"""Starts the names of metrics measured on test data; only ``Evaluated`` may carry them."""

SEAL = b',"crc":"%08x"}\n'
SEAL_BYTES = len(SEAL % 0)
NAMED = b'{"event":"'

# Left out of a line where they are not known.
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
    """A run of the sweep began, the first one or one that resumes it.

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
    """A study was laid out.

    Attributes:
        study: ``<task>|<recipe>``.
        block: Trials suggested at once; None in the oldest journals.
        row: False if it exists only because others build on it, and is no row of a table.
        fingerprint: Hash of the data as split.
        setting: Hash of data, model and protocol.
        origin: What a trial's configuration leaves open, so that it can be computed again, and the
            ``seeds`` of the table.
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
    """A trial was given out.

    Attributes:
        number: From 0 within the study and role.
        key: Hex, names the trial for good.
        stage: ``train``, ``refine`` or ``calibrate``.
        parameters: Those searched in this study, ``{"mbls.margin": 6.0}``.
        configuration: The whole chain, one mapping a part,
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
    """A worker on ``host`` began an attempt at a trial that its first report did not end."""

    event: ClassVar[str] = "trial_placed"
    key: str
    host: str


@dataclass(slots=True, kw_only=True)
class Epoch(Event):
    """A trial came a step further: one event a step, rising.

    A step that comes again is a resumed trial's and adds nothing.
    """

    event: ClassVar[str] = "epoch"
    key: str
    step: int
    metrics: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class TrialFinished(Event):
    """A trial ended.

    Attributes:
        reused: Whether its outcome came from the store.
        epoch_seconds, peak_memory: Mean of an epoch, and bytes; None if it was reused.
        status: ``finished``, ``failed`` or ``pruned``.
        fault: ``machine`` if it failed by no fault of its configuration, so that a resumed sweep
            tries it again; else empty.
        host, traceback: Where it failed, if that is known.
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
    """A trial got its guarded validation objective, lower is better, perhaps after its end.

    Attributes:
        error: Paired standard error of its accuracy's difference from plain cross-entropy's, if the
            guard asks for it.
    """

    event: ClassVar[str] = "trial_scored"
    key: str
    objective: float
    error: float | None = None


@dataclass(slots=True, kw_only=True)
class StudyClosed(Event):
    """A study settled on a trial, or on none.

    Attributes:
        chosen: Key of the trial, or None.
        finished, failed: How many of its search trials did.
        reason: Of the first failed trial, or why nothing could run; else empty.
        margin: By how much the best trial beats the published default, and its paired standard
            error, ``difference`` and ``error``, if that decided.
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
        metrics: ``test_*``.
        predictions: Key of the ``evaluate`` artifact.
        default_predictions: That of the published default, the study's first trial, measured beside
            the trial that was chosen; None where nothing was searched.
        seconds: What the chain of stages cost to compute, if that is known.
        computed: On what each stage of the chain was computed: by stage, see ``computed_on``.
        artifacts: File name to absolute path.
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
"""All kinds of events but the epochs, which are most of a journal."""


def fields_of(event: Event, kind: type[Event]) -> dict[str, Any]:
    """Return the fields of a kind of event, of one or of a record that extends it."""
    return {name: getattr(event, name) for name in _NAMES[kind]}


def to_fields(event: Event) -> dict[str, Any]:
    """Return an event as plain values, in the order in which they are written."""
    found = {"event": event.event, **fields_of(event, type(event))}
    return {name: value for name, value in found.items() if value is not None or name not in SPARSE}


def from_fields(values: Any) -> Event:
    """Return the event of plain values; raise ``ValueError`` if they are none."""
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
        # Thousands of trials bear the same names.
        known["metrics"] = {intern(metric): value for metric, value in known["metrics"].items()}
    return kind(**known)


def to_line(event: Event) -> bytes:
    """Return the line of an event.

    Raises:
        ValueError: If it holds NaN or infinity, or figures of test data where none belong.
    """
    name = event.event
    if isinstance(event, Epoch | TrialFinished):
        tests = [metric for metric in event.metrics if metric.startswith(TEST_PREFIX)]
        if tests:
            raise ValueError(f"event {name!r} holds {tests[0]}: test metrics belong to 'evaluated'")
    try:
        text = json.dumps(
            to_fields(event), allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except ValueError as error:
        raise ValueError(f"event {name!r}: {error}") from error
    return _sealed(text.encode()[:-1])


def from_line(line: bytes, kinds: Collection[type[Event]] | None = None) -> Event | None:
    """Return the event of a line with its end; None for one of a kind that is not wanted.

    Raises:
        ValueError: If the line is damaged; the text says how.
    """
    if line != _sealed(line[:-SEAL_BYTES]):
        raise ValueError("it does not match its checksum")
    kind = None if kinds is None else _kind(line)
    if kinds is not None and kind is not None and kind not in kinds:
        return None
    try:
        event = from_fields(from_json(line))  # In a third of the time of json.loads.
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError("not one whole event") from error
    return event if kinds is None or type(event) in kinds else None


def _kind(line: bytes) -> type[Event] | None:
    name = line[len(NAMED) : line.find(b'"', len(NAMED))]
    return _KIND_OF.get(name.decode(errors="replace"))


def _sealed(content: bytes) -> bytes:
    """Return the line of an object that is given without its closing brace."""
    return content + SEAL % zlib.crc32(content)
