"""What people tell a running sweep from elsewhere, through a file in its folder."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from orchestrator.loop import Pause, Source
from orchestrator.storage.storage import CANCEL, PAUSE, SweepFolder
from trainables.common.paths import sweep_command
from trainables.jobs import Job, Report

LOOK_SECONDS = 1.0


class Control:
    """Reads the wish for a sweep (pause, stop), and reports it.

    ``cancel`` stops it as SIGTERM does, if it runs in the main thread; ``pause`` holds the
    next jobs of the sources. ``tell`` says each text once.
    """

    def __init__(self, folder: SweepFolder, say: Callable[[str], None]) -> None:
        self._folder, self._say, self.tell = folder, say, cache(say)
        self._over, self._deaf = threading.Event(), False
        self._held = self._said = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look every second within the block."""
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
        """Return a source that gives nothing out while the sweep is held."""
        return _Held(source, self)

    def holds(self) -> bool:
        """Return True if the sweep is held; say so when that changes."""
        if self._held != self._said:
            self._said = self._held
            command = sweep_command("resume", self._folder.path)
            start = f"paused: nothing starts before `{command}`"
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
        except OSError as error:  # A storage that is away for a moment changes nothing.
            if not self._deaf:
                reason = error.strerror or error
                self._say(f"{self._folder.path}: pause or cancel cannot be read: {reason}")
            self._deaf = True
            return ""
        self._deaf, self._held = False, wanted == PAUSE
        return wanted


class _Held(Source):
    """A source that a person may hold."""

    def __init__(self, source: Source, control: Control) -> None:
        self._source, self._control = source, control
        self.sizes = source.sizes

    def next(self) -> Job | Pause:
        return Pause.HELD if self._control.holds() else self._source.next()

    def ended(self, job: Job, report: Report) -> None:
        self._source.ended(job, report)
