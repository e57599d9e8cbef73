"""Which objective and rule choose best on unseen data: replayed searches, judged several ways.

    calsweep run benchmarks/search.yaml
    python benchmarks/search.py calsweep-search --searches 5

Prints the tables of ``docs/results/search.md``: every strategy of ``examples/replay.yaml`` on every
study of the storage, judged on test data by each of ``JUDGES``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.cli._console import output
from orchestrator.replay import ReplayOutcome, load_replay, replay
from orchestrator.replay.output import cells, headings, notes

ROOT = Path(__file__).resolve().parent.parent
STRATEGIES = ROOT / "orchestrator" / "examples" / "replay.yaml"
JUDGES = ("nll", "brier", "smooth_ece")


def main() -> None:
    """Replay, and print a table for each judge."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("storage")
    options.add_argument("--searches", type=int, default=20)
    options.add_argument("--sweep", action="append", default=[])
    given = options.parse_args()
    settings = load_replay(STRATEGIES).model_copy(update={"searches": given.searches})
    outcome = replay(given.storage, settings, given.sweep)
    for judge in JUDGES:
        show(outcome.judged_by(judge))


def show(outcome: ReplayOutcome) -> None:
    """Print the table of one judge, in Markdown, and what is to be read beside it."""
    names = headings(outcome)
    lines = [names, ["---", *["---:"] * (len(names) - 1)]]
    lines += [cells(summary, outcome) for summary in outcome.finals()]
    for line in lines:
        output().print(f"| {' | '.join(line)} |")
    output().print("\n".join(notes(outcome)))


if __name__ == "__main__":
    main()
