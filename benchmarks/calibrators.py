"""Compares calibrators with those of netcal and torch-uncertainty on real network outputs.

Fits on the first half of each file, scores the second. Run
``python benchmarks/calibrators.py ../shared/data/logits --out benchmarks/results/calibrators.md``.
With ``--large`` it times every recipe on made-up logits of 1000 classes instead, each in a process
of its own, and reports the peak of memory above the logits.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _calibrator_peers import PEERS, Fit, Map, versions

from orchestrator.calibrate import score
from orchestrator.logit_files import read_logits
from trainables.calibrators import CALIBRATORS, OBJECTIVES, build_calibrator, parse_calibrator

FAMILIES = ("ts", "vs", "dirichlet")
RESAMPLES = 2000
FITTED = ("ts", "ets", "pts", "cts")
ROWS, CLASSES = 50_000, 1000
REACHABLE_ACCURACY = 0.5
LIMIT = 1200


@dataclass(frozen=True)
class Outcome:
    """What one calibrator does on one file.

    Attributes:
        name: Whose it is and what.
        family: The calibrator of ours that it is compared with.
        losses: ``-log p_y`` of each scored row, (N,).
        ece: Fraction.
        accuracy: Fraction.
        seconds: Time of fitting, and of mapping the scored rows.
    """

    name: str
    family: str
    losses: np.ndarray
    ece: float
    accuracy: float
    seconds: tuple[float, float]


def ours(recipe: str) -> Fit:
    """Return a fit of one of our recipes, behind the peers' signature."""

    def fit(logits: np.ndarray, labels: np.ndarray) -> Map:
        name, objective = parse_calibrator(recipe)
        calibrator = build_calibrator(name, objective, **own_parameters(name))
        calibrator.fit(logits, labels)
        return lambda rows: calibrator(rows).numpy()

    return fit


def own_parameters(name: str) -> dict[str, float]:
    """Return what a recipe needs beside its defaults: an accuracy that every file can keep."""
    return {"accuracy": REACHABLE_ACCURACY} if name == "meta-acc" else {}


def measure(name: str, family: str, fit: Fit, halves: Sequence[np.ndarray]) -> Outcome:
    """Fit on the first two arrays, score the other two."""
    logits, labels, test_logits, test_labels = halves
    start = time.perf_counter()
    transform = fit(logits, labels)
    fitted = time.perf_counter()
    log_probs = torch.from_numpy(np.asarray(transform(test_logits)))
    mapped = time.perf_counter()
    targets = torch.from_numpy(test_labels)
    ece, accuracy, _ = score(log_probs, targets, 15)
    losses = torch.nn.functional.cross_entropy(log_probs.double(), targets, reduction="none")
    seconds = fitted - start, mapped - fitted
    return Outcome(name, family, losses.numpy(), ece, accuracy, seconds)


def interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Return mean and 95 % bootstrap interval of the paired difference of two NLLs."""
    gaps = first - second
    draw = np.random.default_rng(0)
    means = [gaps[draw.integers(0, len(gaps), len(gaps))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(gaps.mean()), float(low), float(high)


def compare(path: Path) -> list[str]:
    """Return the lines of one file's tables."""
    rows = read_logits(path, "probs").rows
    logits, labels = rows.logits.numpy(), rows.labels.numpy()
    half = len(labels) // 2
    halves = (logits[:half], labels[:half], logits[half:], labels[half:])
    outcomes = [measure("uncalibrated", "", lambda *_: lambda z: z, halves)]
    recipes = [r for c in FITTED for r in (c, f"{c}-cls")]
    recipes += [c for c in CALIBRATORS.names() if c not in FITTED and not c.startswith("meta")]
    outcomes += [measure(f"ours {r}", r, ours(r), halves) for r in recipes]
    installed = versions()
    for name, (distribution, family, fit) in PEERS.items():
        if installed[distribution] is not None:
            outcomes.append(measure(name, family, fit, halves))
    return [f"## {path.stem}", "", *result_table(outcomes), "", *difference_table(outcomes), ""]


