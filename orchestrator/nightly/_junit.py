"""A night as JUnit XML: one test case for each recipe and task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree

from orchestrator.nightly._record import CellKey, NightRecord
from orchestrator.nightly._verdict import Finding, Verdict

__all__ = ["failure_junit", "night_junit"]

# What XML 1.0 has no way to write.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
WHOLE = ("*", "*")


def night_junit(name: str, record: NightRecord, verdict: Verdict) -> str:
    """Return the XML of a judged night; a case fails by the alarms of its cells."""
    shape = record.shape
    pairs = [(recipe, task) for task in shape.tasks for recipe in shape.recipes]
    others = dict.fromkeys(found.cell.pair for found in verdict.alarms)
    cases = [*dict.fromkeys([*pairs, WHOLE, *others])]
    suite = _suite(name, record.night, record.started, len(cases))
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in record.environment.items():
        ElementTree.SubElement(properties, "property", name=_text(key), value=_text(value))
    failing = 0
    for recipe, task in cases:
        alarms = [found for found in verdict.alarms if found.cell.pair == (recipe, task)]
        failing += bool(alarms)
        _case(suite, record, (recipe, task), alarms)
    suite.set("failures", str(failing))
    return _document(suite)


def failure_junit(name: str, night: str, started: float, reason: str) -> str:
    """Return the XML of a night that could not run: one case, an error."""
    suite = _suite(name, night, started, 1)
    suite.set("errors", "1")
    case = ElementTree.SubElement(suite, "testcase", classname="night", name=night, time="0")
    ElementTree.SubElement(case, "error", message=_text(reason), type="could not run")
    return _document(suite)


def _suite(name: str, night: str, started: float, tests: int) -> ElementTree.Element:
    stamp = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    facts = {"name": _text(f"{name} {night}"), "timestamp": stamp, "tests": str(tests)}
    counts = {"failures": "0", "errors": "0", "skipped": "0", "time": "0"}
    return ElementTree.Element("testsuite", {**facts, **counts})


def _case(
    suite: ElementTree.Element,
    record: NightRecord,
    pair: tuple[str, str],
    alarms: Sequence[Finding],
) -> None:
    metric = "total_seconds" if pair == WHOLE else "wall_seconds"
    seconds = sum(record.cells.get(CellKey(*pair, metric), {}).values())
    name, classname = ("night", record.night) if pair == WHOLE else pair
    case = ElementTree.SubElement(
        suite, "testcase", classname=_text(classname), name=_text(name), time=f"{seconds:.3f}"
    )
    if alarms:
        message = "; ".join(f"{found.cell}: {found.text}" for found in alarms)
        kinds = "hard" if any(found.kind == "hard" for found in alarms) else "soft"
        failure = ElementTree.SubElement(case, "failure", message=_text(message), type=kinds)
        failure.text = _text("\n".join(cause for found in alarms for cause in found.causes))


def _document(suite: ElementTree.Element) -> str:
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _text(value: str) -> str:
    return FORBIDDEN.sub("\ufffd", value)
