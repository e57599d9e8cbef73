"""Reference values of calibrators: their definitions, naive and in float64, without calsweep.

Run it to write ``calibrators.json`` beside it: ``python tests/reference/calibrators.py``.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from losses import Matrix, log_p, softmax
from scipy.optimize import brentq, minimize

FLOOR = 1e-9
Fit = tuple[Matrix, list[int]]
Map = Callable[[Matrix], list[float]]


def golden(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of one valley is lowest."""
    share = (5**0.5 - 1) / 2
    while high - low > 1e-8:
        left, right = high - share * (high - low), low + share * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return (low + high) / 2


def row_loss(row: Matrix, y: int, objective: str) -> float:
    return log_loss([log_p(row, k) for k in range(len(row))], y, objective)


def log_loss(log_ps: list[float], y: int, objective: str) -> float:
    p = exp(log_ps[y])
    return {
        "ce": -log_ps[y],
        "ls": -0.95 * log_ps[y] - 0.05 * sum(log_ps) / len(log_ps),
        "fl": -((1 - p) ** 3) * log_ps[y],
        "mse": sum((exp(q) - (k == y)) ** 2 for k, q in enumerate(log_ps)) / len(log_ps),
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

    def total(weights: Matrix) -> float:
        logs = np.log(np.einsum("m,nmk->nk", weights, members))
        return sum(log_loss(row, y, objective) for row, y in zip(logs, fit[1], strict=True))

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


FINE = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000, "maxfev": 20_000}


def entropy(z: Matrix) -> float:
    return -sum(p * log(p) for p in softmax(z))


def drawn(candidates: list[int], seed: int) -> list[int]:
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


def log_probs(z: Matrix) -> Matrix:
    return np.array([log_p(z, k) for k in range(len(z))])


def linear(
    rows: Matrix, labels: list[int], origin: Matrix, weights: Matrix
) -> tuple[Matrix, Matrix]:
    """Return the matrix and bias, (K, K) and (K,), whose mapped rows have the least mean loss.

    Added are the squared distances from the origin, (K, K + 1), times the weights; infinite ones
    keep an entry where it is.
    """
    hits, free = np.eye(len(origin))[labels], np.isfinite(weights)

    def total(entries: Matrix) -> tuple[float, Matrix]:
        at = origin.copy()
        at[free] = entries
        out = rows @ at[:, :-1].T + at[:, -1]
        loss = -sum(log_p(row, y) for row, y in zip(out, labels, strict=True)) / len(rows)
        slope = (np.array([softmax(row) for row in out]) - hits).T / len(rows)
        gradient = np.hstack([slope @ rows, slope.sum(1)[:, None]])[free]
        away = entries - origin[free]
        return loss + float(weights[free] @ away**2), gradient + 2 * weights[free] * away

    found = minimize(total, origin[free], jac=True, method="BFGS", options={"gtol": 1e-10})
    at = origin.copy()
    at[free] = found.x
    return at[:, :-1], at[:, -1]


def weights_of(diagonal: float, outside: float, bias: float, classes: int) -> Matrix:
    square = np.full((classes, classes), outside)
    np.fill_diagonal(square, diagonal)
    return np.hstack([square, np.full((classes, 1), bias)])


def plain(classes: int) -> Matrix:
    return np.hstack([np.eye(classes), np.zeros((classes, 1))])


def affine(fit: Fit, logs: bool, outside: float = 0.01, bias: float = 0.01) -> Map:
    """Matrix scaling, of log-probabilities or of logits."""

    def features(z: Matrix) -> Matrix:
        return log_probs(z) if logs else z

    rows = np.array([features(z) for z in fit[0]])
    classes = rows.shape[1]
    weights = weights_of(0.0, outside, bias, classes)
    matrix, biases = linear(rows, fit[1], plain(classes), weights)
    return lambda z: list(log_probs(matrix @ features(z) + biases))


def vector(fit: Fit, decay: float) -> Map:
    """Vector scaling, pulled to the best common slope."""
    classes = fit[0].shape[1]
    origin = plain(classes) / temperature(fit)
    weights = weights_of(decay / 2, np.inf, decay / 2, classes)
    matrix, bias = linear(fit[0], fit[1], origin, weights)
    return lambda z: list(log_probs(matrix @ z + bias))


