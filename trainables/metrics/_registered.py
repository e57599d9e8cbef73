"""Computes the metrics that plugins registered."""

import torch
from torch import Tensor

from trainables.common.errors import InputError
from trainables.metrics._metrics import METRICS, Metric
from trainables.metrics._scores import ArrayLike, Scores

GROUPS = 50  # Of rows, each left out once.
DRAWS = 400  # Sets of labels: the mean is then known to a twentieth of the spread.


def registered_report(
    logits: ArrayLike, labels: ArrayLike, floors: bool = False
) -> dict[str, float]:
    """Return the metrics of all plugins that are known, by name; with their noise floors if asked.

    Args:
        logits: (N, K), unnormalised or log-probabilities.
        labels: (N,), integers in [0, K).
        floors: Whether the noise floor of each that has one is given as well, as ``NAME_floor``.

    Raises:
        InputError: If one fails, is not finite, or is neither a scalar nor a value for each row.
    """
    metrics = METRICS.plugged
    if not metrics:
        return {}
    rows = _rows(logits, labels)
    found = {metric.name: float(_computed(metric, *rows).mean()) for metric in metrics}
    for metric in metrics if floors else ():
        if metric.floored:
            found[metric.floor().name] = float(registered_draws(metric, logits).mean())
    return found


def registered_value(metric: Metric, logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return a plugin's metric as its function does: a value for each row, (N,), or a scalar."""
    return _computed(metric, *_rows(logits, labels))


def registered_draws(
    metric: Metric, logits: ArrayLike, draws: int = DRAWS, seed: int = 0
) -> Tensor:
    """Return a plugin's metric of labels drawn from the probabilities, (draws,), float64."""
    values = torch.as_tensor(logits).detach().cpu()
    probs, _ = _rows(values, values.argmax(1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(probs, draws, replacement=True, generator=generator)
    return torch.stack([_computed(metric, probs, own).mean() for own in labels.T])


def registered_terms(metric: Metric, logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return terms (N,), float64, whose mean is a plugin's metric; see ``row_terms``.

    Of a scalar they are pseudo-values of the jackknife that leaves out one of 50 groups of rows at
    a time, so that their standard error is the jackknife's; rows are taken as independent.

    Raises:
        InputError: As ``registered_report`` does.
    """
    probs, truth = _rows(logits, labels)
    found = _computed(metric, probs, truth)
    if found.ndim:
        return found
    count = len(truth)
    group = torch.arange(count, device=truth.device) % min(GROUPS, count)
    groups = int(group.max()) + 1
    if groups < 2:
        return found.expand(count)
    without = [_computed(metric, probs[group != g], truth[group != g]) for g in range(groups)]
    pseudo = -(groups - 1) * torch.stack([each.mean() for each in without])[group]
    return found + (pseudo - pseudo.mean()) * (count / groups) ** 0.5


def _rows(logits: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    scores = Scores(logits, None, labels)
    return scores.values.double().softmax(1), scores.labels


def _computed(metric: Metric, probs: Tensor, labels: Tensor) -> Tensor:
    assert metric.compute is not None
    try:
        given = metric.compute(probs, labels)
        found = torch.as_tensor(given, dtype=torch.float64, device=probs.device)
    except Exception as error:  # It is somebody else's code.
        kind = type(error).__name__
        raise InputError(f"metric {metric.name!r} failed: {kind}: {error}") from error
    rows = f"for {len(labels)} rows"
    if found.shape not in ((), labels.shape):
        wanted = "return a scalar, or a value for each row"
        raise InputError(f"metric {metric.name!r} has shape {tuple(found.shape)} {rows}; {wanted}")
    if not bool(found.isfinite().all()):
        bad = float(found[~found.isfinite()].flatten()[0])
        raise InputError(f"metric {metric.name!r} is {bad} {rows}; it must be finite")
    return found
