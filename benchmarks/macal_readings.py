"""What MaC-Cal does under every reading of its paper, on networks that know their training set.

Run it as

    OMP_NUM_THREADS=1 python benchmarks/macal_readings.py --data FOLDER --cache FOLDER \
        --out tables.md

``--data`` holds ``cifar10.npz`` (x_train, y_train, x_test, y_test) and ``20newsgroups/`` (see
``_overconfident.py``). Features and figures are kept in ``--cache``: stored ones are not computed
again, so that the study can be stopped at any time. The same seeds give the same figures.

For every network, reading and gamma a head is trained by the project's own trainer; gamma is chosen
on validation rows, by ECE with a sweep's guard of the accuracy, and the choice is measured on test
rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from _machine import describe
from _overconfident import KINDS, Features, train
from torch import Tensor

from orchestrator.tables.published import load_published
from trainables.calibrators import build_calibrator
from trainables.metrics import calibration_report
from trainables.refinements import HeadsTogether, HeadTrainer, build_refinement

GAMMAS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
BATCH = 128
HIDDEN = 64  # As wide as the features: with fewer units, masks would cost accuracy as well.
TOLERANCE = 0.01
SCRIPT = "OMP_NUM_THREADS=1 python benchmarks/macal_readings.py"
METRICS = ("acc", "nll", "ece", "aece")
INFERENCES = ("scaled", "dense", "last")
Figures = dict[str, float]


@dataclass(frozen=True)
class Reading:
    """One way to read the paper; the names are those of ``macal``'s parameters."""

    q_role: str = "keep"
    feedback: str = "dense"
    resample: str = "epoch"
    optimizer: str = "masked"
    inference: str = "scaled"
    zero_masked: bool = False

    @property
    def name(self) -> str:
        """Return it in one line."""
        parts = [self.q_role, self.feedback, self.resample, self.optimizer, self.inference]
        return " ".join([*parts, "zeroed"] if self.zero_masked else parts)


SHIPPED = Reading()
TURNED = Reading("drop", "deployed", "batch")
PLAIN = Reading("drop", "deployed", "batch", "plain")
ADAPTED = (SHIPPED, PLAIN, TURNED, Reading("drop", "deployed", "epoch"))
FEW = 32  # Rows of a batch, for four times as many steps an epoch.
# The first rows of the paper's Table 5 do not depend on what q does.
FIXED: dict[str, dict[str, Any]] = {
    "+ Masked Retraining": {
        "restrict_gradient": False,
        "restructure": False,
        "sparsity": "fixed",
    },
    "+ Gradient Restriction": {"restructure": False, "sparsity": "fixed"},
    "+ Classifier Restructure": {"sparsity": "fixed"},
}
ADAPTIVE = {"+ Static Adaptive Sparsity": "adaptive", "+ Decaying Adaptive Sparsity": "decaying"}
ROWS = ("Vanilla", *FIXED, *ADAPTIVE)


def block() -> Iterator[Reading]:
    """Yield the readings that are trained; those whose inference is free stand for three."""
    roles, resamples = ("keep", "drop"), ("epoch", "batch")
    for role, resample in itertools.product(roles, resamples):
        for feedback in ("dense", "training", "deployed"):
            yield Reading(role, feedback, resample)
    for resample in resamples:
        yield Reading("drop", "deployed", resample, inference="last")
        yield Reading("drop", "deployed", resample, inference="last", zero_masked=True)
        yield Reading("drop", "deployed", resample, "plain")
    yield Reading("keep", "dense", "epoch", "plain")
    yield Reading("drop", "deployed", "batch", "plain", inference="last")


def telling() -> list[Reading]:
    """Return the readings that all seeds and losses are refined with."""
    return [
        SHIPPED,
        PLAIN,
        TURNED,
        Reading("drop", "deployed", "epoch"),
    ]


def inferences(reading: Reading) -> Iterable[str]:
    """Return what a trained head can be read with: all, where q does not depend on it."""
    free = reading.feedback != "deployed" and not reading.zero_masked
    return INFERENCES if free else (reading.inference,)


