"""Handles Ctrl-C, SIGTERM and SIGHUP, so that a sweep stops cleanly and soon."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], object] | int | None

GRACE_SECONDS = 3  # Tune itself waits up to fifteen seconds for its trials.
AGAIN_SECONDS = 0.1  # Delay after which a lost KeyboardInterrupt is raised again.


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM, and SIGHUP unless it is ignored, as Ctrl-C within the block."""
    with _handled(dict.fromkeys(_endings(), signal.default_int_handler)):
        yield


def _endings() -> list[signal.Signals]:
    """Return SIGTERM, and SIGHUP unless it is ignored (as under ``nohup``)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def interrupt_later(seconds: int | None = None) -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the block, which must not stop halfway, has ended.

    Args:
        seconds: Interrupt the block this long after the first signal, or at a second signal. None
            means that the block is never interrupted.

    Raises:
        KeyboardInterrupt: If a signal came.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if seconds is not None:
            for each in signals:
                signal.signal(each, signal.default_int_handler)
            signal.alarm(seconds)

    signals = [s for s in (signal.SIGINT, *_endings()) if signal.getsignal(s) != signal.SIG_IGN]
    handlers: dict[signal.Signals, Handler] = dict.fromkeys(signals, receive)
    with _handled(handlers):
        try:
            yield
        except Exception as error:  # An interrupted block may raise any error.
            if received:
                raise KeyboardInterrupt from error
            raise
        finally:
            if received and seconds is not None:
                signal.alarm(0)
    if received:
        raise KeyboardInterrupt


@contextmanager
def stop_promptly() -> Iterator[None]:
    """Stop a run of Tune within the block when Ctrl-C, SIGTERM or SIGHUP comes.

    If Tune runs, it is asked to stop its trials; after three seconds, or at a second signal, the
    block is interrupted. If Tune does not run, the block is interrupted at once. Trials resume from
    their own checkpoints.

    Raises:
        KeyboardInterrupt: If such a signal came, even if the block then ended normally.
    """
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped, stop_tune = True, signal.getsignal(signal.SIGUSR1)
        if not callable(stop_tune):
            raise KeyboardInterrupt
        stop_tune(number, frame)
        for each in signals:
            signal.signal(each, signal.default_int_handler)
        signal.alarm(GRACE_SECONDS)

    signals = (signal.SIGINT, *_endings())
    handlers: dict[signal.Signals, Handler] = {
        **dict.fromkeys(signals, stop),
        # Tune stops on this signal, and does not restore the handler that was there before.
        signal.SIGUSR1: signal.getsignal(signal.SIGUSR1),
    }
    with _handled(handlers):
        try:
            yield
        finally:
            signal.alarm(0)
    if stopped:
        raise KeyboardInterrupt


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Install signal handlers within the block; do nothing outside the main thread.

    Python only prints a KeyboardInterrupt that is raised in a callback such as ``__del__``, so a
    timer raises it again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    show, lost = sys.unraisablehook, False

    def again(unraisable: Any) -> None:
        nonlocal lost
        if unraisable.exc_type is not KeyboardInterrupt:
            show(unraisable)
            return
        lost = True
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)

    handlers = {signal.SIGALRM: signal.default_int_handler, **handlers}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = show
        left = signal.setitimer(signal.ITIMER_REAL, 0)[0] if lost else 0.0
        for number, handler in before.items():
            signal.signal(number, handler)
        if left:  # The block ended before the timer could raise it.
            raise KeyboardInterrupt
