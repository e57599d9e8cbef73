"""Progress, pause and cancel of a running sweep."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from orchestrator.loop import Pause, Source
from orchestrator.search.state import SweepState
from orchestrator.storage.storage import CANCEL, PAUSE, SweepFolder
from trainables.common.errors import printable
from trainables.common.paths import sweep_command
from trainables.common.words import duration
from trainables.jobs import Job, Report

LOOK_SECONDS = 1.0


class Control:
    """Watches a sweep's folder for the commands ``pause`` and ``cancel``, and obeys them."""

    def __init__(self, folder: SweepFolder, say: Callable[[str], None]) -> None:
        self._folder, self._say, self.say_once = folder, say, cache(say)
        self._over, self._deaf = threading.Event(), False
        self._held = self._said = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check the folder every second within the block."""
        main = threading.current_thread() is threading.main_thread()
        thread = threading.Thread(target=self._watch, args=(main,), daemon=True)
        self._look()
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def source(self, source: Source) -> Source:
        """Wrap a source so that it returns no jobs while the sweep is paused."""
        return _Held(source, self)

    def holds(self) -> bool:
        """Return True if the sweep is paused; print a message when that changes."""
        if self._held != self._said:
            self._said = self._held
            command = sweep_command("resume", self._folder.path)
            start = f"paused: no trial starts until `{command}`"
            self._say(start if self._held else "continues")
        return self._held

    def _watch(self, main: bool) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if self._look() == CANCEL and main:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                return

    def _look(self) -> str:
        try:
            wanted = self._folder.control()
        except OSError as error:  # The storage may be unavailable for a moment.
            if not self._deaf:
                reason = error.strerror or error
                self._say(f"{self._folder.path}: pause or cancel cannot be read: {reason}")
            self._deaf = True
            return ""
        self._deaf, self._held = False, wanted == PAUSE
        return wanted


class _Held(Source):
    def __init__(self, source: Source, control: Control) -> None:
        self._source, self._control = source, control
        self.sizes = source.sizes

    def next(self) -> Job | Pause:
        return Pause.HELD if self._control.holds() else self._source.next()

    def ended(self, job: Job, report: Report) -> None:
        self._source.ended(job, report)


PLAIN_SECONDS = 10.0  # Time between two lines if the output is not a terminal.
LIVE_SECONDS = 0.25  # Time between two updates on a terminal.


@dataclass(frozen=True)
class Snapshot:
    """The progress of a sweep.

    Attributes:
        studies, trials: Numbers of ended studies and trials, out of ``all_studies`` and
            ``all_trials``.
        best: The best trial so far: its recipe (and task, if there are several) and objective.
        seconds_left: Estimated remaining seconds; None if there is no estimate yet.
    """

    studies: int
    all_studies: int
    trials: int
    all_trials: int
    running: int
    failed: int
    best: str
    seconds_left: float | None

    def line(self) -> str:
        """Return the progress as one line of text."""
        left = "" if self.seconds_left is None else f" · about {duration(self.seconds_left)} left"
        failed = f" · {self.failed} failed" if self.failed else ""
        best = f" · best so far {self.best}" if self.best else ""
        return (
            f"studies {self.studies}/{self.all_studies} · "
            f"trials {self.trials}/{self.all_trials}, {self.running} running{failed}{best}{left}"
        )


def snapshot(state: SweepState, seconds_left: float | None = None) -> Snapshot:
    """Return the progress of a sweep."""
    studies = list(state.studies.values())
    seeds = len(state.plan.spec.all_seeds)
    ended = sum(len(study.outcomes) for study in studies)
    return Snapshot(
        studies=sum(study.done(seeds) for study in studies),
        all_studies=len(studies),
        trials=ended,
        all_trials=state.plan.trials - sum(s.plan.trials - s.search.trials for s in studies),
        running=sum(study.running for study in studies),
        failed=sum(len(study.failures()) for study in studies),
        best=_best(state),
        seconds_left=seconds_left,
    )


def _best(state: SweepState) -> str:
    several = len(state.plan.spec.tasks) > 1
    scored = [
        (objective, study.plan.id if several else study.plan.recipe.name)
        for study in state.studies.values()
        for number, objective in study.objectives.items()
        if study.outcomes[number].status == "finished"
    ]
    if not scored:
        return ""
    objective, name = min(scored)
    return f"{name} (validation {state.plan.spec.search.objective} {objective:.4f})"


@contextmanager
def show_progress(console: Console | None) -> Iterator[Callable[[Callable[[], Snapshot]], None]]:
    """Show snapshots live on a terminal, else as lines; show nothing without a console."""
    if console is None:
        yield lambda _: None
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield _Throttle(LIVE_SECONDS, lambda now: live.update(_panel(now), refresh=True))
    else:
        yield _Throttle(
            PLAIN_SECONDS, lambda now: console.print(now.line(), highlight=False, soft_wrap=True)
        )


class _Throttle:
    """Shows the first snapshot, then at most one every ``seconds``."""

    def __init__(self, seconds: float, show: Callable[[Snapshot], None]) -> None:
        self._seconds, self._show = seconds, show
        self._last = -seconds

    def __call__(self, take: Callable[[], Snapshot]) -> None:
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self._show(take())


def _panel(now: Snapshot) -> RenderableType:
    bar = ProgressBar(total=max(1, now.all_trials), completed=now.trials, width=60)
    return Group(Text(now.line()), bar)


def say(console: Console | None, text: str) -> None:
    """Print a line to the user, if there is a console."""
    if console is not None:
        console.print(Text(printable(text), style="dim"), soft_wrap=True)
