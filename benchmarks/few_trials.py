"""Measures how many trials a search needs, on the blackbox of ``few_trials_make.py``.

    python benchmarks/few_trials.py --out benchmarks/results/few-trials.md
    python benchmarks/few_trials.py --portfolio

The second command prints the portfolios for ``search_spaces/methods``, computed from all tasks. In
the replay, the portfolio of a task is computed from the tasks with other data.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml
from _page import load, options, publish, setting, table

from orchestrator.search.choice import ChoiceRule, Margin, Rank
from orchestrator.search.prior import ERRORS, LEAST
from orchestrator.search.study import StudySearch, distribution_of
from orchestrator.sweep.plan import StudyPlan, make_plan
from orchestrator.sweep.spec import SearchModel, parse_sweep
from search_spaces import Parameter, load_space
from trainables.charts.chart import Chart, amount, drawn, layer, names

FILE = Path(__file__).resolve().parents[1] / "docs" / "results" / "few-trials.npz"
SWEEP = """
name: few
tasks: [{{dataset: {dataset}, model: {model}, protocol: digits}}]
recipes: [{method}]
search: {{accuracy_tolerance: null, trials: {trials}, sampler: {sampler}, parallel_trials: {lag}}}
"""
RULE = ChoiceRule("val_nll", 0.01, "last", keep_default=2.0)
TRIALS, ROWS, ENTRIES, RESAMPLES = 20, 300, 3, 2000
BUDGETS = (4, 6, 7, 8, 12, 20)
FIGURES = ("nll", "acc", "ece", "nll_after_ts")
REFERENCE = ("tpe", 20)
SHOWN = {"prior": "prior", "tpe": "tpe (the default)", "random": "random"}


@dataclass(frozen=True)
class Box:
    """One method on one task: C configurations (the published default first), N validation rows.

    Attributes:
        numbers: Numbers of the configurations; except 0, a number means the same values on every
            task.
        nll: NLL of each row (C, N). ``right`` (C, N) and, for cross-entropy, ``plain`` (N,) say
            which rows are classified correctly.
        curve: ``FIGURES`` on validation data after a third, two thirds and all epochs (C, 3, 4).
        test: ``FIGURES`` on test data (C, 4).
    """

    task: str
    dataset: str
    method: str
    numbers: list[int]
    points: list[dict[str, Any]]
    nll: np.ndarray
    right: np.ndarray
    plain: np.ndarray
    curve: np.ndarray
    test: np.ndarray

    @cached_property
    def searched(self) -> Mapping[str, Parameter]:
        """Return the method's searched parameters."""
        return load_space("methods", self.method).searched()

    @cached_property
    def places(self) -> np.ndarray:
        """Return the positions of the configurations in the unit cube."""
        return np.array([self.place(point) for point in self.points])

    def place(self, point: Mapping[str, Any]) -> list[float]:
        """Return the position of a configuration in the unit cube."""
        return [_share(parameter, point[name]) for name, parameter in self.searched.items()]

    def nearest(self, point: Mapping[str, Any]) -> int:
        """Return the index of the recorded configuration that is nearest to ``point``."""
        return int(((self.places - self.place(point)) ** 2).sum(axis=1).argmin())

    @property
    def regrets(self) -> np.ndarray:
        """Return test NLL and test ECE minus the best configuration's, (C, 2)."""
        figures = self.test[:, [0, 2]]
        return figures - figures.min(axis=0)


def _share(parameter: Parameter, value: Any) -> float:
    if parameter.type == "categorical":
        return (parameter.choices.index(value) + 0.5) / len(parameter.choices)
    ends = (parameter.low, parameter.high, value)
    low, high, place = map(math.log, ends) if parameter.scale == "log" else ends
    return float((place - low) / (high - low))


@cache
def read(path: Path) -> list[Box]:
    """Return the blackbox."""
    with np.load(path) as found:
        about = json.loads(str(found["about"]))
        return [_box(found, number, **study) for number, study in enumerate(about)]


