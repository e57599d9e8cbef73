"""The interface of trackers: they store the runs of sweeps and answer queries about them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sweep.tracking_uri import TrackerKind
from orchestrator.tracking._changes import Change
from trainables.common.errors import InputError
from trainables.common.paths import redacted

PAGE = 1000
"""Runs per page of an answer."""

MODEL_PLACE = "model"
"""Folder among a run's files that holds its exported model."""


class UnreachableError(InputError):
    """A tracker did not answer, or failed in a way that may pass."""


class BlockedError(UnreachableError):
    """A tracker accepts nothing until someone repairs it: waiting does not help."""


class LoginError(BlockedError):
    """A tracker refuses the login."""


class RefusedError(ValueError):
    """A tracker will never accept a request, however often it is sent."""


@dataclass(frozen=True)
class Experiment:
    """A group of runs on a tracker; ``created`` in milliseconds since 1970."""

    id: str
    created: int


@dataclass(frozen=True)
class Run:
    """A run on a tracker.

    Attributes:
        experiment: Id of its experiment.
        parent: Id of the run that it belongs to, if any.
        status: ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``.
        started: Milliseconds since 1970.
        metrics: Maps a name to its last value: the latest point of the greatest step.
    """

    id: str
    experiment: str
    parent: str | None
    status: str
    started: int
    tags: Mapping[str, str]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class RunQuery:
    """A query for runs.

    Attributes:
        tags: Required tags and their values.
        marked: A required tag with any value but "".
        order: Metrics to sort by, the lowest value first. Runs without the metric are last. Runs
            with equal values are sorted by age, oldest first. None sorts all runs by age, newest
            first.
        page: Number of runs per request.
    """

    experiments: Sequence[str]
    tags: Mapping[str, str]
    marked: str | None = None
    status: str | None = None
    order: Sequence[str] | None = None
    page: int = PAGE


class RunReader(ABC):
    """Answers queries about runs; see ``Tracker`` for errors."""

    uri: str

    @abstractmethod
    def sweeps(self) -> dict[str, str]:
        """Return the id of every sweep's experiment, by the name of the sweep."""

    @abstractmethod
    def runs(self, query: RunQuery) -> Iterator[Run]:
        """Yield the matching runs, fetched page by page."""

    @abstractmethod
    def run(self, run_id: str) -> Run:
        """Return a run by its id; raise ``RefusedError`` if there is none."""


class Tracker(TrackerKind, RunReader):
    """Stores runs in experiments, and models of runs in a registry.

    Every method raises ``UnreachableError`` if the tracker does not answer, and ``RefusedError`` if
    it will never accept the request. Logging the same values again changes nothing. ``lanes`` is
    the best number of parallel requests. A tracker without models does not override ``register``.
    """

    lanes = 1

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @abstractmethod
    def open_experiment(
        self, name: str, artifact_root: Path, kind: str = "sweep"
    ) -> tuple[Experiment, bool]:
        """Return the experiment ``name``, and whether this call created it, as one of ``kind``.

        A tracker without its own place for files stores them under ``artifact_root``.
        """

    def deletion(self, sweep: str) -> str:
        """Return how to restore a sweep if it was deleted, else ""."""
        return ""

    @abstractmethod
    def create_run(
        self,
        experiment: str,
        name: str,
        tags: Mapping[str, str],
        started: int,
        parent: str | None = None,
    ) -> str:
        """Create a run and return its id; see ``Run``."""

    @abstractmethod
    def log(self, run_id: str, change: Change) -> None:
        """Add the ``points``, ``params`` and ``tags`` of a change to a run.

        A point has a name, a value, a time in milliseconds since 1970, and a step.
        """

    @abstractmethod
    def upload(self, run_id: str, name: str, path: Path) -> None:
        """Store a file with a run, under a name."""

    @abstractmethod
    def set_status(self, run_id: str, status: str, time: int) -> None:
        """Set a run's status; unless it is RUNNING, the run ended at ``time`` (ms since 1970)."""

    @abstractmethod
    def delete_run(self, run_id: str) -> None:
        """Delete a run."""

    def register(
        self, task: str, run_id: str, folder: Path, tags: Mapping[str, str], alias: str
    ) -> tuple[str, str, bool]:
        """Register a run's exported model, ``folder``, as a version of its task's model.

        The alias is moved to this version. A run has at most one version: a second call only moves
        the alias. Return the model's name, the version, and whether the alias was moved.

        Raises:
            InputError: If another task's model has the name, or the tracker stores no models.
        """
        raise InputError(f"tracking {redacted(self.uri)} stores no models")


def model_name(task: str) -> str:
    """Return a task's name in characters that a registry accepts."""
    return task.replace("/", ".").replace(":", "-")
