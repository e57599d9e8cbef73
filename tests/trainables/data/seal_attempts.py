"""A script: tries by every way it knows to reach test labels, and prints what came of each.

Usage: seal_attempts.py sealed|open PREPARED ALIASES. ALIASES holds links made beforehand.
"""

import gc
import gzip
import io
import json
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import IO

import numpy as np
import sklearn
from sklearn.datasets import load_digits

from trainables.data import (
    PreparedData,
    SplitSpec,
    TestDataSealedError,
    prepare,
    read_source,
    seal_test_data,
)

MODE, PREPARED, ALIASES = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
LABELS = PREPARED / "test" / "labels.npy"
DATA = PreparedData.open(PREPARED)
DIRECTORY = os.open(PREPARED, os.O_RDONLY)
HELD: list[object] = []


def parse(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content))


def read_by(opening: Callable[..., IO[bytes]], *arguments: object) -> np.ndarray:
    with opening(*arguments) as stream:
        return parse(stream.read())


def from_the_folder() -> np.ndarray:
    with chdir(LABELS.parent):
        return np.load("labels.npy")


def through_a_descriptor_of_the_folder() -> np.ndarray:
    folder = os.open(LABELS.parent, os.O_RDONLY)
    return read_by(open, os.open("labels.npy", os.O_RDONLY, dir_fd=folder), "rb")


def mapped_memory() -> np.ndarray:
    with open(LABELS, "rb") as stream:
        return parse(bytes(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))


def symlink_made_now() -> np.ndarray:
    link = ALIASES / "now.npy"
    link.symlink_to(LABELS)
    try:
        return np.load(link)
    finally:
        link.unlink()


def renamed(path: Path, new: Path) -> np.ndarray:
    path.rename(new)
    try:
        return np.load(new / "labels.npy" if new.is_dir() else new)
    finally:
        new.rename(path)


def another_split() -> np.ndarray:
    beside = [p for p in PREPARED.parent.iterdir() if (p / "test").is_dir() and p != PREPARED]
    return np.load(beside[0] / "test" / "labels.npy")


def file_inside_scikit_learn() -> np.ndarray:
    path = Path(sklearn.__file__).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as stream:
        return np.loadtxt(stream, delimiter=",")[:, -1]


def load_into(queue: SimpleQueue) -> None:
    try:
        queue.put(np.load(LABELS))
    except TestDataSealedError as error:
        queue.put(error)


def forked_child() -> object:
    context = get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=load_into, args=(queue,))
    child.start()
    outcome = queue.get()
    child.join()
    if isinstance(outcome, TestDataSealedError):
        raise outcome
    return outcome


def new_child_that_imports_the_package() -> np.ndarray | None:
    if MODE == "open":  # Where nothing is sealed it has no error to end with.
        return np.load(LABELS)
    script = (
        "import sys, trainables.data as data\n"
        "import numpy as np\n"
        "try:\n    np.load(sys.argv[1])\n"
        "except data.TestDataSealedError:\n    sys.exit(3)\n"
    )
    code = subprocess.run([sys.executable, "-c", script, str(LABELS)], check=False).returncode
    if code == 3:
        raise TestDataSealedError
    return np.ones(1) if code == 0 else None  # What it has read, this one may not.


def live_objects() -> object:
    try:
        HELD.append(DATA.test())
    except TestDataSealedError:
        expected = None
    else:
        expected = HELD[-1].labels
    shape = (DATA.counts["test"],)
    found = [
        value
        for holder in gc.get_objects()
        for value in gc.get_referents(holder)
        if type(value) in (np.ndarray, np.memmap) and value.shape == shape
        if value.dtype == np.int64
    ]
    if not found:
        raise TestDataSealedError
    return expected if expected is not None else found[0]


ATTEMPTS: dict[str, Callable[[], object]] = {
    "numpy.load": lambda: np.load(LABELS),
    "numpy.load, mapped": lambda: np.load(LABELS, mmap_mode="r"),
    "numpy.memmap": lambda: np.memmap(LABELS, np.uint8),
    "numpy.fromfile": lambda: np.fromfile(LABELS, np.uint8),
    "open": lambda: read_by(open, LABELS, "rb"),
    "open, a path of bytes": lambda: read_by(open, os.fsencode(LABELS), "rb"),
    "Path.read_bytes": lambda: parse(LABELS.read_bytes()),
    "io.open_code": lambda: read_by(io.open_code, str(LABELS)),
    "a dotted path": lambda: np.load(f"{PREPARED}/search/../test/./labels.npy"),
    "a relative path": from_the_folder,
    "os.open": lambda: read_by(open, os.open(LABELS, os.O_RDONLY), "rb"),
    "os.open, from a folder": lambda: read_by(
        open, os.open("test/labels.npy", os.O_RDONLY, dir_fd=DIRECTORY), "rb"
    ),
    "os.open, the folder": through_a_descriptor_of_the_folder,
    "a path of a descriptor": lambda: np.load(f"/proc/self/fd/{DIRECTORY}/test/labels.npy"),
    "mapped memory": mapped_memory,
    "a symlink to the file": lambda: np.load(ALIASES / "file.npy"),
    "a symlink to the folder": lambda: np.load(ALIASES / "folder" / "labels.npy"),
    "a symlink made now": symlink_made_now,
    "a hard link": lambda: np.load(ALIASES / "hard.npy"),
    "a renamed file": lambda: renamed(LABELS, ALIASES / "renamed.npy"),
    "a renamed folder": lambda: renamed(LABELS.parent, PREPARED / "moved"),
    "a copied file": lambda: np.load(shutil.copy(LABELS, ALIASES / f"copy-{MODE}.npy")),
    "PreparedData.test": lambda: DATA.test().labels,
    "PreparedData.test, opened again": lambda: PreparedData.open(PREPARED).test().labels,
    "another split": another_split,
    "the whole source": lambda: read_source("digits", ALIASES).train.labels,
    "prepared anew": lambda: (
        prepare("digits", ALIASES, SplitSpec(seed=9), ALIASES / f"new-{MODE}").test().labels
    ),
    "scikit-learn": lambda: load_digits(return_X_y=True)[1],
    "a file inside scikit-learn": file_inside_scikit_learn,
    "a forked child": forked_child,
    "a new child that imports the package": new_child_that_imports_the_package,
    "live objects": live_objects,
}


def outcome(function: Callable[[], object]) -> str:
    try:
        found = function()
    except TestDataSealedError:
        return "sealed"
    return "reached" if isinstance(found, np.ndarray) and len(found) else f"odd: {found!r}"


if __name__ == "__main__":
    if MODE == "sealed":
        seal_test_data(PREPARED)
    attempts = {name: outcome(function) for name, function in ATTEMPTS.items()}
    # What a trial does need goes on as before.
    search = DATA.search()
    (ALIASES / f"checkpoint-{MODE}").write_bytes(b"weights")
    outcomes = {
        "attempts": attempts,
        "search data": f"{len(search.train)} {len(search.validation)}",
        "files": (ALIASES / f"checkpoint-{MODE}").read_bytes().decode(),
    }
    sys.stdout.write(json.dumps(outcomes))
