"""Workers in the test's own process, on a store of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from small_stages import few_digits, request

from trainables.data import PreparedData
from trainables.jobs import Job, Report, StageWork, Status
from trainables.stages import StageRequest
from trainables.store.artifacts import Artifact, ArtifactStore
from trainables.worker import Bench, Worker

EPOCHS = [1, 2, 3]
KEYS = count()


class Place:
    """A store and digits; opens workers there."""

    def __init__(self, folder: Path, data: PreparedData | None = None) -> None:
        self.data = data or few_digits(folder)
        self.root = folder / "artifacts"
        self.store = ArtifactStore(self.root)

    def wanted(self, protocol: dict[str, Any] | None = None, **changes: Any) -> StageRequest:
        return request(self.data, protocol={"epochs": 3, **(protocol or {})}, **changes)

    def job(
        self,
        gpus: float = 0.0,
        cpus: float = 1,
        processes: int = 1,
        score: str = "val_nll",
        flags: bool = False,
        wanted: StageRequest | None = None,
        **changes: Any,
    ) -> Job:
        work = StageWork(request=wanted or self.wanted(**changes), score=score)
        place = {"cpus": cpus, "gpus": gpus, "deterministic": flags, "graph": flags}
        return Job(
            key=str(next(KEYS)), group="g", number=0, work=work, processes=processes, **place
        )

    def bench(
        self, report_seconds: float = 0.0, every: float | None = None, sealed: bool = False
    ) -> Bench:
        return Bench(
            self.root, sealed=sealed, report_seconds=report_seconds, checkpoint_seconds=every
        )

    def worker(
        self, report_seconds: float = 0.0, every: float | None = None, **changes: Any
    ) -> Worker:
        worker = Worker(self.bench(report_seconds, every), "n7")
        worker.open(self.job(**changes))
        return worker

    def run(self, **changes: Any) -> list[Report]:
        return finish(self.worker(**changes))

    def stored(self, **changes: Any) -> Artifact | None:
        asked = self.wanted(**changes)
        return self.store.find(asked.ref)

    def lock(self, **changes: Any) -> Any:
        asked = self.wanted(**changes)
        return self.store.lock(asked.ref)

    def states(self) -> list[Path]:
        return list((self.root / "checkpoints").rglob("*.*"))


def finish(worker: Worker) -> list[Report]:
    """Return the reports of a job up to its end."""
    found = [worker.step()]
    while not found[-1].ended:
        found.append(worker.step())
    return found


def steps(reports: list[Report]) -> list[list[int]]:
    return [[epoch.step for epoch in report.history] for report in reports]


def notices(reports: list[Report]) -> list[str]:
    return [text for report in reports for text in report.notices]


def fault_of(report: Report) -> tuple[str, str]:
    assert report.status == Status.FAILED
    return str(report.fault.kind), report.fault.reason


class Clock:
    """Stands still but while an epoch is computed, or while a worker pauses."""

    def __init__(self) -> None:
        self.now, self.paused = 1000.0, list[float]()

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.now += seconds


@contextmanager
def on_a_clock(begun: Callable[[], object] = lambda: None) -> Iterator[Clock]:
    """Let every epoch take ten seconds of a clock; call ``begun`` at its start."""
    clock, real = Clock(), Bench.open_run

    def opened(*given: Any) -> Any:
        run = real(*given)
        compute = run.run_epoch

        def run_epoch() -> Any:
            begun()
            clock.now += 10
            return compute()

        run.run_epoch = run_epoch  # type: ignore[method-assign]
        return run

    with patch.multiple(
        Bench,
        open_run=opened,
        clock=lambda bench: clock.now,
        pause=lambda bench, seconds: clock.pause(seconds),
    ):
        yield clock