def result_table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line for each calibrator."""
    lines = [
        "| calibrator | NLL | ECE % | accuracy % | fit s | apply s |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {o.name} | {o.losses.mean():.4f} | {100 * o.ece:.2f} | {100 * o.accuracy:.2f} "
        f"| {o.seconds[0]:.2f} | {o.seconds[1]:.2f} |"
        for o in outcomes
    ]


def difference_table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return NLL of ours minus that of each peer of the same family, with its interval."""
    mine = {o.family: o for o in outcomes if o.name.startswith("ours")}
    lines = ["| NLL of | minus that of | difference | 95 % interval |", "|---|---|---|---|"]
    for other in outcomes:
        if other.name in PEERS and other.family in FAMILIES:
            mean, low, high = interval(mine[other.family].losses, other.losses)
            lines.append(
                f"| ours {other.family} | {other.name} | {mean:+.5f} | {low:+.5f} to {high:+.5f} |"
            )
    return lines


def large(recipes: Sequence[str]) -> list[str]:
    """Return time and memory of each recipe on large logits, each measured in its own process."""
    lines = [
        f"Logits of {ROWS} rows and {CLASSES} classes in float32 "
        f"({4 * ROWS * CLASSES / 2**20:.0f} MiB): fitted on the first half, applied to the second. "
        "Memory is the peak above the process with its logits, in copies of all logits.",
        "",
        "| recipe | fit s | apply s | memory, copies | fit |",
        "|---|---|---|---|---|",
    ]
    for recipe in recipes:
        command = [sys.executable, __file__, "--one", recipe]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
            lines.append(
                done.stdout.strip() or f"| {recipe} | failed | | | {done.stderr[-80:]!r} |"
            )
        except subprocess.TimeoutExpired:
            lines.append(f"| {recipe} | over {LIMIT} | | | stopped |")
        print(lines[-1], flush=True)
    return lines


def one(recipe: str) -> str:
    """Fit and apply one recipe, or peer, on large logits, and return its line of the table."""
    logits, labels = made_up()
    half = ROWS // 2
    fit = PEERS[recipe][2] if recipe in PEERS else ours(recipe)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    start = time.perf_counter()
    transform = fit(logits[:half], labels[:half])
    fitted = time.perf_counter()
    transform(logits[half:])
    mapped = time.perf_counter()
    copies = (memory("VmHWM") - before) / (logits.nbytes / 1024)
    return f"| {recipe} | {fitted - start:.1f} | {mapped - fitted:.1f} | {copies:.2f} | done |"


def made_up() -> tuple[np.ndarray, np.ndarray]:
    """Return float32 logits of an over-confident network of 1000 classes, and labels."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, CLASSES, generator=draw)
    labels = torch.empty(ROWS, dtype=torch.int64)
    for part in torch.arange(ROWS).split(2000):
        rows = logits[part]
        rows.mul_(2.0)
        favoured = torch.randint(CLASSES, (len(part), 1), generator=draw)
        rows.scatter_add_(1, favoured, torch.full((len(part), 1), 12.0))
        logits[part] = rows
        labels[part] = torch.multinomial((rows / 1.8).softmax(1), 1, generator=draw).squeeze(1)
    return logits.numpy(), labels.numpy()


def memory(field: str) -> float:
    """Return a field of this process's status, in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return float(line.split()[1])
    raise RuntimeError(f"no {field} here")


def heading() -> list[str]:
    """Return what was run where."""
    peers = ", ".join(f"{name} {version or 'missing'}" for name, version in versions().items())
    return [
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"{peers}. NLL in nats, ECE over 15 bins; peers with their defaults. Intervals: paired "
        f"bootstrap over the scored rows, {RESAMPLES} draws.",
        "",
    ]


def main() -> None:
    """Read the arguments and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="folder of .npz files with probs")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument("--large", nargs="*", metavar="RECIPE", help="time on large logits")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one:
        print(one(wanted.one))
        return
    for name, version in versions().items():
        if version is None:
            print(f"{name} is not installed: its calibrators are left out", file=sys.stderr)
    if wanted.large is not None:
        lines = heading() + large(wanted.large or every_recipe())
    else:
        files = sorted(wanted.folder.glob("*.npz"))
        lines = heading() + [line for path in files for line in compare(path)]
    text = "\n".join(lines) + "\n"
    if wanted.out:
        wanted.out.write_text(text, encoding="utf-8")
    print(text)


def every_recipe() -> list[str]:
    """Return every calibrator with every published objective, and the peers that are installed."""
    objectives = [o for o in OBJECTIVES.names() if o != "mse"]
    recipes = [f"{c}-{o}" for c in FITTED for o in objectives]
    recipes += [c for c in CALIBRATORS.names() if c not in FITTED]
    return recipes + [name for name, entry in PEERS.items() if versions()[entry[0]]]


if __name__ == "__main__":
    main()
