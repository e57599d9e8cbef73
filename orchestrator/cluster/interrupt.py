"""Ctrl-C, SIGTERM and SIGHUP: a sweep that is stopped ends in good order, and soon."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], object] | int | None

GRACE_SECONDS = 3  # Tune alone waits up to fifteen for what its trials are doing.
AGAIN_SECONDS = 0.1


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Within the block SIGTERM, and SIGHUP unless it is ignored, is what Ctrl-C is."""
    with _handled(dict.fromkeys(_endings(), signal.default_int_handler)):
        yield


def _endings() -> list[signal.Signals]:
    """Return what ends a program besides Ctrl-C; ``nohup`` has SIGHUP ignored."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def interrupt_later(seconds: int | None = None) -> Iterator[None]:
    """Hold Ctrl-C, SIGTERM and SIGHUP until the block is done, for what must not be left half done.

    Args:
        seconds: After which, or when a second signal comes, the block is cut short; None for never.

    Raises:
        KeyboardInterrupt: If one came.
    """
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if seconds is not None:
            for each in asking:
                signal.signal(each, signal.default_int_handler)
            signal.alarm(seconds)

    asking = [s for s in (signal.SIGINT, *_endings()) if signal.getsignal(s) != signal.SIG_IGN]
    handlers: dict[signal.Signals, Handler] = dict.fromkeys(asking, hear)
    with _handled(handlers):
        try:
            yield
        except Exception as error:  # What a signal has cut short may say so in any way.
            if heard:
                raise KeyboardInterrupt from error
            raise
        finally:
            if heard and seconds is not None:
                signal.alarm(0)
    if heard:
        raise KeyboardInterrupt


@contextmanager
def stop_promptly() -> Iterator[None]:
    """Stop a run of Tune within the block when Ctrl-C, SIGTERM or SIGHUP comes.

    Tune is asked first, so that it lets go of its trials; anything not done after three seconds,
    or when a second signal comes, is cut short: trials resume from their own checkpoints.

    Raises:
        KeyboardInterrupt: If such a signal came, be the block done or not.
    """
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked, ask_tune = True, signal.getsignal(signal.SIGUSR1)
        if not callable(ask_tune):
            raise KeyboardInterrupt
        ask_tune(number, frame)
        for each in asking:
            signal.signal(each, signal.default_int_handler)
        signal.alarm(GRACE_SECONDS)

    asking = (signal.SIGINT, *_endings())
    handlers: dict[signal.Signals, Handler] = {
        **dict.fromkeys(asking, stop),
        # Tune's own handler of this signal is the way to ask it, and it leaves it behind.
        signal.SIGUSR1: signal.getsignal(signal.SIGUSR1),
    }
    with _handled(handlers):
        try:
            yield
        finally:
            signal.alarm(0)
    if asked:
        raise KeyboardInterrupt


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Handle signals so within the block; raise a KeyboardInterrupt that a callback lost."""
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
        if left:  # The block was done before it could be raised.
            raise KeyboardInterrupt
