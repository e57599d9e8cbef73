"""Draw sweeps so that every allowed pair of values occurs, and say which pairs never did."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "executor": ("in-process", "processes", "ray", "plugin"),
    "plugin": ("none", "loss", "library", "package", "refinement", "calibrator", "metric"),
    "storage": ("plain", "percent", "blank", "umlaut", "symlink", "hash", "quote"),
    "data": ("digits", "npz", "folder", "text", "features", "logits", "logits-csv"),
    "refinement": ("none", "macal", "tst"),
    "calibrator": ("none", "ts", "ets-cls", "cts", "isotonic"),
    "scheduler": ("none", "asha"),
    "sampler": ("tpe", "prior", "random", "gp", "grid"),
    "tracker": ("default", "server"),
    "submit": ("none", "slurm"),
    "key": ("none", "keep", "seeds", "vary", "variant", "tags", "errors", "deterministic"),
    "option": ("none", "pareto", "fixed", "spaces", "tune", "objective", "lowest", "seed", "paper"),
    "command": (
        "plan",
        "refuse",
        "read",
        "kill",
        "stop",
        "cancel",
        "pause",
        "double",
        "again",
        "fresh",
        "move",
        "edit",
        "gc",
        "sync",
        "lose",
        "relabel",
        "publish",
        "fraud",
        "merge",
        "submit",
    ),
}

MOST = 40  # Pairs that a report names.

# Values that go with each other, so that a sweep may have several.
ALSO = {
    "key": ("keep", "seeds", "variant", "tags", "errors", "deterministic"),
    "option": ("pareto", "objective", "lowest", "seed"),
}

# Logits are not trained: no loss, no refinement (docs/data.md). Packages exclude asha (travel.md),
# which needs trials that run side by side on Ray (search.md).
LOGITS = ("logits", "logits-csv")
NEVER = (
    (("data", LOGITS), ("refinement", ("macal", "tst"))),
    (("data", LOGITS), ("key", ("vary",))),
    (("data", LOGITS), ("plugin", ("loss", "library", "package", "refinement"))),
    (("scheduler", ("asha",)), ("command", ("publish", "fraud", "merge"))),
    (("scheduler", ("asha",)), ("option", ("pareto",))),
    (("scheduler", ("asha",)), ("executor", ("in-process", "processes", "plugin"))),
    (("sampler", ("grid",)), ("option", ("fixed", "tune", "paper"))),
    # A job of SLURM starts Ray on its nodes, and tracks on a server (cluster.md).
    (("submit", ("slurm",)), ("executor", ("in-process", "processes", "plugin"))),
    (("submit", ("slurm",)), ("tracker", ("default",))),
    (("submit", ("slurm",)), ("command", ("lose", "relabel"))),
    (("submit", ("none",)), ("command", ("submit",))),
    (("command", ("submit",)), ("executor", ("in-process", "processes", "plugin"))),
    (("command", ("submit",)), ("tracker", ("default",))),
    # Two storages on one server are one sweep there, whose data must not differ.
    (("command", ("lose", "relabel")), ("tracker", ("server",))),
    (("plugin", ("none", "metric")), ("command", ("edit",))),
    (("data", ("digits", "folder", "text", "features", "logits-csv")), ("command", ("relabel",))),
)


def together(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Return True if two values may be in one sweep."""
    for (left, lefts), (right, rights) in NEVER:
        for a, b in ((one, other), (other, one)):
            if a[0] == left and a[1] in lefts and b[0] == right and b[1] in rights:
                return False
    return True


def allowed(row: Row) -> bool:
    """Return True if all values of a row may be in one sweep."""
    return all(itertools.starmap(together, itertools.combinations(row.items(), 2)))


def pairs(row: Row) -> set[Pair]:
    """Return the pairs of values in a row, in the order of the dimensions."""
    named = [(name, row[name]) for name in DIMENSIONS if name in row]
    return set(itertools.combinations(named, 2))


def every_pair() -> set[Pair]:
    """Return all pairs of values that may be in one sweep."""
    values = [[(name, value) for value in DIMENSIONS[name]] for name in DIMENSIONS]
    return {
        pair
        for one, other in itertools.combinations(values, 2)
        for pair in itertools.product(one, other)
        if together(*pair)
    }


def filled(seeded: Pair, missing: set[Pair], rng: random.Random) -> Row:
    """Return a row that holds a pair, and greedily as many missing pairs as possible."""
    row: Row = dict(seeded)
    rest = [name for name in DIMENSIONS if name not in row]
    rng.shuffle(rest)
    for name in rest:
        fits = [value for value in DIMENSIONS[name] if allowed({**row, name: value})]
        rng.shuffle(fits)
        row[name] = max(fits, key=lambda value: len(pairs({**row, name: value}) & missing))
    return {name: row[name] for name in DIMENSIONS}


@cache
def rows(seed: int) -> list[Row]:
    """Return rows that hold every allowed pair, in an order that the seed decides."""
    rng, missing, found = random.Random(seed), every_pair(), []
    while missing:
        row = filled(rng.choice(sorted(missing)), missing, rng)
        missing -= pairs(row)
        found.append(row)
    return found


def row_of(seed: int) -> Row:
    """Return the row of a history, from one covering after another, and further keys in ``also``.

    A row has one value of ``key`` and one of ``option``; ``also`` are further ones, each with
    probability 0.6.
    """
    size, rng = len(rows(0)), random.Random(seed)
    covering = rows(seed // size)
    row = covering[seed % size % len(covering)]
    free = [
        (name, value) for name, values in ALSO.items() for value in values if rng.random() < 0.6
    ]
    also = [value for name, value in free if row[name] != value and allowed({**row, name: value})]
    return {**row, "also": " ".join(also)}


def keys(row: Row) -> set[str]:
    """Return the optional keys of the sweep file that a row asks for."""
    return {row["key"], row["option"], *row.get("also", "").split()} - {"none"}


def never(drawn: Iterable[Row]) -> list[Pair]:
    """Return the allowed pairs that no drawn row has."""
    return sorted(every_pair() - set().union(*map(pairs, drawn)))


def coverage(drawn: Sequence[Row]) -> str:
    """Return what was drawn and what was not, for the page of results."""
    missing, total = never(drawn), len(every_pair())
    lines = [f"{len(drawn)} histories, {total - len(missing)} of {total} pairs"]
    counts = Counter(pair for row in drawn for pair in itertools.combinations(sorted(keys(row)), 2))
    lines += [f"keys {one} and {other}: {count}" for (one, other), count in counts.most_common()]
    lines += [f"never together: {a}={b}, {c}={d}" for (a, b), (c, d) in missing[:MOST]]
    lines += [f"and {len(missing) - MOST} more pairs"] if len(missing) > MOST else []
    return "\n".join(lines)
