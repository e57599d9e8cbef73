"""Trials that diverge, raise, want too much memory, or lose their process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from harness import is_trial
from lab import FAILED, Lab, Row, fault
from sweeps import Command, Done, Sweep, alive

TRIALS = """
name: {name}
tasks:
  - name: good
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: {epochs}}}
  - name: diverging
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: {epochs}, lr: 1.0e+30}}
recipes: [ce, ls, mbls, ce+macal, ce+tst]
search:
  sampler: grid
  spaces: {{mbls: {{margin: {{choices: [6.0, 9.0]}}}}, tst: {{lr: {{choices: [0.1, 1.0e+37]}}}}}}
  fixed: {{macal: {{epochs: 2, hidden: 2000000000}}, tst: {{epochs: 2}}, mbls: {{weight: 0.1}}}}
resources: {{concurrent: 1, max_failures: 1}}
storage: {storage}
"""
BUG = """
import importlib.util, sys

class Bug:
    def find_spec(self, name, path=None, target=None):
        if name != "trainables.losses.mbls":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            (loss,) = [c for c in vars(module).values() if getattr(c, "__module__", "") == name
                       and isinstance(c, type)]
            before = loss.per_row
            def per_row(self, logits, targets):
                if self.margin > 8:
                    raise IndexError("a bug in the loss")
                return before(self, logits, targets)
            loss.per_row = per_row
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Bug())
"""


@fault
def trials(lab: Lab) -> Iterator[Row]:
    """Have trials diverge, raise, ask for too much memory, and lose their process each time."""
    row = Row(
        "trials that fail",
        "learning rates of 1e30 and 1e37, a loss that raises, a refinement that asks for a "
        "terabyte, and a process that gets no more memory whenever it computes `ls`",
    )
    sweep = lab.sweep(text=TRIALS, epochs=2)
    (sweep.folder / "sitecustomize.py").write_text(BUG)
    command, killed = sweep.start(PYTHONPATH=str(sweep.folder)), set()
    with little_memory() as starve:
        while command.running():
            for process in _at_work(sweep, command, "good|ls"):
                starve(process)
                killed.add(process.pid)
            time.sleep(0.05)
    done = command.wait()
    closed = {event.study: event for event in sweep.events("study_closed")}
    for study, end in closed.items():
        if study.startswith("good") or study.endswith("|ce"):
            reason = end.reason[:110]
            row.happened.append(
                f"`{study}` {end.finished} finished, {end.failed} failed"
                + (f" ({reason})" if reason else "")
            )
    row.happened.append(f"{len(killed)} processes killed, exit code {done.code}")
    row.wrong += _unlike(closed, done)
    yield row


GROUP = Path("/sys/fs/cgroup/memory/calsweep-faults")


@contextlib.contextmanager
def little_memory() -> Iterator[Callable[[psutil.Process], object]]:
    """Yield what leaves a process to the kernel's killer: no page more than it has.

    Where no such group can be made, it is killed as the kernel would.
    """
    try:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(1 << 20))
    except OSError:
        yield lambda process: process.kill()
        return
    try:
        yield lambda process: (GROUP / "cgroup.procs").write_text(str(process.pid))
    finally:
        GROUP.rmdir()


def _unlike(closed: dict[str, Any], done: Done) -> list[str]:
    expected = {
        "good|ce": (1, 0, ""),
        "good|ls": (0, 1, "process ended more often"),
        "good|mbls": (1, 1, "IndexError: a bug in the loss"),
        "good|ce+macal": (0, 1, "alloc"),
        "good|ce+tst": (1, 1, "nan"),
        "diverging|ce": (0, 1, "nan"),
    }
    wrong = [
        f"{study} is {closed[study]}"
        for study, (finished, failed, reason) in expected.items()
        if (closed[study].finished, closed[study].failed) != (finished, failed)
        or reason.lower() not in closed[study].reason.lower()
    ]
    wrong += [] if done.code == FAILED else [f"exit code {done.code}"]
    wrong += [] if done.output.count("failed") >= 5 else ["the table does not tell"]
    return wrong


def _at_work(sweep: Sweep, command: Command, study: str) -> list[psutil.Process]:
    """Return the process that computes, if it is at a trial of that study."""
    ended = set(sweep.finished())
    open_ = [event for event in sweep.events("trial_started") if event.key not in ended]
    if [event.study for event in open_] != [study]:
        return []
    return [process for process in command.family() if is_trial(process) and alive(process)]
