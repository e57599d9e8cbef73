"""Times every loss, forward and backward, against its authors' way of computing it.

Run ``python benchmarks/losses.py --out benchmarks/results/losses-cpu.md``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from _machine import describe
from _page import options, publish, table
from _straightforward_losses import (
    REFERENCES,
    CalibratedProbability,
    CorrectnessRanking,
    PrunedHuber,
    Reference,
    SelectiveAU,
)
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from trainables.losses import LOSSES, build_loss

SHAPES = ((128, 10), (256, 1000), (1024, 200))
ROUNDS = 3
EPOCH = 11
"""The epoch, from 0: one in which cape calibrates."""
SLOW = 10.0
"""Seconds beyond which a step is not repeated."""
SETTINGS = {"au": {"variant": "released"}, "aurc": {"variant": "released"}}
"""Where the default is not what the authors' code computes."""
COLUMNS = ("loss", "ours ms", "n", "reference ms", "n", "faster", "x CE", "ours MB", "ref. MB", "Δ")

Step = Callable[[], Tensor]

SHOWN = (0, 1, 3, 5, 6)
"""The columns of the page, at the shape of most classes; a file has all."""
SAID = f"""\
Times are medians over timed blocks, ± half the interquartile range, the steps compared in turn in
{ROUNDS} rounds; on a processor they are seconds of the process. A step of more than {SLOW:g} s is
run once. *faster* is reference / ours; *x CE* is ours / `torch.nn.functional.cross_entropy`. Ours
also leave out rows to ignore and keep full precision under autocast, which costs about 0.1 ms.
Memory, in the file, is the allocator's peak beyond the inputs, in 10^6 bytes."""


@dataclass(frozen=True)
class Cost:
    """What one step costs and gives.

    Attributes:
        value: The loss of the first run.
        peak: Most memory held in the first run, bytes.
        seconds: Time of a run, averaged over each timed block.
    """

    value: float
    peak: int
    seconds: list[float]

    @property
    def median(self) -> float:
        """Median of the blocks, seconds."""
        return float(np.median(self.seconds))

    def __str__(self) -> str:
        """Milliseconds with half the interquartile range."""
        low, high = np.quantile(self.seconds, [0.25, 0.75])
        return f"{self.median * 1e3:.3g} ± {(high - low) / 2 * 1e3:.2g}"


def make_batch(rows: int, classes: int, device: str) -> tuple[Tensor, Tensor]:
    """Return logits like those of a network in training (about 70 % right) and targets."""
    generator = torch.Generator().manual_seed(rows + classes)
    logits = 2 * torch.randn(rows, classes, generator=generator)
    targets = torch.randint(classes, (rows,), generator=generator)
    right = torch.rand(rows, generator=generator) < 0.7
    logits[torch.arange(rows), targets] += 8.0 * right
    return logits.to(device).requires_grad_(), targets.to(device)


def make_steps(name: str, logits: Tensor, targets: Tensor) -> tuple[Step, Step]:
    """Return a training step of our loss and one of the reference, for the same batch."""
    rows, classes = logits.shape
    generator = torch.Generator().manual_seed(0)
    indices = torch.randperm(10 * rows, generator=generator)[:rows].to(logits.device)
    counts = torch.randint(0, EPOCH + 1, (10 * rows,), generator=generator)
    loss = build_loss(name, **SETTINGS.get(name, {})).to(logits.device)
    loss.prepare(10 * rows, classes)
    loss.start_epoch(EPOCH)
    reference: Reference
    if name == "crl":
        loss.history.counts.copy_(counts)
        reference = CorrectnessRanking(counts.double().numpy(), indices, EPOCH)
    elif name == "cape":
        loss.goals.copy_(torch.rand(len(counts), generator=generator))
        reference = CalibratedProbability(loss.goals.double().cpu().numpy(), indices)
    elif name == "patra":
        loss.kept.copy_(torch.rand(len(counts), generator=generator) < 0.9)
        reference = PrunedHuber(loss.kept.cpu().numpy(), indices)
    elif name == "au":
        reference = SelectiveAU()
    else:
        reference = REFERENCES[name]
    return (
        lambda: differentiate(loss(logits, targets, indices), logits),
        lambda: differentiate(reference(logits, targets), logits),
    )


