"""Reference values of calibrators: their definitions, naive and in float64, without calsweep.

Run it to write ``calibrators.json`` beside it: ``python tests/reference/calibrators.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from losses import Matrix, dirichlet, log_p, log_sum, softmax
from scipy.optimize import minimize

FLOOR = 1e-9
Fit = tuple[Matrix, list[int]]
Map = Callable[[Matrix], list[float]]
Curve = Callable[[list[float], list[bool]], Callable[[float], float]]


def golden(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of one valley is lowest."""
    share = (5**0.5 - 1) / 2
    while high - low > 1e-8:
        left, right = high - share * (high - low), low + share * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return (low + high) / 2


def row_loss(row: Matrix, y: int, objective: str) -> float:
    log_ps = [log_p(row, k) for k in range(len(row))]
    p = exp(log_ps[y])
    return {
        "ce": -log_ps[y],
        "ls": -0.95 * log_ps[y] - 0.05 * sum(log_ps) / len(row),
        "fl": -((1 - p) ** 3) * log_ps[y],
        "mse": sum((exp(q) - (k == y)) ** 2 for k, q in enumerate(log_ps)) / len(row),
    }[objective]


def temperature(fit: Fit, objective: str = "ce") -> float:
    def total(log_t: float) -> float:
        return sum(row_loss(z / exp(log_t), y, objective) for z, y in zip(*fit, strict=True))

    return exp(golden(total, log(0.05), log(20)))


def ts(fit: Fit, objective: str = "ce", selection: str = "objective") -> Map:
    t = temperature(fit, objective) if selection == "objective" else by_error(fit)
    return lambda z: [log_p(z / t, k) for k in range(len(z))]


def by_error(fit: Fit) -> float:
    """Return the temperature of 0.1, 0.2 ... 10 with the smallest error of 15 bins."""

    def error(t: float) -> float:
        gaps = [0.0] * 15
        for z, y in zip(*fit, strict=True):
            p = softmax(z / t)
            place = max(int(np.ceil(p.max() * 15)) - 1, 0)
            gaps[place] += p.max() - (int(z.argmax()) == y)
        return sum(map(abs, gaps))

    return min((step / 10 for step in range(1, 101)), key=error)


def ets(fit: Fit, objective: str = "ce") -> Map:
    t = temperature(fit, objective)
    members = np.array([[softmax(z / t), softmax(z), np.full(len(z), 1 / len(z))] for z in fit[0]])
    hits = np.eye(members.shape[2])[fit[1]]

    def total(weights: Matrix) -> float:
        probs = np.einsum("m,nmk->nk", weights, members)
        if objective == "mse":
            return float(((probs - hits) ** 2).sum())
        return -float(np.log((probs * hits).sum(1)).sum())

    def inner(uniform: float) -> tuple[float, Matrix]:
        def of(scaled: float) -> Matrix:
            return np.array([scaled, 1 - uniform - scaled, uniform])

        best = golden(lambda scaled: total(of(scaled)), 0.0, 1 - uniform)
        return total(of(best)), of(best)

    weights = inner(golden(lambda uniform: inner(uniform)[0], 0.0, 1.0))[1]
    return lambda z: [
        log(weights @ column)
        for column in zip(softmax(z / t), softmax(z), [1 / len(z)] * len(z), strict=True)
    ]


def one_versus_rest(
    fit: Fit, curve: Callable[[list[float], list[bool]], Callable[[float], float]]
) -> Map:
    """Return the map whose classes have curves of their own, fitted to (probability, hit)."""
    probs = [softmax(z) for z in fit[0]]
    classes = range(len(probs[0]))
    curves = [curve([float(p[k]) for p in probs], [y == k for y in fit[1]]) for k in classes]

    def mapped(z: Matrix) -> list[float]:
        p = softmax(z)
        values = [curves[k](float(p[k])) + FLOOR * p[k] for k in classes]
        return [log(value / sum(values)) for value in values]

    return mapped


def bins(scores: list[float], hits: list[bool], count: int = 15) -> Callable[[float], float]:
    def place(score: float) -> int:
        return max(int(np.ceil(score * count)) - 1, 0)

    def value(score: float) -> float:
        inside = [hit for s, hit in zip(scores, hits, strict=True) if place(s) == place(score)]
        return sum(inside) / len(inside) if inside else (place(score) + 0.5) / count

    return value


def pools(scores: list[float], hits: list[bool]) -> list[list[tuple[float, bool]]]:
    """Return the stretches of equal value of the non-decreasing fit: adjacent violators pooled."""
    pairs = sorted(zip(scores, hits, strict=True), key=lambda pair: (pair[0], -pair[1]))
    found: list[list[tuple[float, bool]]] = []
    for pair in pairs:
        found.append([pair])
        while len(found) > 1 and share(found[-2]) >= share(found[-1]):
            last = found.pop()
            found[-1] += last
    return found


def share(pool: list[tuple[float, bool]]) -> float:
    return sum(hit for _, hit in pool) / len(pool)


