"""The facts about a whole sweep on its page: size, ranks, cost, failures, provenance."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from orchestrator.statistics import (
    Arena,
    arena,
    block_scores,
    critical_difference_diagram,
    rank_comparison,
)
from orchestrator.storage.ledger import Ledger, Trial
from orchestrator.storage.results import StudyResult, trials_of_choice, usual_baseline
from orchestrator.storage.status import title
from orchestrator.tables.columns import column
from orchestrator.view._source import ReportSource
from trainables.charts.chart import Chart
from trainables.common.errors import InputError
from trainables.common.stages import GIVEN
from trainables.common.words import duration, many

SHORT = 12  # Displayed characters of a key.


class Failure(NamedTuple):
    """A trial or a study that failed or did not end."""

    recipe: str
    task: str
    what: str
    reason: str
    configuration: str = ""
    key: str = ""


class Run(NamedTuple):
    """The tracked run behind one seed's test figures; unknown fields are empty."""

    recipe: str
    task: str
    seed: int | None
    trial: str
    run: str
    predictions: str


def summary(source: ReportSource) -> str:
    """Return the size and the outcome of the sweep in a sentence."""
    results = source.results
    seeds = max((len(result.test) for result in results), default=0)
    failed = sum(result.trials_failed for result in results)
    parts = [many(len({result.recipe for result in results}), "recipe")]
    parts += [many(len(source.tasks), "task")]
    parts += [many(seeds, "seed")] if seeds else []
    parts += [many(sum(r.trials_finished for r in results), "finished search trial")]
    parts += [f"{failed} failed"] if failed else []
    return ", ".join(parts)


def ranked_by(source: ReportSource) -> str:
    """Return the metric for the ranks: NLL for given logits, else ECE."""
    return "nll" if usual_baseline(source.results) == GIVEN else "ece"


def ranks(source: ReportSource) -> tuple[Chart | None, str]:
    """Return the critical-difference diagram, or why there is none."""
    try:
        comparison = rank_comparison(block_scores(source.results, ranked_by(source)).scores)
    except (InputError, ValueError) as error:
        return None, f"No ranks over data sets and models: {error}."
    title = f"Average rank by {column(ranked_by(source)).label}"
    return critical_difference_diagram(comparison, title), ""


def arena_of(source: ReportSource) -> tuple[Arena | None, str]:
    """Return the comparison of all calibrators of given logits, or why there is none.

    For trained networks both values are empty.
    """
    baseline = usual_baseline(source.results)
    if baseline != GIVEN:
        return None, ""
    try:
        return arena(source.results, baseline), ""
    except (InputError, ImportError) as error:
        return None, f"No arena: {error}."


def costs(source: ReportSource) -> dict[tuple[str, str], float]:
    """Return the chosen configurations' mean seconds over seeds, by task and recipe."""
    return {
        (r.task, r.recipe): sum(r.seconds) / len(r.seconds) for r in source.results if r.seconds
    }


def computed(history: Ledger) -> str:
    """Return in a sentence how many trials computed each stage, and how many reused an outcome."""
    trials = [trial for study in history.studies.values() for trial in study.begun.values()]
    fresh = [trial for trial in trials if not trial.reused]
    stages = {"train": "training", "refine": "refinement", "calibrate": "calibration"}
    counts = {name: sum(t.stage == stage for t in fresh) for stage, name in stages.items()}
    listing = ", ".join(many(count, name) for name, count in counts.items() if count)
    spent = duration(sum(trial.seconds or 0.0 for trial in fresh))
    return (
        f"{many(len(trials), 'trial')} computed {listing or 'nothing'} in {spent} of processing; "
        f"{len(trials) - len(fresh)} reused a stored outcome."
    )


def failures(source: ReportSource, live: bool = False) -> Iterator[Failure]:
    """Yield the failed trials and the studies that have not finished, with the reasons.

    In a finished sweep, trials without an end count as failed. In a live sweep, running studies are
    skipped.
    """
    history = source.history or Ledger()
    lost = ("failed", "running") if history.status == "finished" else ("failed",)
    for study in history.studies.values():
        for trial in study.begun.values():
            if trial.status in lost:
                what = f"trial {trial.number}" if trial.role == "search" else f"seed {trial.seed}"
                configuration = json.dumps(trial.configuration, ensure_ascii=False)
                reason = trial.reason or "did not end"
                yield Failure(study.recipe, study.task, what, reason, configuration, trial.key)
    for result in source.results:
        if result.status not in ("finished", "running" if live else ""):
            finished = many(result.trials_finished, "trial")
            counts = f"{finished} finished, {result.trials_failed} failed"
            reason = result.reason or counts
            yield Failure(result.recipe, result.task, f"study {result.status}", reason)


