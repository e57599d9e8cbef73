"""Reference values of every loss: the papers' formulas, naive and in float64, without calsweep.

Rows, classes and pairs are looped over; gradients are central differences. Run it to write
``losses.json`` beside it: ``python tests/reference/losses.py``.
"""

import json
from itertools import pairwise
from math import ceil, exp, floor, inf, lgamma, log, log1p, sqrt
from pathlib import Path
from typing import Any

import numpy as np

Matrix = np.ndarray
IGNORED = -100
STEP = 1e-5


def softmax(row: Matrix) -> Matrix:
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def log_p(row: Matrix, k: int) -> float:
    return float(row[k] - row.max() - log(np.exp(row - row.max()).sum()))


def softplus(x: float) -> float:
    return max(x, 0.0) + log1p(exp(-abs(x)))


def relu(x: float) -> float:
    return max(float(x), 0.0)


class Batch:
    """Rows that count, and the same rows at the point where the derivative is taken.

    Attributes:
        z: Logits, (N, K); what follows from them varies with them.
        fixed: The same as constants.
        y: Labels.
        memory: What a loss with a history knows of each row, for those that have one.
    """

    def __init__(self, z: Matrix, fixed: Matrix, y: list[int], memory: list[Any]) -> None:
        self.z, self.fixed, self.y, self.memory = z, fixed, y, memory
        self.p = [softmax(row) for row in z]
        self.fixed_p = [softmax(row) for row in fixed]
        self.n, self.k = z.shape
        self.top = [int(row.argmax()) for row in fixed]
        self.right = [float(top == label) for top, label in zip(self.top, y, strict=True)]
        self.sure = [float(p[top]) for p, top in zip(self.p, self.top, strict=True)]

    def ce(self) -> list[float]:
        return [-log_p(row, y) for row, y in zip(self.z, self.y, strict=True)]

    def mean(self, values: list[float]) -> float:
        return sum(values) / self.n


def ce(b: Batch) -> float:
    return b.mean(b.ce())


def ls(b: Batch, smoothing: float = 0.05, spread: str = "all") -> float:
    def row(i: int) -> float:
        touched = [k for k in range(b.k) if spread == "all" or k != b.y[i]]
        rest = sum(-log_p(b.z[i], k) for k in touched) / len(touched)
        return (1 - smoothing) * -log_p(b.z[i], b.y[i]) + smoothing * rest

    return b.mean([row(i) for i in range(b.n)])


def fl(b: Batch, gamma: float = 3.0, detach: bool = False) -> float:
    weigh = b.fixed_p if detach else b.p
    return b.mean([(1 - weigh[i][b.y[i]]) ** gamma * -log_p(b.z[i], b.y[i]) for i in range(b.n)])


def ifl(b: Batch, gamma: float) -> float:
    return b.mean([(1 + b.p[i][b.y[i]]) ** gamma * -log_p(b.z[i], b.y[i]) for i in range(b.n)])


def flsd(b: Batch, gamma: float = 3.0, schedule: str = "two-threshold") -> float:
    def row(i: int) -> float:
        p = b.fixed_p[i]
        deciding = p.max() if schedule == "predicted" else p[b.y[i]]
        power = gamma
        if schedule == "two-threshold" and deciding < 0.5:
            power = 3.0
        if deciding < 0.2:
            power = 5.0
        return (1 - b.p[i][b.y[i]]) ** power * -log_p(b.z[i], b.y[i])

    return b.mean([row(i) for i in range(b.n)])


def dfl(b: Batch, gamma: float, variant: str) -> float:
    def row(i: int) -> float:
        p, y = b.p[i], b.y[i]
        rivals = [p[k] for k in range(b.k) if k != y]
        if variant == "released":
            rivals = [q for q in rivals if q < p[y]]
        return (1 - p[y] + max(rivals, default=0.0)) ** gamma * -log_p(b.z[i], y)

    return b.mean([row(i) for i in range(b.n)])


def brier(b: Batch) -> float:
    return b.mean([sum((b.p[i][k] - (k == b.y[i])) ** 2 for k in range(b.k)) for i in range(b.n)])


def ecp(b: Batch, weight: float, variant: str = "released") -> float:
    share = b.k if variant == "released" else 1
    entropy = [-sum(p * log(p) for p in row) for row in b.p]
    return ce(b) - weight * b.mean(entropy) / share