def isotonic(scores: list[float], hits: list[bool]) -> Callable[[float], float]:
    points = [(score, share(pool)) for pool in pools(scores, hits) for score, _ in pool]
    return lambda score: float(np.interp(score, *zip(*points, strict=True)))


def cir(scores: list[float], hits: list[bool]) -> Callable[[float], float]:
    found = pools(scores, hits)
    points = [(sum(s for s, _ in pool) / len(pool), share(pool)) for pool in found]
    return lambda score: float(np.interp(score, *zip(*points, strict=True)))


def venn_abers(scores: list[float], hits: list[bool]) -> Callable[[float], float]:
    def added(score: float, hit: bool) -> float:
        for pool in pools([*scores, score], [*hits, hit]):
            if (score, hit) in pool:
                return share(pool)
        raise AssertionError("the added row is in a pool")

    def value(score: float) -> float:
        miss, hit = added(score, False), added(score, True)
        return hit / (1 - miss + hit)

    return value


def logistic(features: Callable[[float], list[float]], signs: tuple[float, ...] = ()) -> Curve:
    """Return the fit of a logistic curve on Platt's targets; with signs no slope falls."""

    def curve(scores: list[float], hits: list[bool]) -> Callable[[float], float]:
        count = sum(hits)
        goals = [(count + 1) / (count + 2) if hit else 1 / (len(hits) - count + 2) for hit in hits]
        rows = np.array([[*features(score), 1.0] for score in scores])

        def fitted(kept: list[int]) -> Matrix:
            def total(weights: Matrix) -> float:
                odds = rows[:, kept] @ weights
                return float(np.logaddexp(0, odds).sum() - np.dot(goals, odds))

            at = minimize(total, np.zeros(len(kept)), method="Nelder-Mead", options=FINE).x
            weights = np.zeros(rows.shape[1])
            weights[kept] = at
            return weights

        kept = list(range(rows.shape[1]))
        weights = fitted(kept)
        while signs and weights[:-1].min() < 0:
            kept.remove(int(weights[:-1].argmin()))
            weights = fitted(kept)
        return lambda score: 1 / (1 + exp(-float(weights @ [*features(score), 1.0])))

    return curve


FINE = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000, "maxfev": 20_000}


def odds(p: float) -> float:
    return log(p) - log(1 - p)


def kernel(fit: Fit) -> Map:
    probs = [softmax(z) for z in fit[0]]
    classes = range(len(probs[0]))

    def shares(p: Matrix, others: list[int], h: float) -> list[float]:
        logs = [dirichlet(p, probs[j], h) for j in others]
        total = log_sum(logs)
        values = [
            sum(exp(a - total) for a, j in zip(logs, others, strict=True) if fit[1][j] == k)
            + FLOOR * p[k]
            for k in classes
        ]
        return [log(value / sum(values)) for value in values]

    rows = list(range(len(probs)))

    def loss(h: float) -> float:
        return -sum(shares(probs[i], [j for j in rows if j != i], h)[fit[1][i]] for i in rows)

    best = min((0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), key=loss)
    return lambda z: shares(softmax(z), rows, best)


def entropy(z: Matrix) -> float:
    return -sum(p * log(p) for p in softmax(z))


