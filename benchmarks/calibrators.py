r"""Compares our calibrators with calibrators of netcal, torch-uncertainty and probmetrics.

Calibrators are fitted on the first half of each file of real network outputs and scored on the
second half. The other libraries need their own environment:

    python -m venv peers
    peers/bin/pip install --upgrade pip
    peers/bin/pip install --constraint constraints.txt . --group peers
    python benchmarks/calibrators.py ../shared/data/logits --peers peers/bin/python \
        --out benchmarks/results/calibrators.md

``--large`` instead measures time and memory on synthetic logits of 50,000 rows and 1000 classes;
each recipe and each peer runs in its own process.

``--few 300 1000 5000`` fits every calibrator on these numbers of rows, and probmetrics' SVS and SMS
on the same rows:

    OMP_NUM_THREADS=1 python benchmarks/calibrators.py ../shared/data/logits --few 300 1000 5000 \
        --peers peers/bin/python --out benchmarks/results/calibrators-few.md
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _calibrator_peers
import numpy as np
import torch
from _calibrator_peers import PEERS, Cost, Fit, Map, measure
from _page import options, publish, setting, table

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
SPLITS, SCORED = 2, 5000
VARIANTS = ("svs-cls", "sms-cls", "vs paper", "ms paper", "isotonic paper")
FEW_PEERS = ("probmetrics svs", "probmetrics sms")
RESULT_COLUMNS = ("calibrator", "NLL", "ECE %", "accuracy %", "fit s", "apply s")
PAIR_COLUMNS = ("NLL of", "minus that of", "difference", "95 % interval")


@dataclass(frozen=True)
class Outcome:
    """The scores and costs of one calibrator on one file.

    Attributes:
        name: Library and name of the calibrator.
        family: Name of our calibrator to compare with.
        losses: ``-log p_y`` of each of N scored rows, (N,).
        ece: Fraction.
        accuracy: Fraction.
        cost: Cost of fitting, and of mapping the scored rows.
    """

    name: str
    family: str
    losses: np.ndarray
    ece: float
    accuracy: float
    cost: Cost


def ours(recipe: str) -> Fit:
    """Return a function that fits one of our recipes, with the signature of the peers."""

    def fit(logits: np.ndarray, labels: np.ndarray) -> Map:
        text, *variant = recipe.split()
        name, objective = parse_calibrator(text)
        own: dict[str, Any] = {"accuracy": REACHABLE_ACCURACY} if name == "meta-acc" else {}
        own |= {"variant": variant[0]} if variant else {}
        calibrator = build_calibrator(name, objective, **own).fit(logits, labels)
        return lambda rows: calibrator(rows).numpy()

    return fit


def installed(peers: str | None) -> dict[str, str]:
    """Return the versions of the libraries in the peers' environment; empty without one."""
    if peers is None:
        print("no --peers given: other libraries are excluded", file=sys.stderr)
        return {}
    command = [peers, _calibrator_peers.__file__, "versions"]
    found: dict[str, str] = json.loads(subprocess.check_output(command, text=True))
    return found


def peer_names(found: dict[str, str]) -> list[str]:
    """Return the peers whose library is installed."""
    return [name for name, peer in PEERS.items() if peer.distribution in found]


def costs(command: Sequence[str]) -> Iterator[Cost]:
    """Run a command that prints costs, and yield them until it ends or exceeds its CPU time.

    Raises:
        RuntimeError: If the command fails for another reason.
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
    """Score the log-probabilities that a fit has written."""
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


def compare(path: Path, peers: str | None, names: Sequence[str]) -> list[Outcome]:
    """Return the outcome of every calibrator and peer on one file."""
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
        return [judge(cost, family(cost.name), out, labels) for cost in done]


def family(name: str) -> str:
    """Return the name of our calibrator with which an entry of the table is compared."""
    return PEERS[name].family if name in PEERS else name.removeprefix("ours ")


def results(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return one row for each calibrator."""
    figures = [(100 * o.ece, 100 * o.accuracy, o.cost.fit, o.cost.apply) for o in outcomes]
    return [
        [o.name, f"{o.losses.mean():.4f}", *(f"{figure:.2f}" for figure in own)]
        for o, own in zip(outcomes, figures, strict=True)
    ]