def structured(
    fit: Fit, whole: bool, diag: float = 1.0, offdiag: float = 1.0, bias: float = 1.0
) -> Map:
    """Scale log-probabilities after temperature scaling and one uniform row: svs, or sms."""
    t, (count, classes) = temperature(fit), fit[0].shape
    uniform = 1 / (count + 1)

    def features(z: Matrix) -> Matrix:
        return np.log((1 - uniform) * softmax(z / t) + uniform / classes)

    pull = classes / count
    outside = offdiag * pull * (classes - 1) if whole else np.inf
    weights = weights_of(diag * pull, outside, bias * pull, classes)
    rows = np.array([features(z) for z in fit[0]])
    matrix, biases = linear(rows, fit[1], plain(classes), weights)
    return lambda z: list(log_probs(matrix @ features(z) + biases))


def class_temperatures(fit: Fit, shrinkage: float, objective: str = "ce") -> Map:
    """A temperature for the rows predicted as each class, pulled towards the common one."""
    common = log(temperature(fit, objective))
    pairs = list(zip(*fit, strict=True))

    def fitted(k: int) -> float:
        own = [(z, y) for z, y in pairs if int(z.argmax()) == k]

        def total(log_t: float) -> float:
            pull = shrinkage * (log_t - common) ** 2 / 2
            return pull + sum(row_loss(z / exp(log_t), y, objective) for z, y in own)

        return exp(golden(total, log(0.05), log(20)))

    found = [fitted(k) for k in range(fit[0].shape[1])]
    return lambda z: list(log_probs(z / found[int(z.argmax())]))


def logit_temperatures(fit: Fit) -> Map:
    """A temperature for each class's logit."""
    classes = fit[0].shape[1]

    def total(logs: Matrix) -> float:
        return -sum(log_p(z / np.exp(logs), y) for z, y in zip(*fit, strict=True)) / len(fit[1])

    start = np.full(classes, log(temperature(fit)))
    found = np.exp(minimize(total, start, method="Nelder-Mead", options=FINE).x)
    return lambda z: list(log_probs(z / found))


def classwise(
    fit: Fit, normalization: str = "nd", bounds: str = "released", reduction: str = "mean"
) -> Map:
    """TS with class-wise loss scaling; for the arguments see ``cls``."""
    classes = fit[0].shape[1]
    counts = [fit[1].count(k) if reduction == "mean" else 1 for k in range(classes)]
    share = 1 if reduction == "mean" else len(fit[1])

    def class_losses(t: float) -> Matrix:
        losses = [0.0] * classes
        for z, y in zip(*fit, strict=True):
            losses[y] -= log_p(z / t, y) / counts[y]
        return np.array(losses)

    def standard(values: Matrix) -> Matrix:
        spread = values.max() - values.min()
        return {
            "nd": (values - values.mean()) / values.std(ddof=1),
            "cm": (values - values.mean()) / spread,
            "mm": (values - values.min()) / spread,
        }[normalization]

    def swing(values: Matrix, alpha: float, beta: float) -> Matrix:
        return beta * (1 / (1 + np.exp(-values / alpha)) - 0.5)

    def slope(t: float, alpha: float, beta: float) -> float:
        """Return the derivative in T of the class losses, each weighted as it is at T."""
        weights = 1 + swing(standard(class_losses(t)), alpha, beta)
        return sum(
            weights[y] / counts[y] / share * (z[y] - softmax(z / t) @ z) / t**2
            for z, y in zip(*fit, strict=True)
        )

    # The released optimiser's first step, between whose ends alpha and beta are set.
    first = slope(1.0, 1.0, 1.5)
    after = 1 - 0.02 * min(1.0, 1 / abs(first)) * first
    before, then = class_losses(1.0), class_losses(after)

    def distance(at: Matrix) -> float:
        gaps = before - swing(standard(then), *at) * (then - before) - then.mean()
        return float(np.sqrt((gaps**2).sum()))

    allowed = {
        "released": [(0.1, log(classes) / 2), (1.5, 2.0)],
        "paper": [(1e-6, None), (0.0, None)],
    }[bounds]
    alpha, beta = minimize(distance, [1.0, 1.5], method="SLSQP", bounds=allowed).x
    t = brentq(lambda t: slope(t, alpha, beta), 0.05, 20, xtol=1e-12)
    return lambda z: list(log_probs(z / t))