def drawn(candidates: list[int], seed: int) -> list[int]:
    """Return a tenth of the candidates as PyTorch shuffles them, which is part of the method."""
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
    return [candidates[i] for i in order[: max(1, min(500, len(candidates) // 10))].tolist()]


def set_apart(fit: Fit, rows: list[int], threshold: float) -> Map:
    kept = [i for i, z in enumerate(fit[0]) if i not in rows and entropy(z) < threshold]
    t = temperature((fit[0][kept], [fit[1][i] for i in kept]))
    return lambda z: [
        log_p(z / t, k) if entropy(z) < threshold else -log(len(z)) for k in range(len(z))
    ]


def meta_mis(fit: Fit, alpha: float, seed: int) -> Map:
    rows = drawn([i for i, y in enumerate(fit[1]) if int(fit[0][i].argmax()) == y], seed)
    ordered = sorted(entropy(fit[0][i]) for i in rows)
    return set_apart(fit, rows, ordered[int(np.ceil((1 - alpha) * (len(rows) - 1)))])


def meta_acc(fit: Fit, accuracy: float, seed: int) -> Map:
    rows = drawn(list(range(len(fit[1]))), seed)
    spread = [entropy(fit[0][i]) for i in rows]
    right = [int(fit[0][i].argmax()) == fit[1][i] for i in rows]
    cuts = np.quantile(spread, np.linspace(0, 1, 21))
    shares, points = [], []
    for low, high in pairwise(cuts):
        inside = [i for i, value in enumerate(spread) if low < value <= high]
        shares.append(sum(right[i] for i in inside) / len(inside) if inside else 0.0)
        mean = sum(spread[i] for i in inside) / len(inside) if inside else 0.0
        points.append((sum(shares) / len(shares), mean))
    falling = decreasing(points)
    return set_apart(fit, rows, float(np.interp(accuracy, *zip(*falling, strict=True))))


def decreasing(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the non-increasing least-squares fit; points of one place count as their mean."""
    groups: dict[float, list[float]] = {}
    for x, y in points:
        groups.setdefault(x, []).append(y)
    blocks: list[list[tuple[float, float, int]]] = []
    for x in sorted(groups):
        blocks.append([(x, sum(groups[x]), len(groups[x]))])
        while len(blocks) > 1 and level(blocks[-2]) <= level(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return [(x, level(block)) for block in blocks for x, _, _ in block]


def level(block: list[tuple[float, float, int]]) -> float:
    return sum(total for _, total, _ in block) / sum(count for _, _, count in block)


def affine(fit: Fit, logs: bool) -> Map:
    """Matrix scaling, of log-probabilities or of logits, with both penalties 0.01."""

    def features(z: Matrix) -> Matrix:
        return np.array([log_p(z, k) for k in range(len(z))]) if logs else z

    rows, labels = np.array([features(z) for z in fit[0]]), np.array(fit[1])
    classes = rows.shape[1]
    hits = np.eye(classes)[labels]

    def parts(flat: Matrix) -> tuple[Matrix, Matrix]:
        square = flat.reshape(classes, classes + 1)
        return square[:, :-1], square[:, -1]

    def total(flat: Matrix) -> tuple[float, Matrix]:
        matrix, bias = parts(flat)
        outside = matrix - np.diag(np.diag(matrix))
        out = rows @ matrix.T + bias
        probs = np.array([softmax(row) for row in out])
        loss = -sum(log_p(row, y) for row, y in zip(out, labels, strict=True)) / len(rows)
        slope = (probs - hits).T / len(rows)
        gradient = np.hstack([slope @ rows + 0.02 * outside, (slope.sum(1) + 0.02 * bias)[:, None]])
        return loss + 0.01 * float((outside**2).sum() + (bias**2).sum()), gradient.ravel()

    start = np.hstack([np.eye(classes), np.zeros((classes, 1))]).ravel()
    found = minimize(total, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    matrix, bias = parts(found.x)
    return lambda z: [log_p(matrix @ features(z) + bias, k) for k in range(classes)]


PAPER = {"variant": "paper"}
CASES: list[tuple[str, str | None, dict[str, Any], Callable[[Fit], Map]]] = [
    *(
        ("ts", objective, {}, lambda fit, o=objective: ts(fit, o))
        for objective in ("ce", "ls", "fl", "mse")
    ),
    ("ts", None, {"selection": "ece"}, lambda fit: ts(fit, selection="ece")),
    *(("ets", objective, {}, lambda fit, o=objective: ets(fit, o)) for objective in ("ce", "mse")),
    ("histogram-binning", None, PAPER, lambda fit: one_versus_rest(fit, bins)),
    ("isotonic", None, PAPER, lambda fit: one_versus_rest(fit, isotonic)),
    ("cir", None, PAPER, lambda fit: one_versus_rest(fit, cir)),
    ("venn-abers", None, PAPER, lambda fit: one_versus_rest(fit, venn_abers)),
    ("platt", None, PAPER, lambda fit: one_versus_rest(fit, logistic(lambda p: [odds(p)]))),
    (
        "quadratic",
        None,
        PAPER,
        lambda fit: one_versus_rest(fit, logistic(lambda p: [odds(p), odds(p) ** 2])),
    ),
    (
        "beta",
        None,
        PAPER,
        lambda fit: one_versus_rest(fit, logistic(lambda p: [log(p), -log(1 - p)], (1.0, 1.0))),
    ),
    ("kernel", None, PAPER, kernel),
    ("meta-mis", None, {"alpha": 0.2, "seed": 3}, lambda fit: meta_mis(fit, 0.2, 3)),
    ("meta-acc", None, {"accuracy": 0.7, "seed": 3}, lambda fit: meta_acc(fit, 0.7, 3)),
    ("ms", None, PAPER, lambda fit: affine(fit, False)),
    ("dirichlet", None, PAPER, lambda fit: affine(fit, True)),
]


def draw(seed: int, rows: int, classes: int = 4, heat: float = 1.8) -> Fit:
    """Return over-confident logits of three decimals, and labels drawn from what is right."""
    source = np.random.default_rng(seed)
    z = np.round(source.normal(0, 2.0, (rows, classes)), 3)
    labels = [int(source.choice(classes, p=softmax(row / heat))) for row in z]
    return z, labels


def main() -> None:
    fit, (rows, _) = draw(5, 200), draw(6, 12)
    lines = []
    for name, objective, parameters, make in CASES:
        mapped = make(fit)
        found = [[float(f"{value:.10g}") for value in mapped(z)] for z in rows]
        case = {"name": name, "objective": objective, "parameters": parameters, "log_probs": found}
        lines.append(json.dumps(case))
    facts = {"fit_logits": fit[0].tolist(), "fit_labels": fit[1], "logits": rows.tolist()}
    joined = ",\n".join(lines)
    text = f'{json.dumps(facts)[:-1]},\n"cases": [\n{joined}\n]}}\n'
    Path(__file__).with_suffix(".json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