def _box(
    found: Any, number: int, task: str, dataset: str, method: str, numbers: Any, points: Any
) -> Box:
    nll, curve, test = (found[f"{number}/{name}"] for name in ("nll", "curve", "test"))
    rows = nll.shape[1]
    right = np.unpackbits(found[f"{number}/right"], axis=1, count=rows)
    plain = np.unpackbits(found[f"plain/{task}"], count=rows)
    arrays = (nll.astype(float), right.astype(float), plain.astype(float), curve, test)
    return Box(task, dataset, method, numbers, points, *arrays)


Tried = list[tuple[int, float]]
"""Configurations of trials, and the share of the epochs that each ran."""


class Rows:
    """The validation rows of one search, and calsweep's choice on them."""

    def __init__(self, box: Box, search: int) -> None:
        seed = zlib.crc32(f"{box.task}|{box.method}|{search}".encode())
        drawn = np.random.default_rng(seed).permutation(box.nll.shape[1])[:ROWS]
        nll, right, plain = box.nll[:, drawn], box.right[:, drawn], box.plain[drawn]
        reference = {"val_acc": float(plain.mean())}
        self.objective = [
            RULE.score({"val_nll": n, "val_acc": a}, reference)
            for n, a in zip(nll.mean(axis=1), right.mean(axis=1), strict=True)
        ]
        lost = np.array(self.objective) > nll.mean(axis=1)
        self._terms = nll + np.where(lost[:, None], plain - right, 0.0)

    def choice(self, tried: Sequence[int]) -> int:
        """Return the configuration that calsweep's rule chooses after these trials."""
        ranked = [Rank(self.objective[place], number) for number, place in enumerate(tried)]

        def margin(best: Rank, default: Rank) -> Margin:
            error = self.error(tried[default.number], tried[best.number])
            return Margin(default.objective - best.objective, error)

        return tried[RULE.choose(ranked, margin)[0].number]

    def error(self, one: int, other: int) -> float:
        """Return the paired standard error of the difference of two objectives."""
        change = self._terms[one] - self._terms[other]
        return float(change.std(ddof=1)) / math.sqrt(len(change))

    def cuts(self, box: Box, figure: str, known: Sequence[int], place: int) -> bool:
        """Return True if a trial is worse than the best one so far after a third of the epochs."""
        early = box.curve[:, 0, FIGURES.index(figure)] * (-1 if figure == "acc" else 1)
        return bool(early[place] > early[min(known, key=lambda k: self.objective[k])])

    def noise(self, tried: Sequence[int]) -> float:
        """Return the standard error of the best trial's lead over the default (or second best)."""
        best, second = sorted(range(len(tried)), key=lambda n: (self.objective[tried[n]], n))[:2]
        return self.error(tried[best], tried[0 if best else second])


def portfolio(boxes: Sequence[Box], size: int = ENTRIES) -> list[dict[str, Any]]:
    """Choose greedily the configurations that are together best on the studies of one method.

    A study's loss is the regret in test NLL, relative to the regret of its default and median.
    """
    common = sorted(set.intersection(*(set(box.numbers) for box in boxes)) - {0})
    losses = np.array([_losses(box)[[box.numbers.index(n) for n in (0, *common)]] for box in boxes])
    best, found = losses[:, 0], []
    for _ in range(size):
        place = int(np.minimum(best[:, None], losses)[:, 1:].mean(axis=0).argmin())
        found.append(common[place])
        best = np.minimum(best, losses[:, 1 + place])
        losses[:, 1 + place] = np.inf
    return [boxes[0].points[boxes[0].numbers.index(number)] for number in found]


def _losses(box: Box) -> np.ndarray:
    regret = box.regrets[:, 0]
    return np.clip(regret / max(1e-9, regret[0] + np.median(regret) / 4), 0.0, 3.0)


def others(boxes: Sequence[Box], box: Box) -> list[Box]:
    """Return the studies of the same method on other data; noisy digits count as digits."""
    source = box.task.split("/")[0].removesuffix("-noisy")
    return [
        b
        for b in boxes
        if b.method == box.method
        and not b.task.startswith(source + "/")
        and not b.task.startswith(source + "-")
    ]


