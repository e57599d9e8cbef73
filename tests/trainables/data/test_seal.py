"""Law 1: a search trial cannot reach test data, however it tries.

A seal is irrevocable, so every sealed process here is a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.own_process import open_sealed, run_script
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.data._guard import INHERITED

SCRIPT = Path(__file__).with_name("seal_attempts.py").read_text()


@pytest.fixture(scope="module")
def outcomes(
    digits: PreparedData, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str]]:
    """What came of every attempt, in a sealed process and in an open one."""
    # A copy of the whole folder: some attempts move files about.
    folder = tmp_path_factory.mktemp("seal")
    shutil.copytree(digits.directory.parent, folder / "prepared")
    prepared = folder / "prepared" / digits.key
    aliases = folder / "aliases"
    aliases.mkdir()
    (aliases / "file.npy").symlink_to(prepared / "test" / "labels.npy")
    (aliases / "folder").symlink_to(prepared / "test")
    os.link(prepared / "test" / "labels.npy", aliases / "hard.npy")
    return {
        mode: json.loads(run_script(SCRIPT, mode, str(prepared), str(aliases)))
        for mode in ("sealed", "open")
    }


@pytest.mark.full
def test_a_sealed_process_does_not_reach_test_labels_and_an_open_one_does(outcomes):
    for mode, came in (("sealed", "sealed"), ("open", "reached")):
        attempts = outcomes[mode]["attempts"]
        assert attempts == dict.fromkeys(attempts, came)
    assert len(outcomes["sealed"]["attempts"]) == 32


def test_a_search_works_while_test_data_is_sealed(outcomes, digits):
    expected = f"{digits.counts['train']} {digits.counts['validation']}"
    assert outcomes["sealed"]["search data"] == outcomes["open"]["search data"] == expected
    assert outcomes["sealed"]["files"] == "weights"


def test_sealing_fails_while_test_arrays_are_still_open(digits):
    script = f"""
from trainables.data import PreparedData, TestDataSealedError, seal_test_data
data = PreparedData.open({str(digits.directory)!r})
dropped = data.test()
del dropped
held = data.test()
try:
    seal_test_data(data.directory)
except TestDataSealedError as error:
    print(error)
for attempt in (data.test, data.test_numbers):
    try:
        attempt()
    except TestDataSealedError as error:
        print(error)
del held
seal_test_data(data.directory)
print("clean")
"""
    lines = run_script(script).splitlines()
    told = "this process still has 2 arrays of test data that were read before the seal"
    assert lines[0] == told
    sealed = "needs test data, which is sealed in this process"
    asked = ("PreparedData.test()", "PreparedData.test_numbers()")
    assert lines[1:] == [*(f"{name} {sealed}" for name in asked), "clean"]


def test_arrays_of_a_source_are_noticed_if_they_are_test_data(archive, write_npz, digits):
    script = f"""
from trainables.data import PreparedData, TestDataSealedError, read_source, seal_test_data
source = read_source({write_npz(archive)!r}, ".")
train, test = source.train, source.test
data = PreparedData.open({str(digits.directory)!r})
del source

def seal():
    try:
        seal_test_data(data.directory)
        print("clean")
    except TestDataSealedError as error:
        print(error)

seal()
del test
seal()
data.verify()
for place in ("test", "tests", "search"):
    try:
        print(len(open(data.directory / place / "labels.npy", "rb").read()))
    except (TestDataSealedError, FileNotFoundError) as error:
        print(type(error).__name__)
"""
    first, second, *opened = run_script(script).splitlines()
    assert first.startswith("this process still has 2 arrays of test data")
    assert second == "clean"
    # What only begins like a sealed folder is none.
    assert opened == ["TestDataSealedError", "FileNotFoundError", "FileNotFoundError"]


@pytest.mark.full
def test_a_child_of_a_process_that_sealed_no_file_is_sealed_too(monkeypatch):
    monkeypatch.setenv(INHERITED, "")
    script = """
from trainables.data import TestDataSealedError, read_source
try:
    read_source("digits", ".")
except TestDataSealedError:
    print("sealed")
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert told == b"sealed\n"


def test_raw_files_and_missing_paths(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    alone = tmp_path / "alone.npy"
    for path in (raw / "labels.npy", alone):
        np.save(path, np.arange(3))
    script = f"""
import numpy as np
from trainables.data import TestDataSealedError, prepare, read_source, seal_test_data
from trainables.common.errors import InputError
try:
    seal_test_data({str(raw)!r}, {str(alone)!r}, {str(tmp_path / "none")!r})
except InputError as error:
    print(error)
for attempt in (
    lambda: np.load({str(raw / "labels.npy")!r}),
    lambda: np.load({str(alone)!r}),
    lambda: read_source("digits", "."),
):
    try:
        print("reached", attempt())
    except TestDataSealedError as error:
        print(error)
"""
    lines = run_script(script).splitlines()
    assert lines == [
        f"{tmp_path}/none does not exist, so its test data cannot be sealed",
        f"'{raw}/labels.npy' is test data, which is sealed in this process",
        f"'{alone}' is test data, which is sealed in this process",
        "read_source('digits') needs test data, which is sealed in this process",
    ]


def test_the_sources_of_every_stored_suite_are_sealed(tmp_path):
    data = prepare("digits", tmp_path, SplitSpec(), tmp_path / "data")
    sources = [tmp_path / f"{name}.npy" for name in ("first", "second", "third")]
    for source in sources:
        np.save(source, np.arange(3))
    for number, paths in enumerate((sources[:1], sources[1:])):
        suite = data.directory.parent / "suites" / str(number)
        suite.mkdir(parents=True)
        (suite / "suite.json").write_text(json.dumps({"test_paths": [str(p) for p in paths]}))
    assert open_sealed(data, *sources) == ["sealed"] * 3