def spline(fit: Fit, knots: int) -> Map:
    """The slope of a natural cubic spline, in truncated powers, through the cumulated accuracy."""
    count, classes = fit[0].shape
    at = [k / (knots - 1) for k in range(knots)]
    top = sorted((float(softmax(z).max()), int(z.argmax()) == y) for z, y in zip(*fit, strict=True))

    def piece(x: float, k: int, power: int) -> float:
        below, above = max(x - at[k], 0.0) ** power, max(x - at[-1], 0.0) ** power
        return (below - above) / (at[-1] - at[k])

    def basis(x: float, power: int) -> list[float]:
        bends = [piece(x, k, power) - piece(x, knots - 2, power) for k in range(knots - 2)]
        return [1.0, x, *bends] if power == 3 else [0.0, 1.0, *(3 * bend for bend in bends)]

    shares = np.cumsum([0, *(right for _, right in top)]) / count
    rows = np.array([basis(i / count, 3) for i in range(count + 1)])
    weights = np.linalg.lstsq(rows, shares, rcond=None)[0]
    slopes = [float(np.dot(basis(i / (count - 1), 2), weights)) for i in range(count)]
    slopes = [min(max(value, 1e-6), 1 - 1e-6) for value in slopes]

    def mapped(z: Matrix) -> list[float]:
        p, winner = softmax(z), int(z.argmax())
        first = max(float(np.interp(p[winner], [s for s, _ in top], slopes)), 1 / classes)
        rest = [p[k] / (1 - p[winner]) for k in range(classes) if k != winner]
        even, largest = 1 / (classes - 1), max(rest)
        mixed = min(max((largest - first / (1 - first)) / (largest - even), 0.0), 1.0)
        return [
            log(first)
            if k == winner
            else log((1 - first) * ((1 - mixed) * p[k] / (1 - p[winner]) + mixed * even))
            for k in range(classes)
        ]

    return mapped


