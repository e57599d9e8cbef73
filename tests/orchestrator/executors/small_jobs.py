"""Jobs of milliseconds for every executor: fits on a split of logits, some of which go wrong."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.loop import Pause, Source
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.jobs import FitWork, Job, Report


def prepared_logits(folder: Path) -> PreparedData:
    rng = np.random.default_rng(0)
    np.savez(folder / "l.npz", logits=rng.normal(size=(80, 3)), labels=rng.integers(0, 3, 80))
    name = f"logits:{folder / 'l.npz'}"
    return prepare(name, folder, SplitSpec(validation=30, test=0.5), folder / "data")


def fit(data: Path, key: str, **changes: object) -> Job:
    work = FitWork(data=str(data), calibrators={"given": None, "ts": ("ts", {})}, metrics=("ece",))
    return Job(key=key, group="fits", number=int(key), work=work, **changes)  # type: ignore[arg-type]


class Deadly(FitWork):
    """Sends a signal to the first process that receives it, but for the one that made it."""

    @classmethod
    def of(cls, job: Job, marker: Path, sent: signal.Signals = signal.SIGKILL) -> "Deadly":
        work = cls(**vars(job.work))
        object.__setattr__(work, "victim", (str(marker), os.getpid(), sent))
        return work

    def __reduce__(self) -> Any:
        fields = {name: value for name, value in vars(self).items() if name != "victim"}
        return _received, (fields, *self.victim)  # type: ignore[attr-defined]


def _received(fields: dict[str, Any], marker: str, maker: int, sent: signal.Signals) -> FitWork:
    if os.getpid() == maker:
        work = Deadly(**fields)
        object.__setattr__(work, "victim", (marker, maker, sent))
        return work
    if not Path(marker).exists():
        Path(marker).write_text(str(os.getpid()))
        os.kill(os.getpid(), sent)
    return FitWork(**fields)


class Telling(FitWork):
    """Tells a file which GPU the process sees that receives it."""

    @classmethod
    def of(cls, job: Job, file: Path) -> "Telling":
        work = cls(**vars(job.work))
        object.__setattr__(work, "file", str(file))
        return work

    def __reduce__(self) -> Any:
        fields = {name: value for name, value in vars(self).items() if name != "file"}
        return _told, (fields, self.file)  # type: ignore[attr-defined]


def _told(fields: dict[str, Any], file: str) -> FitWork:
    with open(file, "a", encoding="utf-8") as stream:
        stream.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    time.sleep(0.5)  # Another process takes the next job.
    return FitWork(**fields)


class Jobs(Source):
    """Gives out jobs, the last one only once the others have ended; keeps every end."""

    sizes = ((1.0, 0.0),)

    def __init__(self, jobs: list[Job]) -> None:
        self.left, self.ends = jobs, dict[str, Report]()
        self.count = len(jobs)

    def next(self) -> Job | Pause:
        if not self.left:
            return Pause.DONE
        if len(self.left) == 1 and len(self.ends) < self.count - 1:
            return Pause.WAIT
        return self.left.pop(0)

    def ended(self, job: Job, report: Report) -> None:
        assert job.key not in self.ends, "ended twice"
        self.ends[job.key] = report
