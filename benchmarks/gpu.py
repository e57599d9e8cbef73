"""Tries all that is for a GPU on one, and measures it: tests, throughput, heads, precision, trials.

Run it as

    python benchmarks/gpu.py --data FOLDER --out docs/results/gpu.md

on a machine with a card, where ``FOLDER`` holds CIFAR-10; without it no trials are tracked. It runs
the tests that need a card and ``calsweep doctor``, then measures, side by side with what it is
compared with. Every part has a process of its own, which a fault of the card ends alone: what
cannot be measured says why, and the rest goes on. ``--quick`` takes a few steps of everything, to
see that it works. Where there is no card it says that.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _machine import clock, describe, training_images
from _plain_loop import PlainLoop

from orchestrator.running.run import run_sweep
from orchestrator.storage.journal import read_events
from orchestrator.sweep.spec import parse_sweep
from trainables.common.devices import default_device, trial_device
from trainables.common.faults import reason_of
from trainables.data import DatasetInfo, RowArrays, SplitSpec, prepare
from trainables.methods import build_method
from trainables.metrics import calibration_report
from trainables.refinements import HeadsTogether, HeadTrainer, build_refinement
from trainables.stages.engine import Trainer, predict
from trainables.stages.protocols import Protocol

BATCH, WORKERS = 128, 8
STEPS, ROUNDS = 200, 5
HEADS, FEATURES, CLASSES, ROWS = 64, 2048, 100, 45_000
ACCURACY = 0.94
LIMIT_SECONDS = 3600  # Of a part.
TESTS, RATES, MANY, PRECISION, TRACKED = "Tests", "ResNet-50", "Heads", "Precision", "Tracked"
PARTS = (TESTS, RATES, MANY, PRECISION, TRACKED)
SWEEP = """
name: gpu
tasks:
  - name: cifar10/resnet18/gpu
    dataset: cifar10
    model: resnet18
    protocol:
      {{epochs: {epochs}, batch_size: 512, lr: 0.4, schedule: cosine, warmup: 3, nesterov: true,
        augmentation: crop-flip, compile: {compiled}}}
recipes: [ls]
search: {{trials: {trials}, sampler: random}}
resources: {{concurrent: 1, graph: {graph}, train: {{cpu: 2, gpu: 1}}}}
data_root: {data}
storage: {storage}
"""

EXPLANATION = f"""\
- *ResNet-50*: images a second of short epochs of {STEPS} batches of {BATCH} random images of
  CIFAR-10's form, random crops and flips, cross-entropy; the engine (bfloat16, channels last,
  images on the card) and the papers' loop (a DataLoader with {WORKERS} workers, channels first,
  float32, a loss read back every step) in turn, {ROUNDS} rounds after one that does not count.
  *compiled* is the engine with `compile: true`, *recorded* with `graph: true`, and said is what it
  then remarks. Medians, with the smallest and largest.
- *heads*: one epoch of {HEADS} MaC-Cal heads (one width, {ROWS:,} rows of {FEATURES:,} features,
  {CLASSES} classes), together and one by one; the second epoch counts.
- *precision*: `resnet18`, trained for a quarter of the trials' epochs, twice with the same seed, on
  CIFAR-10 if it is there, else on random images; accuracy and ECE are those of validation rows, and
  *same bits* says whether both gave the same logits, as `deterministic: true` promises and
  `reproduce` then expects.
- *tracked*: a sweep of trials of `resnet18` on CIFAR-10, from a trial's start to its end as the
  journal has them, tracked in MLflow; the accuracy is the validation rows'. *After them* come the
  evaluations on test data, several in a process, and the end of the sweep.
"""


@dataclass(frozen=True)
class Effort:
    """How many steps an epoch has, and how many epochs count."""

    quick: bool = False
    steps: int = STEPS
    rounds: int = ROUNDS


def spread(values: list[float]) -> str:
    """Return the median with the smallest and largest."""
    return f"{np.median(values):,.4g} ({min(values):,.4g} to {max(values):,.4g})"


def rates(
    run: dict[str, Callable[[], object]], device: torch.device, effort: Effort
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return images a second of each, in turn, and why others could not be measured."""
    found: dict[str, list[float]] = {name: [] for name in run}
    failed: dict[str, str] = {}
    for turn in range(effort.rounds + 1):
        for name in [name for name in run if name not in failed]:
            started = clock(device)
            try:
                run[name]()
            except Exception as error:  # noqa: BLE001 - said in the page
                failed[name] = reason_of(error)
                continue
            if turn:
                found[name].append(effort.steps * BATCH / (clock(device) - started))
    return {name: values for name, values in found.items() if name not in failed}, failed


