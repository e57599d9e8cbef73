"""Exclude machines and GPUs on which trials fail, until `calsweep doctor` passes there."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.storage.storage import GPU, Storage
from trainables.common.errors import InputError
from trainables.jobs import FaultKind, Job, Report, Status

IN_A_ROW = 3
"""Number of different trials that fail in a row before a machine is excluded."""

FIRST = 8
"""Number of first trials; if most of them fail with the same error, the sweep ends."""

LOOK_SECONDS = 5.0
"""Seconds between two checks for machines that are included again."""


@dataclass
class Machines:
    """Counts failures by machine and decides which machines are excluded.

    A node is excluded after it caused the failure of three different trials in a row, if other
    nodes have run trials. If all three failed on one GPU, only this GPU is excluded; for this, it
    is enough that another GPU of the node has run trials. If more than half of the first eight
    trials fail with the same error, the sweep ends, as the others would fail too.

    Attributes:
        refused: Nodes that are excluded for the whole run, with the reason.
    """

    storage: Storage | None = None
    say: Callable[[str], None] = lambda text: None
    refused: dict[str, str] = field(default_factory=dict)
    # Keys of trials that failed in a row, by node and GPU (empty for the whole node).
    _rows: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    _out: dict[str, str] = field(default_factory=dict)  # Excluded in this run: node to host.
    _remembered: frozenset[str] = frozenset()
    _looked: float = float("-inf")
    _ends: dict[str, str] = field(default_factory=dict)  # Errors ("" for none) of first trials.

    def left_out(self) -> frozenset[str]:
        """Return the excluded machines, as ids of nodes in this run or as host names."""
        known = self._all_left_out()
        return frozenset(name for name in known if GPU not in name) | self.refused.keys()

    def gpus_left_out(self) -> frozenset[tuple[str, str]]:
        """Return the excluded GPUs as pairs of node (or name of the machine) and GPU."""
        pairs = (name.partition(GPU) for name in self._all_left_out())
        return frozenset((place, gpu) for place, _, gpu in pairs if gpu)

    def _all_left_out(self) -> frozenset[str]:
        if self.storage is not None and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            with suppress(InputError):  # Go on if the bucket does not answer.
                self._remembered = frozenset(self.storage.machines_left_out(patient=False))
            for name in [n for n, host in self._out.items() if host not in self._remembered]:
                del self._out[name]
                node, _, gpu = name.partition(GPU)
                self._rows.pop((node, gpu), None)
        return self._remembered | self._out.keys()

    def heard(self, job: Job, report: Report, final: bool) -> None:
        """Count the end of an attempt; ``final`` if the trial is not tried again."""
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
            self.say(f"{host} is excluded from this run: {reason}")

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
                self.say(f"{error}; {host} is excluded from this run only")
        self.say(
            f"{host.replace(GPU, ' GPU ')} is excluded: {IN_A_ROW} trials in a row failed there, "
            f"the last with {report.fault.reason}; "
            "run `calsweep doctor --storage STORAGE` there to include it again"
        )

    def _stop_if_alike(self) -> None:
        counts: dict[str, list[str]] = {}
        for reason in filter(None, self._ends.values()):
            counts.setdefault(re.sub(r"\d+", "0", reason), []).append(reason)
        for alike in counts.values():
            if len(alike) > FIRST / 2:
                raise InputError(
                    f"{len(alike)} of the first {len(self._ends)} trials failed with the same "
                    f"error, so no more trials are started: {alike[0]}"
                )


def _named(place: str, gpu: str) -> str:
    return f"{place}{GPU}{gpu}" if gpu else place