class Study:
    """Computes figures, or takes them from the cache.

    Args:
        cache: Folder.
        data: Folder.
        quick: Whether networks and heads are trained for a moment only, to try the script.
    """

    def __init__(self, cache: Path, data: Path, quick: bool) -> None:
        self._cache, self._data, self._quick = cache, data, quick
        self._started = time.monotonic()
        cache.mkdir(parents=True, exist_ok=True)

    @property
    def gammas(self) -> Sequence[float]:
        """Return the values of gamma that are tried."""
        return GAMMAS[::3] if self._quick else GAMMAS

    def features(self, kind: str, method: str, seed: int) -> Features:
        """Return a network's features."""
        path = self._cache / f"{kind}-{method}-{seed}.pt"
        if not path.exists():
            entry = KINDS[kind]
            size = (500, 2) if self._quick else (entry.count, entry.epochs)
            found = train(entry, method, self._data, seed, *size)
            torch.save(found.__dict__, path.with_suffix(".draft"))
            path.with_suffix(".draft").rename(path)
            self.tell(f"trained {path.stem}")
        return Features(**torch.load(path, weights_only=True))

    def alone(self, kind: str, method: str, seed: int) -> dict[str, Figures]:
        """Return the figures of a network itself, with a temperature, and its training accuracy."""

        def compute() -> dict[str, Figures]:
            given = self.features(kind, method, seed)
            rows = given.logits["validation"], given.labels["validation"]
            calibrator = build_calibrator("ts").fit(*rows)
            test, labels = given.logits["test"], given.labels["test"]
            hits = given.logits["train"].argmax(1) == given.labels["train"]
            return {
                "train": {"acc": float(hits.double().mean())},
                "validation": report(*rows),
                "test": report(test, labels),
                "ts": report(calibrator(test), labels),
            }

        return self._kept(f"{kind}-{method}-{seed}-alone", compute)

    def heads(
        self,
        kind: str,
        method: str,
        seed: int,
        label: str,
        parameters: Sequence[dict[str, Any]],
        read: Iterable[str],
        refinement: str = "macal",
        batch: int = BATCH,
    ) -> list[dict[str, Any]]:
        """Return the figures of heads, in the order of their parameters and readings.

        Args:
            kind: A name of ``KINDS``.
            method: The network's loss.
            seed: The network's seed and the heads'.
            label: What the heads have in common; part of the cached file's name.
            parameters: Those of each head.
            read: Inferences that each head is measured with.
            refinement: What is trained.
            batch: Rows a step.
        """

        def compute() -> list[dict[str, Any]]:
            given = self.features(kind, method, seed)
            trainers = [self._trainer(given, refinement, own, seed, batch) for own in parameters]
            train_all(trainers)
            self.tell(f"{kind} {method} {seed}: {label}, {len(trainers)} heads")
            return [
                {**own, **measured}
                for own, trainer in zip(parameters, trainers, strict=True)
                for measured in measure(trainer, given, read)
            ]

        return self._kept(f"{kind}-{method}-{seed}-{label.replace(' ', '-')}", compute)

    def _trainer(
        self, given: Features, refinement: str, parameters: dict[str, Any], seed: int, batch: int
    ) -> HeadTrainer:
        own = {**parameters, "epochs": 2} if self._quick else dict(parameters)
        if refinement == "macal":
            own["hidden"] = HIDDEN
        return HeadTrainer(
            build_refinement(refinement, **own),
            [given.features["train"]],
            given.labels["train"],
            num_classes=given.classes,
            batch_size=batch,
            momentum=0.9,
            weight_decay=5e-4,
            seed=seed,
        )

    def _kept(self, name: str, compute: Callable[[], Any]) -> Any:
        path = self._cache / f"{name}.json"
        if not path.exists():
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(compute()), encoding="utf-8")
            draft.rename(path)
        return json.loads(path.read_text(encoding="utf-8"))

    def tell(self, text: str) -> None:
        """Show progress."""
        sys.stderr.write(f"{time.monotonic() - self._started:7.0f} s  {text}\n")
        sys.stderr.flush()


