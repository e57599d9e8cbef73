"""The promises of docs/promises.md, checked by histories of commands that a seed draws.

Nothing of calsweep is imported: only its command and documented files are used. More histories, and
histories with a planted bug, which must be found:

    python -m tests.outside 0:400 RECORD.csv --hours 8
    python -m pytest -m long tests/outside -k planted
"""

import itertools
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.outside import draw
from tests.outside.door import Door
from tests.outside.history import Broken, History

# Together they take most steps; the executor is the one that starts no process.
FAST = {
    "executor": "in-process",
    "scheduler": "none",
    "data": "logits",
    "refinement": "none",
    "tracker": "default",
    "submit": "none",
    "also": "",
}
# Seeds of faults that were found are kept here.
HISTORIES = {
    0: {**FAST, "plugin": "calibrator", "storage": "percent", "command": "refuse"},
    6: {**FAST, "data": "npz", "plugin": "none", "storage": "quote", "command": "refuse"},
}
ROOT = Path(__file__).parents[2]
PLANTED = json.loads((Path(__file__).parent / "planted.json").read_text(encoding="utf-8"))

# Bugs are planted for these sweeps: the first is quick, the second is trained in processes.
SWEEPS = {
    "quick": {
        **FAST,
        "plugin": "calibrator",
        "storage": "percent",
        "calibrator": "ts",
        "sampler": "random",
        "option": "none",
        "key": "seeds",
    },
    "trained": {
        **FAST,
        "executor": "processes",
        "plugin": "library",
        "storage": "percent",
        "data": "npz",
        "calibrator": "ts",
        "sampler": "random",
        "option": "lowest",
        "key": "keep",
    },
}
# It has trials for a pause, and one of them is better than the published default.
SWEEPS["many"] = {**SWEEPS["trained"], "key": "many", "calibrator": "none"}


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


def test_every_two_keys_that_go_together_are_in_a_hundred_of_four_hundred_histories() -> None:
    drawn = [draw.keys(draw.row_of(seed)) for seed in range(400)]
    names = [name for values in draw.ALSO.values() for name in values]
    for pair in itertools.combinations(names, 2):
        assert sum(keys.issuperset(pair) for keys in drawn) >= 100, pair


def test_rows_of_many_seeds_hold_every_pair() -> None:
    assert not draw.never(map(draw.row_of, range(len(draw.rows(0)))))


@pytest.mark.full
@pytest.mark.parametrize("seed", HISTORIES)
def test_a_short_history(seed: int, door: Door, tmp_path: Path) -> None:
    History({**draw.row_of(seed), **HISTORIES[seed]}, seed, tmp_path / "history", door).live(2)


def copied(folder: Path, bug: dict[str, str]) -> Path:
    """Return a copy of the product with a bug."""
    for room in ("calsweep", "orchestrator", "search_spaces", "trainables"):
        shutil.copytree(ROOT / room, folder / room)
    if bug:
        text = (folder / bug["file"]).read_text(encoding="utf-8")
        assert text.count(bug["old"]) == 1, "the code of this bug has changed"
        (folder / bug["file"]).write_text(text.replace(bug["old"], bug["new"]), encoding="utf-8")
    return folder


def opened(folder: Path, bug: dict[str, str]) -> Door:
    """Return a server of the commands of such a copy."""
    (folder / "scratch").mkdir(parents=True)
    return Door(folder / "scratch", code=copied(folder / "code", bug))


@cache
def ran(name: str, folder: Path) -> History:
    """Return a sweep that code without a bug has finished."""
    door = opened(folder, {})
    found = History({**SWEEPS[name], "command": "read"}, 6, folder / "history", door)
    found.undisturbed()
    found.finish()
    door.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("bug", PLANTED, ids=[bug["between"] for bug in PLANTED])
def test_a_planted_bug_is_found(
    bug: dict[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = ran(bug["sweep"], tmp_path_factory.getbasetemp() / bug["sweep"])
    door = opened(tmp_path, bug)
    history = before.copied(tmp_path / "history", door)
    with pytest.raises(Broken):
        history.takes(bug["steps"].split())
    door.close()
