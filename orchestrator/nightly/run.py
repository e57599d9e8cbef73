"""Run one night, or resume it: compute the sweep, measure, judge and publish."""

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from orchestrator.nightly.book import RECORD, VERDICT, Book, Night
from orchestrator.nightly.config import Nightly
from orchestrator.nightly.measure import artifacts_with_costs, current_environment, measure_night
from orchestrator.nightly.publish import Publisher
from orchestrator.nightly.record import Verdict
from orchestrator.nightly.verdict.judge import judge
from orchestrator.running.control import say
from orchestrator.running.data import prepare_data
from orchestrator.running.run import SweepOutcome, run_sweep
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import SweepSpec, TrackingModel
from orchestrator.tracking import sync
from trainables.common.errors import InputError, StorageError
from trainables.common.files import make_folders
from trainables.common.stages import EVERY_STAGE
from trainables.data import PreparedData

LEAST_ROOM = 100 * 2**20  # Bytes of free disk that every night needs.
SPARE = 1.2  # Required disk space, as a multiple of the largest recent night.


@dataclass(frozen=True)
class NightOutcome:
    """The outcome of ``run_night``; ``fresh`` is false if the night had its verdict before."""

    night: Night
    verdict: Verdict
    fresh: bool
    messages: tuple[str, ...] = ()


def run_night(
    nightly: Nightly, name: str, *, address: str | None = None, console: Console | None = None
) -> NightOutcome:
    """Run a night, unless it has its verdict already.

    Interrupted nights are resumed, the night ``name`` last: finished trials are kept, unfinished
    ones are computed again. If code, libraries, hardware or data have changed since the
    start of a night, another night is given up and the night ``name`` restarts, because results of
    two versions cannot be judged as one night. A night also restarts if its sweep is not on this
    machine. ``name`` is ``YYYY-MM-DD`` or ``YYYY-MM-DD.N``.
    ``address`` is the Ray cluster to join; None starts Ray on this machine.

    Raises:
        BusyError: If another run is active.
        KeyboardInterrupt: If the sweep was interrupted.
    """
    book = nightly.book(fresh=False)
    with book.held() as crashed:
        if crashed:
            say(console, f"took over the lock of {crashed}, which ended without releasing it")
        return _Run(nightly, book, address, console).run(name)


class _Run:
    """One run of the command, which holds the lock of the benchmark's folder."""

    def __init__(
        self, nightly: Nightly, book: Book, address: str | None, console: Console | None
    ) -> None:
        self._nightly = nightly
        self._book = book
        self._address = address
        self._console = console
        self._messages: list[str] = []
        self._publisher = Publisher(nightly, book)

    def run(self, name: str) -> NightOutcome:
        """Finish or give up interrupted nights, run this one, publish all that still need it."""
        for night in self._book.nights():
            if night.unfinished and night.name != name:
                self._finish_earlier(night)
        night = self._book.night(name)
        before = night.verdict
        verdict = before or self._compute(night)
        for known in self._book.nights():
            self._messages += self._publisher.publish(known)
        if before is None:
            self._book.prune(self._nightly.model.keep)
        return NightOutcome(night, verdict, before is None, tuple(self._messages))

    def _finish_earlier(self, night: Night) -> None:
        spec = self._spec(night)
        if night.facts["environment"] == current_environment(self._nightly, prepare_data(spec)):
            say(self._console, f"night {night.name} was interrupted and is finished first")
            self._compute(night)
            self._messages += self._publisher.publish(night)
            return
        why = "it was interrupted, and code, libraries, hardware or data have changed since"
        self._messages.append(f"night {night.name} is abandoned: {why}")
        self._discard(night, spec)
        self._book.give_up(night, why)

    def _compute(self, night: Night) -> Verdict:
        spec = self._spec(night)
        data = prepare_data(spec)
        environment = current_environment(self._nightly, data)
        resumed, why = night.unfinished, ""
        if resumed and night.facts["environment"] != environment:
            why = "code, libraries, hardware or data have changed"
        elif resumed and not SweepFolder.of(spec).journal.exists():
            why = "its sweep is not on this machine"
        if why:
            say(self._console, f"night {night.name} restarts: {why}")
            if remaining := self._discard(night, spec):
                raise StorageError(
                    f"{remaining[0]} cannot be removed; delete it, so that the night can restart "
                    f"({why})"
                )
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
        seconds = None if resumed else outcome.seconds
        record = measure_night(self._nightly, night, read_ledger(outcome.journal), data, seconds)
        night.write(RECORD, record.to_json())
        before = [past for past, _ in self._book.judged()]
        model = self._nightly.model
        verdict = judge(before[-model.history :], record, model.limits, self._book.restarts())
        night.write(VERDICT, verdict.to_json())
        return verdict

    def _spec(self, night: Night) -> SweepSpec:
        """Return a night's sweep, which has its own storage but shares data and tracking."""
        sweep = self._nightly.sweep
        storage = Storage.of(sweep)
        make_folders(night.folder)
        for shared in (storage.data, storage.tracked_files):
            make_folders(shared)
            place = night.folder / shared.name
            if not place.is_symlink():
                place.symlink_to(shared, target_is_directory=True)
        own = {"name": f"{sweep.name}-{night.name}", "storage": str(night.folder)}
        return sweep.model_copy(update={**own, "tracking": TrackingModel(uri=sweep.tracking_uri)})

    def _discard(self, night: Night, spec: SweepSpec) -> list[Path]:
        """Remove sweep and artifacts of a night, end its tracked runs; return what remains."""
        journal = SweepFolder.of(spec).journal
        if journal.exists():
            # If the tracking server cannot be reached, its runs of this attempt stay open.
            with suppress(InputError):
                sync(journal, spec.tracking_uri, Storage.of(spec).tracked_files, True)
        return night.shrink()

    def _require_room(self, night: Night) -> None:
        """Require disk space: ``SPARE`` times the largest of the last three nights.

        At least ``LEAST_ROOM`` is required. Space that this night already uses counts.
        """
        sizes = [_size(past.folder) for past in self._book.nights()[-3:]]
        needed = max([LEAST_ROOM, *(SPARE * size for size in sizes)])
        free = shutil.disk_usage(night.folder).free
        if free + _size(night.folder) < needed:
            raise StorageError(
                f"{night.folder}: {free / 2**20:.0f} MB are free, but a night needs about "
                f"{needed / 2**20:.0f} MB; free disk space"
            )


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Temporary files may vanish meanwhile.
            total += path.lstat().st_size
    return total


def _forget_uncosted(spec: SweepSpec) -> None:
    """Remove artifacts whose cost was lost in a crash, so that they are computed again."""
    known = artifacts_with_costs(read_ledger(SweepFolder.of(spec).journal))
    for stage in EVERY_STAGE:
        for artifact in (Storage.of(spec).artifacts / stage).glob("*/*"):
            if artifact.is_dir() and artifact.name not in known:
                shutil.rmtree(artifact)
