"""One night: compute the sweep afresh, measure, judge, tell; whatever broke off is gone on with."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator._progress import say
from orchestrator.journal import read_events
from orchestrator.nightly._book import DELIVERED, RECORD, VERDICT, Book, Night
from orchestrator.nightly._config import Nightly
from orchestrator.nightly._judge import judge
from orchestrator.nightly._lock import held_lock
from orchestrator.nightly._measure import costed, environment_of, measured
from orchestrator.nightly._publish import deliver, tell, told, write_reports
from orchestrator.nightly._verdict import Verdict
from orchestrator.run import JOURNAL, SweepOutcome, prepare_data, run_sweep
from orchestrator.spec import SweepSpec, TrackingModel
from orchestrator.tracking import sync
from trainables.addresses import redacted
from trainables.data import PreparedData
from trainables.errors import InputError, StorageError
from trainables.stages import STAGES

__all__ = ["NightOutcome", "run_night"]

LEAST_ROOM = 100 * 2**20  # Asked for before the first night has told.
SPARE = 1.2  # Room asked for, as a multiple of what the last night took.


@dataclass(frozen=True)
class NightOutcome:
    """What a start came to.

    Attributes:
        night: The night.
        verdict: Its verdict.
        fresh: False if the night had its verdict before and nothing was computed.
        messages: What a person must know besides, such as a webhook that failed.
    """

    night: Night
    verdict: Verdict
    fresh: bool
    messages: tuple[str, ...] = ()


def run_night(
    nightly: Nightly,
    name: str,
    *,
    address: str | None = None,
    console: Console | None = None,
) -> NightOutcome:
    """Run a night, once.

    A night that broke off is gone on with: its finished trials are kept, its unfinished ones are
    computed again. An earlier one is finished first, then tonight's runs. If code, libraries,
    hardware or data have changed since it began, an earlier one is given up and tonight's starts
    anew: half a night of each would say nothing about either. A night that has its verdict is
    not run again.

    Args:
        nightly: The benchmark.
        name: The night, ``YYYY-MM-DD`` or ``YYYY-MM-DD.N``; see ``Schedule.night_of``.
        address: A Ray cluster to join; None for Ray on this machine alone.
        console: Where progress is shown; None for nowhere.

    Raises:
        BusyError: If another run is going on.
        InputError: If it could not run: the storage is full, data are gone. The night stays open,
            and the next start goes on with it.
        KeyboardInterrupt: If it was interrupted; likewise.
    """
    book = Book(nightly.folder)
    with held_lock(book.folder / "lock") as gone:
        if gone:
            say(console, f"taken over from {gone}, which is gone")
        return _Start(nightly, book, address, console).run(name)


class _Start:
    """One start of the command, which owns the benchmark's folder."""

    def __init__(
        self, nightly: Nightly, book: Book, address: str | None, console: Console | None
    ) -> None:
        self._nightly = nightly
        self._book = book
        self._address = address
        self._console = console
        self._messages: list[str] = []
        self._deaf: set[str] = set()  # Ways to people that have failed.
        self._untracked = False  # Whether the tracking server has failed.

    def run(self, name: str) -> NightOutcome:
        """Finish what broke off, run a night, then publish what has not reached everybody."""
        for night in self._book.nights():
            if night.unfinished and night.name != name:
                self._finish_earlier(night)
        night = self._book.night(name)
        fresh = night.verdict is None
        verdict = self._compute(night) if fresh else night.verdict
        for judged in self._book.nights():
            done = judged.delivered and told(self._nightly, judged)
            if judged.verdict is not None and not done:
                self._publish(judged)
        if fresh:
            self._book.prune(self._nightly.model.keep)
        assert verdict is not None
        return NightOutcome(night, verdict, fresh, tuple(self._messages))

    def _finish_earlier(self, night: Night) -> None:
        spec = self._spec(night)
        if night.facts["environment"] == environment_of(self._nightly, prepare_data(spec)):
            say(self._console, f"night {night.name} broke off: it is finished first")
            self._compute(night)
            self._publish(night)
            return
        why = "it broke off, and code, libraries, hardware or data have changed since"
        self._messages.append(f"night {night.name} is given up: {why}")
        self._discard(night, spec)
        self._book.give_up(night, why)

    def _compute(self, night: Night) -> Verdict:
        """Run a night's sweep to its end and judge it."""
        spec = self._spec(night)
        data = prepare_data(spec)
        environment = environment_of(self._nightly, data)
        resumed = night.unfinished
        if resumed and night.facts["environment"] != environment:
            say(self._console, f"night {night.name} begins anew: its surroundings have changed")
            self._discard(night, spec)
            resumed = False
        self._require_room(night)
        if resumed:
            _forget_uncosted(spec)
        else:
            self._book.begin(night.name, time.time(), environment)
        outcome = run_sweep(spec, address=self._address, console=self._console)
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        return self._judge(night, outcome, data, resumed)

    def _judge(
        self, night: Night, outcome: SweepOutcome, data: dict[str, PreparedData], resumed: bool
    ) -> Verdict:
        facts = night.facts
        record = measured(
            self._nightly,
            night.name,
            facts["started"],
            facts["environment"],
            read_events(outcome.journal)[0],
            data,
            None if resumed else outcome.seconds,
        )
        night.write(RECORD, record.to_json())
        before = [past for past, _ in self._book.judged() if past.night != night.name]
        history = before[-self._nightly.model.history :]
        restarts = self._book.restarts()
        verdict = judge(history, record, self._nightly.model.limits, restarts)
        night.write(VERDICT, verdict.to_json())
        return verdict

    def _publish(self, night: Night) -> None:
        """Write, tell and deliver a verdict; what has been done already is not done again.

        A way that fails is not tried again by this start, and stops no other.
        """
        steps = {"written": self._write, "told": self._tell, "tracked": self._deliver}
        for done, step in steps.items():
            try:
                step(night)
            except Exception as error:  # noqa: BLE001 - the verdict stands, and later nights run
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                if isinstance(error, InputError):
                    reason = str(error)
                self._messages.append(
                    f"the verdict on {night.name} waits for the next start to be {done}: {reason}"
                )

    def _write(self, night: Night) -> None:
        write_reports(self._nightly, self._book, night)

    def _tell(self, night: Night) -> None:
        if not told(self._nightly, night):
            failed = tell(self._nightly, night, self._deaf)
            self._deaf |= set(failed)
            self._messages += failed.values()

    def _deliver(self, night: Night) -> None:
        if night.delivered or self._untracked:
            return
        self._untracked = True
        deliver(self._nightly, night, self._spec(night).directory / JOURNAL)
        self._untracked = False
        night.write(DELIVERED, {"uri": redacted(self._nightly.sweep.tracking_uri)})

    def _spec(self, night: Night) -> SweepSpec:
        """Return a night's sweep: storage of its own, data and tracking those of all nights."""
        sweep = self._nightly.sweep
        night.folder.mkdir(parents=True, exist_ok=True)
        for shared in ("data", "mlflow-artifacts"):
            _link(night.folder / shared, sweep.storage_path / shared)
        return sweep.model_copy(
            update={
                "name": f"{sweep.name}-{night.name}",
                "storage": str(night.folder),
                "tracking": TrackingModel(uri=sweep.tracking_uri),
            }
        )

    def _discard(self, night: Night, spec: SweepSpec) -> None:
        """Remove what a night computed so far, and end its runs on the tracking server."""
        journal = spec.directory / JOURNAL
        if journal.exists():
            # A server that is away keeps runs of an attempt that nobody asks for.
            with suppress(InputError):
                sync(journal, spec.tracking_uri, spec.storage_path / "mlflow-artifacts", True)
        night.shrink()

    def _require_room(self, night: Night) -> None:
        """Refuse to begin where the disk would be full before the end.

        Raises:
            StorageError: If less is free than the last nights took and a fifth more.
        """
        sizes = [_size(past.folder) for past in self._book.nights()[-3:]]
        needed = max([LEAST_ROOM, *(SPARE * size for size in sizes)])
        free = shutil.disk_usage(night.folder).free
        if free + _size(night.folder) < needed:
            raise StorageError(
                f"{night.folder}: {free / 2**20:.0f} MB are free, a night needs about "
                f"{needed / 2**20:.0f}"
            )


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Drafts come and go.
            total += path.lstat().st_size
    return total


def _link(place: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(target, target_is_directory=True)


def _forget_uncosted(spec: SweepSpec) -> None:
    """Have every outcome computed again whose cost was lost in a crash."""
    path = spec.directory / JOURNAL
    events: list[dict[str, Any]] = read_events(path)[0] if path.exists() else []
    known = costed(events)
    for stage in STAGES:
        for artifact in (spec.storage_path / "artifacts" / stage).glob("*/*"):
            if artifact.is_dir() and artifact.name not in known:
                shutil.rmtree(artifact)
