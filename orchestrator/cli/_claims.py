"""``calsweep compare --claims``: which claims of the papers stored runs confirm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.cli._console import output, print_csv, print_records, print_table, progress_bar
from orchestrator.cli._options import use_metrics
from trainables.common.errors import InputError

if TYPE_CHECKING:
    from orchestrator.statistics import ClaimVerdict
    from orchestrator.storage.results import StudyResult
    from orchestrator.tables.claims import Claim

FIELDS = (
    *("claim", "claim_verdict", "metric", "margin", "sweep", "task", "better", "than"),
    *("better_value", "than_value", "better_acc", "than_acc", "seeds"),
    *("difference", "low", "high", "p", "detectable", "verdict"),
)
HEADINGS = (
    *("runs", "better", "than", "metric", "Acc %", "seeds", "difference", "interval", "p"),
    *("detectable", "verdict"),
)


def show_claims(
    wanted: list[Claim],
    results: list[StudyResult],
    storage: str,
    draws: int,
    seed: int,
    format: str,
) -> None:
    """Judge claims of papers by stored runs and print the verdicts."""
    from orchestrator.statistics import judge_claim
    from orchestrator.storage.storage import Storage

    use_metrics(results, (one.metric for one in wanted), storage)
    store = Storage(storage).store()
    found = []
    with progress_bar("judging claims") as show:
        for number, one in enumerate(wanted):
            show(number, len(wanted))
            found.append(judge_claim(one, results, store, draws=draws, seed=seed))
    if format in ("json", "csv"):
        (print_records if format == "json" else print_csv)(FIELDS, _csv_rows(found))
    else:
        _show(found, markdown=format == "markdown")


def chosen_claims(names: list[str] | None) -> list[Claim]:
    """Return the named claims, or all claims if ``names`` is empty."""
    from orchestrator.tables.claims import load_claims

    known = {claim.name: claim for claim in load_claims()}
    for name in names or ():
        if name not in known:
            raise InputError(f"--claim {name!r} is not one of: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())


def _show(found: list[ClaimVerdict], markdown: bool) -> None:
    console, bold = output(), "**" * markdown
    for one in found:
        source = f"{one.claim.paper} {one.claim.table}"
        console.print(f"{bold}{one.claim.says}{bold} ({source}; {one.claim.name}): {one.verdict}")
        if one.pairs:
            print_table(HEADINGS, _rows(one), HEADINGS, markdown)
            continue
        both, sets = f"{one.claim.better} and {one.claim.than}", ", ".join(one.claim.datasets)
        where = "" if sets == "*" else f" on data sets {sets}"
        console.print(f"  no sweep here has predictions of both {both}{where}\n")
    console.print(
        "interval: 95 % for each row, over test data and over the seeds that no search used; p: "
        "with Holm's correction over all rows of a claim; detectable: the smallest true difference "
        "that would be found in 80 % of cases; in this regime: the networks are less accurate than "
        "the paper's, or the data is different; on these logits: no network was trained, and with "
        "one seed the interval is only over test data; accuracy lost: the accuracy is at most "
        "twice that of chance, or over 2 points below that of the method alone, so the row does "
        "not count for calibration"
    )


def _rows(found: ClaimVerdict) -> Iterator[tuple[str, ...]]:
    from orchestrator.tables.columns import column

    shown = column(found.claim.metric)
    for pair in found.pairs:
        gap = pair.difference
        better, than = map(shown.show, pair.values)
        yield (
            f"{pair.sweep}: {pair.task}",
            f"{pair.better} {better}",
            f"{pair.than} {than}",
            shown.heading,
            ", ".join(f"{100 * value:.1f}" for value in pair.accuracies),
            str(pair.seeds),
            shown.show_change(gap.value),
            f"[{shown.show_change(gap.low)}, {shown.show_change(gap.high)}]",
            f"{pair.p:.3f}",
            shown.show(pair.detectable),
            pair.verdict + " (one seed)" * (pair.seeds == 1 and not pair.given),
        )


def _csv_rows(found: list[ClaimVerdict]) -> Iterator[list[object]]:
    for one in found:
        start = [one.claim.name, one.verdict, one.claim.metric, one.claim.margin]
        for pair in one.pairs:
            gap = [pair.difference.value, pair.difference.low, pair.difference.high, pair.p]
            named = [pair.sweep, pair.task, pair.better, pair.than, *pair.values]
            networks = [*pair.accuracies, pair.seeds]
            yield [*start, *named, *networks, *gap, pair.detectable, pair.verdict]
        if not one.pairs:
            yield [*start, *[None] * (len(FIELDS) - len(start))]