def network(
    fit: Fit, nodes: int = 5, decay: float = 0.05, top: int = 10, layers: int = 2, seed: int = 0
) -> Map:
    """PTS: hidden layers read the largest log-probabilities and move the common temperature."""
    common, count = log(temperature(fit)), len(fit[1])

    def largest(z: Matrix) -> Matrix:
        return np.sort(log_probs(z))[::-1][:top]

    seen = np.array([largest(z) for z in fit[0]])
    centre, scale = seen.mean(0), seen.std(0)
    inputs, logits = torch.from_numpy((seen - centre) / scale), torch.from_numpy(fit[0])
    # The initial weights are PyTorch's draws, which is part of the method.
    draw = torch.Generator().manual_seed(seed)
    shapes: list[torch.Tensor] = []
    for width in (seen.shape[1], *[nodes] * (layers - 1)):
        drawn = torch.randn(nodes, width, generator=draw, dtype=torch.float64) * (2 / width) ** 0.5
        shapes += [drawn, torch.zeros(nodes, dtype=torch.float64)]
    shapes += [torch.zeros(size, dtype=torch.float64) for size in (nodes, 1)]

    def log_t(flat: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        parts = torch.split(flat, [part.numel() for part in shapes])
        *hidden, last, bias = (p.view(s.shape) for p, s in zip(parts, shapes, strict=True))
        for weight, shift in zip(hidden[::2], hidden[1::2], strict=True):
            rows = torch.clamp(rows @ weight.T + shift, min=0)
        return common + rows @ last + bias

    def total(at: Matrix) -> tuple[float, Matrix]:
        flat = torch.tensor(at, requires_grad=True)
        scaled = logits / log_t(flat, inputs).exp()[:, None]
        own = scaled[range(count), fit[1]]
        loss = (scaled.logsumexp(1) - own).mean() + decay / 2 * (flat**2).sum()
        loss.backward()
        assert flat.grad is not None
        return loss.item(), flat.grad.numpy()

    start = torch.cat([part.flatten() for part in shapes]).numpy()
    found = torch.from_numpy(minimize(total, start, jac=True, method="BFGS").x)

    def mapped(z: Matrix) -> list[float]:
        row = torch.from_numpy((largest(z) - centre) / scale)
        return list(log_probs(z / exp(log_t(found, row).item())))

    return mapped


PAPER = {"variant": "paper"}
CASES: list[tuple[str, str | None, dict[str, Any], Callable[[Fit], Map]]] = [
    *(
        ("ts", objective, {}, lambda fit, o=objective: ts(fit, o))
        for objective in ("ce", "ls", "fl", "mse")
    ),
    ("ts", None, {"selection": "ece"}, lambda fit: ts(fit, selection="ece")),
    *(
        ("ets", objective, {}, lambda fit, o=objective: ets(fit, o))
        for objective in ("ce", "ls", "fl", "mse")
    ),
    ("ets", "ce", {"variant": "released"}, lambda fit: ets(fit, "mse")),
    ("histogram-binning", None, PAPER, lambda fit: one_versus_rest(fit, bins)),
    (
        "histogram-binning",
        None,
        {"bins": 4, **PAPER},
        lambda fit: one_versus_rest(fit, lambda scores, hits: bins(scores, hits, 4)),
    ),
    ("isotonic", None, PAPER, lambda fit: one_versus_rest(fit, isotonic)),
    ("cir", None, PAPER, lambda fit: one_versus_rest(fit, cir)),
    ("meta-mis", None, {"alpha": 0.2, "seed": 3}, lambda fit: meta_mis(fit, 0.2, 3)),
    ("meta-acc", None, {"accuracy": 0.7, "seed": 3}, lambda fit: meta_acc(fit, 0.7, 3)),
    *(
        ("ts", "cls", parameters, lambda fit, p=parameters: classwise(fit, **p))
        for parameters in (
            {},
            {"normalization": "mm", "bounds": "paper"},
            {"normalization": "cm", "reduction": "sum"},
        )
    ),
    ("cts", None, {}, lambda fit: class_temperatures(fit, 30.0)),
    ("cts", "fl", {"shrinkage": 4.0}, lambda fit: class_temperatures(fit, 4.0, "fl")),
    ("cts", None, {"assignment": "logit"}, logit_temperatures),
    ("pts", None, {}, network),
    (
        "pts",
        None,
        {"top": 3, "nodes": 4, "layers": 1, "weight_decay": 0.02, "seed": 2},
        lambda fit: network(fit, 4, 0.02, 3, 1, 2),
    ),
    *(
        ("vs", None, {"weight_decay": decay, **PAPER}, lambda fit, d=decay: vector(fit, d))
        for decay in (1e-4, 0.3)
    ),
    ("svs", None, {}, lambda fit: structured(fit, False)),
    (
        "svs",
        None,
        {"weight_diag": 9.0, "weight_bias": 0.1},
        lambda fit: structured(fit, False, 9.0, bias=0.1),
    ),
    ("sms", None, {}, lambda fit: structured(fit, True)),
    (
        "sms",
        None,
        {"weight_diag": 9.0, "weight_offdiag": 0.2, "weight_bias": 0.1},
        lambda fit: structured(fit, True, 9.0, 0.2, 0.1),
    ),
    *(
        ("spline", None, {"knots": knots, **PAPER}, lambda fit, k=knots: spline(fit, k))
        for knots in (6, 4)
    ),
    ("ms", None, PAPER, lambda fit: affine(fit, False)),
    ("dirichlet", None, PAPER, lambda fit: affine(fit, True)),
    (
        "dirichlet",
        None,
        {"weight_offdiag": 0.003, "weight_bias": 0.2, **PAPER},
        lambda fit: affine(fit, True, 0.003, 0.2),
    ),
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
