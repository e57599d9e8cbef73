import re
import shutil
import zipfile
from pathlib import Path

import pytest

from orchestrator.packages.board import render_board
from orchestrator.packages.publish import publish
from orchestrator.packages.verify import VerifyOptions
from orchestrator.storage.storage import Storage
from trainables.common.errors import InputError

ROW = re.compile(r"<tr data-item>(.*?)</tr>", re.S)
ORDER = re.compile(r'data-order="([^"]*)"')
OPTIONS = VerifyOptions(share=0.0, revision="c0ffee")


@pytest.fixture(scope="module")
def package(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    publish(storage, ["board"], folder)
    return folder / "package.zip"


def rows(page: str) -> list[list[str]]:
    return [ORDER.findall(row) for row in ROW.findall(page)]


def test_rows_of_all_packages_are_sorted_marked_and_have_ties(package, tmp_path):
    other = tmp_path / "<b>.zip"
    forge(package, other)
    page = render_board([str(package), str(other)], "ece", OPTIONS)
    found = rows(page)
    assert len(found) == 6
    assert {(row[2].endswith("package.zip"), row[3]) for row in found} == {
        (True, "verified"),
        (False, "unverified"),
    }
    errors = [float(row[5]) for row in found]
    assert errors == sorted(errors)
    groups: dict[str, set[str]] = {}
    for row in found:
        groups.setdefault(row[0], set()).add(row[-2])
    assert all(len(letters) == 1 and letters != {""} for letters in groups.values())
    assert "table.csv does not agree with the journals" in page
    assert "<b>" not in page
    assert str(tmp_path) not in page


def forge(package: Path, path: Path) -> None:
    """Write a package with another table."""
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content.replace(b"ls", b"lz") if name == "table.csv" else content)


def test_invalid_packages_and_metrics_of_a_board_are_refused(package: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a package is named twice"):
        render_board([str(package)] * 2)
    with pytest.raises(InputError, match="a package is named twice"):
        render_board([str(package), f"{package.parent}/../{package.parent.name}/{package.name}"])
    with pytest.raises(InputError, match="--metric: 'nope' is not one of acc, ece"):
        render_board([str(package)], "nope")
    with pytest.raises(InputError, match=rf"^{tmp_path}/absent\.zip: no such file"):
        render_board([str(package), str(tmp_path / "absent.zip")], "ece", OPTIONS, pytest.fail)
    copy = tmp_path / "copy.zip"
    shutil.copy(package, copy)
    with zipfile.ZipFile(copy, "a") as archive:
        archive.writestr("journals/x.jsonl", "{")
    with pytest.raises(InputError, match=r"copy\.zip cannot be read: journals"):
        render_board([str(copy)], "ece", OPTIONS)