def mbls(b: Batch, margin: float, weight: float, variant: str = "released") -> float:
    share = b.k if variant == "released" else 1
    beyond = [sum(relu(row.max() - z - margin) for z in row) / share for row in b.z]
    return ce(b) + weight * b.mean(beyond)


def acls(
    b: Batch,
    margin: float,
    weight_pos: float,
    weight_neg: float,
    variant: str = "released",
    parts: str = "full",
) -> float:
    def amount(distance: float) -> float:
        beyond = distance - (0.0 if parts == "ranking" else margin)
        beyond = beyond if parts == "adaptive-only" else relu(beyond)
        return beyond if parts == "conditional" else beyond**2

    def row(i: int) -> float:
        z, top, j = b.z[i], b.top[i], (i + 1) % b.n
        if parts == "ranking":
            behind = b.memory[j]["share"] - b.memory[i]["share"]
            surer = b.fixed_p[i].max() - b.fixed_p[j].max()
            if behind <= 0 or behind + surer <= 0:
                return 0.0
        rest = [k for k in range(b.k) if b.fixed[i][k] < b.fixed[i][top]]
        if variant == "paper":
            others = sum(amount(z[top] - z[k]) for k in rest)
            return weight_pos * amount(z[top] - z.min()) + weight_neg * others
        others = sum(amount(b.fixed[i][top] - z[k]) for k in rest) / (b.k - 1)
        return (b.k - len(rest)) * weight_pos * amount(z[top]) + weight_neg * others

    return ce(b) + b.mean([row(i) for i in range(b.n)])


def surety(p: Matrix, kind: str) -> float:
    if kind == "msp":
        return float(p.max())
    if kind == "margin":
        second, first = sorted(p)[-2:]
        return float(first - second)
    return sum(q * log(q) for q in p)


def selective(p: Matrix, kind: str, variant: str) -> float:
    return surety(softmax(p) if variant == "released" else p, kind)


def aurc(
    b: Batch, score: str = "msp", variant: str = "paper", batch_size: int | None = None
) -> float:
    n = batch_size or b.n
    scores = [selective(p, score, variant) for p in b.fixed_p]
    places = sorted(range(b.n), key=scores.__getitem__)
    total = 0.0
    for rank, i in enumerate(places, start=1):
        weight = sum(1 / m for m in range(n - rank + 1, n + 1))
        total += weight * -log_p(b.z[i], b.y[i])
    return total / b.n


def au(
    b: Batch,
    coverage: float = 0.9,
    smoothness: float = 0.1,
    score: str = "msp",
    bins: int = 64,
    variant: str = "released",
    histogram: str = "epoch",
    batch_size: int | None = None,
) -> float:
    limit = 1 / ((batch_size or b.n) + 1)

    def confidence(p: Matrix) -> float:
        value = selective(p, score, variant)
        return 1 + value / log(b.k) if score == "neg_entropy" else value

    scores = [confidence(p) for p in b.p]
    counts = [0] * bins
    for p in b.fixed_p:
        counts[min(int(confidence(p) * bins), bins - 1)] += 1
    place = coverage * (b.n - 1)
    ordered = sorted(scores)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    tau = low + (place - floor(place)) * (high - low)

    def below(x: float) -> float:
        steps = (n / (1 + exp(-(x - (m + 0.5) / bins) / smoothness)) for m, n in enumerate(counts))
        return min(max(sum(steps) / b.n, limit), 1 - limit)

    return b.mean(
        [-log(1 - below(min(c, tau))) * loss for c, loss in zip(scores, b.ce(), strict=True)]
    )


def dca(b: Batch, weight: float) -> float:
    return ce(b) + weight * abs(b.mean(b.sure) - b.mean(b.right))


def mdca(
    b: Batch, weight: float = 1.0, base: str = "ce", gamma: float = 1.0, smoothing: float = 0.1
) -> float:
    rows = {
        "ce": lambda: ce(b),
        "fl": lambda: fl(b, gamma),
        "ls": lambda: ls(b, smoothing, "others"),
    }
    gaps = [
        abs(b.mean([p[k] for p in b.p]) - b.mean([float(y == k) for y in b.y])) for k in range(b.k)
    ]
    return rows[base]() + weight * sum(gaps) / b.k


def laplace(r: float, s: float) -> float:
    return exp(-abs(r - s) / 0.4)


