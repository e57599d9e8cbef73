"""Which reading of MaC-Cal its paper meant, on networks trained as the papers train theirs.

The networks are the trainings that the sweeps in a storage folder have chosen, which is only read.
Features, and the figures of every head, are kept in ``--cache``: what is there is not
computed again, so that the study can be stopped at any time.

    python benchmarks/macal_networks.py screen --storage FOLDER --cache FOLDER
    python benchmarks/macal_networks.py confirm --storage FOLDER --cache FOLDER
    python benchmarks/macal_networks.py page --storage FOLDER --cache FOLDER --out tables.md --test

With ``--device cuda`` features and heads are computed on a GPU; figures are computed on the CPU.

Half of the validation rows choose gamma (and are what ``feedback: validation`` hears), the other
half judge the choice. ``screen`` tries many readings on the first network, on some of its training
rows; ``confirm`` trains ``CONFIRMED`` on all rows of all networks. Figures of test rows are shown
with ``--test`` alone.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from _machine import describe
from _page import options, publish, row, table
from torch import Tensor

from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage
from orchestrator.tables.published import load_published
from trainables.calibrators import build_calibrator
from trainables.data import PreparedData
from trainables.metrics import calibration_report, row_terms
from trainables.refinements import HeadsTogether, HeadTrainer, build_refinement
from trainables.stages.networks import extract_features, restore_network
from trainables.store.artifacts import Artifact

GAMMAS = (0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99, 1.0)
SCREENED_GAMMAS = (0.7, 0.9, 0.95, 0.99, 1.0)
VIEWS = 4
SCREENED_ROWS, SCREENED_HIDDEN, HIDDEN = 10_000, 64, 128
TOLERANCE = 0.01
INFERENCES = ("scaled", "dense", "last")
FIXED: dict[str, dict[str, Any]] = {
    "+ Masked Retraining": {"restrict_gradient": False, "restructure": False, "sparsity": "fixed"},
    "+ Gradient Restriction": {"restructure": False, "sparsity": "fixed"},
    "+ Classifier Restructure": {"sparsity": "fixed"},
}
ROWS = ("Vanilla", *FIXED, "+ Static Adaptive Sparsity", "+ Decaying Adaptive Sparsity")
METRICS = ("acc", "nll", "ece", "aece")
PAPER = ("cifar10", "cifar100")  # Whose Table 5 is published.


@dataclass(frozen=True)
class Reading:
    """One way to read the paper; the names are those of ``macal``'s parameters."""

    q_role: str = "drop"
    feedback: str = "deployed"
    resample: str = "batch"
    optimizer: str = "plain"
    inference: str = "scaled"
    views: str = "original"
    clock: str = "start"

    @property
    def name(self) -> str:
        """Return it in one line."""
        words = [str(value) for name, value in asdict(self).items() if name != "clock"]
        words += ["crossing"] * (self.clock == "crossing")
        return " ".join(words)

    @property
    def inferences(self) -> tuple[str, ...]:
        """Return what its heads can be read with: all, where q does not depend on it."""
        free = self.feedback in ("dense", "training")
        return INFERENCES if free else (self.inference,)

    def gammas(self, limit: int | None) -> tuple[float, ...]:
        """Return the gammas that are tried on so many training rows, None for all."""
        if self.feedback == "validation":
            return (1.0,)
        return GAMMAS if limit is None else SCREENED_GAMMAS


SHIPPED = Reading()
TELLING = (("drop", "deployed"), ("keep", "dense"))
CONFIRMED = (
    SHIPPED,
    replace(SHIPPED, feedback="validation"),
    replace(SHIPPED, clock="crossing"),
    replace(SHIPPED, optimizer="masked"),
    Reading("keep", "dense", "epoch", "masked"),
)


def screened() -> list[Reading]:
    """Return the readings that are trained, on images as they are.

    The factorial of role, feedback and resampling under plain SGD; the optimiser where it could
    matter. What hears ``deployed`` outputs of ``dense`` weights hears ``dense``.
    """
    heard = [("deployed", "scaled"), ("dense", "scaled"), ("training", "scaled")]
    heard += [("deployed", "last"), ("validation", "scaled")]
    factors = ("batch", "epoch"), ("drop", "keep"), heard
    plain = [
        Reading(role, feedback, resample, "plain", inference)
        for resample, role, (feedback, inference) in itertools.product(*factors)
    ]
    first = [r for r in plain if (r.q_role, r.feedback) in TELLING]
    return plain + [replace(reading, optimizer="masked") for reading in first]


