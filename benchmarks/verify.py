"""Tests whether ``calsweep package verify`` accepts honest packages and refuses planted frauds.

Run ``python benchmarks/verify.py --out benchmarks/results/verify.md``. Every honest package comes
from another random sweep (recipes, seeds, split, sampler, trials, epochs). The frauds and mistakes
of ``_frauds.py`` are planted in turn, ``EACH`` of them in each of the first packages.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from _frauds import FRAUDS, planted
from _page import load, options, setting

from orchestrator.packages.publish import publish
from orchestrator.packages.verify import VerifyOptions, verify
from orchestrator.running.run import run_sweep
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import parse_sweep

NAME = "board"
SWEEP = """
name: board
tasks:
  - dataset: digits
    model: convnet
    protocol: {{base: digits, name: short, epochs: {epochs}}}
    split: {{train_limit: 150, test_limit: 120, seed: {split}}}
    suites: ["ood-npz:{folder}/strange.npz"]
recipes: [ce, {searched}, "{searched}+{calibrator}"]
search: {{trials: {trials}, sampler: {sampler}, keep_default: {keep}}}
seeds: [{first}, {second}]
executor: local
storage: {folder}/storage
"""
SHARE = 0.1
EACH = 4
"""Number of frauds that are planted in each package, one at a time, until all are planted."""
SEARCH, DRAWN, ALL = "without training", "at the default share", "with all trials computed again"


@dataclass(frozen=True)
class Attempt:
    """One planted fraud, and the step that refused it, if any."""

    kind: str
    says: str
    step: str


@dataclass(frozen=True)
class Honest:
    """One honest package."""

    accepted: bool
    problems: list[str]
    trials: int
    size: int
    seconds: float


def make(seed: int, folder: Path) -> Path:
    """Run a sweep, publish it and return its package."""
    die = Random(seed)
    text = SWEEP.format(
        epochs=die.choice([1, 2]),
        split=die.randrange(1000),
        searched=die.choice(["ls", "fl", "mbls", "mixup", "mdca"]),
        calibrator=die.choice(["ts", "ets", "vs"]),
        trials=die.choice([3, 4, 5]),
        sampler=die.choice(["tpe", "random"]),
        keep=die.choice(["2.0", "false"]),
        first=(first := die.randrange(1000)),
        second=first + 1 + die.randrange(1000),
        folder=folder,
    )
    pixels = np.random.default_rng(seed).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    labels = np.arange(90) % 3
    arrays = {"x_train": pixels[:30], "y_train": labels[:30]}
    np.savez(folder / "strange.npz", x_test=pixels, y_test=labels, **arrays)
    assert run_sweep(parse_sweep(text, NAME)).status == "finished"
    publish(Storage(folder / "storage"), [NAME], folder / "site")
    return folder / "site" / "package.zip"


def verified(package: Path) -> Honest:
    """Verify an honest package with every trial computed again."""
    began = time.perf_counter()
    found = verify(package, VerifyOptions(share=1.0))
    seconds = time.perf_counter() - began
    size = package.stat().st_size
    return Honest(found.accepted, found.problems, len(found.retrained), size, seconds)


def attempt(seed: int, package: Path, folder: Path) -> Attempt:
    """Plant a fraud in a package and return which step of verification refuses it."""
    kind, target = FRAUDS[seed % len(FRAUDS)], folder / f"forged-{seed}.zip"
    forged = planted(package, kind, Storage(folder / "storage"), NAME, seed, target)
    says = str(kind.__doc__).strip().rstrip(".")
    for step, share in ((SEARCH, 0.0), (DRAWN, SHARE), (ALL, 1.0)):
        if not verify(forged, VerifyOptions(share=share, seed=seed)).accepted:
            return Attempt(kind.__name__, says, step)
    return Attempt(kind.__name__, says, "never")


def page(honest: list[Honest], attempts: list[Attempt]) -> Iterator[str]:
    """Yield the lines of the page."""
    mean = sum(one.seconds for one in honest) / len(honest)
    yield "# Does `verify` refuse frauds and accept honest packages?"
    yield ""
    yield (
        f"{setting('torch', 'optuna', 'numpy')}; "
        f"`python benchmarks/verify.py --count {len(honest)}`, one run; load averages "
        f"{load()}. Each package is from another random sweep on the "
        "digits, with a suite of other images."
    )
    yield ""
    accepted = sum(one.accepted for one in honest)
    yield (
        f"**Honest packages:** {accepted} of {len(honest)} accepted, all "
        f"{sum(one.trials for one in honest)} trials computed again; {mean:.1f} s each on average, "
        f"{max(one.seconds for one in honest):.1f} s at most; the largest has "
        f"{max(one.size for one in honest) / 2**10:.0f} KiB."
    )
    yield ""
    refused = sum(one.step != "never" for one in attempts)
    counts = ", ".join(
        f"{sum(one.step == step for one in attempts)} {step}" for step in (SEARCH, DRAWN, ALL)
    )
    yield f"**Frauds and mistakes:** {refused} of {len(attempts)} refused: {counts}."
    yield ""
    yield f"| planted | how often | {SEARCH} | {DRAWN} | {ALL} | accepted |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind in FRAUDS:
        own = [one for one in attempts if one.kind == kind.__name__]
        steps = [sum(one.step == step for one in own) for step in (SEARCH, DRAWN, ALL, "never")]
        if own:
            yield f"| {own[0].says} | {len(own)} | {' | '.join(str(n or '') for n in steps)} |"
    yield ""
    yield (
        "Most are made with calsweep itself, so that figures, checksums and metadata agree with "
        f"the fraud. With a share of {SHARE:g}, one or two trials of these small packages are "
        "computed again. Frauds that only a training shows are therefore mostly found when all "
        "trials are computed again."
    )


def main() -> None:
    """Print the page."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=100, help="Honest packages.")
    parser.add_argument("--frauds", type=int, default=100)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    honest, attempts = [], []
    for seed in range(wanted.count):
        with tempfile.TemporaryDirectory() as name:
            package = make(seed, Path(name))
            honest.append(verified(package))
            for number in range(seed * EACH, min((seed + 1) * EACH, wanted.frauds)):
                attempts.append(attempt(number, package, Path(name)))
        own = [f"{one.kind} {one.step}" for one in attempts[seed * EACH :]]
        sys.stderr.write(f"{seed}: {honest[-1].accepted} {honest[-1].problems} {own}\n")
        text = "\n".join(page(honest, attempts)) + "\n"
        if wanted.out:
            wanted.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
