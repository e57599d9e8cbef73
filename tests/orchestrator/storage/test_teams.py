import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.storage.storage import Storage
from tests.orchestrator.databases import empty_database
from tests.orchestrator.one_process import one_process
from tests.two_users import GROUP, User

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="only root can be two users"
    ),
]
ALICE, BOB = 7701, 7702
TEAM = 0o2775
SWEEP = """
name: {name}
tasks:
  - dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 1}}
    split: {{train_limit: 200, test_limit: 150}}
recipes: {recipes}
search: {{trials: 1}}
seeds: [0]
executor: local
resources: {{concurrent: 1}}
storage: {storage}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that both may enter, which they may not pytest's."""
    place = Path(tempfile.mkdtemp(prefix="calsweep-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place, ignore_errors=True)  # A shipper may be at work there.


def user(number: int, umask: int, folder: Path) -> User:
    home = folder / f"home{number}"
    home.mkdir()
    os.chown(home, number, number)
    found = User(number, umask, home)
    # Only that Python itself does not start excuses it; what comes later is a failure.
    tried = found.started([sys.executable, "-I", "-S", "-c", "pass"])
    if tried.returncode:
        pytest.skip(f"another user cannot run {sys.executable} here: {tried.stderr[-200:]}")
    return found


def storage(folder: Path, mode: int, owner: int, filled: Path | None = None) -> Path:
    """Make a storage of a mode, with what lies in another one or with a tracking database alone."""
    place = folder / "storage"
    if filled is not None:
        shutil.copytree(filled, place)
    else:
        place.mkdir()
        (place / "mlflow.db").write_bytes(empty_database())
    for path in (place, *place.rglob("*")):
        os.chown(path, owner if path != place or mode != TEAM else 0, GROUP)
        path.chmod(mode if path.is_dir() else mode & 0o666)
    return place


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a storage in which a sweep has run."""
    folder = tmp_path_factory.mktemp("filled")
    with one_process():
        assert main(["run", str(sweep(folder, "hers")), "--quiet"]) == 0
    return folder / "storage"


def sweep(folder: Path, name: str, recipes: str = "[ce, ce+ts]") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(SWEEP.format(name=name, recipes=recipes, storage=folder / "storage"))
    return file


def contents(place: Path, owner: int) -> dict[Path, str]:
    files = [path for path in place.rglob("*") if path.is_file() and path.stat().st_uid == owner]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refused(answer: tuple[int, str, str], *parts: str) -> None:
    code, _, err = answer
    assert (code, err.count("\n")) == (2, 1), err
    assert all(part in err for part in parts), err


@pytest.mark.long  # Nine commands and three sweeps of two users: a minute.
def test_a_team_shares_all_but_the_names_of_sweeps(folder: Path) -> None:
    alice, bob = user(ALICE, 0o077, folder), user(BOB, 0o022, folder)
    place = storage(folder, TEAM, 0)
    hers, his, options = (
        sweep(folder, "hers"),
        sweep(folder, "his", "[ce, ls]"),
        f"--storage {place}",
    )
    (ran,) = alice.runs(f"run {hers} --quiet")
    assert ran.code == 0, ran.err
    artifacts = contents(place / "artifacts", ALICE)
    before = contents(place / "sweeps/hers", ALICE)
    answers = bob.runs(
        f"table hers {options}",
        f"best hers {options}",
        f"status hers {options}",
        f"run {his} --quiet",
        f"storage gc {options}",
        f"run {hers} --quiet",
        f"run --resume hers {options}",
        f"storage gc --drop hers {options}",
    )
    assert [answer.code for answer in answers] == [0] * 5 + [2] * 3, answers
    for answer in answers[5:]:
        refused(answer, f"sweep 'hers' in {place}/sweeps belongs to user {ALICE}", "--take")
    assert contents(place / "sweeps/hers", ALICE) == before
    assert contents(place / "artifacts", ALICE) == artifacts
    own = [path.name for path in (place / "artifacts/train").glob("*/*") if path.is_dir()]
    assert len(own) == 2  # His ce is hers.
    shut = [path for path in place.rglob("*") if path.stat().st_mode & 0o060 != 0o060]
    assert shut == []
    taken, gone = bob.runs(
        f"run --resume hers {options} --take", f"storage gc --drop hers {options} --take"
    )
    assert (taken.code, gone.code) == (0, 0), taken.err + gone.err
    assert not (place / "sweeps/hers").exists()
    (again,) = alice.runs(f"table his {options}")
    assert again.code == 0


def test_a_colleague_needs_take_to_resume_a_paused_sweep(folder: Path) -> None:
    bob = user(BOB, 0o077, folder)
    place = storage(folder, TEAM, 0)
    path = place / "sweeps/hers"
    path.mkdir(parents=True)
    for each in (path.parent, path):
        os.chown(each, ALICE, GROUP)
        each.chmod(TEAM)
    (path / "sweep.yaml").write_text(sweep(folder, "hers").read_text())
    (path / "control").write_text("pause")
    words = f"resume hers --storage {place}"
    with Storage(place).sweep("hers").owned(take=True):
        held, taken = bob.runs(words, f"{words} --take")
    refused(held, f"belongs to user {ALICE}")
    assert taken.code == 0
    assert not (path / "control").exists()


@pytest.mark.parametrize(("mode", "umask"), [(0o755, 0o022), (0o700, 0o077)])
def test_users_without_write_permission_can_read_and_change_nothing(folder, filled, mode, umask):
    bob, place = user(BOB, umask, folder), storage(folder, mode, ALICE, filled)
    options, before = f"--storage {place}", contents(place, ALICE)
    reading = [f"{what} hers {options}" for what in ("table", "best", "status", "logs")]
    writing = [
        f"run {sweep(folder, 'his')} --quiet",
        f"run --resume hers {options} --take",
        f"storage sync {place}/sweeps/hers",
        f"storage gc --drop hers {options} --take",
    ]
    answers = bob.runs(*reading, *writing)
    for answer in answers[: len(reading)]:
        if mode == 0o755:
            assert answer.code == 0, answer.err
        else:
            refused(answer, f"{place} belongs to user {ALICE}, drwx------; its owner can share it")
    for answer in answers[len(reading) :]:
        refused(answer, str(place))
    assert contents(place, ALICE) == before


def test_unreadable_files_are_not_taken_for_damaged(folder: Path, filled: Path) -> None:
    """Neither outcomes and a journal, nor data that are prepared."""
    bob, shut, his = user(BOB, 0o022, folder), list[Path](), list[str]()
    for name, *patterns in (
        ("first", "artifacts/*/*/*/*", "sweeps/hers/journal.jsonl"),
        ("second", "data/*/split.json"),
    ):
        (folder / name).mkdir()
        place = storage(folder / name, TEAM, ALICE, filled)
        found = [path for each in patterns for path in place.glob(each) if path.is_file()]
        assert found
        shut += found
        his.append(f"run {sweep(folder / name, 'his')} --quiet")
    for path in shut:
        path.chmod(0o600)
    before = contents(folder, ALICE)
    for answer in bob.runs(*his, f"storage gc --storage {folder}/first/storage"):
        refused(answer, f"belongs to user {ALICE}, -rw-------")
        assert "--drop" not in answer.err
    now = contents(folder, ALICE)
    assert {path: now.get(path) for path in shut} == {path: before[path] for path in shut}