def mmce(b: Batch, weight: float = 1.0, variant: str = "released") -> float:
    pairs = [(i, j) for i in range(b.n) for j in range(b.n)]
    squared = sum(
        (b.right[i] - b.sure[i]) * (b.right[j] - b.sure[j]) * laplace(b.sure[i], b.sure[j])
        for i, j in pairs
    ) / len(pairs)
    return ce(b) + weight * (squared if variant == "released" else sqrt(max(squared, 0.0)))


def mmce_w(b: Batch, weight: float = 2.0, variant: str = "released") -> float:
    groups = [[i for i in range(b.n) if b.right[i] == right] for right in (1.0, 0.0)]
    squared = 0.0
    for one in groups:
        for other in groups:
            total = sum(
                abs(b.right[i] - b.sure[i])
                * abs(b.right[j] - b.sure[j])
                * laplace(b.sure[i], b.sure[j])
                for i in one
                for j in other
            )
            mean = total / (len(one) * len(other))
            if variant == "released":
                mean /= len(one) * len(other) + 1e-5
            squared += mean if one is other else -mean
    return ce(b) + weight * sqrt(squared + 1e-10)


def esd(b: Batch, weight: float = 0.5, variant: str = "paper") -> float:
    values = [float(row.max()) for row in b.z] if variant == "released" else b.sure
    fixed = [float(row.max()) for row in (b.fixed if variant == "released" else b.fixed_p)]
    gaps = [right - value for right, value in zip(b.right, values, strict=True)]
    total = 0.0
    for i in range(b.n):
        below = [j for j in range(b.n) if j != i and fixed[j] <= fixed[i]]
        total += sum(gaps[j] * gaps[k] for j in below for k in below if j != k)
    estimate = total / (b.n * (b.n - 1) * (b.n - 2))
    return ce(b) + weight * (sqrt(estimate) if estimate > 0 else 0.0)


def cpc(b: Batch, weight_1v1: float = 0.1, weight_be: float = 1.0) -> float:
    def row(i: int) -> float:
        z, y = b.z[i], b.y[i]
        others = [z[k] for k in range(b.k) if k != y]
        won = sum(softplus(q - z[y]) for q in others) / len(others)
        even = sum(softplus(q - r) for q in others for r in others)
        return weight_1v1 * won + weight_be * 0.5 * even / (len(others) * (len(others) - 1))

    return ce(b) + b.mean([row(i) for i in range(b.n)])


BANDWIDTHS = [10 ** (-5 + 4 * step / 14) for step in range(15)] + [0.2, 0.4, 0.6, 0.8, 1.0]


def dirichlet(point: Matrix, centre: Matrix, bandwidth: float) -> float:
    alpha = [c / bandwidth + 1 for c in centre]
    norm = sum(map(lgamma, alpha)) - lgamma(sum(alpha))
    return sum((a - 1) * log(x) for a, x in zip(alpha, point, strict=True)) - norm


def log_sum(values: list[float]) -> float:
    top = max(values)
    return top + log(sum(exp(value - top) for value in values))


def bandwidth_of(probs: list[Matrix], variant: str) -> float:
    def likelihood(h: float) -> float:
        rows = range(len(probs))
        total = sum(
            log_sum([dirichlet(probs[i], probs[j], h) for j in rows if j != i]) for i in rows
        )
        return total - (len(probs) * log(h) if variant == "paper" else 0.0)

    return max(BANDWIDTHS, key=likelihood)


def frequency(b: Batch, i: int, k: int, points: list[Matrix], h: float, hits: list[float]) -> float:
    others = [j for j in range(b.n) if j != i]
    logs = [dirichlet(points[i], points[j], h) for j in others]
    total = log_sum(logs)
    return sum(exp(value - total) * hits[j] for value, j in zip(logs, others, strict=True))


def kde_xe(
    b: Batch,
    weight: float = 0.3,
    bandwidth: float | str = "loo",
    p: float = 1.0,
    form: str = "canonical",
    variant: str = "paper",
) -> float:
    probs = b.fixed_p if variant == "released" else b.p
    h = bandwidth_of(b.fixed_p, variant) if isinstance(bandwidth, str) else bandwidth
    total = 0.0
    for i in range(b.n):
        for k in range(b.k):
            hits = [float(y == k) for y in b.y]
            if form == "canonical":
                total += abs(frequency(b, i, k, probs, h, hits) - probs[i][k]) ** p
            elif form == "marginal":
                points = [np.array([q[k], 1 - q[k]]) for q in probs]
                total += abs(frequency(b, i, k, points, h, hits) - probs[i][k]) ** p
            elif k == 0:
                points = [np.array([c, 1 - c]) for c in b.sure]
                total += abs(frequency(b, i, k, points, h, b.right) - b.sure[i]) ** p
    return ce(b) + weight * total / b.n