def runs(source: ReportSource) -> Iterator[Run]:
    """Yield the tracked runs behind the test figures, one per recipe, task and seed."""
    for result in source.results:
        trials = _evaluated_trials(source, result)
        for position in range(len(result.test)):
            trial = trials[position] if trials else None
            run = source.runs.get(trial.key, "") if trial else ""
            yield Run(
                result.recipe,
                result.task,
                trial.seed if trial else None,
                trial.key[:SHORT] if trial else "",
                run or "".join(result.run_ids[position : position + 1]),
                "".join(result.predictions[position : position + 1])[:SHORT],
            )


def _evaluated_trials(source: ReportSource, result: StudyResult) -> list[Trial]:
    """Return the trials of a result's test figures, in the same order; empty if unknown."""
    study = source.study(result)
    chosen = study.chosen_trial if study else None
    if study is None or chosen is None or chosen.configuration != result.configuration:
        return []
    ours = trials_of_choice(study, chosen, [t for t in study.begun.values() if t.test])
    return ours if len(ours) == len(result.test) else []


def notes(source: ReportSource) -> Iterator[tuple[str, str, str]]:
    """Yield each note's subject, page and text.

    The page is what follows the sweep's address: empty for the sweep itself and unknown subjects.
    """
    history = source.history or Ledger()
    for about, text in source.notes.items():
        kind, _, name = about.partition(" ")
        if kind == "study" and name in history.studies:
            yield name, f"/studies/{history.studies[name].index}", text
        elif kind == "trial" and name in history.trials:
            yield title(history.trials[name]), f"/trials/{quote(name, safe='')}", text
        else:
            yield about, "", text


def facts(source: ReportSource) -> list[tuple[str, str]]:
    """Return the provenance of the figures as names and texts."""
    results = source.results
    first = min((r.started for r in results if r.started), default=None)
    found = [
        ("Sweep", f"{source.name} {_listing(r.sweep_id for r in results)}"),
        ("Started", f"{datetime.fromtimestamp(first, UTC):%Y-%m-%d %H:%M} UTC" if first else ""),
        ("Code", _listing(r.code for r in results) or "not known"),
        *((f"Data of {task}", _data(results, task)) for task in source.tasks),
        ("Choice", _listing(_rule(r) for r in results)),
        *(_circumstances(source.history) if source.history else ()),
        *source.facts,
    ]
    return [(name, text) for name, text in found if text]


def _listing(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))


def _data(results: Iterable[StudyResult], task: str) -> str:
    ours = [result for result in results if result.task == task]
    limits = _listing(r.subset for r in ours)
    text = _listing(r.fingerprint for r in ours) or "not known"
    return text + (f"; a part of the data set: {limits}" if limits else "")


def _rule(result: StudyResult) -> str:
    rule = result.rule
    if not rule:
        return ""
    return (
        f"lowest {rule.get('objective', '?')}, accuracy tolerance "
        f"{rule.get('accuracy_tolerance', '?')}, epoch: {rule.get('epoch', '?')}, "
        f"tie: {rule.get('tie', '?')}"
        + (f", plus {_errors(rule['accuracy_errors'])}" if "accuracy_errors" in rule else "")
        + (", the published default unless clearly beaten" if "keep_default" in rule else "")
    )


def _errors(count: str) -> str:
    return f"{count} standard error{'' if float(count) == 1 else 's'}"


def _circumstances(history: Ledger) -> Iterator[tuple[str, str]]:
    search, seeds = history.spec.get("search", {}), history.spec.get("seeds", [])
    words = [str(search["sampler"])] if "sampler" in search else []
    words += [f"{many(search['trials'], 'trial')} per study"] if "trials" in search else []
    yield "Search", ", ".join(words)
    yield "Seeds", ", ".join(map(str, seeds))
    for name in ("versions", "hardware"):
        yield name.capitalize(), _pairs(history.provenance.get(name))
    yield "State", history.status


def _pairs(values: Any) -> str:
    if isinstance(values, Mapping):
        return ", ".join(f"{name} {_pairs(value)}" for name, value in values.items())
    if isinstance(values, list):
        return ", ".join(map(str, values)) or "none"
    return "" if values is None else str(values)