def throughput(device: torch.device, effort: Effort) -> list[str]:
    """Return the lines on ResNet-50."""
    arrays, info = training_images(None, effort.steps * BATCH)
    trainers = {
        name: Trainer(
            "resnet50",
            build_method({"ce": {}}),
            arrays,
            info,
            _protocol("compiled" in name, effort.rounds + 1),
            0,
            device,
            "bfloat16",
            "recorded" in name,
        )
        for name in ("engine", "recorded", "compiled", "compiled and recorded")
    }
    loop = PlainLoop(
        "resnet50", arrays, info, _protocol(False, effort.rounds + 1), 0, device, WORKERS
    )
    run: dict[str, Callable[[], object]] = {n: t.train_epoch for n, t in trainers.items()}
    found, failed = rates({**run, "plain loop": loop.train_epoch}, device, effort)
    lines = ["| ResNet-50 | images a second | times the plain loop |", "| --- | ---: | ---: |"]
    for name, values in found.items():
        plain = found.get("plain loop")
        times = spread(list(np.asarray(values) / np.asarray(plain))) if plain else ""
        lines.append(f"| {name} | {spread(values)} | {times} |")
    said = [f"{name}: {remark}" for name, made in trainers.items() for remark in made.remarks()]
    return [*lines, "", *(f"- {n}: not measured: {why}" for n, why in failed.items()), *said]


def _protocol(compiled: bool, epochs: int) -> Protocol:
    return Protocol(
        epochs=epochs,
        batch_size=BATCH,
        lr=0.01,
        augmentation="crop-flip",
        compile=compiled,
    )


def heads(device: torch.device, effort: Effort) -> list[str]:
    """Return the lines on many heads."""
    rows = effort.steps * BATCH if effort.quick else ROWS
    draw = torch.Generator().manual_seed(0)
    views = [torch.randn(rows, FEATURES, generator=draw).to(device)]
    labels = torch.randint(0, CLASSES, (rows,), generator=draw)

    def made() -> list[HeadTrainer]:
        return [
            HeadTrainer(
                build_refinement("macal", epochs=2, gamma=0.9 + 0.001 * number),
                views,
                labels,
                num_classes=CLASSES,
                batch_size=BATCH,
                momentum=0.9,
                weight_decay=5e-4,
                seed=0,
                device=device,
            )
            for number in range(HEADS)
        ]

    alone, together = made(), HeadsTogether(made())
    taken = {}
    for name, run in (
        ("one by one", lambda: [head.train_epoch() for head in alone]),
        ("together", together.train_epoch),
    ):
        run()
        started = clock(device)
        run()
        taken[name] = clock(device) - started
    ratio = taken["one by one"] / taken["together"]
    lines = [f"| {name} | {seconds:.3g} |" for name, seconds in taken.items()]
    header = [f"| {HEADS} heads | seconds an epoch |", "| --- | ---: |"]
    return [*header, *lines, f"| ratio | {ratio:.1f} |"]


def precision(data: Path | None, epochs: int, effort: Effort) -> list[str]:
    """Return the lines on what bfloat16 changes, and what kernels that sum in any order do."""
    with tempfile.TemporaryDirectory() as folder:
        train, held, info = _images(data, effort, Path(folder))
        lines = ["| training | accuracy | ECE | same bits |", "| --- | ---: | ---: | --- |"]
        # Those first: cuBLAS is told before its first product or not at all.
        for deterministic in (True, False):
            device = trial_device(1.0, deterministic)
            labels = torch.from_numpy(held.labels.copy()).to(device)
            batcher = info.inputs.batcher(held.values, device)
            for kind in ("bfloat16", "float32"):
                found = []
                for _ in range(2):
                    method, protocol = build_method({"ce": {}}), _protocol(False, epochs)
                    made = Trainer("resnet18", method, train, info, protocol, 0, device, kind)
                    for _ in range(epochs):
                        made.train_epoch()
                    found.append(predict(made.network, batcher))
                told = calibration_report(found[0], labels)
                name = f"{kind}, deterministic" if deterministic else kind
                same = "yes" if torch.equal(*found) else "no"
                lines.append(f"| {name} | {told['acc']:.2%} | {told['ece']:.3%} | {same} |")
    return lines


def _images(
    data: Path | None, effort: Effort, folder: Path
) -> tuple[RowArrays, RowArrays, DatasetInfo]:
    """Return training and validation rows of CIFAR-10, or random ones."""
    if data is None or effort.quick:
        arrays, info = training_images(None, 2 * effort.steps * BATCH)
        odd, even = slice(1, None, 2), slice(None, None, 2)
        parts = [RowArrays(arrays.values[each], arrays.labels[each]) for each in (even, odd)]
        return parts[0], parts[1], info
    prepared = prepare("cifar10", data, SplitSpec(validation=5000), folder)
    search = prepared.search()
    return search.train, search.validation, prepared.info


