"""Judge a change against its base revision, in the same way as a night against earlier ones."""

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from rich.console import Console

from orchestrator.cluster.interrupt import interrupt_on_sigterm
from orchestrator.nightly import page
from orchestrator.nightly.commits.night import CommitNights
from orchestrator.nightly.commits.repository import Repository
from orchestrator.nightly.config import Nightly
from orchestrator.nightly.record import NightRecord, Verdict
from orchestrator.nightly.verdict.hard import hard_findings
from orchestrator.nightly.verdict.judge import judge


@dataclass(frozen=True)
class Gate:
    """The outcome of a comparison; ``title`` is the verdict in one line."""

    verdict: Verdict
    title: str
    markdown: str


def gate(
    nightly: Nightly, revision: str, repository: Path | None = None, console: Console | None = None
) -> Gate:
    """Run the benchmark on a revision and on the working tree, and judge the working tree.

    Raises:
        BusyError: If another run of the benchmark is active.
    """
    source = Repository(repository or nightly.model.gate.place or Path.cwd())
    base = source.commit(revision)
    lock = nightly.book(fresh=False).held()
    with lock, interrupt_on_sigterm(), CommitNights(nightly, source, "gate", console) as nights:
        records, verdict = _judged(nightly, nights, base)
    against = f"against {source.described(base)}"
    title = page.headline(nightly.name, against, verdict)
    blocks = page.night_summary(nightly.name, records, verdict, {}, against)
    return Gate(verdict, title, page.to_markdown(blocks))


def _judged(nightly: Nightly, nights: CommitNights, base: str) -> tuple[list[NightRecord], Verdict]:
    limits, numbers = nightly.model.limits, count(1)

    def run(commit: str | None, name: str) -> NightRecord:
        return replace(nights.run(commit), night=f"{name} {next(numbers)}")

    before, tonight = [run(base, "base")], run(None, "change")
    verdict = judge(before, tonight, limits)
    if verdict.suspicions:
        before = [*before, run(base, "base"), tonight]
        tonight = run(None, "change")
        verdict = judge(before, tonight, limits)
    known = {(f.cell, f.reason) for f in hard_findings(before[:1], limits, {})}
    # Findings that began on these nights were not caused by the change.
    bases = {record.night for record in before[:2]}
    alarms = tuple(
        found
        for found in verdict.alarms
        if (found.cell, found.reason) not in known and found.since not in bases
    )
    if not alarms and verdict.alarms:
        verdict = replace(verdict, status="suspicious" if verdict.suspicions else "ok")
    return [*before, tonight], replace(verdict, alarms=alarms)
