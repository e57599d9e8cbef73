"""Ctrl-C, SIGTERM and SIGHUP: a sweep that is stopped ends in good order, and soon."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | None

GRACE_SECONDS = 3  # Tune alone waits up to fifteen for what its trials are doing.


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

    Nor are they lost so: what is raised in a callback, as of a fork, Python shows and forgets.

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
    with _handled({**handlers, signal.SIGALRM: signal.default_int_handler}):
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
        signal.SIGALRM: signal.default_int_handler,
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
    """Have signals handled so within the block; Python allows it in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
