r"""Compares calibrators with those of netcal, torch-uncertainty and probmetrics.

Fits on the first half of each file of real network outputs, scores the second. The peers live in an
environment of their own:

    python -m venv peers
    peers/bin/pip install --constraint constraints.txt '.[peers]'
    python benchmarks/calibrators.py ../shared/data/logits --peers peers/bin/python \
        --out benchmarks/results/calibrators.md

With ``--large`` it measures time and memory on made-up logits of 50,000 rows and 1000 classes
instead: of ``calsweep calibrate`` with everything in one process, then of each recipe and of each
peer in a process of its own.

With ``--few 300 1000 5000`` it fits every calibrator on so many rows, and probmetrics' SVS and SMS
on the same ones:

    OMP_NUM_THREADS=1 python benchmarks/calibrators.py ../shared/data/logits --few 300 1000 5000 \
        --peers peers/bin/python --out benchmarks/results/calibrators-few.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _calibrator_peers
import numpy as np
import torch
from _calibrator_peers import PEERS, Cost, Fit, Map, measure, memory

from orchestrator.logits.scoring import score
from trainables.calibrators import CALIBRATORS, build_calibrator, parse_calibrator
from trainables.data import read_logits

FAMILIES = ("ts", "vs", "svs", "sms", "dirichlet")
RESAMPLES = 2000
FITTED = ("ts", "ets", "pts", "cts")
PUBLISHED = ("ce", "ls", "fl", "cls")
ROWS, CLASSES = 50_000, 1000
LOGITS_KIB = 4 * ROWS * CLASSES / 1024
REACHABLE_ACCURACY = 0.5
LIMIT = 600
POLL_SECONDS = 0.05
SPLITS, SCORED = 2, 5000
VARIANTS = ("svs-cls", "sms-cls", "vs paper", "ms paper", "isotonic paper")
FEW_PEERS = ("probmetrics svs", "probmetrics sms")
IMPORTS = (
    "import orchestrator.cli, orchestrator.logits.calibrate\n"
    "print(open('/proc/self/status').read())"
)


@dataclass(frozen=True)
class Outcome:
    """What one calibrator does on one file.

    Attributes:
        name: Whose it is and what.
        family: The calibrator of ours that it is compared with.
        losses: ``-log p_y`` of each scored row, (N,).
        ece: Fraction.
        accuracy: Fraction.
        cost: Of fitting, and of mapping the scored rows.
    """

    name: str
    family: str
    losses: np.ndarray
    ece: float
    accuracy: float
    cost: Cost


def ours(recipe: str) -> Fit:
    """Return a fit of one of our recipes, behind the peers' signature."""

    def fit(logits: np.ndarray, labels: np.ndarray) -> Map:
        text, *variant = recipe.split()
        name, objective = parse_calibrator(text)
        own: dict[str, Any] = {"accuracy": REACHABLE_ACCURACY} if name == "meta-acc" else {}
        own |= {"variant": variant[0]} if variant else {}
        calibrator = build_calibrator(name, objective, **own).fit(logits, labels)
        return lambda rows: calibrator(rows).numpy()

    return fit


def installed(peers: str | None) -> dict[str, str]:
    """Return what the peers' environment holds, with versions; nothing where there is none."""
    if peers is None:
        print("no --peers given: other libraries are left out", file=sys.stderr)
        return {}
    command = [peers, _calibrator_peers.__file__, "versions"]
    found: dict[str, str] = json.loads(subprocess.check_output(command, text=True))
    return found


def peer_names(found: dict[str, str]) -> list[str]:
    """Return the peers whose library is installed."""
    return [name for name, peer in PEERS.items() if peer.distribution in found]


