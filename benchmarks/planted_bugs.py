"""Plants stored bugs again, one at a time, and runs the test that found each.

Run ``python benchmarks/planted_bugs.py --count 100 --out benchmarks/results/replanted.md``. A
random sample of the bugs in ``docs/results/planted-bugs.json`` whose code still exists is planted
in a checkout. Without a bug, all tests of the checkout must pass. A test that was renamed or moved
is searched for by name; if it no longer exists, all tests of the code's folder run at the end.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from _page import Table, options, publish, setting

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs/results/planted-bugs.json"
LIMIT_SECONDS, LIMIT_OF_FOLDER = 180, 900
FOUND, SURVIVED, GONE = "found", "survived", "its code is gone"
MOVED = "its test is gone"  # The test was removed or renamed.
ENDLESS = "its test does not end"
NO_TEST, USAGE = 5, 4  # Exit codes of pytest.


@dataclass(frozen=True)
class Outcome:
    """The outcome for one bug: whether it was found, and the tests that ran."""

    bug: dict[str, Any]
    how: str
    tests: tuple[str, ...]


def stored() -> list[dict[str, Any]]:
    """Return all bugs, each with the name of its round."""
    rounds = json.loads(STORED.read_text(encoding="utf-8"))
    return [{**bug, "round": name} for name, found in rounds.items() for bug in found["bugs"]]


def replanted(bug: dict[str, Any], code: Path, whole_folder: bool = False) -> Outcome:
    """Plant a bug in a checkout, run its test (or all of its folder's), and remove the bug."""
    file = code / bug["file"]
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text.count(bug["old"]) != 1:
        return Outcome(bug, GONE, ())
    file.write_text(text.replace(bug["old"], bug["new"]), encoding="utf-8")
    limit = LIMIT_OF_FOLDER if whole_folder else LIMIT_SECONDS
    try:
        named = _named(bug["found_by"], code)
        for tests in [[_folder(bug, code)]] if whole_folder else filter(None, named):
            exit_code = _run(tests, code, limit * len(tests))
            # A test with another name that passes may be another test.
            passed = exit_code == 0 and (whole_folder or tests == [bug["found_by"]])
            if passed or exit_code not in (NO_TEST, USAGE, 0):
                how = {None: ENDLESS, 0: SURVIVED}.get(exit_code, FOUND)
                return Outcome(bug, how, tuple(tests))
    finally:
        file.write_text(text, encoding="utf-8")
    return Outcome(bug, MOVED, ())


def _named(found_by: str, code: Path) -> Iterator[list[str]]:
    """Yield possible ids of the test, the most exact first, then all tests with its name."""
    file, _, name = found_by.partition("::")
    function = name.partition("[")[0]
    if function and (code / file).is_file():
        yield [found_by]
        yield [f"{file}::{function}"]
    yield [
        f"{path.relative_to(code)}::{function}"
        for path in sorted((code / "tests").rglob("test_*.py"))
        if function and f"def {function}(" in path.read_text(encoding="utf-8")
    ]


def _folder(bug: dict[str, Any], code: Path) -> str:
    """Return the nearest folder in ``tests`` that matches the folder of the bug's file."""
    folders = (Path("tests", folder) for folder in Path(bug["file"]).parents)
    return str(next(folder for folder in folders if (code / folder).is_dir()))


def _run(tests: Sequence[str], code: Path, limit: float) -> int | None:
    """Return pytest's exit code; None if it exceeded ``limit`` seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    surroundings = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.run(
            command, cwd=code, env=surroundings, capture_output=True, check=False, timeout=limit
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def page(outcomes: list[Outcome], seconds: float, out: Path | None) -> None:
    """Publish the page."""
    ran = [one for one in outcomes if one.how != GONE]
    found = sum(one.how == FOUND for one in ran)
    said = (
        f"**{found} of {len(ran)} are found** by the test that first found the bug or, if it was "
        f"removed, by the tests of its folder. The code of {len(outcomes) - len(ran)} more drawn "
        "bugs no longer exists."
    )
    rounds = Counter(one.bug["round"] for one in ran)
    hits = Counter(one.bug["round"] for one in ran if one.how == FOUND)
    rows = [(name, count, hits[name]) for name, count in rounds.items()]
    files: dict[str, Table] = {"": (("round", "planted", "found"), rows)}
    if others := [one for one in ran if one.how != FOUND]:
        lines = [(o.bug["file"], o.bug["function"], o.bug["noticed"], o.how) for o in others]
        files["-others"] = ("file", "function", "a user would notice", "how it ended"), lines
    place = f"{setting()}; one run, {seconds / 60:.0f} minutes."
    publish("Do the tests still find the stored bugs?", [said], place, out, files)


def tell(outcome: Outcome) -> Outcome:
    """Show progress."""
    sys.stderr.write(f"{outcome.how}: {outcome.bug['file']} {' '.join(outcome.tests)}\n")
    sys.stderr.flush()
    return outcome


def main() -> None:
    """Plant a sample, and print the page."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=100, help="Bugs that are planted.")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    bugs, began, outcomes = stored(), time.monotonic(), list[Outcome]()
    Random(wanted.seed).shuffle(bugs)
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "code")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(code)], check=True)
        for bug in bugs:
            if sum(one.how != GONE for one in outcomes) >= wanted.count:
                break
            outcomes.append(tell(replanted(bug, code)))
        for place, one in enumerate(outcomes):
            if one.how == MOVED:
                outcomes[place] = tell(replanted(one.bug, code, whole_folder=True))
        sys.stderr.write("the tests that found them, without a bug\n")
        found = [one.tests for one in outcomes if one.how == FOUND]
        tests = sorted({name for names in found for name in names if "::" in name})
        if _run(tests, code, LIMIT_SECONDS * len(tests)):
            sys.exit("a test fails without a bug, so that nothing follows from it")
    page(outcomes, time.monotonic() - began, wanted.out)


if __name__ == "__main__":
    main()
