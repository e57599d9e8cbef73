import io
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from trainables.jobs import EpochMetrics


class TrialLog(io.TextIOBase):
    """Appends to a file, if given; what cannot be written is said once, and then no more is."""

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        self.path, self._say, self._waiting = path, say, ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Keep a text until the next flush."""
        self._waiting += text
        return len(text)

    def flush(self) -> None:
        """Append the text written since the last one."""
        text, self._waiting = self._waiting, ""
        if self.path is None or not text:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
        except OSError as error:
            self._say(f"log {self.path} cannot be written: {error.strerror}")
            self.path = None

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Capture the prints of this process within the block; flush at its end."""
        if self.path is None:
            yield
            return
        try:
            with redirect_stdout(self), redirect_stderr(self):
                yield
        finally:
            self.flush()

    def line(self, text: str) -> None:
        """Write a line with the time."""
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def epochs(self, history: Iterable[EpochMetrics]) -> None:
        """Write a line for each epoch."""
        for epoch in history:
            figures = " ".join(f"{name}={value:.5g}" for name, value in epoch.metrics.items())
            self.line(f"epoch {epoch.step}: {figures}")

    def raised(self, error: Exception) -> None:
        """Write the whole traceback of what ended the trial."""
        self.write("".join(traceback.format_exception(error)))
