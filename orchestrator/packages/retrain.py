"""Computes trials of a package again, from their configuration alone."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from orchestrator.packages.again import Again
from orchestrator.packages.checks import plugin_figures, unequal
from orchestrator.packages.package import Cell, Package
from orchestrator.packages.predictions import tested
from orchestrator.running.reproduce import compute_stage, prepare_process
from orchestrator.storage.ledger import Ledger, Study, Trial
from trainables.common.errors import printable
from trainables.common.faults import reason_of
from trainables.data import PreparedData
from trainables.stages import StageRequest, TaskData, evaluate_on_test, evaluate_suite, pooled


@dataclass(frozen=True)
class Retrained:
    """The outcome of computing a trial again.

    Attributes:
        worst: Largest difference between old and new figures; infinite without common figures, 0
            for a trial that failed.
        problems: A line per difference.
    """

    trial: str
    recipe: str
    task: str
    seed: int
    worst: float
    problems: tuple[str, ...]


def retrain(package: Package, again: Again, trial: Trial, tolerance: float) -> Retrained:
    """Compute a trial and its upstream stages again; compare figures and predictions.

    Stages that were computed again for an earlier trial are reused. Test figures and probabilities
    are compared only if the trial has a cell in the table. A trial that failed must fail again for
    the same reason, apart from numbers in it.
    """
    ledger = next(found for found in package.ledgers if trial.key in found.trials)
    study = ledger.studies[trial.study]
    package.load_plugins([ledger])  # Metrics of another sweep's plugins would be computed as well.
    state, _ = again.search(package, ledger)
    request = state.studies[trial.study].trials[trial.number].request
    title = f"trial {trial.key[:12]} of {study.recipe} on {study.task}, seed {trial.seed}"
    if trial.status == "failed":
        differences = _of_failure(again, ledger, trial, request)
        return _retrained(study, trial, 0.0, title, differences)
    figures = _figures(again, ledger, trial, request)
    published: dict[str, Any] = {k: v for k, v in trial.metrics.items() if k in figures}
    lines, probabilities = list(unequal(published, figures, tolerance)), 0.0
    cells = [cell for cell in package.cells if cell.trial.key == trial.key]
    for cell in cells:
        now, changed = _on_test(package, again, cell, request)
        lines += unequal(trial.test, now, tolerance)
        figures |= {name: value for name, value in now.items() if name in trial.test}
        published |= trial.test
        probabilities = max(probabilities, changed)
    if not probabilities <= tolerance:
        lines.append(f"a probability on test data differs by {probabilities:.2g}")
    gaps = (abs(published[name] - value) for name, value in figures.items() if name in published)
    return _retrained(study, trial, max(gaps, default=inf), title, lines)


def _retrained(
    study: Study, trial: Trial, worst: float, title: str, lines: Iterable[str]
) -> Retrained:
    problems = tuple(f"{title}, computed again: {line}" for line in lines)
    return Retrained(trial.key, study.recipe, study.task, trial.seed, worst, problems)


def _of_failure(again: Again, ledger: Ledger, trial: Trial, request: StageRequest) -> Iterator[str]:
    """Yield a line if a failed trial now succeeds, or fails for another reason."""
    try:
        _figures(again, ledger, trial, request)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        now = printable(reason_of(error))
        if _without_numbers(now) != _without_numbers(trial.reason):
            yield f"expected the failure {trial.reason}, got another one: {now}"
        return
    yield f"expected the failure {trial.reason}, got a finished trial"


def _without_numbers(reason: str) -> str:
    return re.sub(r"[-+.\d]+(e[-+]?\d+)?", "0", reason)


def _figures(again: Again, ledger: Ledger, trial: Trial, request: StageRequest) -> dict[str, float]:
    """Compute a trial's chain of stages; return the validation figures of the last one."""
    origin = ledger.studies[trial.study].origin
    for link in _chain(request):
        if again.store.find(link.ref) is None:
            device = prepare_process(origin, link.stage)
            data = TaskData(PreparedData.open(link.data), device)
            compute_stage(link, again.store, data, lambda stage, epoch, epochs: None)
    metrics = again.store.metrics(request.ref)
    return {name: value for name, value in metrics.items() if name.startswith("val_")}


def _chain(request: StageRequest) -> Iterator[StageRequest]:
    if request.upstream_request is not None:
        yield from _chain(StageRequest(**request.upstream_request))
    yield request


def _on_test(
    package: Package, again: Again, cell: Cell, request: StageRequest
) -> tuple[dict[str, float], float]:
    """Return a cell's new test figures, and the largest change of a probability."""
    device = prepare_process(cell.study.origin, request.stage)
    chosen = again.store, request.ref, again.data_of(cell)
    now, artifact = evaluate_on_test(*chosen, device)
    suites = again.suites(cell)
    rows = artifact.tensors("test")
    now |= plugin_figures(cell.study, rows["log_probs"], rows["labels"])
    for _, place in suites:
        now |= evaluate_suite(*chosen, place, device)[0]
    now |= pooled(now, {suite.label: suite.pool for suite, _ in suites})
    ours, theirs = rows["log_probs"], tested(package, cell).logits
    return now, float((ours.double().exp() - theirs.double().exp()).abs().max())