@dataclass(frozen=True)
class Network:
    """A training that was chosen."""

    dataset: str
    method: str
    seed: int
    trained: Artifact

    @property
    def title(self) -> str:
        """Return what it is in few words."""
        return f"{self.dataset} {self.method} {self.seed}"


@dataclass(frozen=True)
class Given:
    """What a network makes of its rows.

    Attributes:
        features: Part to features; ``train`` are those of the images as they are.
        logits: Part to the network's own logits; not of ``train``.
        labels: Part to labels.
        classifier: Weight (K, D) and bias (K,) of the network's own classifier.
    """

    features: dict[str, Tensor]
    logits: dict[str, Tensor]
    labels: dict[str, Tensor]
    classifier: tuple[Tensor, Tensor]


def networks(storage: Storage) -> list[Network]:
    """Return the chosen trainings, one a data set, method and seed, those by ``ce`` first."""
    found = {}
    for folder in storage.sweeps():
        ledger = read_ledger(folder.path / "journal.jsonl")
        for trial in ledger.trials.values():
            study = ledger.studies[trial.study]
            if trial.stage == "train" and (trial.key == study.chosen or trial.role == "seed"):
                # Without weights it does where its features are in the cache.
                trained = storage.store().find("train", trial.artifact, whole=False)
                if trained is not None:
                    network = Network(study.dataset, study.recipe, trial.seed, trained)
                    found[trained.key] = network  # Sweeps may share it.
    return sorted(
        found.values(), key=lambda one: (one.dataset, one.method != "ce", one.method, one.seed)
    )