def crl(
    b: Batch,
    weight: float = 1.0,
    score: str = "msp",
    condition: str = "ranking",
    margin: float = 10.0,
) -> float:
    def confidence(p: Matrix) -> float:
        value = surety(p, score)
        return value / log(b.k) if score == "neg_entropy" else value

    scores = [confidence(p) for p in b.p]
    if condition == "margin":
        wide = [float(row.max() - row.min() > margin) for row in b.fixed]
        return ce(b) + weight * b.mean([w * c for w, c in zip(wide, scores, strict=True)])
    total = 0.0
    for i in range(b.n):
        j = (i + 1) % b.n
        gap = b.memory[i]["share"] - b.memory[j]["share"]
        if gap:
            sign = 1 if gap > 0 else -1
            total += relu(abs(gap) - sign * (scores[i] - scores[j]))
    return ce(b) + weight * total / b.n


def cape(b: Batch, bins: int, every: int) -> float:
    goals = [memory["goal"] for memory in b.memory]
    pairs = zip(goals, b.sure, strict=True)
    return b.mean([-g * log(c) - (1 - g) * log(1 - c) for g, c in pairs])


def patra(
    b: Batch,
    weight: float,
    gamma: float,
    threshold: float,
    pruned: float,
    every: int,
    momentum: float = 0.3,
) -> float:
    kept = [i for i in range(b.n) if b.memory[i]["kept"]]
    rest = Batch(b.z[kept], b.fixed[kept], [b.y[i] for i in kept], [])
    gap = abs(rest.mean(rest.sure) - rest.mean(rest.right))
    huber = gap**2 / 2 if gap <= threshold else threshold * (gap - threshold / 2)
    return fl(rest, gamma) + weight * huber


ACLS = {"margin": 3.0, "weight_pos": 0.3, "weight_neg": 0.05}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("ce", {}),
    *(("ls", {"smoothing": 0.1, "spread": spread}) for spread in ("all", "others")),
    *(("fl", {"gamma": 2.5, "detach": detach}) for detach in (False, True)),
    ("ifl", {"gamma": 2.5}),
    *(
        ("flsd", {"gamma": 1.5, "schedule": s})
        for s in ("two-threshold", "one-threshold", "predicted")
    ),
    *(("dfl", {"gamma": 2.5, "variant": variant}) for variant in ("paper", "released")),
    ("brier", {}),
    *(("ecp", {"weight": 0.3, "variant": variant}) for variant in ("paper", "released")),
    *(("mbls", {"margin": 3.0, "weight": 0.2, "variant": v}) for v in ("paper", "released")),
    *(
        ("acls", {**ACLS, "variant": variant, "parts": parts})
        for variant in ("paper", "released")
        for parts in ("full", "adaptive-only", "conditional", "ranking")
    ),
    *(
        ("aurc", {"score": score, "variant": variant})
        for score in ("msp", "margin", "neg_entropy")
        for variant in ("paper", "released")
    ),
    ("aurc", {"batch_size": 20}),
    ("au", {}),
    ("au", {"coverage": 0.95, "smoothness": 0.02, "variant": "paper", "batch_size": 20}),
    ("au", {"coverage": 0.6, "smoothness": 0.05, "score": "margin", "bins": 10}),
    ("au", {"coverage": 0.6, "smoothness": 0.5, "variant": "paper", "histogram": "batch"}),
    ("au", {"coverage": 0.6, "smoothness": 0.5, "variant": "paper", "score": "neg_entropy"}),
    ("dca", {"weight": 0.7}),
    ("mdca", {"weight": 0.7}),
    ("mdca", {"base": "fl", "gamma": 2.0}),
    ("mdca", {"base": "ls", "smoothing": 0.2}),
    *(("mmce", {"weight": 1.5, "variant": variant}) for variant in ("paper", "released")),
    *(("mmce-w", {"weight": 1.5, "variant": variant}) for variant in ("paper", "released")),
    *(("esd", {"weight": 0.8, "variant": variant}) for variant in ("paper", "released")),
    ("cpc", {"weight_1v1": 0.3, "weight_be": 0.6}),
    *(("kde-xe", {"bandwidth": 0.1, "p": p}) for p in (1.0, 1.5)),
    *(("kde-xe", {"bandwidth": 0.1, "form": form}) for form in ("marginal", "top_label")),
    *(("kde-xe", {"weight": 0.5, "variant": variant}) for variant in ("paper", "released")),
    *(("crl", {"weight": 0.5, "score": score}) for score in ("msp", "margin", "neg_entropy")),
    ("crl", {"weight": 0.5, "condition": "margin", "margin": 6.0}),
    ("cape", {"bins": 4, "every": 3}),
    ("patra", {"weight": 2.0, "gamma": 1.5, "threshold": 0.05, "pruned": 0.25, "every": 3}),
    (
        "patra",
        {"weight": 0.2, "gamma": 1.0, "threshold": 1.0, "pruned": 0.5, "every": 3, "momentum": 0.8},
    ),
]
FORMULAS = {
    name: globals()[name.replace("-", "_")] for name in dict.fromkeys(name for name, _ in CASES)
}


