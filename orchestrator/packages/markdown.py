"""The verdict on a package as Markdown, for a pull request."""

import re
from collections.abc import Iterator

from orchestrator.packages.verify import Verdict
from trainables.common.errors import one_line
from trainables.common.words import many

SIGNS = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@])")
MOST, LONGEST = 50, 300


def to_markdown(verdict: Verdict) -> str:
    """Return the verdict as a page; texts of the package are escaped."""
    return "\n".join(_lines(verdict)) + "\n"


def _lines(verdict: Verdict) -> Iterator[str]:
    options = verdict.options
    yield f"# {_plain(verdict.name)}: {'accepted' if verdict.accepted else 'refused'}"
    yield ""
    yield "| checked | of | outcome |"
    yield "| --- | --- | --- |"
    for check in verdict.checks:
        outcome = many(len(check.problems), "problem") if check.problems else "correct"
        yield f"| {check.title} | {_plain(check.detail)} | {outcome} |"
    if verdict.problems:
        yield "\n## Problems\n"
        yield from (f"- {_plain(problem)}" for problem in verdict.problems[:MOST])
        if len(verdict.problems) > MOST:
            yield f"- and {len(verdict.problems) - MOST} more"
    if verdict.retrained:
        yield "\n## Computed again\n"
        yield "| recipe | task | seed | trial | largest difference of a figure |"
        yield "| --- | --- | --- | --- | --- |"
        for trial in verdict.retrained:
            cell = f"{_plain(trial.recipe)} | {_plain(trial.task)} | {trial.seed}"
            yield f"| {cell} | {_plain(trial.trial[:12])} | {trial.worst:.2g} |"
    if verdict.accepted and verdict.table:
        yield f"\n## Table\n\n{verdict.table.rstrip()}"
    yield (
        f"\nThe trials computed again were drawn with seed {options.seed} (a share of "
        f"{options.share:g}). Figures and probabilities count as equal if they differ by at most "
        f"{options.tolerance:g}. Verified by revision {_plain(options.revision or 'unknown')}."
    )


def _plain(text: str) -> str:
    return (
        SIGNS.sub(r"\\\1", one_line(text, LONGEST)).replace("\\<", "&lt;").replace("\\&", "&amp;")
    )
