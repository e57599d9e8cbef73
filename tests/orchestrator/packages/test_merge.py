import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.packages.derive import derive
from orchestrator.packages.package import HEADER, JOURNALS, Package, opened
from orchestrator.packages.publish import publish
from orchestrator.packages.verify import VerifyOptions, verify
from orchestrator.storage.events import Event, StudyOpened, SweepStarted, to_line
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.storage import Storage
from tests.orchestrator.packages.boards import board, unpacked


@pytest.fixture(scope="module")
def machines(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return packages of two machines: another recipe on the same task, on each."""
    folder = tmp_path_factory.mktemp("machines")
    publish(storage, ["board"], folder / "one")
    publish(board(folder / "storage", "other", "[fl]"), ["other"], folder / "two")
    return folder / "one" / "package.zip", folder / "two" / "package.zip"


def merged(*paths: Path, out: Path) -> int:
    return main(["package", "merge", *map(str, paths), "--out", str(out)])


@pytest.mark.full
def test_a_merged_package_is_accepted(machines: tuple[Path, Path], tmp_path: Path) -> None:
    assert merged(*machines, out=tmp_path) == 0
    found = verify(tmp_path / "package.zip", VerifyOptions(share=0.2, revision="c0ffee"))
    assert found.problems == []
    for row in ("ce", "ls", "ls+ts", "fl"):
        assert f"| {row} |" in found.table
    with opened(tmp_path / "package.zip") as package:
        assert [ledger.sweep for ledger in package.ledgers] == ["board", "other"]


def test_the_order_and_a_package_twice_change_nothing(machines, tmp_path):
    one, two = machines
    assert merged(one, two, out=tmp_path / "a") == 0
    assert merged(two, tmp_path / "a" / "package.zip", one, out=tmp_path / "b") == 0
    packages = [(tmp_path / name / "package.zip").read_bytes() for name in "ab"]
    assert packages[0] == packages[1]


@pytest.mark.full
def test_figures_of_suites_are_merged(tmp_path: Path) -> None:
    names, paths = ("one", "two"), []
    for name, recipes in zip(names, ("[ce]", "[ls]"), strict=True):
        storage = board(tmp_path / name, name, recipes, "[0]", suites="[bins-10]")
        publish(storage, [name], tmp_path / f"of-{name}")
        paths.append(tmp_path / f"of-{name}" / "package.zip")
    assert merged(*paths, out=tmp_path) == 0
    found = verify(tmp_path / "package.zip", VerifyOptions(share=1.0, revision="c0ffee"))
    assert found.problems == []
    with opened(tmp_path / "package.zip") as package:
        assert {cell.study.recipe for cell in package.cells} == {"ce", "ls"}
        assert all("bins-10/ece" in cell.trial.test for cell in package.cells)


def of(kind: type[Event], **changes: Any) -> Callable[[Package], None]:
    """Return what sets fields of the events of a kind in a package, or has them computed."""

    def apply(package: Package) -> None:
        (journal,) = (package.folder / JOURNALS).iterdir()
        events = list(iterate_events(journal))
        for event, (name, value) in product(events, changes.items()):
            if isinstance(event, kind):
                setattr(event, name, value(getattr(event, name)) if callable(value) else value)
        journal.write_bytes(b"".join(map(to_line, events)))

    return apply


def set_bins(package: Package) -> None:
    header = json.loads((package.folder / HEADER).read_text())
    (package.folder / HEADER).write_text(json.dumps({**header, "bins": 10}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            of(SweepStarted, provenance={"git_commit": "decade", "versions": {}}),
            "code revision of one.zip and two.zip differ: c0ffee and decade",
        ),
        (of(StudyOpened, fingerprint="0" * 32), "data digits/tiny of one.zip and two.zip differ: "),
        (
            of(StudyOpened, origin=lambda own: {**own, "split": {**own["split"], "seed": 5}}),
            "split digits/tiny of one.zip and two.zip differ: ",
        ),
        (of(StudyOpened, recipe="ls"), "row ls on digits/tiny of one.zip and two.zip differ: "),
        (set_bins, "bins of one.zip and two.zip differ: 15 and 10"),
    ],
    ids=["code", "data", "split", "row", "bins"],
)
def test_a_difference_between_packages_is_named(machines, tmp_path, capsys, change, told):
    one, two = tmp_path / "one.zip", tmp_path / "two.zip"
    one.write_bytes(machines[0].read_bytes())
    change(unpacked(machines[1], tmp_path / "two"))
    derive(Package(tmp_path / "two"))
    Package(tmp_path / "two").pack(two)
    assert merged(one, two, out=tmp_path / "site") == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "site").exists()


def test_other_versions_are_refused_by_name(machines, tmp_path, capsys):
    paths = []
    for number, package in enumerate(machines):
        found = unpacked(package, tmp_path / str(number))
        told = {"git_commit": "c0ffee", "versions": {"torch": f"2.{number}"}}
        of(SweepStarted, provenance=told)(found)
        derive(Package(found.folder))
        paths.append(Package(found.folder).pack(tmp_path / f"{number}.zip"))
    assert merged(*paths, out=tmp_path / "site") == 2
    assert "version torch of 0.zip and 1.zip differ: 2.0 and 2.1" in capsys.readouterr().err


def test_one_package_is_not_merged(machines: tuple[Path, Path], tmp_path: Path) -> None:
    assert merged(machines[0], out=tmp_path) == 2
