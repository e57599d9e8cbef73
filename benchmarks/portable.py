"""Tests whether `portable: true` gives the same table on every processor, and measures its cost.

    python benchmarks/portable.py --out docs/results/portable.md

A small sweep of every method, refinement and calibrator runs with `portable: true` on this
processor and on processors that QEMU emulates (Debian's `qemu-user`). The tables are compared byte
by byte and, if they differ, by recipe. The same sweep also runs without `portable`, on one and two
threads and with each of PyTorch's instruction sets, to show the differences. Seconds are the
seconds of the trials in the tables.
"""

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from _page import load, options, publish, setting, table

from trainables.calibrators import CALIBRATORS
from trainables.common.portable import VARIABLES
from trainables.methods import method_names
from trainables.refinements import REFINEMENTS, FittedRefinement

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "Does `portable: true` give the same bits on every processor?"
QEMU = "qemu-x86_64"
PROCESSORS = ("Haswell", "EPYC")  # The first of Intel with AVX2, and the first Zen of AMD.
SWEEP = """
name: portable
tasks:
  - dataset: digits
    model: convnet
    split: {{train_limit: 300}}
    protocol: {{epochs: {epochs}, batch_size: 32, lr: 0.05, optimizer: {optimizer}}}
recipes: [{recipes}]
search: {{trials: 1, accuracy_tolerance: null, fixed: {{{fixed}}}}}
executor: local
resources: {{concurrent: 1, portable: {portable}, train: {{cpu: {cpu}}}}}
"""


@dataclass(frozen=True)
class Case:
    """A way to run the sweep."""

    name: str
    portable: bool = True
    cpu: int = 1
    optimizer: str = "sgd"
    processor: str = ""
    capability: str = ""


CASES = (
    Case("portable, this processor"),
    *(Case(f"portable, {each}", processor=each) for each in PROCESSORS),
    Case("portable, Adam, this processor", optimizer="adam"),
    Case("portable, Adam, Haswell", optimizer="adam", processor="Haswell"),
    Case("by default, 1 thread", portable=False),
    Case("by default, 2 threads", portable=False, cpu=2),
    Case("by default, 1 thread, AVX2", portable=False, capability="avx2"),
    Case("by default, 1 thread, no AVX", portable=False, capability="default"),
)
BASES = {case.name: CASES[0].name for case in CASES}
BASES["portable, Adam, Haswell"] = "portable, Adam, this processor"
BASES |= {case.name: "by default, 1 thread" for case in CASES if not case.portable}

Rows = dict[str, dict[str, str]]


def recipes() -> list[str]:
    """Return every method alone, and `ce` with every refinement and every calibrator."""
    after = [*REFINEMENTS.names(), *CALIBRATORS.names()]
    return [*method_names(), *(f"ce+{part}" for part in after)]


def run(case: Case, folder: Path, epochs: int) -> Rows:
    """Return the table's rows by recipe."""
    fixed = ", ".join(
        f"{name}: {{epochs: {epochs}}}"
        for name in REFINEMENTS.names()
        if not issubclass(REFINEMENTS.get(name), FittedRefinement)
    )
    fixed += ", meta-acc: {accuracy: 0.4}"  # Short trainings cannot reach the default accuracy.
    text = SWEEP.format(
        recipes=", ".join(recipes()),
        portable=str(case.portable).lower(),
        cpu=case.cpu,
        optimizer=case.optimizer,
        epochs=epochs,
        fixed=fixed,
    )
    folder.mkdir()
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    more = VARIABLES if case.portable else {"ATEN_CPU_CAPABILITY": case.capability}
    set_here = {name: value for name, value in more.items() if value}
    begin = [QEMU, "-cpu", case.processor] if case.processor else []
    done = subprocess.run(
        [*begin, sys.executable, "-m", "calsweep", "run", "sweep.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **set_here},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):  # 1: a trial failed; compare the others.
        raise RuntimeError(done.stderr[-500:])
    (found,) = folder.glob("calsweep-storage/sweeps/*/table.csv")
    with found.open(encoding="utf-8", newline="") as file:
        rows = {row["recipe"]: row for row in csv.DictReader(file)}
    failed = [recipe for recipe, row in rows.items() if not row["ece_mean"]]
    sys.stderr.write(f"{case.name}: {', '.join(failed) or 'none'} failed\n")
    return {recipe: row for recipe, row in rows.items() if recipe not in failed}


def differing(rows: Rows, base: Rows) -> list[str]:
    """Return the recipes with a figure, other than seconds, that differs in any digit."""
    return [
        recipe
        for recipe in base
        for names in [[name for name in base[recipe] if "seconds" not in name]]
        if any(rows[recipe][name] != base[recipe][name] for name in names)
    ]


def largest(rows: Rows, base: Rows) -> str:
    """Return the largest difference in ECE, in points."""
    errors = [[float(each[recipe]["ece_mean"]) for recipe in base] for each in (rows, base)]
    return f"{max(100 * abs(ours - theirs) for ours, theirs in zip(*errors, strict=True)):.3f}"


def main() -> None:
    """Run all cases and write the page."""
    parser = options(__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="this processor alone")
    wanted = parser.parse_args()
    cases = [case for case in CASES if not (case.processor and wanted.quick)]
    if not wanted.quick and shutil.which(QEMU) is None:
        sys.exit(f"{QEMU} is not here: apt-get install qemu-user, or --quick for this processor")
    found: dict[str, Rows] = {}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases):
            rows = found[case.name] = run(case, Path(folder) / str(number), wanted.epochs)
            base = found[BASES[case.name]]
            named = differing(rows, base)
            listing = ", ".join(named) if len(named) < 6 else f"{len(named)} of {len(base)}"
            seconds = sum(float(row["seconds_mean"]) for row in rows.values())
            told = ("" if case.processor else f"{seconds:.1f}"), largest(rows, base)
            lines.append((case.name, *told, listing or "none"))
    head = ["run", "seconds", "ECE differs by, points", "recipes that differ in any digit"]
    place = f"{setting('torch', 'numpy')}; load average {load()}."
    publish(QUESTION, table(head, lines), place, wanted.out)


if __name__ == "__main__":
    main()
