"""The page: its parts gathered, put into the template, written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from orchestrator.report import _overview, _records, _studies
from orchestrator.report._predictions import COMPARED, Measured, measure
from orchestrator.report._source import ReportSource
from orchestrator.report._tasks import task_part
from trainables.errors import InputError

__all__ = ["BASELINE", "render_report", "write_report"]

BASELINE = "ce"
PLACES = ("tracking", "storage", "data_root", "mirror")


def render_report(
    source: ReportSource,
    baseline: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """Return the page as text.

    Args:
        source: What it is made of.
        baseline: The recipe that others are compared with; None for ``ce`` where there is one.
        progress: Called with the steps that are done and their total.

    Raises:
        InputError: If there is no result, or the baseline is no recipe of the sweep.
    """
    _check(source, baseline)
    name = baseline or BASELINE
    total = (1 + len(COMPARED)) * len(source.results)
    count = 0

    def done() -> None:
        nonlocal count
        count += 1
        progress(min(count, total), total)

    measured = {
        task: measure(source.of_task(task), source.store, name, done) for task in source.tasks
    }
    return _template().render(_content(source, name, measured))


def _check(source: ReportSource, baseline: str | None) -> None:
    if not source.results:
        raise InputError(f"sweep {source.name} has no study yet, so there is nothing to report")
    recipes = list(dict.fromkeys(result.recipe for result in source.results))
    if baseline is not None and baseline not in recipes:
        raise InputError(f"baseline {baseline!r} is no recipe; there are: {', '.join(recipes)}")


def _content(source: ReportSource, baseline: str, measured: dict[str, Measured]) -> dict[str, Any]:
    history = source.history
    studies, others = _studies.study_parts(history) if history else ([], [])
    tasks = [
        task_part(source, task, number, measured[task], baseline)
        for number, task in enumerate(source.tasks, start=1)
    ]
    return {
        "name": source.name,
        "baseline": baseline,
        "summary": _overview.summary(source),
        "overview": _overview.overview(source),
        "tasks": tasks,
        "studies": studies,
        "others": others,
        "retention": _studies.retention_figures(history) if history else [],
        "journal": history is not None,
        "cost": _records.cost_grid(source, baseline),
        "computed": _records.computed(history) if history else "",
        "failures": _records.failure_grid(source),
        "facts": _records.facts(source),
        "runs": _records.runs_grid(source),
        "spec": _spec_text(history.spec) if history else "",
        "version": version("calsweep"),
    }


def _spec_text(spec: Mapping[str, Any]) -> str:
    """Return the sweep file without its places: the address of a server may hold a password."""
    shown = {name: value for name, value in spec.items() if name not in PLACES}
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("orchestrator.report", "templates")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("style.css", "script.js"):
        # Ours, and no text of a run is in it.
        text = loader.get_source(environment, name)[0]
        environment.globals[name.replace(".", "_")] = Markup(text)
    return environment.get_template("page.html")


def write_report(
    source: ReportSource,
    path: Path,
    baseline: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write the page, whole or not at all.

    Args:
        source: See ``render_report``.
        path: The file.
        baseline: See ``render_report``.
        progress: See ``render_report``.

    Returns:
        The file.

    Raises:
        InputError: If the file cannot be written; see also ``render_report``.
    """
    text = render_report(source, baseline, progress)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        raise InputError(f"report {path} cannot be written: {error.strerror}") from error
    return path
