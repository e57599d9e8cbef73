r"""Finds the best learning rate and number of epochs for heads on cached features.

    OMP_NUM_THREADS=1 python benchmarks/feature_heads.py ../shared/data/20newsgroups \
        --out benchmarks/results/feature-heads.md

Both heads are trained with cross-entropy, the protocol ``features`` and seed 0 at each setting on
three sets of features, and compared on validation rows.
"""

import json
import lzma
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from _page import options, publish, setting, table
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from trainables.data import SplitSpec, prepare
from trainables.stages import StageRequest, TaskData, open_stage
from trainables.stages.protocols import protocol_from
from trainables.store.artifacts import ArtifactStore

RATES, EPOCHS, HEADS = (0.003, 0.01, 0.03, 0.1), (10, 20), ("linear", "mlp")
QUESTION = "Which learning rate do heads on cached features need?"
Arrays = tuple[np.ndarray, np.ndarray]


def newsgroups(folder: Path) -> Arrays:
    """Return 256 SVD components of the training texts' TF-IDF, and their labels."""
    with lzma.open(folder / "train.jsonl.xz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line) for line in file]
    words = TfidfVectorizer(max_features=20_000).fit_transform(text["text"] for text in texts)
    reduced = TruncatedSVD(256, random_state=0).fit_transform(words)
    return reduced.astype(np.float32), np.array([text["label"] for text in texts])


def clusters() -> Arrays:
    """Return 10,000 rows (256 dimensions) of 100 overlapping classes, like good features."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 100, 10_000)
    centres = draw.normal(size=(100, 256)) * 0.22
    return (centres[labels] + draw.normal(size=(10_000, 256))).astype(np.float32), labels


def trained(data: TaskData, folder: Path, head: str, rate: float, epochs: int) -> dict:
    """Return the validation figures of a head."""
    request = StageRequest(
        stage="train",
        parts={"ce": {}},
        data=str(data.prepared.directory),
        model=head,
        protocol=protocol_from({"base": "features", "lr": rate, "epochs": epochs}).to_dict(),
        seed=0,
    )
    run = open_stage(request, ArtifactStore(folder / "artifacts"), data)
    metrics: dict[str, float] = {}
    while run.epoch < run.epochs:
        metrics = run.run_epoch()
    return metrics


def main() -> None:
    """Train all heads and print the page."""
    parser = options(__doc__)
    parser.add_argument("newsgroups", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    digits = load_digits()
    sets = {
        "digits": (digits.data.astype(np.float32), digits.target),
        "20 Newsgroups": newsgroups(given.newsgroups),
        "clusters": clusters(),
    }
    started, rows, shown = time.process_time(), [], []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for place, (title, (features, labels)) in enumerate(sets.items()):
            np.savez(root / f"{place}.npz", features=features, labels=labels)
            source = f"features:{root / f'{place}.npz'}"
            split = SplitSpec(validation=0.25, test=0.1)
            data = TaskData(prepare(source, root, split, root / "data"), torch.device("cpu"))
            for head, epochs, rate in product(HEADS, EPOCHS, RATES):
                found = trained(data, root, head, rate, epochs)
                nll, acc = found["val_nll"], found["val_acc"]
                rows.append((title, head, epochs, rate, f"{nll:.4f}", f"{acc:.4f}"))
    for title, head, epochs in product(sets, HEADS, EPOCHS):
        own = [row for row in rows if row[:3] == (title, head, epochs)]
        shown.append((title, head, epochs, *(f"{r[4][:5]} ({100 * float(r[5]):.1f})" for r in own)))
    columns = ("features", "head", "epochs", *(f"lr {rate}" for rate in RATES))
    seconds = f"{time.process_time() - started:.0f} s of CPU time"
    lines = ["Validation NLL (accuracy in %).", "", *table(columns, shown)]
    names = ("features", "head", "epochs", "lr", "val_nll", "val_acc")
    publish(QUESTION, lines, f"{setting('torch')}; {seconds}.", given.out, {"": (names, rows)})


if __name__ == "__main__":
    main()