def differences(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    """Yield the NLL of our calibrator minus the NLL of each peer, with its interval."""
    mine = {o.family: o for o in outcomes if o.name.startswith("ours")}
    for other in outcomes:
        if other.name in PEERS and other.family in FAMILIES:
            mean, low, high = interval(mine[other.family].losses, other.losses)
            yield [f"ours {other.family}", other.name, f"{mean:+.5f}", f"{low:+.5f} to {high:+.5f}"]


def peers_page(wanted: argparse.Namespace, names: Sequence[str], place: str) -> None:
    """Publish the comparison with other libraries."""
    every: list[list[str]] = []
    pairs: list[list[str]] = []
    for path in sorted(wanted.folder.glob("*.npz")):
        outcomes = compare(path, wanted.peers, names)
        every += [[path.stem, *row] for row in results(outcomes)]
        pairs += [[path.stem, *row] for row in differences(outcomes)]
    said = f"Paired bootstrap over the scored rows, {RESAMPLES} draws; ECE over 15 bins."
    lines = [*table(["network", *PAIR_COLUMNS], pairs, 3), "", said]
    files = {
        "": (["network", *RESULT_COLUMNS], every),
        "-pairs": (["network", *PAIR_COLUMNS], pairs),
    }
    question = "Do the calibrators agree with those of other libraries?"
    publish(question, lines, place, wanted.out, files)


def large_page(wanted: argparse.Namespace, names: Sequence[str], place: str) -> None:
    """Publish the costs of each recipe and peer on large logits."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "logits.npz")
        logits, labels = made_up()
        np.savez(file, logits=logits, labels=labels)
        del logits, labels
        own = [sys.executable, __file__, "--one"]
        rows = [cost_row(r, [*own, r, str(file)]) for r in wanted.large or every_recipe()]
        command = [str(wanted.peers), _calibrator_peers.__file__, "fit", str(file), str(ROWS // 2)]
        rows += [cost_row(name, [*command, name]) for name in names]
    said = (
        f"Seconds of CPU time, each recipe in its own process, at most {LIMIT} s. Memory is the "
        "peak above a process that only has the logits, in copies of the logits "
        f"({LOGITS_KIB * 1024 / 1e6:.0f} MB)."
    )
    lines = [*table(["recipe", "fit s", "apply s", "memory, copies"], rows), "", said]
    question = (
        f"How much time and memory do calibrators need for {ROWS:,} rows and {CLASSES:,} classes?"
    )
    publish(question, lines, place, wanted.out)


def cost_row(name: str, command: Sequence[str]) -> list[str]:
    """Return the row of one recipe or peer, measured in its own process."""
    try:
        for cost in costs(command):
            copies = cost.peak / LOGITS_KIB
            return [name, f"{cost.fit:.1f}", f"{cost.apply:.1f}", f"{copies:.2f}"]
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return [name, "failed", "", ""]
    return [name, f"not finished in {LIMIT} s", "", ""]


def made_up() -> tuple[np.ndarray, np.ndarray]:
    """Return synthetic float32 logits of an over-confident network (1000 classes) and labels."""
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


def few_page(wanted: argparse.Namespace, place: str) -> None:
    """Publish the scores of every calibrator for every number of fitting rows and every file."""
    every: list[list[object]] = []
    gains: dict[str, list[str]] = {}
    heads = []
    for path in sorted(wanted.folder.glob("*.npz")):
        rows = read_logits(path, "probs").rows
        for count in wanted.few:
            column = few_column(rows.logits, rows.labels, count, wanted.peers)
            heads.append(f"{path.stem} {count}")
            for name, (nll, ece, seconds) in column.items():
                gains.setdefault(name, []).append(f"{nll - column['none'][0]:+.4f}")
                shown = f"{nll:.4f}", f"{100 * ece:.2f}", f"{seconds:.2f}"
                every.append([path.stem, count, name, *shown])
    said = (
        f"NLL minus the NLL without calibration on {SCORED} rows that no fit has seen: means over "
        f"{SPLITS} splits. `paper` is the published form if it is not the default."
    )
    lines = [
        *table(["calibrator", *heads], ([name, *row] for name, row in gains.items())),
        "",
        said,
    ]
    files = {"": (("network", "rows", "calibrator", "NLL", "ECE %", "fit s"), every)}
    publish(
        "Is any calibrator worse than no calibration on few rows?", lines, place, wanted.out, files
    )


def few_column(
    logits: torch.Tensor, labels: torch.Tensor, count: int, peers: str | None
) -> dict[str, np.ndarray]:
    """Return mean NLL, ECE and seconds of every calibrator, fitted on ``count`` rows per split."""
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


def every_recipe() -> list[str]:
    """Return every calibrator with every published objective."""
    recipes = [f"{c}-{o}" for c in FITTED for o in PUBLISHED]
    return recipes + [c for c in CALIBRATORS.names() if c not in FITTED]


def main() -> None:
    """Publish the requested page, or measure one recipe."""
    parser = options(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="folder of .npz files with probs")
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
    found = installed(wanted.peers)
    names = wanted.only or peer_names(found)
    peers = ", ".join(f"{name} {version}" for name, version in found.items() if name != "torch")
    place = f"{torch.get_num_threads()} thread(s), {setting('torch')}; {peers or 'no peers'}."
    if wanted.large is not None:
        large_page(wanted, names, place)
    elif wanted.few:
        few_page(wanted, place)
    else:
        peers_page(wanted, names, place)


if __name__ == "__main__":
    main()
