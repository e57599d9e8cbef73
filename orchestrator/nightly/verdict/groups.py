"""Group findings that probably have the same cause."""

import math
from collections.abc import Sequence

from orchestrator.nightly.record import MISSING, Finding
from orchestrator.nightly.verdict.limits import measure_of

Group = tuple[Finding, ...]


def grouped(findings: Sequence[Finding]) -> list[Group]:
    """Return findings in groups, worst group first, and worst finding first in each group.

    One bug usually makes several metrics and recipes worse. So missing results, quality figures and
    costs that went wrong on the same night form one group each. Hard findings are worst (missing
    results last among them). Soft findings are ordered by their difference in multiples of the
    practical threshold.
    """
    groups: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        groups.setdefault((_nature(found), found.since), []).append(found)
    ordered = [tuple(sorted(group, key=_rank)) for group in groups.values()]
    return sorted(ordered, key=lambda group: _rank(group[0]))


def _nature(found: Finding) -> str:
    if found.reason in MISSING:
        return "missing"
    family = measure_of(found.cell.metric).family if found.cell.metric else "quality"
    return "quality" if family == "quality" else "cost"


def _rank(found: Finding) -> tuple[bool, bool, float]:
    return found.kind != "hard", found.reason in MISSING, -_size(found)


def _size(found: Finding) -> float:
    """Return the difference (of logarithms for ratios) over the threshold; infinite if unknown."""
    if found.value is None or found.expected is None or not found.threshold:
        return math.inf
    difference = found.value - found.expected
    if not measure_of(found.cell.metric).ratio:
        return abs(difference) / found.threshold
    threshold = math.copysign(found.threshold, difference) / found.expected
    return abs(math.log(found.value / found.expected) / math.log1p(threshold))