def differentiate(value: Tensor, logits: Tensor) -> Tensor:
    """Compute the gradient, drop it, and return the value."""
    torch.autograd.grad(value, logits)
    return value.detach()


def measure(steps: Sequence[Step], device: str, min_run_time: float) -> list[Cost]:
    """Return the cost of each step, timed in turn so that other load on the machine hits all."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    costs = []
    for step in steps:
        start = clock()
        value, peak = _peak_cuda(step) if device == "cuda" else _peak_cpu(step)
        seconds = clock() - start
        costs.append(Cost(float(value), peak, [seconds] if seconds > SLOW else []))
    quick = [(step, cost) for step, cost in zip(steps, costs, strict=True) if not cost.seconds]
    for _ in range(ROUNDS):
        for step, cost in quick:
            timer = Timer(
                "step()",
                timer=_synchronised if device == "cuda" else clock,
                globals={"step": step},
                num_threads=torch.get_num_threads(),
            )
            cost.seconds.extend(timer.blocked_autorange(min_run_time=min_run_time).times)
    return costs


def _synchronised() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def _peak_cuda(step: Step) -> tuple[Tensor, int]:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    value = step()
    torch.cuda.synchronize()
    return value, torch.cuda.max_memory_allocated() - before


def _peak_cpu(step: Step) -> tuple[Tensor, int]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        value = step()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return value, int(max(np.cumsum([event.nbytes() for event in events]), default=0))


def table_row(name: str, logits: Tensor, targets: Tensor, min_run_time: float) -> list[str]:
    """Measure one loss at one shape and format the columns."""
    ours, reference = make_steps(name, logits, targets)
    plain = partial(_plain_cross_entropy, logits, targets)
    mine, theirs, base = measure([ours, reference, plain], logits.device.type, min_run_time)
    return [
        name,
        str(mine),
        str(len(mine.seconds)),
        str(theirs),
        str(len(theirs.seconds)),
        f"{theirs.median / mine.median:.2f}",
        f"{mine.median / base.median:.2f}",
        f"{mine.peak / 1e6:.2f}",
        f"{theirs.peak / 1e6:.2f}",
        f"{abs(mine.value - theirs.value) / abs(theirs.value):.0e}",
    ]


def warm_up(device: str) -> None:
    """Let PyTorch and its profiler start up outside the measurements."""
    logits, targets = make_batch(*SHAPES[0], device)
    measure([partial(_plain_cross_entropy, logits, targets)], device, min_run_time=0.05)


def _plain_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return differentiate(torch.nn.functional.cross_entropy(logits, targets), logits)


def main() -> None:
    """Measure every loss at every shape and publish the page."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--losses", nargs="*", default=LOSSES.names(), help="all by default")
    parser.add_argument("--min-run-time", type=float, default=0.2, help="seconds a step and round")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on a processor")
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    warm_up(wanted.device)
    found = []
    for rows, classes in SHAPES:
        logits, targets = make_batch(rows, classes, wanted.device)
        for name in wanted.losses:
            measured = table_row(name, logits, targets, wanted.min_run_time)
            found.append([rows, classes, *measured])
            print(*measured, file=sys.stderr, flush=True)
    shown = [[row[2 + place] for place in SHOWN] for row in found if row[1] == 1000]
    lines = [*table([COLUMNS[place] for place in SHOWN], shown), "", SAID]
    files = {"": (("N", "K", *COLUMNS), found)}
    question = f"How fast are the losses on {wanted.device}?"
    publish(question, lines, f"{describe(torch.device(wanted.device))}.", wanted.out, files)


if __name__ == "__main__":
    main()
