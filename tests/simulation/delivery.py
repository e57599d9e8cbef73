"""The real shipper between a simulated journal and a tracker in memory that is often away."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from orchestrator.storage.events import Event
from orchestrator.storage.results import StudyResult
from orchestrator.tracking import _queries, _shipper
from orchestrator.tracking._changes import Change
from orchestrator.tracking._process import Memory
from orchestrator.tracking.tracker import Experiment, Run, RunQuery, Tracker, UnreachableError
from tests.simulation.cluster import World

AWAY = 0.05  # Share of the requests that fail, half of them after they took effect.
LASTS = 0.1  # Share of the outages that last until the next call.
EXISTING = Path(__file__)
PIECE = 40  # Events read at once.


class ShipperKilled(BaseException):
    """The shipper is gone at once."""


class MemoryTracker(Tracker):
    """Runs in memory; whatever is logged twice is there once."""

    def __init__(self, world: World) -> None:
        super().__init__("memory://")
        self.world, self.held = world, dict[str, Run]()
        self.points: dict[str, dict[str, set[tuple[int, int, float]]]] = {}
        self.peace = False

    def _answer(self) -> None:
        if self.peace:
            return
        if self.world.happens(AWAY):
            raise UnreachableError("connection reset")
        if self.world.happens(AWAY / 5):
            raise ShipperKilled

    def open_experiment(
        self, name: str, artifact_root: Path, kind: str = "sweep"
    ) -> tuple[Experiment, bool]:
        self._answer()
        return Experiment("1", 1), not self.held

    def sweeps(self) -> dict[str, str]:
        return {"simulated": "1"}

    def runs(self, query: RunQuery) -> Iterator[Run]:
        self._answer()
        for run in list(self.held.values()):
            if all(run.tags.get(name) == value for name, value in query.tags.items()):
                found = self.points.get(run.id, {})
                values = {name: max(points)[2] for name, points in found.items()}
                yield replace(run, metrics=values)

    def create_run(
        self,
        experiment: str,
        name: str,
        tags: Mapping[str, str],
        started: int,
        parent: str | None = None,
    ) -> str:
        self._answer()
        run_id = f"run{len(self.held)}"
        self.held[run_id] = Run(run_id, experiment, parent, "RUNNING", started, dict(tags), {})
        self._answer()
        return run_id

    def log(self, run_id: str, change: Change) -> None:
        self._answer()
        run = self.held[run_id]
        self.held[run_id] = replace(run, tags={**run.tags, **change.tags})
        for point in change.points:
            metric = self.points.setdefault(run_id, {}).setdefault(point.name, set())
            metric.add((point.step, point.time, point.value))
        self._answer()

    def set_status(self, run_id: str, status: str, time: int) -> None:
        self._answer()
        self.held[run_id] = replace(self.held[run_id], status=status)
        self._answer()

    def delete_run(self, run_id: str) -> None:
        self._answer()
        del self.held[run_id]

    def run(self, run_id: str) -> Run:
        return self.held[run_id]

    def upload(self, run_id: str, name: str, path: Path) -> None:
        raise AssertionError("nothing is uploaded")


class Delivery:
    """Delivers a journal, piece by piece; what a killed shipper had noted stays.

    One shipper lives through outages, and from one call to the next, until it is killed.
    """

    def __init__(self, world: World, events: Sequence[Event]) -> None:
        self.tracker, self._world, self._events = MemoryTracker(world), world, events
        self._noted: dict[str, Any] = {}
        self._shipper: _shipper._Shipper | None = None
        self.cut = False  # Whether a power cut removed events that may have been delivered.

    def lose_power(self) -> None:
        self._shipper, self.cut = None, True

    def deliver(self, until_done: bool = False) -> None:
        """Deliver all there is, unless the shipper is killed or an outage lasts."""
        self.tracker.peace = until_done
        with (
            patch.object(_shipper, "read_events", self._read),
            patch.object(_shipper, "open_tracker", lambda uri, create: self.tracker),
            patch.object(_shipper, "note_fault", lambda journal, fault: None),
            patch.object(Memory, "load", lambda journal: Memory(**deepcopy(self._noted))),
            patch.object(Memory, "save", lambda memory, journal: self._note(memory)),
            patch.object(_shipper, "ThreadPoolExecutor", OneThread),
        ):
            try:
                while not self._try_to_deliver() and not self._world.happens(LASTS):
                    pass
            except ShipperKilled:
                self._shipper = None

    def _try_to_deliver(self) -> bool:
        """Return True if all is delivered, False if the tracker is away."""
        if self._shipper is None:
            self._shipper = _shipper._Shipper(EXISTING, "memory://", EXISTING)
        with suppress(UnreachableError):
            self._shipper.step()
            while self._noted.get("offset", 0) < len(self._events):
                self._shipper.step()
            self._shipper.remove_duplicates()
            return True
        return False

    def results(self) -> list[StudyResult]:
        with patch.object(_queries, "read_tracker", lambda uri: self.tracker):
            return _queries.study_results("memory://", "simulated")

    def _read(self, journal: Path, offset: int, limit: int = -1) -> tuple[list[Event], int]:
        count = 1 if limit == 1 else PIECE
        found = list(self._events[offset : offset + count])
        return found, offset + len(found)

    def _note(self, memory: Memory) -> None:
        self._noted = {**vars(memory), "runs": dict(memory.runs)}


class OneThread:
    """A pool that does at once what it is given: a seed decides everything."""

    def __init__(self, lanes: int) -> None: ...

    def __enter__(self) -> "OneThread":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, action: Callable[..., None], *given: Any) -> Future[None]:
        done: Future[None] = Future()
        try:
            done.set_result(action(*given))
        except UnreachableError as error:
            done.set_exception(error)
        return done
