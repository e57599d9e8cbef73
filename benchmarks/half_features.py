"""What refinements lose when the stored features of a CPU are rounded to half precision.

Run it as

    OMP_NUM_THREADS=1 python benchmarks/half_features.py --data cifar10.npz \
        --out benchmarks/results/half-features.md

A network is trained on the digits, and one on images of an .npz file if ``--data`` names it. Then
every refinement is trained on the network's features as they are, rounded, and moved by one unit in
the last place of float32: the last says how much of a difference is the training's own sensitivity.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from _machine import describe
from _page import options, publish
from torch import Tensor

from search_spaces import load_space
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.stages import RefineStage, StageRequest, TaskData, open_stage
from trainables.stages.protocols import protocol_from
from trainables.stages.refine import load_features
from trainables.store.artifacts import Artifact, ArtifactStore

ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "float32, last bit": lambda x: torch.nextafter(x, torch.full_like(x, math.inf)),
    "float16": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
}
REFINEMENTS = ("macal", "tst", "vtst")
METRICS = ("acc", "nll", "ece", "aece")
FEW = SplitSpec(validation=2000, test_limit=100, train_limit=5000)
PROTOCOL = "mukhoti2020/0.03"


def compute(wanted: StageRequest, store: ArtifactStore, task: TaskData) -> Artifact:
    """Compute a stage."""
    run = open_stage(wanted, store, task)
    metrics: dict[str, float] = {}
    while run.epoch < run.epochs:
        metrics = run.run_epoch()
    return run.finish(metrics)


def refined(
    trained: Artifact,
    name: str,
    features: dict[str, Tensor],
    store: ArtifactStore,
    task: TaskData,
    seed: int,
) -> tuple[Tensor, dict[str, float]]:
    """Refine at the published values; return validation logits (M, K) and metrics."""
    parts = {name: load_space("refinements", name).default_point()}
    fields = {**trained.record["request"], "stage": "refine", "parts": parts, "seed": seed}
    wanted = StageRequest(**{**fields, "upstream": trained.key, "upstream_stage": "train"})
    run = RefineStage(wanted, store, task, features)
    while run.epoch < run.epochs:
        figures = run.run_epoch()
    return run.head_logits(), {metric: figures[f"val_{metric}"] for metric in METRICS}


def differences(
    trained: Artifact, name: str, store: ArtifactStore, task: TaskData, seeds: int
) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Yield, for each rounding, the largest differences over the seeds from unrounded features."""
    exact, _ = load_features(trained, store, task)
    plain = [refined(trained, name, exact, store, task, seed) for seed in range(seeds)]
    for rounding, function in ROUNDINGS.items():
        rounded = {part: function(values) for part, values in exact.items()}
        far, worst = 0.0, dict.fromkeys(METRICS, 0.0)
        for seed, (logits, figures) in enumerate(plain):
            other, metrics = refined(trained, name, rounded, store, task, seed)
            far = max(far, float((other - logits).abs().max()))
            worst = {m: max(worst[m], abs(metrics[m] - figures[m])) for m in METRICS}
        yield rounding, far, worst


def measure(
    prepared: PreparedData, model: str, protocol: str, folder: Path, seeds: int
) -> Iterator[str]:
    """Train a network and yield the rows of the table."""
    store, task = ArtifactStore(folder / "artifacts"), TaskData(prepared, torch.device("cpu"))
    fields = protocol_from(protocol).to_dict()
    wanted = StageRequest("train", {"ce": {}}, str(prepared.directory), model, fields, seed=0)
    trained = compute(wanted, store, task)
    rows = len(task.validation_labels)
    for name in REFINEMENTS:
        for rounding, far, worst in differences(trained, name, store, task, seeds):
            figures = " | ".join(f"{worst[metric]:.1e}" for metric in METRICS)
            yield f"| {model} | {rows} | {name} | {rounding} | {far:.1e} | {figures} |"


def main() -> None:
    """Print the figures."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, help="an .npz file of images, such as CIFAR-10's")
    parser.add_argument("--seeds", type=int, default=3)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        digits = prepare("digits", folder, SplitSpec(), folder / "data")
        rows += measure(digits, "convnet", "digits", folder, wanted.seeds)
        if wanted.data is not None:
            images = prepare(f"npz:{wanted.data.resolve()}", folder, FEW, folder / "data")
            rows += measure(images, "resnet8", PROTOCOL, folder, wanted.seeds)
    text = "\n".join(
        [
            "# Features in half precision",
            "",
            f"{describe(torch.device('cpu'))}",
            "",
            "- Largest absolute differences, over the validation rows and "
            f"{wanted.seeds} seeds of the",
            "  refinement, from a refinement on the features as the network gives them.",
            "- *float32, last bit*: every feature moved to the next number: how sensitive the",
            "  training of a head is by itself.",
            "- `convnet` is trained on the digits; `resnet8` on 5,000 images of CIFAR-10 by",
            f"  `{PROTOCOL}`. Refinements run at their published values. Metrics are fractions.",
            "",
            "| network | rows | refinement | features | Δ logit | Δ acc | Δ NLL | Δ ECE | Δ AECE |",
            "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |",
            *rows,
            "",
        ]
    )
    publish(text, wanted.out)


if __name__ == "__main__":
    main()
