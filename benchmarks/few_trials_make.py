"""Makes the blackbox of ``few_trials.py``: small heads on features, trained in this process.

    python benchmarks/few_trials_make.py FOLDER cifar10.npz cifar100.npz 20newsgroups

Features, studies and the blackbox are written to FOLDER; a later run continues after the last
study there. The archives contain ``x_train``, ``y_train``, ``x_test`` and ``y_test``, with images
(N, 32, 32, 3); the last folder contains ``train.jsonl.xz`` and ``test.jsonl.xz``.
"""

import argparse
import json
import lzma
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import qmc
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv2d, cross_entropy

from search_spaces import Parameter, load_space
from trainables.common.errors import TrainingDivergedError
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.methods import build_method
from trainables.metrics import calibration_report, row_terms
from trainables.stages.engine import Trainer, predict
from trainables.stages.protocols import Protocol, protocol_from

METHODS = ("ls", "fl", "mbls", "acls", "mdca", "esd", "au", "mixup", "cpc", "ecp")
# Task: data set whose published values are used, batch size, learning rate.
TASKS = {
    "digits/mlp": ("digits", 50, 0.01),
    "digits-noisy/mlp": ("digits-noisy", 50, 0.01),
    "newsgroups/mlp": ("20newsgroups", 100, 0.005),
    "newsgroups/linear": ("20newsgroups", 100, 0.05),
    "cifar10/mlp": ("cifar10", 100, 0.01),
    "cifar100/mlp": ("cifar100", 100, 0.01),
}
CONFIGURATIONS = 101
"""Of each method: the published default and 100 points of a Sobol sequence."""

CPU = torch.device("cpu")
TEMPERATURES = np.geomspace(0.5, 6, 24)


def features(folder: Path, archives: Mapping[str, Path], texts: Path) -> None:
    """Write one file of features per data set."""
    rng = np.random.default_rng(0)
    pixels, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(pixels))
    pixels, labels = pixels[order] / 16, labels[order]
    noisy = pixels + rng.normal(0, 0.6, pixels.shape)
    for name, rows in (("digits", pixels), ("digits-noisy", noisy)):
        _save(folder / f"{name}.npz", rows[:1100], labels[:1100], rows[1100:], labels[1100:], 500)
    _save(folder / "newsgroups.npz", *_text_features(texts, rng), 2000)
    for name, path in archives.items():
        _save(folder / f"{name}.npz", *_image_features(path, rng), 2000)


def _save(path: Path, x: Any, y: Any, x_test: Any, y_test: Any, train: int) -> None:
    parts = {
        "train": (x[:train], y[:train]),
        "validation": (x[train:], y[train:]),
        "test": (x_test, y_test),
    }
    arrays = {f"features_{part}": rows.astype(np.float32) for part, (rows, _) in parts.items()}
    arrays |= {f"labels_{part}": own.astype(np.int64) for part, (_, own) in parts.items()}
    np.savez(path, **arrays)


def _text_features(folder: Path, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return 128 TF-IDF components and labels of 2,600 training and 2,500 test articles."""
    drawn = {}
    for part, count in (("train", 2600), ("test", 2500)):
        with lzma.open(folder / f"{part}.jsonl.xz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        drawn[part] = [rows[place] for place in rng.permutation(len(rows))[:count]]
    words = {p: [row["text"].split("\n\n", 1)[-1] for row in rows] for p, rows in drawn.items()}
    labels = {p: np.array([row["label"] for row in rows]) for p, rows in drawn.items()}
    count = TfidfVectorizer(sublinear_tf=True, min_df=3, max_features=20000, stop_words="english")
    components = TruncatedSVD(128, random_state=0)
    components.fit(count.fit_transform(words["train"][:2000]))
    found = {p: components.transform(count.transform(texts)) for p, texts in words.items()}
    return found["train"], labels["train"], found["test"], labels["test"]


def _image_features(path: Path, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return 256 features (64 whitened patches) of 2,600 training and 2,500 test images."""
    with np.load(path) as found:
        drawn = rng.permutation(len(found["x_train"]))[:2600]
        shown = rng.permutation(len(found["x_test"]))[:2500]
        x, y = found["x_train"][drawn] / 255, found["y_train"][drawn].ravel()
        x_test, y_test = found["x_test"][shown] / 255, found["y_test"][shown].ravel()
    places = zip(*(rng.integers(0, high, 8000) for high in (2000, 27, 27)), strict=True)
    patches = np.stack(
        [x[i, r : r + 6, c : c + 6].transpose(2, 0, 1).ravel() for i, r, c in places]
    )
    mean = patches.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(patches.T))
    whiten = (vectors / np.sqrt(values + 0.05)) @ vectors.T
    chosen = (patches[rng.permutation(8000)[:64]] - mean) @ whiten
    filters = chosen / np.linalg.norm(chosen, axis=1, keepdims=True) @ whiten
    weight = torch.from_numpy(filters.reshape(64, 3, 6, 6).astype(np.float32))
    bias = torch.from_numpy(-(filters @ mean).astype(np.float32))

    def pooled(images: np.ndarray) -> np.ndarray:
        rows = torch.from_numpy(images.astype(np.float32)).permute(0, 3, 1, 2)
        return adaptive_avg_pool2d(conv2d(rows, weight, bias, stride=2).abs(), 2).flatten(1).numpy()

    return pooled(x), y, pooled(x_test), y_test


