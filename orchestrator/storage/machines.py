"""Machines and GPUs on which trials fail: left out until `calsweep doctor` passes there."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.storage.storage import GPU, Storage
from trainables.common.errors import InputError
from trainables.jobs import FaultKind, Job, Report, Status

IN_A_ROW = 3
"""Configurations that a machine fails one after the other before it is left out."""

FIRST = 8
"""Trials that show whether a sweep can go well at all."""

LOOK_SECONDS = 5.0
"""Seconds between two looks at which machines are taken back in."""


@dataclass
class Machines:
    """What the trials of a run tell of the machines, and of the sweep as a whole.

    A node, or one of its GPUs, is left out once it failed three configurations in a row while
    others are there: the GPU alone if it failed all of them. If more than half of the first eight
    trials fail alike, the sweep ends: the rest would too.

    Attributes:
        refused: Nodes that no trial may ever start on, with the reason.
    """

    storage: Storage | None = None
    say: Callable[[str], None] = lambda text: None
    refused: dict[str, str] = field(default_factory=dict)
    # By node and GPU (empty for the node), keys of failed trials.
    _rows: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    _out: dict[str, str] = field(default_factory=dict)  # Left out in this run: by node, by host.
    _remembered: frozenset[str] = frozenset()
    _looked: float = float("-inf")
    _ends: dict[str, str] = field(default_factory=dict)  # Of the first trials, why they failed.

    def left_out(self) -> frozenset[str]:
        """Return the nodes, or names of machines, that nothing is to start on."""
        known = self._all_left_out()
        return frozenset(name for name in known if GPU not in name) | self.refused.keys()

    def gpus_left_out(self) -> frozenset[tuple[str, str]]:
        """Return GPUs that nothing is to start on: node or name of the machine, and the GPU."""
        pairs = (name.partition(GPU) for name in self._all_left_out())
        return frozenset((place, gpu) for place, _, gpu in pairs if gpu)

    def _all_left_out(self) -> frozenset[str]:
        if self.storage is not None and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            with suppress(InputError):  # A bucket that is away ends nothing.
                self._remembered = frozenset(self.storage.machines_left_out(patient=False))
            for name in [n for n, host in self._out.items() if host not in self._remembered]:
                del self._out[name]
                node, _, gpu = name.partition(GPU)
                self._rows.pop((node, gpu), None)
        return self._remembered | self._out.keys()

    def heard(self, job: Job, report: Report, final: bool) -> None:
        """Take in how an attempt ended, and whether no other one follows."""
        node = report.node
        places = [place for place in dict.fromkeys([report.gpu, ""]) if node]
        if report.status == Status.FINISHED and not report.cost.reused:
            self._rows.update({(node, gpu): set() for gpu in places})
        if report.fault is not None and report.fault.kind == FaultKind.CODE:
            self._refuse(node, report.host, report.fault.reason)
        if report.fault is not None and report.fault.kind == FaultKind.MACHINE:
            for gpu in places:
                self._rows.setdefault((node, gpu), set()).add(job.key)
            bad = [gpu for gpu in places if self._is_bad(node, gpu)]
            if bad:
                self._leave_out(node, bad[0], report)
        if final and len(self._ends) < FIRST:
            self._ends[job.key] = report.fault.reason if report.fault is not None else ""
            self._stop_if_alike()

    def _refuse(self, node: str, host: str, reason: str) -> None:
        if not node:
            raise InputError(f"no trial can start any more: {reason}")
        if node not in self.refused:
            self.refused[node] = reason
            self.say(f"{host} is left out of this run: {reason}")

    def _is_bad(self, node: str, gpu: str) -> bool:
        if len(self._rows[node, gpu]) < IN_A_ROW or _named(node, gpu) in self._out:
            return False
        others = (where for where in self._rows if where[0] != node or (gpu and where[1]))
        return any(where != (node, gpu) for where in others)

    def _leave_out(self, node: str, gpu: str, report: Report) -> None:
        assert report.fault is not None
        host = self._out[_named(node, gpu)] = _named(report.host, gpu)
        self._rows[node, ""] = set()
        if self.storage is not None:
            try:
                self.storage.leave_machine_out(host, report.fault.reason)
                self._remembered |= {host}
            except InputError as error:
                self.say(f"{error}: later runs will not know that {host} is left out")
        self.say(
            f"{host.replace(GPU, ' GPU ')} is left out: {IN_A_ROW} trials in a row failed there, "
            f"the last by {report.fault.reason}; "
            "`calsweep doctor --storage STORAGE` there takes it back in"
        )

    def _stop_if_alike(self) -> None:
        counts: dict[str, list[str]] = {}
        for reason in filter(None, self._ends.values()):
            counts.setdefault(re.sub(r"\d+", "0", reason), []).append(reason)
        for alike in counts.values():
            if len(alike) > FIRST / 2:
                raise InputError(
                    f"{len(alike)} of the first {len(self._ends)} trials failed alike, so nothing "
                    f"more is started: {alike[0]}"
                )


def _named(place: str, gpu: str) -> str:
    return f"{place}{GPU}{gpu}" if gpu else place