def memories(past: list[tuple[Matrix, list[int]]], parameters: dict[str, Any]) -> list[Any]:
    """Return what the losses with a history know of each sample after three epochs."""
    samples = range(len(past[0][1]))
    counts, averages = [0.0] * len(samples), [0.0] * len(samples)
    momentum = parameters.get("momentum", 0.3)
    for z, y in past:
        for i in samples:
            sure = float(softmax(z[i]).max())
            counts[i] += int(z[i].argmax()) == y[i]
            averages[i] += momentum * (sure - averages[i])
    z, y = past[-1]
    shares = [(count - min(counts)) / (len(past) - min(counts)) for count in counts]
    latest = [float(softmax(row).max()) for row in z]
    order, goals, start = sorted(samples, key=latest.__getitem__), [0.0] * len(samples), 0
    bins = parameters.get("bins", 10)
    sizes = [len(samples) // bins + (place < len(samples) % bins) for place in range(bins)]
    for first, last in pairwise(np.cumsum([start, *sizes])):
        places = order[first:last]
        for i in places:
            goals[i] = sum(int(z[j].argmax()) == y[j] for j in places) / len(places)
    pruned = sorted(samples, key=averages.__getitem__)
    gone = set(pruned[: int(parameters.get("pruned", 0.0) * len(samples))])
    return [{"share": shares[i], "goal": goals[i], "kept": i not in gone} for i in samples]


def draw(seed: int, rows: int = 13, classes: int = 5) -> tuple[Matrix, list[int]]:
    """Return logits of three decimals and labels, about half of which are the predictions."""
    source = np.random.default_rng(seed)
    z = np.round(source.normal(0, 2.5, (rows, classes)), 3)
    labels = np.where(source.random(rows) < 0.5, z.argmax(1), source.integers(classes, size=rows))
    return z, [int(label) for label in labels]


def value_and_gradient(
    name: str, parameters: dict[str, Any], z: Matrix, y: list[int], memory: list[Any]
) -> tuple[float, Matrix]:
    """Return both over the rows that count; the gradient is 0 in the others."""
    counted = [i for i, label in enumerate(y) if label != IGNORED]
    labels, kept = [y[i] for i in counted], [memory[i] for i in counted]
    at = z[counted]

    def value(logits: Matrix) -> float:
        return FORMULAS[name](Batch(logits, at, labels, kept), **parameters)

    gradient = np.zeros_like(z)
    for place, i in enumerate(counted):
        for k in range(z.shape[1]):
            ends = []
            for sign in (1, -1):
                moved = at.copy()
                moved[place, k] += sign * STEP
                ends.append(value(moved))
            gradient[i, k] = (ends[0] - ends[1]) / (2 * STEP)
    return value(at), gradient


def main() -> None:
    z, y = draw(1)
    y[3] = IGNORED
    past = [draw(seed) for seed in (2, 3, 4)]
    cases = []
    for name, parameters in CASES:
        value, gradient = value_and_gradient(name, parameters, z, y, memories(past, parameters))
        assert abs(value) < inf
        rounded = [[float(f"{entry:.10g}") for entry in row] for row in gradient]
        cases.append({"name": name, "parameters": parameters, "value": value, "gradient": rounded})
    facts = {
        "logits": z.tolist(),
        "targets": y,
        "past": [{"logits": logits.tolist(), "targets": targets} for logits, targets in past],
    }
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{json.dumps(facts)[:-1]},\n"cases": [\n{lines}\n]}}\n'
    Path(__file__).with_suffix(".json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