@cache
def planned(
    dataset: str, method: str, sampler: str, trials: int, lag: int
) -> tuple[StudyPlan, SearchModel]:
    """Return the plan and rules of a study as a sweep file makes them."""
    # Nothing is trained: the network only has to take the data.
    model = "gpool-cnn" if dataset == "20newsgroups" else "resnet8"
    names = {"dataset": dataset, "model": model, "method": method, "sampler": sampler}
    spec = parse_sweep(SWEEP.format(**names, trials=trials, lag=lag), "few")
    return list(make_plan(spec))[-1], spec.search


def ours(
    box: Box,
    rows: Rows,
    search: int,
    sampler: str,
    trials: int = TRIALS,
    lag: int = 4,
    learnt: Sequence[Mapping[str, Any]] = (),
    stop: float = 0.0,
    cut: str = "",
) -> Tried:
    """Return the configurations that calsweep's search tries.

    Args:
        box: The study.
        rows: The study's validation rows.
        search: Seed of the search.
        sampler: The sampler, as in a sweep file.
        trials: Number of trials.
        lag: ``parallel_trials``.
        learnt: The portfolio.
        stop: From the ninth trial on, the search ends if the next trial is expected to gain less
            than this many standard errors.
        cut: Figure by which a trial is stopped after a third of its epochs, if its value is worse
            than the value of the best trial so far.
    """
    plan, rules = planned(box.dataset, box.method, sampler, trials, lag)
    named = tuple({f"{box.method}.{k}": v for k, v in point.items()} for point in learnt)
    asked = StudySearch(replace(plan, portfolio=named), rules, search)
    tried: list[int] = []
    shares: list[float] = []
    for scored in range(trials):
        while asked.may_ask():
            known = [tried[n] for n in range(asked.heard()) if shares[n] == 1]
            enough = stop and len(tried) >= LEAST
            if enough and asked.modelled().improvement <= stop * rows.noise(known):
                asked.stop()
                break
            point = asked.ask()[1]
            tried.append(box.nearest({k.split(".")[1]: v for k, v in point.items()}))
            shares.append(1 / 3 if cut and known and rows.cuts(box, cut, known, tried[-1]) else 1)
        if scored == asked.trials:
            break
        asked.score(
            scored, rows.objective[tried[scored]], "finished" if shares[scored] == 1 else "pruned"
        )
    return list(zip(tried, shares, strict=True))


def optunas(box: Box, rows: Rows, sampler: Any) -> Tried:
    """Return the configurations that Optuna tries, one at a time, after the published default."""
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(box.points[0])
    distributions = {name: distribution_of(p) for name, p in box.searched.items()}
    tried: list[int] = []
    for _ in range(TRIALS):
        trial = study.ask(distributions)
        tried.append(box.nearest(trial.params))
        study.tell(trial, rows.objective[tried[-1]])
    return [(place, 1.0) for place in tried]


def mixture(box: Box, rows: Rows, search: int) -> Tried:
    """Return the trials of PriorBand's mixture: drawn from the range, near the default or best."""
    rng, tried = np.random.default_rng(search), [0]
    for number in range(1, TRIALS):
        known = tried[: max(1, number - 3)]
        best = min(known, key=lambda place: rows.objective[place])
        centre = [None, box.places[0], box.places[best]][rng.integers(3)]
        drawn = rng.random(box.places.shape[1])
        if centre is not None:
            drawn = np.clip(rng.normal(centre, 0.25 if centre is box.places[0] else 0.125), 0, 1)
        tried.append(int(((box.places - drawn) ** 2).sum(axis=1).argmin()))
    return [(place, 1.0) for place in tried]


Strategy = Callable[[Box, Rows, int], Tried]


