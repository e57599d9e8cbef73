import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]
SWEEP = """
name: planned
tasks: [{dataset: digits, model: convnet, protocol: digits}]
recipes: [ce, mbls]
search: {trials: 2}
storage: store
"""


def documented(command: str) -> tuple[str, set[str]]:
    """Return list or object, and the keys that docs/run.md names for a command."""
    text = (ROOT / "docs/run.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith(f"| `{command}` |"))
    kind, keys = row.split(" | ")[1:3]
    return kind, {*re.findall("`([^`]+)`", keys.partition(";")[0])}


@pytest.fixture
def stored(empty_folder, finished):
    (empty_folder / "planned.yaml").write_text(SWEEP)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("plan FILE", "plan planned.yaml"),
        ("list methods", "list methods"),
        ("list models", "list models"),
        ("status", "status --storage store"),
        ("logs NAME", "logs old --storage store"),
        ("table NAME", "table old --storage store"),
    ],
)
def test_json_has_the_documented_keys(calsweep, stored, command, words):
    code, out, _ = calsweep(*words.split(), "--json")
    found, (kind, keys) = json.loads(out), documented(command)
    assert (code, type(found)) == (0, {"list": list, "object": dict}[kind])
    assert {*(found[0] if kind == "list" else found)} == keys


def test_fields_that_become_json_are_documented():
    from orchestrator.cli._compare import FIELDS
    from orchestrator.cli._doctor import Finding
    from orchestrator.packages.accept import Decision
    from orchestrator.tracking.best import BestConfig

    assert documented("compare NAME")[1] == {*FIELDS}
    assert documented("doctor")[1] == {"mark", *Finding._fields}
    assert documented("package accept BASE NEW")[1] == {*Decision.__dataclass_fields__}
    assert documented("best")[1] == {*BestConfig.__dataclass_fields__} - {"note"}


def test_a_table_refuses_json_together_with_another_format(calsweep, stored):
    told = "--json and --format exclude each other: --json is a format"
    assert told in calsweep("table", "old", "--json", "--format", "csv").err


def test_nightly_run_prints_the_verdict_as_json(calsweep, empty_folder, monkeypatch):
    from orchestrator import nightly

    cell = nightly.CellKey("ce", "t", "ece")
    alarm = nightly.Finding(cell, "soft", "nights", "is worse", math.nan, 0.1)
    verdict = nightly.Verdict("2026-01-02", "regression", (alarm,))
    night = SimpleNamespace(folder=Path("night"))
    outcome = SimpleNamespace(messages=[], fresh=True, night=night, verdict=verdict)
    monkeypatch.setattr(nightly, "run_night", lambda *_, **__: outcome)
    code, out, _ = calsweep("nightly", "run", "--json")
    told = json.loads(out)
    assert (code, {*told}) == (3, documented("nightly run")[1])
    assert (told["status"], told["alarms"][0]["value"]) == ("regression", None)
    found = SimpleNamespace(title="t", markdown="m", verdict=verdict)
    monkeypatch.setattr(nightly, "gate", lambda *_: found)
    code, out, _ = calsweep("nightly", "gate", "main", "--json")
    assert (code, json.loads(out)) == (
        3,
        {"title": "t", **{k: v for k, v in told.items() if k not in ("name", "fresh", "report")}},
    )
