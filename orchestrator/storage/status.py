"""Compute the progress of a sweep from its journal and its lock."""

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.storage.events import DECISIONS
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.pace import Work, costs_of, seconds_left
from orchestrator.storage.results import StudyResult, results_of
from orchestrator.storage.storage import PAUSE, SweepFolder
from orchestrator.sweep.names import BASELINES
from search_spaces import known_spaces
from trainables.common.paths import sweep_command
from trainables.common.stages import GIVEN, STAGES
from trainables.common.words import HOUR

EARLY_SECONDS = 5.0  # The first report may have many epochs, so earlier estimates are wrong.


@dataclass(frozen=True)
class RunningTrial:
    """A trial that has not ended; ``host`` and ``seconds`` are unknown before its first report."""

    trial: str
    key: str
    host: str
    seconds: float | None


@dataclass(frozen=True)
class RecipeStatus:
    """Progress of a recipe over all tasks and seeds; hours exclude reused results."""

    recipe: str
    ended: int
    failed: int
    running: int
    hours: float
    gpu_hours: float


@dataclass(frozen=True)
class SweepStatus:
    """Progress of a sweep.

    Attributes:
        state: ``waiting`` before its first run, ``starting``, ``running``, ``pausing`` while trials
            of a paused sweep end, ``paused``, ``finished``, ``failed``, ``interrupted``, or
            ``died`` if its process was killed. A SLURM job also has ``queued``, ``requeued`` and
            ``CANCELLED``.
        began: Start of its last run, seconds since 1970; 0 before the first run.
        ended, trials: Number of ended trials, and of all trials.
        measured, measurements: Number of measurements on test data so far, and in total.
        seconds_left: Estimated remaining seconds of the search; None if there is no estimate, such
            as during measurements on test data.
        job, reason: The number of its SLURM job, and why it waits or failed; empty if unknown.
    """

    sweep: str
    state: str
    owner: str
    began: float
    ended: int
    trials: int
    measured: int
    measurements: int
    seconds_left: float | None
    running: tuple[RunningTrial, ...]
    failures: Mapping[str, str]
    recipes: tuple[RecipeStatus, ...]
    job: str = ""
    reason: str = ""


def sweep_status(folder: SweepFolder) -> SweepStatus:
    """Return the progress of a sweep, without changing the sweep."""
    folder.storage.started(folder.name)
    # Epochs show the progress of running trials.
    kinds = None if folder.is_owned() else DECISIONS
    exists = folder.journal.exists()
    status = status_of(folder, Ledger(iterate_events(folder.journal, kinds) if exists else ()))
    if status.trials:
        return status
    from orchestrator.sweep.plan import make_plan  # It imports PyTorch.

    plan = make_plan(folder.storage.load_spec(folder.name))
    measurements = sum(study.row for study in plan) * len(plan.spec.all_seeds)
    return replace(status, trials=plan.trials, measurements=measurements)


def status_of(folder: SweepFolder, ledger: Ledger) -> SweepStatus:
    """Return the progress of a sweep from its ledger, which has no trials before the first run."""
    owned = folder.is_owned()
    state = _state(folder, ledger, owned)
    running = [trial for trial in ledger.trials.values() if trial.open] if owned else []
    ended = sum(trial.ended for trial in ledger.trials.values())
    trials = sum(study.planned + ledger.further_seeds for study in ledger.studies.values())
    now = time.time()
    measured, measurements = _measurements(ledger)
    searched = trials > 0 and ended >= trials
    left = time_left(ledger, now) if state == "running" and not searched else None
    return SweepStatus(
        sweep=folder.name,
        state=state,
        owner=folder.owner(),
        began=ledger.began / 1000,
        ended=ended,
        trials=trials,
        measured=measured,
        measurements=measurements,
        seconds_left=left,
        running=tuple(
            RunningTrial(title(t), t.key, t.host, _passed(t, now) if t.since else None)
            for t in running
        ),
        failures={title(t): t.reason for t in ledger.trials.values() if t.status == "failed"},
        recipes=tuple(_recipes(ledger, owned)),
    )


def current_results(
    folder: SweepFolder, ledger: Ledger, runs: Mapping[str, str] | None = None
) -> list[StudyResult]:
    """Return the rows of a sweep's table; if it stopped early, reasons say how to resume it."""
    results = results_of(ledger, runs)
    state = _state(folder, ledger, folder.is_owned())
    if state not in ("interrupted", "died"):
        return results
    how = "was interrupted" if state == "interrupted" else "died"
    reason = f"it {how}; resume it with: {sweep_command('run --resume', folder.path)}"
    return [
        replace(result, status="interrupted", reason=reason)
        if result.status in ("running", "interrupted")
        else result
        for result in results
    ]


def _measurements(ledger: Ledger) -> tuple[int, int]:
    measured = expected = 0
    for study in ledger.studies.values():
        if not study.row or study.status == "failed":
            continue
        expected += 1 + ledger.further_seeds
        if (chosen := study.chosen_trial) is None:
            continue
        same = [t for t in study.begun.values() if t.configuration == chosen.configuration]
        for trial in [chosen, *(t for t in same if t.role == "seed")]:
            measured += bool(trial.test)
            expected -= trial.ended and trial.status != "finished"
    return measured, expected