class Study:
    """Computes figures, or takes them from the cache; from there alone unless it ``computes``."""

    def __init__(self, cache: Path, computes: bool, device: torch.device) -> None:
        self.device = device
        self._cache, self._computes = cache, computes
        self._started = time.monotonic()
        cache.mkdir(parents=True, exist_ok=True)

    def given(self, network: Network) -> Given:
        """Return what a network makes of its rows, computed once."""
        path = self._cache / f"{network.trained.key}.pt"
        if not path.exists():
            _written(
                path,
                lambda draft: torch.save(asdict(_outputs(network.trained, self.device)), draft),
            )
            self.tell(f"features of {network.title}")
        return Given(**torch.load(path, weights_only=True))

    def views(self, network: Network, kind: str, limit: int | None) -> list[Tensor]:
        """Return the features of training rows that a reading's heads go through."""
        if kind == "original":
            return [self.given(network).features["train"][:limit]]
        path = self._cache / f"{network.trained.key}-{limit or 'all'}-views.pt"
        if not path.exists():
            drawn = _augmented(network.trained, limit, self.device)
            _written(path, lambda draft: torch.save(drawn, draft))
            self.tell(f"{VIEWS} augmented views of {network.title}")
        return list(torch.load(path, weights_only=True, mmap=True))

    def has(self, name: str) -> bool:
        """Return True if something is in the cache under a name."""
        return self._path(name).exists()

    def _path(self, name: str) -> Path:
        return self._cache / f"{name.replace(' ', '-')}.json"

    def kept(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what is in the cache under a name, computed if it is missing."""
        path = self._path(name)
        if not path.exists() and not self._computes:
            raise LookupError(f"{name} is not computed yet")
        if not path.exists():
            clock = time.process_time if self.device.type == "cpu" else time.monotonic
            started = clock()
            content = {"found": compute(), "seconds": clock() - started}
            _written(path, lambda draft: draft.write_text(json.dumps(content), encoding="utf-8"))
            self.tell(f"{name}: {content['seconds']:.0f} s")
        return json.loads(path.read_text(encoding="utf-8"))["found"]

    @property
    def seconds(self) -> float:
        """Return the seconds that all heads took: a core's, or on a GPU those of the wall."""
        files = self._cache.glob("*.json")
        return sum(json.loads(path.read_text(encoding="utf-8"))["seconds"] for path in files)

    def tell(self, text: str) -> None:
        """Show progress."""
        sys.stderr.write(f"{time.monotonic() - self._started:7.0f} s  {text}\n")
        sys.stderr.flush()


def _written(path: Path, write: Callable[[Path], object]) -> None:
    draft = path.with_suffix(".draft")
    write(draft)
    draft.rename(path)


@torch.inference_mode()
def _outputs(trained: Artifact, device: torch.device) -> Given:
    prepared = PreparedData.open(trained.record["request"]["data"])
    network, _ = restore_network(trained, prepared.info, device)
    search, batcher = prepared.search(), partial(prepared.info.inputs.batcher, device=device)
    rows = {"train": search.train, "validation": search.validation, "test": prepared.test()}
    features = {k: extract_features(network, batcher(each.values)) for k, each in rows.items()}
    labels = {k: torch.from_numpy(each.labels.copy()) for k, each in rows.items()}
    for parts in (features, labels):
        whole = parts.pop("validation")
        parts |= {"choose": whole[::2].clone(), "judge": whole[1::2].clone()}
    classify = network.cpu().classify
    features = {k: each.cpu() for k, each in features.items()}
    logits = {k: classify(each) for k, each in features.items() if k != "train"}
    width = features["train"].shape[1]
    bias = classify(torch.zeros(1, width))
    weight = (classify(torch.eye(width)) - bias).T.contiguous()
    return Given(features, logits, labels, (weight, bias[0]))


@torch.inference_mode()
def _augmented(trained: Artifact, limit: int | None, device: torch.device) -> Tensor:
    prepared = PreparedData.open(trained.record["request"]["data"])
    network, protocol = restore_network(trained, prepared.info, device)
    kind = protocol.augmentation or prepared.info.inputs.augmentation
    batcher = prepared.info.inputs.batcher(prepared.search().train.values[:limit], device)
    views = (extract_features(network, batcher, kind, n).cpu() for n in range(VIEWS))
    return torch.stack(list(views))


def trained_heads(
    study: Study,
    network: Network,
    settings: Sequence[dict[str, Any]],
    inferences: Iterable[str],
    limit: int | None,
    own_weights: bool = False,
) -> list[dict[str, Any]]:
    """Train heads together; return their settings and figures, for every inference.

    Args:
        study: Has the features.
        network: Whose.
        settings: The parameters of each head.
        inferences: What each head is read with.
        limit: Training rows, None for all.
        own_weights: Whether heads of one layer begin with the network's own classifier.
    """
    given = study.given(network)
    views = study.views(network, settings[0].get("views", "original"), limit)
    views = [view.to(study.device) for view in views]
    choose = given.features["choose"].to(study.device), given.labels["choose"].to(study.device)
    trainers = [
        HeadTrainer(
            build_refinement("macal", hidden=SCREENED_HIDDEN if limit else HIDDEN, **own),
            views,
            given.labels["train"][:limit],
            num_classes=given.logits["test"].shape[1],
            batch_size=network.trained.record["request"]["protocol"]["batch_size"],
            momentum=0.9,
            weight_decay=5e-4,
            seed=0,
            device=study.device,
            held_out=choose,
        )
        for own in settings
    ]
    if own_weights:
        for trainer in trainers:
            weight, bias = given.classifier
            trainer.head.load_state_dict(
                {"layers.0.weight": weight, "layers.0.bias": bias}, strict=False
            )
    together = HeadsTogether(trainers)
    for _ in range(trainers[0].refinement.epochs):
        together.train_epoch()
    return [
        {**own, "inference": inference, **measured(trainer, inference, given)}
        for own, trainer in zip(settings, trainers, strict=True)
        for inference in inferences
    ]


@torch.no_grad()
def measured(trainer: HeadTrainer, inference: str, given: Given) -> dict[str, Any]:
    """Return the figures of a head: q, those of every part, and whether NLL is clearly lower."""
    trainer.head.inference = inference  # type: ignore[assignment]
    head = trainer.head.cpu()
    outputs = {part: head(given.features[part]) for part in given.logits}
    found: dict[str, Any] = {"q": float(trainer.head.get_buffer("q"))}
    if not all(bool(each.isfinite().all()) for each in outputs.values()):
        return {**found, "diverged": True}
    found |= {part: report(each, given.labels[part]) for part, each in outputs.items()}
    labels = given.labels["choose"]
    own, new = (row_terms("nll", rows["choose"], labels) for rows in (given.logits, outputs))
    error = float((own - new).std()) / len(labels) ** 0.5
    return {**found, "better": float((own - new).mean()) > error}


def report(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics of interest, fractions."""
    found = calibration_report(logits=logits, labels=labels)
    return {name: found[name] for name in METRICS}


def alone(study: Study, network: Network) -> dict[str, Any]:
    """Return the figures of a network itself, and with a temperature."""

    def compute() -> dict[str, Any]:
        given = study.given(network)
        ts = build_calibrator("ts").fit(given.logits["choose"], given.labels["choose"])
        own = {part: report(rows, given.labels[part]) for part, rows in given.logits.items()}
        scaled = {part: report(ts(rows), given.labels[part]) for part, rows in given.logits.items()}
        return {"own": own, "ts": scaled}

    return study.kept(f"{network.trained.key}-alone", compute)


def curve(
    study: Study, network: Network, reading: Reading, limit: int | None, sparsity: str = "decaying"
) -> list[dict[str, Any]]:
    """Return the figures of a reading's heads, one a gamma."""
    trained = reading
    if len(reading.inferences) > 1:
        trained = replace(reading, inference="scaled")
    settings = [
        {**asdict(trained), "gamma": g, "sparsity": sparsity} for g in reading.gammas(limit)
    ]
    name = curve_name(network, trained, limit, sparsity)
    found = study.kept(
        name, lambda: trained_heads(study, network, settings, reading.inferences, limit)
    )
    return [head for head in found if head["inference"] == reading.inference]


def curve_name(
    network: Network, reading: Reading, limit: int | None, sparsity: str = "decaying"
) -> str:
    """Return under which name a reading's heads are kept."""
    return f"{network.trained.key}-{limit or 'all'}-{sparsity}-{reading.name}"


def fixed_rows(
    study: Study, network: Network, reading: Reading, limit: int | None, own_weights: bool
) -> dict[str, dict[str, Any]]:
    """Return the heads whose q is 0.5 throughout, by row of Table 5."""
    found = {}
    for step, switches in FIXED.items():
        names = ("resample", "optimizer", "views")
        settings = {**{name: getattr(reading, name) for name in names}, **switches}
        begins = own_weights and "restructure" in switches
        if not settings.get("restrict_gradient", True):
            settings["optimizer"] = "plain"  # Without effect there.
        label = " ".join(map(str, [*settings.values(), begins]))
        heads = study.kept(
            f"{network.trained.key}-{limit or 'all'}-{label}",
            partial(trained_heads, study, network, [settings], INFERENCES, limit, begins),
        )
        found[step] = next(head for head in heads if head["inference"] == reading.inference)
    return found


def chosen(study: Study, network: Network, heads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the head of lowest ECE on the rows that choose, with a sweep's guard of accuracy."""
    floor = alone(study, network)["own"]["choose"]["acc"] - TOLERANCE

    def error(head: dict[str, Any]) -> float:
        if "diverged" in head:
            return math.inf
        return float(head["choose"]["ece"] + max(0.0, floor - head["choose"]["acc"]))

    return min(heads, key=error)


def table5(
    study: Study, network: Network, reading: Reading, limit: int | None, own_weights: bool
) -> list[dict[str, Any]]:
    """Return the figures of the six rows of Table 5."""
    rows = [alone(study, network)["own"]]
    rows += fixed_rows(study, network, reading, limit, own_weights).values()
    for sparsity in ("adaptive", "decaying"):
        rows.append(chosen(study, network, curve(study, network, reading, limit, sparsity)))
    return rows


def published(dataset: str, metric: str) -> list[float]:
    """Return the paper's six rows, percent."""
    table = load_published("results").query("paper == 'macal' and table == 'Table 5'")
    own = table[(table["dataset"] == dataset) & (table["metric"] == metric)]
    return [float(value) for value in own["value"]]


def distance(found: Sequence[float], wanted: Sequence[float]) -> float:
    """Return the root mean square, over the rows, of log ratios to the first row's ECE."""
    logs = [
        math.log(max(a, 1e-6) / found[0]) - math.log(b / wanted[0])
        for a, b in zip(found[1:], wanted[1:], strict=True)
    ]
    return math.sqrt(mean(each**2 for each in logs))


def all_readings() -> list[Reading]:
    """Return every screened reading, those of one training apart."""
    spread = [replace(r, inference=name) for r in screened() for name in r.inferences]
    return list(dict.fromkeys(spread))


def screen(study: Study, network: Network) -> None:
    """Compute what the screening needs, what matters most first."""
    for own in (False, True):
        table5(study, network, SHIPPED, SCREENED_ROWS, own)
    for reading in (*CONFIRMED, *screened()):
        curve(study, network, reading, SCREENED_ROWS)
    for reading in best(study, network):
        for own in (False, True):
            table5(study, network, reading, SCREENED_ROWS, own)
        curve(study, network, replace(reading, views="augmented"), SCREENED_ROWS)


def best(study: Study, network: Network, count: int = 3) -> list[Reading]:
    """Return the readings of lowest ECE on the rows that judge, of those that keep accuracy."""
    own = alone(study, network)["own"]["judge"]["acc"]
    scored = []
    for reading in all_readings():
        trained = replace(reading, inference=reading.inferences[0])
        if not study.has(curve_name(network, trained, SCREENED_ROWS)):
            continue
        head = chosen(study, network, curve(study, network, reading, SCREENED_ROWS))
        if "diverged" not in head and head["judge"]["acc"] > own - 2 * TOLERANCE:
            scored.append((head["judge"]["ece"], reading.name, reading))
    return [reading for *_, reading in sorted(scored)[:count]]


def confirm(study: Study, found: Sequence[Network]) -> None:
    """Compute what the confirmation needs."""
    for reading, network in itertools.product(CONFIRMED, found):
        alone(study, network)
        curve(study, network, reading, None)
    for network, own in itertools.product(found, (False, True)):
        table5(study, network, SHIPPED, None, own)


def cell(figures: dict[str, Any], part: str, metric: str) -> str:
    """Return a figure in percent; a dash where the head diverged."""
    return "–" if part not in figures else f"{100 * figures[part][metric]:.2f}"


def screening_tables(study: Study, network: Network) -> Iterator[str]:
    """Yield the screening: every reading, and Table 5 under the best."""
    yield from table(
        ["reading", "gamma", "ECE", "acc", "mean ECE over gamma", "q at 0 or its cap"], ()
    )
    own = alone(study, network)
    for label in ("own", "ts"):
        yield row((label, "", cell(own[label], "judge", "ece"), cell(own[label], "judge", "acc")))
    lines = []
    extra = [replace(SHIPPED, clock="crossing"), replace(SHIPPED, views="augmented")]
    for reading in [*all_readings(), *extra]:
        try:
            heads = curve(study, network, reading, SCREENED_ROWS)
        except LookupError:
            continue
        head, kept = chosen(study, network, heads), [h for h in heads if "diverged" not in h]
        flat = mean(h["judge"]["ece"] for h in kept) if kept else math.inf
        ends = sum(h["q"] <= 0 or h["q"] >= 1 - 1 / SCREENED_HIDDEN for h in heads)
        figures = [cell(head, "judge", name) for name in ("ece", "acc")]
        order = head.get("judge", {}).get("ece", math.inf)
        order += max(0.0, own["own"]["judge"]["acc"] - TOLERANCE - head["judge"]["acc"])
        whole = [reading.name, head["gamma"], *figures, f"{100 * flat:.2f}"]
        lines.append((order, row((*whole, f"{ends} of {len(heads)}"))))
    yield from (line for _, line in sorted(lines))


def table5_tables(
    study: Study, networks: Sequence[Network], readings: Sequence[Reading], limit: int | None
) -> Iterator[str]:
    """Yield Table 5 on the rows that judge, with the distance from the paper's."""
    yield from table(["reading", "network", *ROWS, "distance"], ())
    for network in networks:
        dataset = network.dataset if network.dataset in PAPER else PAPER[0]
        for metric in ("ece", "acc"):
            yield row((f"paper, {metric}", dataset, *published(dataset, metric), ""))
        for reading, own in itertools.product(readings, (False, True)):
            found = table5(study, network, reading, limit, own)
            for metric in ("ece", "acc"):
                values = [100 * each["judge"][metric] for each in found]
                far = distance(values, published(dataset, metric)) if metric == "ece" else math.nan
                name = f"{reading.name}{', own weights' if own else ''}, {metric}"
                cells = [f"{value:.2f}" for value in values]
                shown = f"{far:.2f}" if metric == "ece" else ""
                yield row((name, network.title, *cells, shown))


def confirming_tables(
    study: Study, found: Sequence[Network], part: str, limit: int | None
) -> Iterator[str]:
    """Yield every network under the confirmed readings, each at the gamma that is chosen."""
    yield from table(["network", "reading", "gamma", "ECE", "acc", "NLL", "accepted"], ())
    for network in found:
        own = alone(study, network)
        for label in ("own", "ts"):
            figures = [cell(own[label], part, name) for name in ("ece", "acc")]
            yield row((network.title, label, "", *figures, f"{own[label][part]['nll']:.4f}", ""))
        for reading in CONFIRMED:
            head = chosen(study, network, curve(study, network, reading, limit))
            figures = [cell(head, part, name) for name in ("ece", "acc")]
            accepted = "yes" if head["better"] else "no"
            nll = f"{head[part]['nll']:.4f}"
            yield row((network.title, reading.name, head["gamma"], *figures, nll, accepted))


def gamma_tables(
    study: Study, found: Sequence[Network], part: str, limit: int | None
) -> Iterator[str]:
    """Yield ECE against gamma, as Fig. 7 has it: each column is one gamma for all networks."""
    for reading in CONFIRMED:
        gammas = reading.gammas(limit)
        if len(gammas) == 1:
            continue
        yield f"\n{reading.name}:\n"
        yield from table(["network", *map(str, gammas)], ())
        curves = [curve(study, network, reading, limit) for network in found]
        for network, heads in zip(found, curves, strict=True):
            for metric in ("ece", "acc"):
                yield row((f"{network.title} {metric}", *[cell(h, part, metric) for h in heads]))
            yield row((f"{network.title} q", *[f"{h['q']:.3f}" for h in heads]))
        if len(found) > 1:
            means = [mean(h[part]["ece"] for h in heads) for heads in zip(*curves, strict=True)]
            yield row(("mean ece", *[f"{100 * value:.2f}" for value in means]))


def computed(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines up to the first that is not computed yet."""
    try:
        yield from lines
    except LookupError as error:
        yield f"\n{error}"


def page(study: Study, found: Sequence[Network], part: str) -> Iterator[str]:
    """Yield the lines of the page's tables; ``part`` is what networks are confirmed on."""
    yield f"{describe(study.device)}; {study.seconds:.0f} seconds for all heads.\n"
    if study.has(curve_name(found[0], SHIPPED, SCREENED_ROWS)):
        first, rows = found[:1], f"{SCREENED_ROWS} training rows"
        yield f"## The readings tried, {first[0].title}, {rows}\n"
        yield from computed(screening_tables(study, first[0]))
        yield "\n## Table 5, the same rows\n"
        yield from computed(table5_tables(study, first, [SHIPPED], SCREENED_ROWS))
        yield "\n## Table 5 under the best of them\n"
        yield from computed(table5_tables(study, first, best(study, first[0]), SCREENED_ROWS))
        yield f"\n## The options, {rows}, {part} rows\n"
        yield from computed(confirming_tables(study, first, part, SCREENED_ROWS))
        yield from computed(gamma_tables(study, first, part, SCREENED_ROWS))
    if study.has(curve_name(found[0], SHIPPED, None)):
        yield f"\n## All networks, all training rows, {part} rows\n"
        yield from computed(confirming_tables(study, found, part, None))
        yield from computed(gamma_tables(study, found, part, None))
        yield "\n## Table 5, all training rows\n"
        yield from computed(table5_tables(study, found, [SHIPPED], None))


def main() -> None:
    """Compute a part of the study, or print its tables."""
    parser = options(__doc__)
    parser.add_argument("part", choices=("screen", "confirm", "page"))
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--only", nargs="+", help="networks, such as 'cifar10 ce 2'; else all")
    parser.add_argument("--test", action="store_true", help="show figures of test rows")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(wanted.cache, wanted.part != "page", torch.device(wanted.device))
    found = networks(Storage(wanted.storage))
    if wanted.only:
        found = [network for network in found if network.title in wanted.only]
    if not found:
        sys.exit(f"{wanted.storage} holds no such finished training")
    if wanted.part == "screen":
        screen(study, found[0])
    elif wanted.part == "confirm":
        confirm(study, found)
    else:
        part = "test" if wanted.test else "judge"
        known = [network for network in found if study.has(f"{network.trained.key}-alone")]
        text = "\n".join(page(study, known, part)) + "\n"
        publish(text, wanted.out)


if __name__ == "__main__":
    main()