def strategies(boxes: Sequence[Box]) -> dict[str, tuple[Strategy, int]]:
    """Return the strategies and their numbers of trials by name."""
    learnt = {(box.task, box.method): portfolio(others(boxes, box)) for box in boxes}

    def prior(**options: Any) -> Strategy:
        return lambda box, rows, search: ours(
            box, rows, search, "prior", learnt=learnt[box.task, box.method], **options
        )

    return {
        "prior": (prior(), 20),
        "prior, stop: auto": (prior(stop=ERRORS), 20),
        **{f"prior, cut by {figure}": (prior(cut=figure, trials=8), 8) for figure in FIGURES},
        "prior, without portfolio": (lambda b, r, s: ours(b, r, s, "prior", 8), 8),
        "tpe": (lambda b, r, s: ours(b, r, s, "tpe"), 20),
        "tpe, stop: auto": (lambda b, r, s: ours(b, r, s, "tpe", stop=ERRORS), 20),
        "tpe, trials: 8": (lambda b, r, s: ours(b, r, s, "tpe", 8), 8),
        "random": (lambda b, r, s: ours(b, r, s, "random"), 20),
        "mixture of PriorBand": (mixture, 20),
        "Optuna's TPE": (lambda b, r, s: optunas(b, r, optuna.samplers.TPESampler(seed=s)), 20),
        "Optuna's GP": (lambda b, r, s: optunas(b, r, optuna.samplers.GPSampler(seed=s)), 20),
    }


@dataclass(frozen=True)
class Found:
    """The choice of one search after some trials, judged on test data.

    ``shared`` is the regret in test NLL after temperature scaling the choice; ``own`` is the regret
    if the trial with the lowest validation NLL after temperature scaling is chosen instead.
    """

    strategy: str
    task: str
    method: str
    search: int
    trials: int
    epochs: float
    nll: float
    ece: float
    worse: bool
    worse_ece: bool
    kept: bool
    shared: float
    own: float


def replayed(path: Path, number: int, searches: int, only: Sequence[str]) -> list[Found]:
    """Search one study of a blackbox ``searches`` times by each strategy."""
    boxes, found = read(path), []
    named, box = strategies(boxes), boxes[number]
    after = box.test[:, 3] - box.test[:, 3].min()
    for search in range(searches):
        rows = Rows(box, search)
        for name in only or named:
            strategy, most = named[name]
            tried = strategy(box, rows, search)
            for trials in (b for b in BUDGETS if b <= most):
                epochs = sum(share for _, share in tried[:trials])
                ended = [p for p, share in tried[:trials] if share == 1]
                place, own = rows.choice(ended), min(ended, key=lambda p: box.curve[p, 2, 3])
                (nll, ece), worse = box.regrets[place], box.regrets[place] > box.regrets[0]
                told = (box.task, box.method, search, trials, epochs / TRIALS)
                judged = (nll, ece, *map(bool, worse), place == 0, after[place], after[own])
                found.append(Found(name, *told, *judged))
    return found


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean and a 95 % interval over searches, by bootstrap."""
    rng = np.random.default_rng(0)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)]
    return float(values.mean()), *map(float, np.quantile(means, (0.025, 0.975)))


def rows_of(found: Sequence[Found]) -> Iterator[list[str]]:
    """Yield a row of the table for each strategy and number of trials."""
    reference = {
        (f.task, f.method, f.search): f.nll for f in found if (f.strategy, f.trials) == REFERENCE
    }
    for name in dict.fromkeys(f.strategy for f in found):
        for trials in BUDGETS:
            own = [f for f in found if (f.strategy, f.trials) == (name, trials)]
            if not own:
                continue
            nll, low, high = interval(np.array([f.nll for f in own]))
            less = [f.nll - reference.get((f.task, f.method, f.search), math.nan) for f in own]
            change = interval(np.array(less))
            yield [
                f"`{name}`" if name in ("prior", "tpe", "random") else name,
                str(trials),
                f"{100 * np.mean([f.epochs for f in own]):.0f} %",
                f"{nll:.4f} ({low:.4f} to {high:.4f})",
                "{:+.4f} ({:+.4f} to {:+.4f})".format(*change),
                f"{100 * np.mean([f.ece for f in own]):.2f}",
                f"{100 * np.mean([f.worse for f in own]):.1f} %",
                f"{100 * np.mean([f.worse_ece for f in own]):.1f} %",
                f"{100 * np.mean([f.kept for f in own]):.0f} %",
                str(len(own)),
            ]


def joint(found: Sequence[Found]) -> Iterator[list[str]]:
    """Yield the regret after temperature scaling, with the plain row's search and with its own."""
    for trials in BUDGETS:
        rows = [f for f in found if (f.strategy, f.trials) == ("prior", trials)]
        values = np.array([(f.shared, f.own) for f in rows]).reshape(-1, 2).T
        if rows:
            yield [str(trials), *("{:.4f} ({:.4f} to {:.4f})".format(*interval(v)) for v in values)]