def time_left(ledger: Ledger, now: float) -> float | None:
    """Estimate the remaining seconds of the sweep; ``now`` is in seconds since 1970.

    Return None if no trial has a known cost yet.
    """
    works = [_work(study, ledger, now) for study in ledger.studies.values()]
    elapsed = now - (ledger.given or ledger.began) / 1000
    busy = ledger.spent + sum(work.begun for work in works)
    running = sum(_placed(trial, ledger) for trial in ledger.trials.values())
    return seconds_left(works, max(1, running, round(busy / elapsed)) if elapsed > 0 else 1)


def _placed(trial: Trial, ledger: Ledger) -> bool:
    return trial.open and trial.since >= ledger.began


def _passed(trial: Trial, now: float) -> float:
    """Return the seconds that a trial has run, 0 if the clock was set back since."""
    return max(0.0, now - trial.since / 1000)


def _work(study: Study, ledger: Ledger, now: float) -> Work:
    trials, stage = study.begun.values(), _stage(study)
    ended = [trial for trial in trials if trial.ended]
    searched = sum(trial.role == "search" for trial in ended)
    costs = costs_of(stage, ((trial.seconds, trial.reused) for trial in ended))
    running = {t.key: _passed(t, now) for t in trials if _placed(t, ledger)}
    expected = [
        seconds * max(1.0, _epochs(study, ledger.trials[key]) / ledger.trials[key].last_step)
        for key, seconds in running.items()
        if ledger.trials[key].last_step > 0 and seconds > EARLY_SECONDS
    ]
    failed = study.closed is not None and study.chosen is None
    baselines = [f"{study.task}|{name}" for name in BASELINES if ledger.guarded]
    return Work(
        study=study.study,
        task=study.task,
        stage=stage,
        search=0 if study.closed else study.trials - searched,
        seeds=0 if failed else ledger.further_seeds - (len(ended) - searched),
        costs=costs + expected,
        begun=sum(running.values()),
        together=max(study.block or 1, ledger.parallel_trials),
        upstream=study.upstream or "",
        reference=next((n for n in baselines if n in ledger.studies and n != study.study), ""),
    )


def _epochs(study: Study, trial: Trial) -> float:
    """Return the number of epochs of a trial, 0 if unknown."""
    if study.upstream is None:
        return float(study.origin.get("protocol", {}).get("epochs", 0))
    return max((float(part.get("epochs", 0)) for part in trial.configuration.values()), default=0.0)


def _stage(study: Study) -> str:
    if study.begun or study.upstream is None:
        return next((trial.stage for trial in study.begun.values()), "train")
    part = study.recipe.rpartition("+")[2]
    variants: Mapping[str, str] = study.origin.get("variants", {})
    kinds = {space.kind for space in known_spaces(variants.get(part, part))}
    return "calibrate" if "calibrators" in kinds else "refine"


def title(trial: Trial) -> str:
    """Return a trial's title: ``STUDY|NUMBER``, with its seed unless that is the search's."""
    seed = "" if trial.role == "search" else f" seed {trial.seed}"
    return f"{trial.study}|{trial.number}{seed}"


def _state(folder: SweepFolder, ledger: Ledger, owned: bool) -> str:
    if not owned and not ledger.began:
        return "waiting"
    if not owned:
        return "died" if ledger.status == "running" else ledger.status
    if folder.control() == PAUSE:
        return "pausing" if any(trial.open for trial in ledger.trials.values()) else "paused"
    # After the sweep's end its process still delivers runs and writes the report.
    began = re.search(r"since (\S+ \S+)$", folder.owner())
    since = datetime.fromisoformat(began[1]).timestamp() if began else math.inf
    over = ledger.status != "running" and (ledger.ended or 0) / 1000 < since
    return "starting" if over else "running"


def _recipes(ledger: Ledger, owned: bool) -> Iterator[RecipeStatus]:
    studies: dict[str, list[Study]] = {}
    for study in ledger.studies.values():
        studies.setdefault(study.recipe, []).append(study)
    for recipe, group in studies.items():
        trials = [trial for study in group for trial in study.begun.values()]
        hours, gpu_hours = hours_of(trials, ledger)
        yield RecipeStatus(
            recipe=recipe,
            ended=sum(trial.ended for trial in trials),
            failed=sum(trial.status == "failed" for trial in trials),
            running=sum(trial.open for trial in trials) if owned else 0,
            hours=hours,
            gpu_hours=gpu_hours,
        )


def hours_of(trials: Iterable[Trial], ledger: Ledger) -> tuple[float, float]:
    """Return the hours and GPU hours of trials, without reused results."""
    seconds = [(t.seconds or 0.0, t.stage) for t in trials if not t.reused]
    resources = ledger.spec.get("resources", {})
    gpus = {stage: share.get("gpu", 0.0) for stage, share in resources.items() if stage in STAGES}
    on_gpus = sum(
        spent * gpus.get("calibrate" if stage == GIVEN else stage, 0.0) for spent, stage in seconds
    )
    return sum(spent for spent, _ in seconds) / HOUR, on_gpus / HOUR
