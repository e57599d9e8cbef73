"""Where a night's outcome goes: files, people, the tracking server."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Collection, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
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
    if not any(n.verdict for n in book.nights() if n.facts["number"] > number):
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
    body["reason"] = reason
    failed = _send(nightly, _ways(nightly), blocks[0].heading, body, texts["markdown"])
    return [*problems, *failed.values()]


def tell(nightly: Nightly, night: Night, without: Collection[str] = ()) -> dict[str, str]:
    """Send a verdict to people, once a way; what failed is left for the next start.

    Args:
        nightly: The benchmark.
        night: A judged night.
        without: Ways that are not tried now, having failed already.

    Returns:
        What failed, a line for each way (``webhook``, ``mail``); it does not change the verdict.
    """
    verdict, left = _judged(night)[1], _left(nightly, night)
    wanted = verdict.raised or nightly.model.report.when == "always"
    tried = [way for way in left if wanted and way not in without]
    failed: dict[str, str] = {}
    if tried:
        title = headline(nightly.name, night.name, verdict)
        text = (night.folder / REPORTS["markdown"]).read_text(encoding="utf-8")
        code = ALARM if verdict.raised else 0
        body = {"nightly": nightly.name, "code": code, **verdict.to_json()}
        failed = _send(nightly, tried, title, body, text)
    still = [way for way in left if wanted and (way in without or way in failed)]
    night.write(TOLD, {"problems": list(failed.values()), "left": still})
    return failed


def told(nightly: Nightly, night: Night) -> bool:
    """Tell whether people have been told of a night, or there was nothing to tell."""
    return (night.folder / TOLD).exists() and not _left(nightly, night)


def _left(nightly: Nightly, night: Night) -> list[str]:
    """Return the ways by which people have still to be told of a night."""
    path = night.folder / TOLD
    ways = _ways(nightly)
    if not path.exists():
        return ways
    left = json.loads(path.read_text(encoding="utf-8")).get("left", [])
    return [way for way in ways if way in left]


def _ways(nightly: Nightly) -> list[str]:
    report = nightly.model.report
    return [way for way in ("webhook", "mail") if getattr(report, way)]


def _send(
    nightly: Nightly, ways: Sequence[str], title: str, body: dict[str, Any], text: str
) -> dict[str, str]:
    """Send a message by each way; return a line for each that failed."""
    report = nightly.model.report
    problems = {}
    if "webhook" in ways and report.webhook:
        problems["webhook"] = _post(report.webhook, {**body, "text": title})
    if "mail" in ways and report.mail:
        problems["mail"] = _mail(report.mail, title, text)
    return {way: problem for way, problem in problems.items() if problem}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message that is sent on becomes a question: so a redirection counts as a failure."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no further request."""


def _post(url: str, body: dict[str, Any]) -> str:
    """Send a JSON object; return what went wrong, or nothing."""
    # An address may hold a secret in its path: messages name the host alone.
    where = f"webhook at {urlsplit(url).hostname}"
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    faults = ["no answer in time"]

    def send() -> None:
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=WEBHOOK_SECONDS):
                faults.clear()
        except (OSError, ValueError, HTTPException) as error:
            faults[:] = [_fault(error)]

    # Beside this one: an answer that comes in drops keeps no time limit of a socket's.
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(WEBHOOK_SECONDS)
    return "".join(f"{where} was not reached: {fault}" for fault in faults)


def _fault(error: Exception) -> str:
    """Return what went wrong, in no words of the other side's: they may hold anything."""
    if isinstance(error, HTTPError):
        return f"it answered with status {error.code}"
    inner = getattr(error, "reason", error)
    named = inner if isinstance(inner, Exception) else error
    return getattr(named, "strerror", None) or type(named).__name__


def _mail(command: Sequence[str], title: str, text: str) -> str:
    """Run a mail command; return what went wrong, or nothing."""
    arguments = [title if argument == "{subject}" else argument for argument in command]
    try:
        done = subprocess.run(
            arguments,
            input=text.encode("utf-8", "replace"),
            # What it says may be anything, and any amount of it.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MAIL_SECONDS,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"mail command {command[0]!r} failed: {_fault(error)}"
    if done.returncode:
        return f"mail command {command[0]!r} failed with exit code {done.returncode}"
    return ""


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