def figures(logits: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Return NLL, accuracy, ECE, and NLL at the best of ``TEMPERATURES``."""
    report = calibration_report(logits=logits, labels=labels)
    after = min(float(cross_entropy(logits.double() / t, labels)) for t in TEMPERATURES)
    return report["nll"], report["acc"], report["ece"], after


def trained(
    model: str, method: str, point: Mapping[str, Any], data: PreparedData, protocol: Protocol
) -> dict[str, np.ndarray] | None:
    """Return the arrays of one training for the blackbox; None if it diverged."""
    rows, test = data.search(), data.test()
    method_built = build_method({method: dict(point)})
    trainer = Trainer(model, method_built, rows.train, data.info, protocol, 0, CPU)
    batcher = data.info.inputs.batcher(rows.validation.values, CPU)
    labels = torch.from_numpy(rows.validation.labels.copy())
    marks = {math.ceil(protocol.epochs * part / 3) for part in (1, 2, 3)}
    curve = []
    try:
        while trainer.epoch < protocol.epochs:
            trainer.train_epoch()
            if trainer.epoch in marks:
                logits = predict(trainer.network, batcher)
                curve.append(figures(logits, labels))
    except TrainingDivergedError:
        return None
    shown = predict(trainer.network, data.info.inputs.batcher(test.values, CPU))
    return {
        "nll": row_terms("nll", logits, labels).numpy().astype(np.float16),
        "right": np.packbits((logits.argmax(dim=1) == labels).numpy()),
        "curve": np.array(curve, np.float16),
        "test": np.array(figures(shown, torch.from_numpy(test.labels.copy())), np.float32),
    }


def points(method: str, dataset: str, model: str) -> list[dict[str, Any]]:
    """Return the configurations of a method: the published default, then a Sobol sequence."""
    space = load_space("methods", method)
    default, searched = space.default_point(dataset, model), space.searched()
    shares = qmc.Sobol(len(searched), seed=7).random(128)[: CONFIGURATIONS - 1]
    drawn = [
        {k: _value(p, u) for (k, p), u in zip(searched.items(), s, strict=True)} for s in shares
    ]
    return [default, *({**default, **values} for values in drawn)]


def _value(parameter: Parameter, share: float) -> Any:
    if parameter.type == "categorical":
        return parameter.choices[int(share * len(parameter.choices))]
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    if parameter.scale == "log":
        return float(low * (high / low) ** share)
    return float(low + share * (high - low))


def make(folder: Path) -> None:
    """Train every configuration and write the blackbox."""
    torch.set_num_threads(1)
    about: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for task, (dataset, size, rate) in TASKS.items():
        source, model = task.split("/")
        split = SplitSpec(validation="own", train_limit=500 if "digits" in source else 1000)
        data = prepare(f"features:{folder / source}.npz", folder, split, folder / "data")
        fields = {"name": "few", "epochs": 12, "optimizer": "adam", "weight_decay": 0.0}
        steps = {"lr": rate, "schedule": "cosine", "batch_size": size, "source": "ours"}
        protocol = protocol_from({**fields, **steps})
        plain = trained(model, "ce", {}, data, protocol)
        assert plain is not None
        arrays[f"plain/{task}"] = plain["right"]
        for method in METHODS:
            tried = points(method, dataset, model)
            path = folder / f"{source}-{model}-{method}.npz"
            if not path.exists():
                _train_study(path, model, method, tried, data, protocol)
            with np.load(path) as study:
                arrays |= {
                    f"{len(about)}/{name}": study[name] for name in study if name != "numbers"
                }
                numbers = study["numbers"].tolist()
            names = load_space("methods", method).searched()
            shown = [{name: tried[number][name] for name in names} for number in numbers]
            named = {"task": task, "dataset": dataset, "method": method}
            about.append({**named, "numbers": numbers, "points": shown})
    np.savez_compressed(folder / "few-trials.npz", about=json.dumps(about), **arrays)


def _train_study(
    path: Path,
    model: str,
    method: str,
    tried: list[dict[str, Any]],
    data: PreparedData,
    protocol: Protocol,
) -> None:
    stacked: dict[str, list[Any]] = defaultdict(list)
    for number, point in enumerate(tried):
        found = trained(model, method, point, data, protocol)
        if found is not None:
            for name, values in {"numbers": number, **found}.items():
                stacked[name].append(values)
    np.savez(path, **{name: np.array(values) for name, values in stacked.items()})
    print(path.stem, flush=True)


def main() -> None:
    """Make the features, train, and write the blackbox."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "cifar10", "cifar100", "newsgroups"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    features(
        given.folder, {n: getattr(given, n) for n in ("cifar10", "cifar100")}, given.newsgroups
    )
    make(given.folder)


if __name__ == "__main__":
    main()
