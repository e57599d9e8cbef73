"""The progress of ``calsweep logits calibrate``: recipe, total and elapsed time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.text import Text

PATIENCE = 2.0  # Seconds before progress is shown.
PLAIN_SECONDS = 10.0  # Seconds between two lines if the output is not a terminal.


@contextmanager
def shown_recipes(console: Console | None, total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that receives the name of each recipe; a thread shows the current one."""
    if console is None:
        yield lambda _: None
        return
    watch = _Watch(console, total)
    thread = threading.Thread(target=watch.show, daemon=True)
    thread.start()
    try:
        yield watch.begin
    finally:
        watch.done.set()
        thread.join()


class _Watch:
    def __init__(self, console: Console, total: int) -> None:
        self.done = threading.Event()
        self._console, self._total = console, total
        self._number, self._name = 0, ""
        self._started = time.monotonic()

    def begin(self, name: str) -> None:
        self._number, self._name = self._number + 1, name

    def show(self) -> None:
        if self.done.wait(PATIENCE):
            return
        if self._console.is_terminal:
            with Live(get_renderable=self._line, console=self._console, transient=True):
                self.done.wait()
            return
        self._console.print(self._line())
        while not self.done.wait(PLAIN_SECONDS):
            self._console.print(self._line())

    def _line(self) -> Text:
        passed = timedelta(seconds=round(time.monotonic() - self._started))
        name = self._name or "uncalibrated rows"
        return Text(f"recipe {self._number} of {self._total}: {name} · {passed}")