def report(logits: Tensor, labels: Tensor) -> Figures:
    """Return the metrics of interest, fractions."""
    found = calibration_report(logits=logits, labels=labels)
    return {name: found[name] for name in METRICS}


def train_all(trainers: Sequence[HeadTrainer]) -> None:
    """Train heads to the end, together where they can be."""
    keys = {trainer.refinement.together_key() for trainer in trainers}
    together = len(keys) == 1 and None not in keys
    joined = HeadsTogether(trainers) if together else None
    for _ in range(trainers[0].refinement.epochs):
        if joined is not None:
            joined.train_epoch()
        else:
            for trainer in trainers:
                trainer.train_epoch()


@torch.no_grad()
def measure(trainer: HeadTrainer, given: Features, read: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of a head for every inference; None where it diverged."""
    for inference in read:
        trainer.head.inference = inference  # type: ignore[assignment]
        outputs = {part: trainer.head(given.features[part]) for part in ("validation", "test")}
        finite = all(bool(each.isfinite().all()) for each in outputs.values())
        figures: dict[str, Any] = {
            part: report(each, given.labels[part]) if finite else None
            for part, each in outputs.items()
        }
        q = dict(trainer.head.named_buffers()).get("q")
        yield {"inference": inference, "q": None if q is None else float(q), **figures}


@dataclass(frozen=True)
class Network:
    """A trained network: its kind, loss and seed."""

    kind: str
    method: str
    seed: int

    @property
    def place(self) -> tuple[str, str, int]:
        """Return the fields as a ``Study`` takes them."""
        return self.kind, self.method, self.seed


def curve(
    study: Study, network: Network, reading: Reading, sparsity: str, batch: int = BATCH
) -> list[dict[str, Any]]:
    """Return the figures of a reading's heads, one a gamma."""
    trained = reading
    if reading.inference not in inferences(reading):
        raise ValueError(f"{reading.name} was not trained for {reading.inference}")
    if len(list(inferences(reading))) > 1:
        trained = Reading(**{**reading.__dict__, "inference": "scaled"})
    parameters = [{**trained.__dict__, "gamma": g, "sparsity": sparsity} for g in study.gammas]
    label = trained.name if sparsity == "decaying" else f"{trained.name} {sparsity}"
    label += "" if batch == BATCH else f" {batch} rows"
    found = study.heads(*network.place, label, parameters, inferences(trained), batch=batch)
    return [each for each in found if each["inference"] == reading.inference]


def chosen(study: Study, network: Network, heads: Sequence[dict[str, Any]], by: str) -> Any:
    """Return the head of lowest validation error, None if all diverged.

    To the ECE is added what the accuracy falls below the network's minus ``TOLERANCE``, as a
    sweep does: a head that has stopped learning is calibrated, too. The NLL needs no such guard.
    """
    floor = study.alone(*network.place)["validation"]["acc"] - TOLERANCE

    def error(head: dict[str, Any]) -> float:
        figures = head["validation"]
        missing = max(0.0, floor - figures["acc"]) if by == "ece" else 0.0
        return figures[by] + missing

    finite = [head for head in heads if head["validation"] is not None]
    return min(finite, key=error, default=None)


def all_readings() -> list[Reading]:
    """Return every reading that is reported."""
    found = [
        Reading(**{**reading.__dict__, "inference": inference})
        for reading in block()
        for inference in inferences(reading)
    ]
    return list(dict.fromkeys(found))


def compute_all(study: Study, networks: Sequence[Network], others: Sequence[Network]) -> None:
    """Compute whatever the page needs: every reading on one seed, the telling ones on all."""
    first = first_seed(networks)
    for reading in block():
        for network in first:
            curve(study, network, reading, "decaying")
    for network in first:
        fixed_rows(study, network)
        for reading in ADAPTED:
            curve(study, network, reading, "adaptive")
    for reading in ADAPTED:
        curve(study, first[0], reading, "decaying", FEW)
    for network in [*networks, *others]:
        study.alone(*network.place)
        for reading in telling():
            curve(study, network, reading, "decaying")


def first_seed(networks: Sequence[Network]) -> list[Network]:
    """Return the networks that every reading is tried on."""
    return [network for network in networks if network.seed == 0]


def fixed_rows(study: Study, network: Network) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Return the heads whose q is 0.5 throughout, by row, resampling, optimiser and inference."""
    found = {}
    for row, switches in FIXED.items():
        for resample, optimizer in (("epoch", "masked"), ("batch", "masked"), ("batch", "plain")):
            label = f"{row.strip('+ ').lower()} {resample} {optimizer}"
            own = {**switches, "resample": resample, "optimizer": optimizer}
            for head in study.heads(*network.place, label, [own], INFERENCES):
                found[row, resample, optimizer, head["inference"]] = head
    plain = study.heads(
        *network.place, "unmasked", [{"sparsity": "fixed", "q0": 0.0, "q_role": "drop"}], ("dense",)
    )
    found["unmasked", "", "", ""] = plain[0]
    found["tst", "", "", ""] = study.heads(*network.place, "tst", [{}], ("dense",), "tst")[0]
    return found


def percent(values: Iterable[float], digits: int = 2) -> str:
    """Return mean and standard deviation of fractions in percent."""
    found = [100 * value for value in values]
    spread = f" ± {stdev(found):.{digits}f}" if len(found) > 1 else ""
    return f"{mean(found):.{digits}f}{spread}"


def networks_table(study: Study, networks: Sequence[Network]) -> Iterator[str]:
    """Yield what the networks are like before refinement."""
    yield "| network | loss | train acc | test acc | ECE | + ts | + unmasked head | + tst |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for (kind, method), group in grouped(networks):
        alone = [study.alone(*network.place) for network in group]
        cells = [percent((a["train"]["acc"] for a in alone), 1)]
        cells += [percent((a["test"]["acc"] for a in alone), 1)]
        cells += [percent(a[part]["ece"] for a in alone) for part in ("test", "ts")]
        if method == "ce":
            rows = [fixed_rows(study, network) for network in first_seed(group)]
            cells += [
                percent(row[name, "", "", ""]["test"]["ece"] for row in rows)
                for name in ("unmasked", "tst")
            ]
        else:
            cells += ["", ""]
        yield f"| {kind} | {method} | " + " | ".join(cells) + " |"


def grouped(networks: Sequence[Network]) -> Iterator[tuple[tuple[str, str], list[Network]]]:
    """Yield the networks that differ in their seed only."""
    for key in dict.fromkeys((network.kind, network.method) for network in networks):
        yield key, [network for network in networks if (network.kind, network.method) == key]


@dataclass(frozen=True)
class Summary:
    """What a reading comes to on some networks.

    Attributes:
        reading: The reading.
        by_ece: The head of each network, gamma chosen by validation ECE; None if all diverged.
        by_nll: The same by NLL.
        ends: Share of all heads whose q ended at 0 or 1.
    """

    reading: Reading
    by_ece: list[Any]
    by_nll: list[Any]
    ends: float

    @property
    def error(self) -> float:
        """Return the mean test ECE, infinite if a network has no head."""
        if None in self.by_ece:
            return float("inf")
        return mean(head["test"]["ece"] for head in self.by_ece)

    def guarded(self, changes: Sequence[float]) -> float:
        """Return the mean test ECE with what each accuracy falls by more than ``TOLERANCE``."""
        return self.error + mean(max(0.0, -change - TOLERANCE) for change in changes)


def summary(study: Study, networks: Sequence[Network], reading: Reading) -> Summary:
    """Return what a reading comes to."""
    curves = [curve(study, network, reading, "decaying") for network in networks]
    heads = [head for each in curves for head in each]
    by_ece, by_nll = (
        [chosen(study, n, each, by) for n, each in zip(networks, curves, strict=True)]
        for by in ("ece", "nll")
    )
    return Summary(reading, by_ece, by_nll, mean(head["q"] in (0.0, 1.0) for head in heads))


def accuracy_changes(
    study: Study, networks: Sequence[Network], heads: Sequence[Any]
) -> list[float]:
    """Return how much test accuracy each network gains."""
    return [
        head["test"]["acc"] - study.alone(*network.place)["test"]["acc"]
        for network, head in zip(networks, heads, strict=True)
    ]


def readings_table(
    study: Study, networks: Sequence[Network], readings: Sequence[Reading]
) -> Iterator[str]:
    """Yield a table of readings, the best first; one that stops learning is none of the best."""
    kinds = [kind for (kind, _), _ in grouped(networks)]
    columns = ["ECE", *kinds, "ECE, gamma by NLL", "acc", "least acc", "q at an end"]
    yield f"| reading | {' | '.join(columns)} |"
    yield "| --- |" + " ---: |" * len(columns)
    rows = []
    for reading in readings:
        each = summary(study, networks, reading)
        if each.error == float("inf"):
            rows.append((each.error, f"| {reading.name} | diverged |" + " |" * (len(kinds) + 4)))
            continue
        changes = accuracy_changes(study, networks, each.by_ece)
        cells = [f"{100 * each.error:.2f}"]
        for kind in kinds:
            heads = zip(networks, each.by_ece, strict=True)
            cells.append(percent(h["test"]["ece"] for network, h in heads if network.kind == kind))
        cells += [f"{100 * mean(h['test']['ece'] for h in each.by_nll):.2f}"]
        cells += [f"{100 * mean(changes):+.1f}", f"{100 * min(changes):+.1f}", f"{each.ends:.0%}"]
        rows.append((each.guarded(changes), f"| {reading.name} | {' | '.join(cells)} |"))
    yield from (row for _, row in sorted(rows))


def gamma_table(
    study: Study, networks: Sequence[Network], readings: Sequence[Reading], batch: int = BATCH
) -> Iterator[str]:
    """Yield test ECE, change of accuracy and q at every gamma, means over the networks."""
    yield "| reading | figure | " + " | ".join(map(str, study.gammas)) + " |"
    yield "| --- | --- |" + " ---: |" * len(study.gammas)
    for reading in readings:
        curves = [curve(study, network, reading, "decaying", batch) for network in networks]
        figures: dict[str, list[str]] = {"ECE": [], "acc": [], "q": []}
        for heads in zip(*curves, strict=True):
            if any(head["test"] is None for head in heads):
                cells = ["diverged", "", ""]
            else:
                cells = [
                    f"{100 * mean(head['test']['ece'] for head in heads):.2f}",
                    f"{100 * mean(accuracy_changes(study, networks, heads)):+.2f}",
                    f"{mean(head['q'] for head in heads):.2f}",
                ]
            for cell, row in zip(cells, figures.values(), strict=True):
                row.append(cell)
        for name, row in figures.items():
            yield f"| {reading.name if name == 'ECE' else ''} | {name} | " + " | ".join(row) + " |"


def published_rows() -> Iterator[str]:
    """Yield the paper's Table 5 as cells of accuracy and ECE."""
    table = load_published("results").query("paper == 'macal' and table == 'Table 5'")
    for dataset in ("cifar10", "cifar100"):
        own = table[table["dataset"] == dataset]
        for metric in ("acc", "ece"):
            values = own[own["metric"] == metric]["value"].astype(float)
            cells = " | ".join(f"{value:.2f}" for value in values)
            yield f"| paper, densenet121, {dataset} | {metric} | {cells} |"


def ablation_table(
    study: Study, networks: Sequence[Network], readings: Sequence[Reading]
) -> Iterator[str]:
    """Yield accuracy and ECE of Table 5's rows, means over the networks, beside the paper's."""
    yield "| reading | figure | " + " | ".join(ROWS) + " |"
    yield "| --- | --- |" + " ---: |" * len(ROWS)
    yield from published_rows()
    for reading in readings:
        found: dict[str, list[Any]] = {row: [] for row in ROWS}
        for network in networks:
            found["Vanilla"].append(study.alone(*network.place))
            fixed = fixed_rows(study, network)
            for row in FIXED:
                key = row, reading.resample, reading.optimizer, reading.inference
                found[row].append(fixed[key])
            for row, sparsity in ADAPTIVE.items():
                heads = curve(study, network, reading, sparsity)
                found[row].append(chosen(study, network, heads, "ece"))
        for metric in ("acc", "ece"):
            cells = [
                f"{100 * mean(e['test'][metric] for e in each):.2f}" for each in found.values()
            ]
            yield f"| {reading.name} | {metric} | " + " | ".join(cells) + " |"


def methods_table(study: Study, networks: Sequence[Network]) -> Iterator[str]:
    """Yield test ECE of every network and loss: alone, with a temperature, with each reading."""
    readings = telling()
    yield "| network | loss | alone | + ts | " + " | ".join(r.name for r in readings) + " |"
    yield "| --- | --- | ---: | ---: |" + " ---: |" * len(readings)
    for (kind, method), group in grouped(networks):
        alone = [study.alone(*network.place) for network in group]
        cells = [percent(each[part]["ece"] for each in alone) for part in ("test", "ts")]
        for reading in readings:
            heads = [chosen(study, n, curve(study, n, reading, "decaying"), "ece") for n in group]
            cells.append(percent(head["test"]["ece"] for head in heads))
        yield f"| {kind} | {method} | " + " | ".join(cells) + " |"


def page(
    study: Study, networks: Sequence[Network], others: Sequence[Network], command: str
) -> Iterator[str]:
    """Yield the lines of the page's tables."""
    shown = [
        *telling(),
        Reading("drop", "deployed", "epoch", "plain"),
        Reading("keep", "training"),
        Reading("drop", "training", "batch"),
    ]
    yield describe(torch.device("cpu"))
    yield f"\n    {command}\n"
    yield "## Networks\n"
    yield from (f"- *{kind}*: {KINDS[kind].title}." for (kind, _), _ in grouped(networks))
    yield ""
    yield from networks_table(study, [*networks, *others])
    yield "\n## Every reading\n"
    yield from readings_table(study, first_seed(networks), all_readings())
    yield "\n## The telling ones, all seeds\n"
    yield from readings_table(study, networks, telling())
    yield "\n## Gamma\n"
    yield from gamma_table(study, first_seed(networks), shown)
    for network in first_seed(networks):
        yield f"\n*{network.kind}* alone:\n"
        yield from gamma_table(study, [network], ADAPTED)
    yield f"\n*{networks[0].kind}* alone, {FEW} rows a batch:\n"
    yield from gamma_table(study, networks[:1], ADAPTED, FEW)
    yield "\n## The rows of Table 5\n"
    yield from ablation_table(study, first_seed(networks), ADAPTED)
    yield "\n## Other losses\n"
    yield from methods_table(study, [*networks, *others])


def main() -> None:
    """Compute what the cache lacks and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="networks of cross-entropy only")
    parser.add_argument("--quick", action="store_true", help="to try the script")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(wanted.cache, wanted.data, wanted.quick)
    networks = [
        Network(kind, "ce", seed)
        for seed in range(wanted.seeds)
        for kind in wanted.networks
        if seed < KINDS[kind].seeds
    ]
    others = [
        Network(kind, method, 0)
        for kind in wanted.networks
        for method in KINDS[kind].methods
        if method != "ce" and not wanted.plain
    ]
    compute_all(study, networks, others)
    options = f"--networks {' '.join(wanted.networks)} --seeds {wanted.seeds}"
    command = f"{SCRIPT} --data FOLDER --cache FOLDER {options}"
    command += " --plain" * wanted.plain + " --quick" * wanted.quick
    text = "\n".join(page(study, networks, others, command)) + "\n"
    sys.stdout.write(text)
    if wanted.out:
        wanted.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
