"""What the orchestrator asks of whatever keeps its runs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sweep.tracking_uri import TrackerKind
from orchestrator.tracking._changes import Change
from trainables.common.errors import InputError
from trainables.common.paths import redacted

PAGE = 1000
"""Runs asked for at once."""

MODEL_PLACE = "model"
"""Folder among a run's files that holds its exported model."""


class UnreachableError(InputError):
    """A tracker gave no answer, or one that may be another the next time."""


class BlockedError(UnreachableError):
    """A tracker takes nothing until someone mends it: waiting does not help."""


class LoginError(BlockedError):
    """A tracker wants another login, unless its operator admits this one."""


class RefusedError(ValueError):
    """A tracker will never take this, however often it is sent."""


@dataclass(frozen=True)
class Experiment:
    """A group of runs, by its id on its tracker; created then, in milliseconds since 1970."""

    id: str
    created: int


@dataclass(frozen=True)
class Run:
    """A run as a tracker holds it.

    Attributes:
        id: Names it on its tracker.
        experiment: Id of its experiment.
        parent: Id of the run that it belongs to; None if it stands alone.
        status: ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``.
        started: When, milliseconds since 1970.
        metrics: Name to the last value: the latest of the greatest step.
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
    """Which runs are asked for.

    Attributes:
        tags: Tags with the values they must have.
        marked: A tag that they must have, whatever its value.
        order: Metrics to sort by, the lowest first, runs without them last, of equals the oldest
            first; None for the newest first.
        page: How many are fetched at once.
    """

    experiments: Sequence[str]
    tags: Mapping[str, str]
    marked: str | None = None
    status: str | None = None
    order: Sequence[str] | None = None
    page: int = PAGE


class RunReader(ABC):
    """Answers questions about runs; see ``Tracker`` for errors."""

    uri: str

    @abstractmethod
    def sweeps(self) -> dict[str, str]:
        """Return the ids of the experiments that hold sweeps, by name."""

    @abstractmethod
    def runs(self, query: RunQuery) -> Iterator[Run]:
        """Yield the matching runs; callers that stop early save further pages."""

    @abstractmethod
    def run(self, run_id: str) -> Run:
        """Return a run by its id."""


class Tracker(TrackerKind, RunReader):
    """Keeps experiments that hold runs, and a registry of models that come from runs.

    Every method raises ``UnreachableError`` if the tracker gives no answer, and ``RefusedError`` if
    it will never obey. Logging what it holds already changes nothing. It should be sent
    as many requests at once as it has ``lanes``. Who keeps no models leaves ``register``
    out.
    """

    lanes = 1

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @abstractmethod
    def open_experiment(
        self, name: str, artifact_root: Path, kind: str = "sweep"
    ) -> tuple[Experiment, bool]:
        """Return the experiment of that name, and whether it had to be created, for that kind.

        Under ``artifact_root`` a tracker without a place of its own keeps files.
        """

    def deletion(self, sweep: str) -> str:
        """Return that a sweep was deleted and how to restore it; "" for any other sweep."""
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
        """Store a file with a run under the name given."""

    @abstractmethod
    def set_status(self, run_id: str, status: str, time: int) -> None:
        """Set a run's status, and when it ended unless it is RUNNING (again)."""

    @abstractmethod
    def delete_run(self, run_id: str) -> None:
        """Delete a run."""

    def register(
        self, task: str, run_id: str, folder: Path, tags: Mapping[str, str], alias: str
    ) -> tuple[str, str, bool]:
        """Make a run's folder the version of its task's model that an alias points to.

        A run has one version at most: doing it again changes nothing but the alias. Returned are
        the model's name, the version, and whether the alias pointed to another one before.

        Raises:
            InputError: If another task's model has the name, or the tracker keeps no models.
        """
        raise InputError(f"tracking {redacted(self.uri)} keeps no models")


def model_name(task: str) -> str:
    """Return a task's name with the signs that a registry accepts."""
    return task.replace("/", ".").replace(":", "-")