def draw(found: Sequence[Found]) -> Chart:
    """Return the chart of regret by number of trials, with 95 % intervals over searches."""
    drawn_rows = []
    for name, shown in SHOWN.items():
        for trials in BUDGETS:
            own = [f.nll for f in found if (f.strategy, f.trials) == (name, trials)]
            regret, low, high = interval(np.array(own))
            values = {"strategy": shown, "trials": trials, "regret": regret}
            drawn_rows.append({**values, "low": low, "high": high})
    x = amount("trials", "trials (trainings) of a search", axis={"values": BUDGETS})
    y = amount("regret", "regret in test NLL", scale={"zero": True})
    where = {"x": x, "y": y, "color": names("strategy", "search.sampler")}
    band = {**where, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    layers = [
        layer("interval", "area", band, opacity=0.2),
        layer("regret", "line", where, point=True),
    ]
    label = "regret in test NLL by the number of trials"
    return drawn("How many trials a search needs", label, layers, drawn_rows, width=480)


def fidelity(boxes: Sequence[Box]) -> Iterator[list[str]]:
    """Yield the mean rank correlation of earlier validation figures with final test NLL."""

    def ranks(values: np.ndarray) -> np.ndarray:
        return values.argsort().argsort()

    for place, figure in enumerate(FIGURES):
        sign = -1 if figure == "acc" else 1
        pairs = [[(sign * b.curve[:, n, place], b.test[:, 0]) for b in boxes] for n in range(3)]
        shown = [np.mean([np.corrcoef(ranks(x), ranks(y))[0, 1] for x, y in of]) for of in pairs]
        yield [f"`{figure}`", *(f"{value:.2f}" for value in shown)]


def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def main() -> None:
    """Print the page, or portfolios."""
    parser = options(__doc__)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--searches", type=int, default=5, help="of each study and strategy")
    parser.add_argument("--only", action="append", default=[], help="strategies instead of all")
    parser.add_argument("--figure", type=Path, help="SVG file to draw")
    parser.add_argument("--portfolio", action="store_true")
    given = parser.parse_args()
    boxes = read(given.file)
    if given.portfolio:
        for method in dict.fromkeys(box.method for box in boxes):
            points = portfolio([box for box in boxes if box.method == method])
            text = yaml.safe_dump(points, default_flow_style=None, sort_keys=False)
            print(f"{method}:\n{text}")
        return
    one = partial(replayed, given.file, searches=given.searches, only=given.only)
    with ProcessPoolExecutor(initializer=_quiet) as pool:
        found = [each for study in pool.map(one, range(len(boxes))) for each in study]
    columns = ["strategy", "trials", "epochs", "regret: NLL", "change from TPE at 20"]
    columns += ["regret: ECE %", "worse: by NLL", "ECE", "default kept", "searches"]
    rows = list(rows_of(found))
    sizes = [len(box.points) for box in boxes]
    early = ["validation figure", "after a third", "two thirds", "all epochs"]
    lines = [
        *table(columns, rows),
        "",
        "Regret in test NLL after temperature scaling: of the choice of `prior`, and of its trial",
        "with the lowest validation NLL after temperature scaling:",
        "",
        *table(["trials", "choice", "own choice"], joint(found)),
        "",
        "Mean rank correlation with final test NLL over the studies:",
        "",
        *table(early, fidelity(boxes)),
        "",
        f"{len(boxes)} studies, {min(sizes)} to {max(sizes)} configurations each, {sum(sizes)} "
        f"trainings; {ROWS} of {boxes[0].nll.shape[1]} validation rows per search.",
    ]
    place = f"{setting('numpy', 'optuna')}; load {load()}."
    if given.figure:
        draw(found).save(given.figure)
    publish("How many trials does a search need?", lines, place, given.out, {"": (columns, rows)})


if __name__ == "__main__":
    main()
