"""Fills the template of a sweep's page and writes the page."""

import base64
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment
from markupsafe import Markup

from orchestrator.storage.provenance import library_version
from orchestrator.storage.results import usual_baseline
from orchestrator.storage.status import SweepStatus
from orchestrator.sweep.spec import without_places
from orchestrator.tables.arrange import build_table
from orchestrator.tables.columns import column, templates
from orchestrator.tables.figures import FILTERS
from orchestrator.view import _records
from orchestrator.view._lines import LIVE, figure_states, study_lines
from orchestrator.view._panels import COMPARED, measure
from orchestrator.view._progress import progress
from orchestrator.view._source import ReportSource
from orchestrator.view._studies import MOST_CURVES, MOST_STUDIES, retention_figures, study_parts
from orchestrator.view._tasks import task_part
from trainables.charts.bundle import bundle
from trainables.common.errors import InputError, UnwrittenError, known_names
from trainables.common.files import write_whole, writing


def render_report(
    source: ReportSource,
    baseline: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """Return the page as text.

    Recipes are compared with the baseline, by default ``usual_baseline``. ``progress`` is called
    with the number of finished steps and their total.
    """
    if not source.results:
        raise InputError(f"sweep {source.name} has no study yet, so there is nothing to report")
    recipes = list(dict.fromkeys(result.recipe for result in source.results))
    if baseline is not None and baseline not in recipes:
        raise InputError(f"baseline {baseline!r} is not a recipe; {known_names(baseline, recipes)}")
    count = itertools.count(1)
    studies = len(source.history.studies) if source.history else 0
    total = (1 + len(COMPARED)) * len(source.results) + min(studies, MOST_STUDIES)

    def done() -> None:
        progress(min(next(count), total), total)

    used = baseline or usual_baseline(source.results)
    content = {**overview(source, used), **details(source, used, done)}
    return environment().get_template("sweep.html").render(content)


def overview(
    source: ReportSource, baseline: str, status: SweepStatus | None = None
) -> dict[str, Any]:
    """Return the parts of a sweep's page that take milliseconds to compute.

    Without ``status``, the state is read from the journal.
    """
    history, several = source.history, len(source.tasks) > 1
    known = history.status if history else ""
    state, reason = (status.state, status.reason) if status else (known, "")
    live = status is not None and state in LIVE
    # Remove addresses: they may contain a password.
    spec = without_places(history.spec) if history else {}
    lines = study_lines(history, state, reason) if history else []
    states = figure_states(lines, source.results, len(spec.get("seeds") or [0])) if live else ()
    return {
        "name": source.name,
        "baseline": baseline,
        "several": several,
        "summary": _records.summary(source),
        "overviews": [build_table(source.results, (m,)) for m in ("ece", "acc") if several],
        "tasks": [task_part(source, task, None, baseline) for task in source.tasks],
        "lines": lines,
        "states": dict(states),
        "progress": progress(history) if history else [],
        "shown": column(history.objective if history else "ece"),
        "journal": history is not None,
        "costs": _records.costs(source),
        "computed": _records.computed(history) if history else "",
        "failures": list(_records.failures(source, live)),
        "facts": _records.facts(source),
        "note_at": "",
        "written": list(_records.notes(source)),
        "spec": yaml.safe_dump(spec, sort_keys=False, allow_unicode=True) if history else "",
        "version": library_version("calsweep"),
        "pending": "",
        **NO_DETAILS,
    }


NO_DETAILS: dict[str, Any] = {
    **dict.fromkeys(("diagram", "arena")),
    **dict.fromkeys(("no_ranks", "no_arena"), ""),
    **dict.fromkeys(("studies", "retention", "runs"), ()),
    **{"undrawn": 0, "most_curves": MOST_CURVES},
}


def details(
    source: ReportSource, baseline: str, done: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Return the parts of the page that take seconds to compute: intervals, ranks, ..."""
    history, several = source.history, len(source.tasks) > 1
    diagram, no_ranks = _records.ranks(source) if several else (None, "")
    measured = {t: measure(source.of_task(t), source.store, baseline, done) for t in source.tasks}
    arena, no_arena = _records.arena_of(source) if several else (None, "")
    return {
        "diagram": diagram,
        "no_ranks": no_ranks,
        "arena": arena,
        "no_arena": no_arena,
        "tasks": [task_part(source, task, measured[task], baseline) for task in source.tasks],
        "studies": study_parts(history, done) if history else [],
        "undrawn": max(0, len(history.studies) - MOST_STUDIES) if history else 0,
        "retention": retention_figures(history) if history else [],
        "runs": list(_records.runs(source)),
    }


def environment(served: bool = False) -> Environment:
    """Return the templates of served pages, or of single files; all texts are escaped."""
    found = templates(__package__, autoescape=True)
    assert found.loader is not None
    found.tests["finite"] = math.isfinite
    found.filters |= FILTERS
    found.globals["served"] = served
    found.globals["vega"] = lambda: base64.b64encode(bundle()).decode()
    for name in ("style.css", "script.js"):
        # These files have no text of a run, so they need no escaping.
        text = found.loader.get_source(found, name)[0]
        found.globals[name.replace(".", "_")] = Markup(text)
    return found


def write_report(
    source: ReportSource,
    path: Path,
    baseline: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write the page of ``render_report`` to a file atomically; return its path."""
    text = render_report(source, baseline, progress)
    with writing(f"report {path}", UnwrittenError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return path