def costs(command: Sequence[str]) -> Iterator[Cost]:
    """Run a command that prints costs, and yield them until it ends or has used up its time.

    Raises:
        RuntimeError: If it fails for another reason than its time.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))

    with tempfile.TemporaryFile("w+") as errors:
        run = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=limit
        )
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("{"):
                yield Cost(**json.loads(line))
        if run.wait() > 0:
            errors.seek(0)
            raise RuntimeError(errors.read()[-500:])


def judge(cost: Cost, family: str, folder: Path, labels: np.ndarray) -> Outcome:
    """Score the log-probabilities that a fit left behind."""
    log_probs = torch.from_numpy(np.load(folder / f"{cost.name}.npy"))
    targets = torch.from_numpy(labels)
    ece, accuracy, _ = score(log_probs, targets, 15)
    losses = torch.nn.functional.cross_entropy(log_probs.double(), targets, reduction="none")
    return Outcome(cost.name, family, losses.numpy(), ece, accuracy, cost)


def interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Return mean and 95 % bootstrap interval of the paired difference of two NLLs."""
    gaps = first - second
    draw = np.random.default_rng(0)
    means = [gaps[draw.integers(0, len(gaps), len(gaps))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(gaps.mean()), float(low), float(high)


def compare(path: Path, peers: str | None, names: Sequence[str]) -> list[str]:
    """Return the lines of one file's tables."""
    rows = read_logits(path, "probs").rows
    half = len(rows) // 2
    labels = rows.labels.numpy()[half:]
    with tempfile.TemporaryDirectory() as folder:
        out, file = Path(folder), Path(folder, "logits.npz")
        np.savez(file, logits=rows.logits.numpy(), labels=rows.labels.numpy())
        recipes = [r for c in FITTED for r in (c, f"{c}-cls")]
        recipes += [c for c in CALIBRATORS.names() if c not in FITTED and "meta" not in c]
        fits: dict[str, Fit] = {"uncalibrated": lambda *_: lambda z: z}
        fits |= {f"ours {recipe}": ours(recipe) for recipe in recipes}
        done = [measure(name, fit, file, half, out) for name, fit in fits.items()]
        if names:
            script = str(_calibrator_peers.__file__)
            command = [str(peers), script, "fit", str(file), str(half), *names]
            done += costs([*command, "--out", folder])
        outcomes = [judge(cost, family(cost.name), out, labels) for cost in done]
    return [f"## {path.stem}", "", *result_table(outcomes), "", *difference_table(outcomes), ""]


def family(name: str) -> str:
    """Return the calibrator of ours that stands beside an entry of the table."""
    return PEERS[name].family if name in PEERS else name.removeprefix("ours ")


def result_table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line for each calibrator."""
    lines = [
        "| calibrator | NLL | ECE % | accuracy % | fit s | apply s |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {o.name} | {o.losses.mean():.4f} | {100 * o.ece:.2f} | {100 * o.accuracy:.2f} "
        f"| {o.cost.fit:.2f} | {o.cost.apply:.2f} |"
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


def large(recipes: Sequence[str], peers: str | None, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines about the whole command, then one for each recipe and peer."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "logits.npz")
        logits, labels = made_up()
        np.savez(file, logits=logits, labels=labels)
        del logits, labels
        yield (
            f"Logits of {ROWS} rows and {CLASSES} classes in float32: one copy is "
            f"{LOGITS_KIB * 1024 / 1e6:.0f} MB. Fitted on the first half, applied to the second. "
            "Seconds are the processor's."
        )
        if not recipes:
            yield from whole_command(file, Path(folder, "out"))
        yield ""
        yield (
            "Each in a process of its own; memory is the peak above that process with its logits, "
            f"which are one copy more. Nothing was given more than {LIMIT} s."
        )
        yield ""
        yield "| recipe | fit s | apply s | memory, copies |"
        yield "|---|---|---|---|"
        script = [sys.executable, __file__, "--one"]
        for recipe in recipes or every_recipe():
            yield cost_line(recipe, [*script, recipe, str(file)])
        for name in names:
            command = [str(peers), _calibrator_peers.__file__, "fit", str(file), str(ROWS // 2)]
            yield cost_line(name, [*command, name])


def whole_command(file: Path, out: Path) -> Iterator[str]:
    """Yield what ``calsweep calibrate`` with every calibrator and objective takes."""
    command = [str(Path(sys.executable).with_name("calsweep")), "calibrate", str(file)]
    command += ["--with", ",".join(CALIBRATORS.names()), "--objectives", ",".join(PUBLISHED)]
    command += ["--fit-rows", f"0:{ROWS // 2}", "--out", str(out)]
    imports = subprocess.check_output([sys.executable, "-c", IMPORTS], text=True)
    base = float(imports.split("VmHWM:")[1].split()[0])
    before, start = cpu_seconds(), time.perf_counter()
    peak, table = watched(command)
    waited, used = time.perf_counter() - start, cpu_seconds() - before
    yield ""
    yield (
        f"The whole command, `calsweep calibrate` with all {len(CALIBRATORS.names())} calibrators "
        f"and objectives {', '.join(PUBLISHED)}: {used:.0f} s ({waited:.0f} s passed). Peak memory "
        f"{peak * 1024 / 1e6:.0f} MB, of which {base * 1024 / 1e6:.0f} MB is there before anything "
        f"is read (interpreter and libraries): {(peak - base) / LOGITS_KIB:.2f} copies for the "
        f"logits and all work on them, {peak / LOGITS_KIB:.2f} copies in all. Its table:"
    )
    yield ""
    yield from (line for line in table.splitlines() if line.startswith(("|", "*")))


def watched(command: Sequence[str]) -> tuple[float, str]:
    """Run a command; return its highest resident set in KiB, as the kernel keeps it, and output.

    Raises:
        RuntimeError: If it fails.
    """
    peak = 0.0
    with tempfile.TemporaryFile("w+") as output:
        run = subprocess.Popen(command, stdout=output)
        while run.poll() is None:
            with suppress(OSError, StopIteration):
                peak = max(peak, memory("VmHWM", str(run.pid)))
            time.sleep(POLL_SECONDS)
        output.seek(0)
        if run.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {run.returncode}")
        return peak, output.read()


def cpu_seconds() -> float:
    """Return the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cost_line(name: str, command: Sequence[str]) -> str:
    """Return the line of one recipe or peer, measured in its own process."""
    try:
        for cost in costs(command):
            copies = cost.peak / LOGITS_KIB
            return f"| {name} | {cost.fit:.1f} | {cost.apply:.1f} | {copies:.2f} |"
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return f"| {name} | failed | | |"
    return f"| {name} | not finished in {LIMIT} s | | |"


def made_up() -> tuple[np.ndarray, np.ndarray]:
    """Return float32 logits of an over-confident network of 1000 classes, and labels."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, CLASSES, generator=draw)
    labels = torch.empty(ROWS, dtype=torch.int64)
    for part in torch.arange(ROWS).split(2000):
        rows = logits[part]
        rows.mul_(2.0)
        favoured = torch.randint(CLASSES, (len(part), 1), generator=draw)
        rows.scatter_add_(1, favoured, 24 * torch.rand(len(part), 1, generator=draw))
        logits[part] = rows
        labels[part] = torch.multinomial((rows / 1.8).softmax(1), 1, generator=draw).squeeze(1)
    return logits.numpy(), labels.numpy()


def few(folder: Path, counts: Sequence[int], peers: str | None) -> Iterator[str]:
    """Yield a table for each file: every calibrator on every number of fitting rows."""
    yield (
        f"NLL and ECE (%, 15 bins) of {SCORED} rows that no fit has seen, and CPU seconds of the "
        f"fit: means over {SPLITS} splits. `paper` is the published form where it is not the "
        "default. A peer is fitted once before it is timed."
    )
    for path in sorted(folder.glob("*.npz")):
        rows = read_logits(path, "probs").rows
        columns = [few_column(rows.logits, rows.labels, count, peers) for count in counts]
        yield ""
        yield f"## {path.stem}"
        yield ""
        heads = [f"{count}: NLL | ECE | s" for count in counts]
        yield f"| calibrator | {' | '.join(heads)} |"
        yield "|---" * (3 * len(counts) + 1) + "|"
        for name in columns[0]:
            cells = [f"{n:.4f} | {100 * e:.2f} | {s:.2f}" for n, e, s in (c[name] for c in columns)]
            yield f"| {name} | {' | '.join(cells)} |"


def few_column(
    logits: torch.Tensor, labels: torch.Tensor, count: int, peers: str | None
) -> dict[str, np.ndarray]:
    """Return mean NLL, ECE and seconds of every calibrator fitted on some rows of each split."""
    names = [n for n in CALIBRATORS.names() if not n.startswith("meta-")]
    fits: dict[str, Fit] = {"none": lambda *_: lambda z: z}
    fits |= {name: ours(name) for name in (*names, *VARIANTS)}
    found: dict[str, list[tuple[float, float, float]]] = {}
    for split in range(SPLITS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(split))
        chosen = torch.cat([order[:count], order[-SCORED:]])
        with tempfile.TemporaryDirectory() as folder:
            out, file = Path(folder), Path(folder, "logits.npz")
            np.savez(file, logits=logits[chosen].numpy(), labels=labels[chosen].numpy())
            done = [measure(name, fit, file, count, out) for name, fit in fits.items()]
            if peers:
                command = [peers, _calibrator_peers.__file__, "fit", str(file), str(count)]
                twice = list(costs([*command, *FEW_PEERS, *FEW_PEERS, "--out", folder]))
                done += twice[len(FEW_PEERS) :]
            judged = [judge(cost, "", out, labels[chosen[count:]].numpy()) for cost in done]
        for o in judged:
            found.setdefault(o.name, []).append((float(o.losses.mean()), o.ece, o.cost.fit))
    return {name: np.mean(values, axis=0) for name, values in found.items()}


def heading(found: dict[str, str]) -> list[str]:
    """Return versions and hardware."""
    peers = ", ".join(f"{name} {version}" for name, version in found.items() if name != "torch")
    return [
        "# Calibrators of real networks' outputs",
        "",
        f"{platform.machine()}, {torch.get_num_threads()} thread(s) of {os.cpu_count()} cores, "
        f"torch {torch.__version__}, {peers or 'no peers'}; peers with their defaults. "
        "Seconds are those of the processor, not of the clock.",
        "",
    ]


def every_recipe() -> list[str]:
    """Return every calibrator with every published objective."""
    recipes = [f"{c}-{o}" for c in FITTED for o in PUBLISHED]
    return recipes + [c for c in CALIBRATORS.names() if c not in FITTED]


def lines_of(wanted: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the tables that were asked for."""
    found = installed(wanted.peers)
    yield from heading(found)
    if wanted.large is not None:
        yield from large(wanted.large, wanted.peers, wanted.only or peer_names(found))
        return
    if wanted.few:
        yield from few(wanted.folder, wanted.few, wanted.peers)
        return
    yield "NLL in nats, ECE over 15 bins. netcal and probmetrics are given float64 probabilities."
    yield f"Intervals: paired bootstrap over the scored rows, {RESAMPLES} draws."
    yield ""
    for path in sorted(wanted.folder.glob("*.npz")):
        yield from compare(path, wanted.peers, wanted.only or peer_names(found))


def main() -> None:
    """Read the arguments and print the tables, and write them if told where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="folder of .npz files with probs")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument(
        "--peers", metavar="PYTHON", help="interpreter that has the other libraries"
    )
    parser.add_argument("--only", action="append", metavar="PEER", help="of the peers, only these")
    parser.add_argument("--large", nargs="*", metavar="RECIPE", help="measure on large logits")
    parser.add_argument("--few", nargs="+", type=int, metavar="ROWS", help="fit on so many rows")
    parser.add_argument("--one", nargs=2, metavar=("RECIPE", "LOGITS"), help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one:
        recipe, path = wanted.one
        print(json.dumps(asdict(measure(recipe, ours(recipe), Path(path), ROWS // 2))))
        return
    lines = []
    for line in lines_of(wanted):
        print(line, flush=True)
        lines.append(line)
    if wanted.out:
        wanted.out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
