"""Ctrl-C and SIGTERM, once and twice, at every stage of a sweep."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

from lab import INTERRUPTED, Lab, Row, brief, fault, prefix
from sweeps import Command, Done, Sweep, gone, statuses

PROMPT = 10.0  # Seconds within which a sweep stops that is told to.


@fault
def ctrl_c(lab: Lab) -> Iterator[Row]:
    """Send SIGINT or SIGTERM to the process group while Ray starts, trials run, tests are read."""
    interrupt, terminate = signal.SIGINT, signal.SIGTERM
    yield _stopped(lab, [terminate], "starting Ray", lab.random.uniform(0, 4))
    for numbers in ([interrupt], [terminate], [interrupt] * 2):
        yield _stopped(lab, numbers, "trials run")
    yield _stopped(lab, [interrupt], "measuring", lab.random.uniform(0, 2))
    yield _in_a_long_epoch(lab)


def _stopped(lab: Lab, numbers: list[signal.Signals], after: str, wait: float = 0.0) -> Row:
    sweep = lab.sweep()
    command = sweep.start()
    if after == "trials run":
        wait = lab.wait(sweep, command)
    else:
        sweep.wait_for(command, lambda: after in command.errors)
        time.sleep(wait)
    row = Row(" and ".join(number.name for number in numbers), f"{wait:.1f} s after `{after}`")
    if not command.running():
        row.happened.append("it had ended already")
        return row
    stopping, done = _stop(command, numbers, lab)
    row.happened.append(f"stopped after {stopping:.1f} s, {brief(done)}")
    row.wrong += _not_in_order(command, stopping, done)
    gone(command)
    if sweep.database.exists():
        row.expect(no_run_left_RUNNING="RUNNING" not in statuses(sweep.database))
    return _gone_on(row, lab, sweep, done)


def _stop(command: Command, numbers: list[signal.Signals], lab: Lab) -> tuple[float, Done]:
    """Send one signal or several; return the seconds until the command ended, and how."""
    sent = time.monotonic()
    for number in numbers:
        command.send(number)
        time.sleep(lab.random.uniform(0.1, 1.5) if len(numbers) > 1 else 0.0)
    done = command.wait()
    return time.monotonic() - sent, done


def _not_in_order(command: Command, stopping: float, done: Done) -> list[str]:
    left = command.left_behind()
    found = {
        f"exit code {done.code}": done.code != INTERRUPTED,
        f"it took {stopping:.1f} s": stopping > PROMPT,
        "a traceback": "Traceback" in done.errors,
        f"left behind: {left}": bool(left),
    }
    return [what for what, wrong in found.items() if wrong]


def _in_a_long_epoch(lab: Lab) -> Row:
    row = Row("SIGINT", "in the middle of an epoch of minutes (WRN-28-10 on one core)")
    sweep = lab.sweep(model="wrn-28-10", recipes="ce", epochs=2)
    command = sweep.start()
    assert sweep.wait_for_trials(command), command.errors
    time.sleep(lab.random.uniform(10, 20))
    stopping, done = _stop(command, [signal.SIGINT], lab)
    row.happened.append(f"stopped after {stopping:.1f} s, {brief(done)}")
    row.wrong += _not_in_order(command, stopping, done)
    row.expect(in_an_epoch=not sweep.events("epoch"))
    gone(command)
    return row


def _gone_on(row: Row, lab: Lab, sweep: Sweep, done: Done) -> Row:
    """Resume as the output says, or, where a second signal cut it short, as the manual does."""
    finished = sweep.finished()
    if "go on with" in done.output:
        again = sweep.obey(done.line("go on with"))
    else:
        again = sweep.start().wait()
    row.happened.append(f"resumed: {again.seconds:.0f} s, {len(finished)} trials taken over")
    row.expect(resumed=again.code == 0, none_computed_twice=prefix(finished, sweep.finished()))
    if again.code == 0:
        row.wrong += sweep.faults(lab.calm())
    return row