def ended(*command: str) -> list[str]:
    """Return the command, how it ended and the last line that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    last = [line for line in done.stdout.strip().splitlines() if not line.startswith("info")][-1:]
    return [f"- `{' '.join(command)}`: exit code {done.returncode}; {''.join(last)}"]


def tracked(data: Path | None, epochs: int, trials: int, compiled: bool, graph: bool) -> list[str]:
    """Return the lines on trials that are tracked."""
    if data is None:
        return ["Not measured: `--data` did not say where CIFAR-10 lies."]
    with tempfile.TemporaryDirectory() as storage:
        text = SWEEP.format(
            epochs=epochs,
            trials=trials,
            compiled=str(compiled).lower(),
            graph=str(graph).lower(),
            data=data.resolve(),
            storage=storage,
        )
        outcome = run_sweep(parse_sweep(text, "gpu"))
        if outcome.status != "finished":
            raise RuntimeError(f"the sweep ended as {outcome.status}")
        events = read_events(outcome.journal)[0]
    starts = {event.key: event.time for event in events if event.event == "trial_started"}
    ended = [event for event in events if event.event == "trial_finished"]
    rows = [
        f"| {number} | {(event.time - starts[event.key]) / 1000:.2f} "
        f"| {event.metrics['val_acc']:.2%} |"
        for number, event in enumerate(ended, 1)
    ]
    header = [f"| trial of {epochs} epochs | seconds | accuracy |", "| ---: | ---: | ---: |"]
    reached = sum(event.metrics["val_acc"] >= ACCURACY for event in ended)
    after = (events[-1].time - ended[-1].time) / 1000
    told = f"{reached} of {len(ended)} reached {ACCURACY:.0%}; {after:.2f} seconds after them."
    return [*header, *rows, "", told]


def main() -> None:
    """Measure, print the page and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--epochs", type=int, default=20, help="of a tracked trial")
    parser.add_argument("--trials", type=int, default=3, help="tracked")
    parser.add_argument("--compile", action="store_true", help="the tracked trials, too")
    parser.add_argument("--graph", action="store_true", help="record the tracked trials' steps")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument("--part", choices=PARTS, help="measure this alone; --out gets its lines")
    options = parser.parse_args()
    device = default_device()
    if device.type != "cuda":
        sys.exit("no card: torch sees no CUDA device here, so that nothing was measured")
    if options.part:
        text = "\n".join(measured(options, device))
        (options.out or Path("/dev/stdout")).write_text(text, encoding="utf-8")
        return
    text = "\n".join(["# On a GPU", "", EXPLANATION, describe(device), ""])
    sys.stdout.write(text)
    for name in PARTS:
        part = "\n".join([f"\n## {name}", "", in_a_process(name), ""])
        sys.stdout.write(part)
        sys.stdout.flush()
        text += part
        if options.out:
            options.out.write_text(text, encoding="utf-8")


def measured(options: argparse.Namespace, device: torch.device) -> list[str]:
    """Return the lines of a part, or why there are none."""
    effort = Effort(quick=True, steps=6, rounds=1) if options.quick else Effort()
    tests = ["-m", "gpu", "-q", "-p", "no:cacheprovider"]
    shape = options.epochs, options.trials, options.compile, options.graph
    parts: dict[str, Callable[[], list[str]]] = {
        TESTS: lambda: [*ended("pytest", *tests), *ended("orchestrator", "doctor")],
        RATES: lambda: throughput(device, effort),
        MANY: lambda: heads(device, effort),
        PRECISION: lambda: precision(options.data, max(1, options.epochs // 4), effort),
        TRACKED: lambda: tracked(options.data, *shape),
    }
    try:
        lines = parts[options.part]()
    except Exception as error:  # noqa: BLE001 - it is said in the page
        return [f"Not measured: {reason_of(error)}"]
    most = torch.cuda.max_memory_allocated(device)
    return [*lines, "", f"Most memory of the card: {most / 2**30:.2f} GiB."] if most else lines


def in_a_process(part: str) -> str:
    """Return what a part gives in a process of its own, which it may end."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        command = [sys.executable, __file__, *sys.argv[1:], "--part", part, "--out", str(lines)]
        try:
            done = subprocess.run(command, check=False, timeout=LIMIT_SECONDS, stdout=sys.stderr)
        except subprocess.TimeoutExpired:
            return f"Not measured: it took more than {LIMIT_SECONDS} seconds."
        if lines.exists():
            return lines.read_text(encoding="utf-8")
        return f"Not measured: the process ended with exit code {done.returncode}."


if __name__ == "__main__":
    main()
