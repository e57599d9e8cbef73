"""What verifying a package came to, as Markdown for a pull request."""

import re
from collections.abc import Iterator

from orchestrator.packages.verify import Verdict
from trainables.common.errors import one_line
from trainables.common.words import many

SIGNS = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@])")
MOST, LONGEST = 50, 300


def to_markdown(verdict: Verdict) -> str:
    """Return the verdict as a page; whatever the package says in it is plain text."""
    return "\n".join(_lines(verdict)) + "\n"


def _lines(verdict: Verdict) -> Iterator[str]:
    options = verdict.options
    yield f"# {_plain(verdict.name)}: {'accepted' if verdict.accepted else 'refused'}"
    yield ""
    yield "| checked | of | outcome |"
    yield "| --- | --- | --- |"
    for check in verdict.checks:
        outcome = many(len(check.problems), "problem") if check.problems else "as it is said"
        yield f"| {check.title} | {_plain(check.detail)} | {outcome} |"
    if verdict.problems:
        yield "\n## What is wrong\n"
        yield from (f"- {_plain(problem)}" for problem in verdict.problems[:MOST])
        if len(verdict.problems) > MOST:
            yield f"- and {len(verdict.problems) - MOST} more"
    if verdict.retrained:
        yield "\n## Computed again\n"
        yield "| recipe | task | seed | trial | largest difference of a figure |"
        yield "| --- | --- | --- | --- | --- |"
        for found in verdict.retrained:
            named = f"{_plain(found.recipe)} | {_plain(found.task)} | {found.seed}"
            yield f"| {named} | {_plain(found.trial[:12])} | {found.worst:.2g} |"
    if verdict.accepted and verdict.table:
        yield f"\n## Table\n\n{verdict.table.rstrip()}"
    yield (
        f"\nDrawn by seed {options.seed}, a share of {options.share:g} of the trials; equal are "
        f"figures and probabilities that differ by at most {options.tolerance:g}. Verified by "
        f"revision {_plain(options.revision or 'unknown')}."
    )


def _plain(text: str) -> str:
    return (
        SIGNS.sub(r"\\\1", one_line(text, LONGEST)).replace("\\<", "&lt;").replace("\\&", "&amp;")
    )
