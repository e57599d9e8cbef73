"""Where a night's outcome goes: files, people, the tracking server."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.nightly._book import Book, Night, write_text
from orchestrator.nightly._config import Nightly
from orchestrator.nightly._junit import failure_junit, night_junit
from orchestrator.nightly._record import NightRecord
from orchestrator.nightly._summary import (
    failure_summary,
    headline,
    mean,
    night_summary,
    to_html,
    to_markdown,
)
from orchestrator.nightly._trend import drawing, series_of
from orchestrator.nightly._verdict import Verdict
from orchestrator.tracking import SingleRun, deliver_run, sync
from trainables.errors import InputError

__all__ = ["deliver", "publish_failure", "tell", "told", "write_reports"]

TOLD = "told.json"
WEBHOOK_SECONDS = 10
MAIL_SECONDS = 60
REPORTS = {"markdown": "report.md", "html": "report.html", "junit": "junit.xml"}
ALARM = 3
FAILED = 4


def write_reports(nightly: Nightly, book: Book, night: Night) -> None:
    """Write the summaries of a judged night, into its folder and where the file asks for them.

    Raises:
        StorageError: If one cannot be written.
    """
    record, verdict = _judged(night)
    number = night.facts["number"]
    earlier = [n.record for n in book.nights() if n.facts["number"] <= number]
    history = [entry for entry in earlier if entry is not None][-nightly.model.history :]
    blocks = night_summary(nightly.name, history, verdict)
    found = [*verdict.alarms, *verdict.suspicions]
    drawings = [drawing(f.cell, series_of(history, f.cell)) for f in found if f.cell.metric]
    texts = {
        "markdown": to_markdown(blocks),
        "html": to_html(blocks, drawings),
        "junit": night_junit(nightly.name, record, verdict),
    }
    for kind, text in texts.items():
        write_text(night.folder / REPORTS[kind], text)
    _write_latest(nightly, texts)


def _write_latest(nightly: Nightly, texts: dict[str, str]) -> None:
    for kind, text in texts.items():
        asked = getattr(nightly.model.report, kind)
        place = Path(asked).expanduser() if asked else nightly.folder / REPORTS[kind]
        write_text(place.absolute(), text)


def publish_failure(nightly: Nightly, night: str, reason: str) -> list[str]:
    """Write and tell that a night could not run; what fails on the way is returned."""
    blocks = failure_summary(nightly.name, night, reason)
    texts = {
        "markdown": to_markdown(blocks),
        "html": to_html(blocks),
        "junit": failure_junit(nightly.name, night, time.time(), reason),
    }
    problems = []
    try:
        _write_latest(nightly, texts)
    except InputError as error:
        problems.append(f"the summary is missing: {error}")
    body = {"nightly": nightly.name, "night": night, "status": "could not run", "code": FAILED}
    return problems + _send(nightly, blocks[0].heading, {**body, "reason": reason}, texts)


def tell(nightly: Nightly, night: Night) -> list[str]:
    """Send a verdict to people, once; return what failed, which does not change the verdict."""
    if told(night):
        return []
    verdict = _judged(night)[1]
    problems: list[str] = []
    if verdict.raised or nightly.model.report.when == "always":
        title = headline(nightly.name, night.name, verdict)
        text = (night.folder / REPORTS["markdown"]).read_text(encoding="utf-8")
        code = ALARM if verdict.raised else 0
        body = {"nightly": nightly.name, "code": code, **verdict.to_json()}
        problems = _send(nightly, title, body, {"markdown": text})
    night.write(TOLD, {"problems": problems})
    return problems


def told(night: Night) -> bool:
    """Tell whether people have been told of a night, or there was nothing to tell."""
    return (night.folder / TOLD).exists()


def _send(nightly: Nightly, title: str, body: dict[str, Any], texts: dict[str, str]) -> list[str]:
    report = nightly.model.report
    problems = []
    if report.webhook:
        problems += _post(report.webhook, {**body, "text": title})
    if report.mail:
        problems += _mail(report.mail, title, texts["markdown"])
    return problems


def _post(url: str, body: dict[str, Any]) -> list[str]:
    # An address may hold a secret in its path: messages name the host alone.
    where = f"webhook at {urlsplit(url).hostname}"
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS):
            return []
    except (OSError, ValueError) as error:
        return [f"{where} was not reached: {getattr(error, 'reason', None) or error}"]


def _mail(command: Sequence[str], title: str, text: str) -> list[str]:
    arguments = [title if argument == "{subject}" else argument for argument in command]
    try:
        done = subprocess.run(
            arguments, input=text, text=True, capture_output=True, timeout=MAIL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"mail command {command[0]!r} failed: {error}"]
    if done.returncode:
        return [f"mail command {command[0]!r} failed with exit code {done.returncode}"]
    return []


def deliver(nightly: Nightly, night: Night, journal: Path) -> None:
    """Bring a night's runs and its verdict to the tracking server; twice changes nothing.

    Raises:
        InputError: If the server gives no answer.
    """
    record, verdict = _judged(night)
    uri = nightly.sweep.tracking_uri
    artifacts = nightly.sweep.storage_path / "mlflow-artifacts"
    if journal.exists():
        sync(journal, uri, artifacts, interrupted=True)
    started = round(record.started * 1000)
    run = SingleRun(
        key=f"{nightly.name} {night.name}",
        name=headline(nightly.name, night.name, verdict),
        status="FINISHED",
        started=started,
        ended=max(started, round((night.folder / "verdict.json").stat().st_mtime * 1000)),
        tags=_tags(nightly, record, verdict),
        metrics=_metrics(record, verdict),
        files={name: night.folder / name for name in (*REPORTS.values(), "record.json")}
        | {"verdict.json": night.folder / "verdict.json"},
    )
    deliver_run(uri, f"{nightly.name}-nights", "nights", run, artifacts)


def _tags(nightly: Nightly, record: NightRecord, verdict: Verdict) -> dict[str, str]:
    prefix = "calsweep.night"
    return {
        prefix: record.night,
        f"{prefix}.benchmark": nightly.name,
        f"{prefix}.status": verdict.status,
        f"{prefix}.alarms": ", ".join(str(found.cell) for found in verdict.alarms)[:5000],
        **{f"{prefix}.{key}": value for key, value in record.environment.items()},
    }


def _metrics(record: NightRecord, verdict: Verdict) -> dict[str, float]:
    means = {
        "/".join((cell.task, cell.recipe, cell.metric)): mean(record, cell) for cell in record.cells
    }
    counts = {
        name: float(len(getattr(verdict, name)))
        for name in ("alarms", "suspicions", "improvements")
    }
    finite = {
        name.replace("*", "all"): value
        for name, value in means.items()
        if value is not None and abs(value) < float("inf")
    }
    return {**counts, **finite}


def _judged(night: Night) -> tuple[NightRecord, Verdict]:
    record, verdict = night.record, night.verdict
    if record is None or verdict is None:
        raise ValueError(f"night={night.name} has no verdict")
    return record, verdict
