"""The promises of docs/promises.md, checked by histories of commands that a seed draws.

Nothing of calsweep is imported: only its command and documented files are used. More histories, and
histories with a planted bug, which must be found:

    CALSWEEP_SEEDS=0:500 python -m pytest -m long tests/outside -k a_history
    python -m pytest -m long tests/outside -k planted
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.outside import draw
from tests.outside.door import Door
from tests.outside.history import Broken, History

SEEDS = range(*map(int, os.environ.get("CALSWEEP_SEEDS", "0:400").split(":")))
# Together they take most steps; the executor is the one that starts no process.
FAST = {"executor": "in-process", "scheduler": "none", "data": "logits", "refinement": "none"}
# Seeds of faults that were found are kept here.
HISTORIES = {
    0: {**FAST, "plugin": "calibrator", "storage": "percent", "command": "refuse"},
    6: {**FAST, "plugin": "calibrator", "storage": "quote", "key": "seeds", "command": "refuse"},
}
ROOT = Path(__file__).parents[2]
PLANTED = json.loads((Path(__file__).parent / "planted.json").read_text(encoding="utf-8"))

QUICK = {
    **FAST,
    "plugin": "calibrator",
    "storage": "blank",
    "key": "seeds",
    "option": "none",
    "calibrator": "ts",
    "sampler": "random",
}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """Yield the server of commands."""
    found = Door(tmp_path_factory.mktemp("commands"))
    yield found
    found.close()


def test_every_allowed_pair_is_drawn() -> None:
    drawn = draw.rows(0)
    assert not draw.never(drawn)
    assert all(map(draw.allowed, drawn))
    for name, values in draw.DIMENSIONS.items():
        assert {row[name] for row in drawn} == set(values)


def test_the_report_names_a_pair_that_was_never_drawn() -> None:
    drawn = [
        row for row in draw.rows(0) if not {("data", "text"), ("sampler", "gp")} <= {*row.items()}
    ]
    assert "never together: data=text, sampler=gp" in draw.coverage(drawn).splitlines()


def test_a_seed_decides_the_row() -> None:
    assert draw.row_of(400) == draw.row_of(400)
    assert draw.row_of(0) != draw.row_of(1)


def test_rows_of_many_seeds_hold_every_pair() -> None:
    assert not draw.never(map(draw.row_of, range(len(draw.rows(0)))))


@pytest.mark.full
@pytest.mark.parametrize("seed", HISTORIES)
def test_a_short_history(seed: int, door: Door, tmp_path: Path) -> None:
    History({**draw.row_of(seed), **HISTORIES[seed]}, seed, tmp_path / "history", door).live(2)


@pytest.mark.long
@pytest.mark.parametrize("bug", PLANTED, ids=[bug["between"] for bug in PLANTED])
def test_a_planted_bug_is_found(bug: dict[str, Any], tmp_path: Path) -> None:
    code, scratch = tmp_path / "code", tmp_path / "scratch"
    scratch.mkdir()
    for room in ("calsweep", "orchestrator", "search_spaces", "trainables"):
        shutil.copytree(ROOT / room, code / room, ignore=shutil.ignore_patterns("__pycache__"))
    file = code / bug["file"]
    text = file.read_text(encoding="utf-8")
    assert text.count(bug["old"]) == 1, "the code of this bug has changed"
    file.write_text(text.replace(bug["old"], bug["new"]), encoding="utf-8")
    planted = Door(scratch, code=code)
    row = {**QUICK, **bug["row"], "command": bug["steps"][0]}
    with pytest.raises(Broken):
        History(row, 6, tmp_path / "history", planted).through(bug["steps"])
    planted.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history(seed: int, door: Door, tmp_path: Path) -> None:
    History(draw.row_of(seed), seed, tmp_path / "history", door).live(6)
