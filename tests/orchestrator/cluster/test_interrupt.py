import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from orchestrator.cluster import interrupt
from orchestrator.cluster.interrupt import interrupt_later, interrupt_on_sigterm, stop_promptly

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    real = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Whoever runs the tests may ignore it.
    before = [signal.getsignal(number) for number in WATCHED]
    yield
    assert [signal.getsignal(number) for number in WATCHED] == before
    signal.signal(signal.SIGHUP, real)


class Tune:
    """Registers its handler as Tune does, and waits for the event that it sets."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        signal.signal(signal.SIGUSR1, lambda number, frame: self._ask())

    def _ask(self) -> None:
        # Tune puts back what handled Ctrl-C before it.
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
        self.asked.set()


def interrupted(action: Callable[[], None]) -> bool:
    """Run something in place of a search; tell whether it was said to be interrupted."""
    try:
        with stop_promptly():
            action()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_tune_is_asked_to_end_before_the_interruption(number, monkeypatch):
    ended = []

    def search() -> None:
        tune = Tune()
        signal.raise_signal(number)
        ended.append(tune.asked.is_set())
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])

    left: list[float] = []
    alarms: list[int] = []
    real = signal.alarm

    def alarm(seconds: int) -> int:
        alarms.append(seconds)
        return real(seconds)

    monkeypatch.setattr(signal, "alarm", alarm)
    assert interrupted(search)
    assert ended == [True]
    assert 0 < left[0] <= 3
    assert alarms == [3, 0], "three seconds; what comes after Tune is not cut short"
    assert real(0) == 0


def test_a_slow_end_of_tune_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> None:
        Tune()
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
        ended.append(True)

    ended: list[bool] = []
    monkeypatch.setattr(interrupt, "GRACE_SECONDS", 1)
    assert interrupted(search)
    assert ended == []


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_waits_for_nothing(second: signal.Signals) -> None:
    def search() -> None:
        Tune()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(second)
        pytest.fail("it went on")

    assert interrupted(search)


def test_a_signal_before_tune_starts_ends_the_search_at_once() -> None:
    def search() -> None:
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it went on")

    assert interrupted(search)


def test_nothing_happens_without_a_signal() -> None:
    assert not interrupted(lambda: None)


def test_sigterm_is_ctrl_c() -> None:
    with interrupt_on_sigterm(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("error", [None, OSError("it was signalled as well")])
def test_a_signal_waits_for_a_protected_block(number, error):
    def work() -> None:
        signal.raise_signal(number)
        done.append(signal.alarm(60))
        if error is not None:
            raise error

    done: list[int] = []
    assert held(work, 60)
    assert done == [60]
    assert signal.alarm(0) == 0


@pytest.mark.parametrize("again", [signal.SIGINT, None])
def test_a_long_block_is_interrupted_after_a_signal(again: signal.Signals | None) -> None:
    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        if again is not None:
            signal.raise_signal(again)
        time.sleep(30)
        pytest.fail("it went on")

    assert held(work, 60 if again else 1)


def held(action: Callable[[], None], seconds: int) -> bool:
    """Run something that a signal waits for; tell whether it was said to be interrupted."""
    try:
        with interrupt_later(seconds):
            action()
    except KeyboardInterrupt:
        return True
    return False


class Fleeting:
    """Is signalled where Python shows what is raised, and forgets it."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("seconds", [0, 30])
def test_an_interrupt_lost_in_a_callback_is_raised_again(seconds, capsys):
    def work() -> None:
        with interrupt_on_sigterm():
            Fleeting()
            time.sleep(seconds)

    assert interrupted(work)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert capsys.readouterr().err == ""


def test_other_errors_in_a_callback_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise error

    error, shown = OSError("full"), list[object]()
    monkeypatch.setattr(sys, "unraisablehook", lambda given: shown.append(given.exc_value))
    with interrupt_on_sigterm():
        Broken()
    assert shown == [error]


def test_without_a_signal_errors_are_as_they_are() -> None:
    with pytest.raises(OSError, match="full"), interrupt_later():
        raise OSError("full")


def test_a_program_without_a_terminal_goes_on_when_it_is_closed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As nohup does.
    try:
        with interrupt_on_sigterm():
            assert not interrupted(lambda: signal.raise_signal(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_left_alone() -> None:
    def work() -> None:
        with interrupt_on_sigterm(), stop_promptly():
            handled.append(signal.getsignal(signal.SIGTERM))

    handled: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handled == [signal.getsignal(signal.SIGTERM)]
