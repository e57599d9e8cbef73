"""Compares the figures of a blackbox file with the live sweep, and times searches on the file.

``python benchmarks/blackbox.py --make`` runs the sweep below and writes its blackbox file;
``python benchmarks/blackbox.py --out benchmarks/results/blackbox.md`` measures the file. The
searches use the reader on the page ``docs/travel.md``, which needs only NumPy and Optuna.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from _page import load, options, publish, setting, table

from orchestrator.packages.blackbox import export_blackbox
from orchestrator.running.run import run_sweep
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import parse_sweep

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "results" / "blackbox-digits.npz"
SWEEP = """
name: blackbox
tasks:
  - dataset: digits-noisy
    model: convnet
    protocol: {{base: digits, name: digits-8, epochs: 8, batch_size: 32, lr: 0.1}}
    split: {{test: 1200, test_limit: 300, validation: 150}}
recipes: [ce, ls, fl, mbls, mixup]
search: {{trials: 24, sampler: random}}
seeds: [0]
executor: local
storage: {folder}/storage
"""
SEARCHES, TRIALS = 1000, 20


def make(path: Path) -> None:
    """Run the sweep and write its blackbox, with predictions of every epoch."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_sweep(parse_sweep(SWEEP.format(folder=folder), "blackbox"))
        assert outcome.status == "finished"
        export_blackbox(Storage(f"{folder}/storage"), "blackbox", path, every_epoch=True)


def reader() -> dict[str, Any]:
    """Return the names that the reader's code defines."""
    page = (ROOT / "docs" / "travel.md").read_text(encoding="utf-8")
    [text] = re.findall(r'```python title="blackbox.py"\n(.*?)```', page, re.DOTALL)
    names: dict[str, Any] = {"lines": len(text.strip().splitlines())}
    exec(compile(text, "blackbox.py", "exec"), names)  # noqa: S102 - our own page
    return names


def gap(path: Path, about: dict[str, Any], names: dict[str, Any]) -> float:
    """Return the largest difference from the live sweep's NLL at recorded configurations."""
    gaps = []
    for number, study in enumerate(about["studies"]):
        blackbox = names["Blackbox"](path, number)
        for run in study["runs"]:
            if run["test"] is not None:
                live = run["figures"]["val_nll"]
                gaps.append(abs(blackbox.evaluate(run["parameters"]) - live))
    return max(gaps)


def searched(
    path: Path, studies: int, names: dict[str, Any], sampler: Callable[[int], Any]
) -> tuple[float, float]:
    """Run ``SEARCHES`` searches; return wall-clock seconds and CPU seconds."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    boxes = [names["Blackbox"](path, number) for number in range(studies)]
    began, spent = time.perf_counter(), time.process_time()
    for seed in range(SEARCHES):
        study = optuna.create_study(direction="minimize", sampler=sampler(seed))
        study.optimize(boxes[seed % studies], n_trials=TRIALS)
    return time.perf_counter() - began, time.process_time() - spent


def page(path: Path, out: Path | None) -> None:
    """Publish the page."""
    names = reader()
    with np.load(path) as found:
        about = json.loads(str(found["about"]))
    studies = about["studies"]
    runs = sum(len(study["runs"]) for study in studies)
    rows = [
        (
            "largest difference from the live sweep's validation NLL",
            f"{gap(path, about, names):.1e}",
        )
    ]
    for label, sampler in (
        ("random", lambda seed: optuna.samplers.RandomSampler(seed=seed)),
        ("TPE", lambda seed: optuna.samplers.TPESampler(seed=seed)),
    ):
        clock, spent = searched(path, len(studies), names, sampler)
        told = f"{clock:.1f} s ({spent:.1f} s of CPU time)"
        rows.append((f"{SEARCHES} searches of {TRIALS} trials, {label}", told))
    said = (
        f"[{path.name}]({path.name}): the searches of {', '.join(s['recipe'] for s in studies)} on "
        f"`digits-noisy` with `convnet`, {runs} pairs of trial and epoch with predictions, "
        f"{path.stat().st_size / 1e6:.1f} MB."
    )
    place = (
        f"{setting('numpy', 'optuna')}; read with {names['lines']} lines of code; load {load()}."
    )
    lines = [*table(["what", ""], rows, 2), "", said]
    publish("Does a blackbox file replay a search faithfully?", lines, place, out)


def main() -> None:
    """Print the page."""
    parser = options(__doc__)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--file", type=Path, default=FILE)
    wanted = parser.parse_args()
    if wanted.make:
        make(wanted.file)
        return
    page(wanted.file, wanted.out)


if __name__ == "__main__":
    main()
