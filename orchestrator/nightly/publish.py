"""Publish a night's verdict to files, people and the tracking server."""

import json
import math
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from orchestrator.nightly import page
from orchestrator.nightly.book import (
    DELIVERED,
    RECORD,
    REPORTS,
    TOLD,
    VERDICT,
    Book,
    Night,
    write_text,
)
from orchestrator.nightly.config import Nightly
from orchestrator.nightly.record import COULD_NOT_RUN, NightRecord, Verdict
from orchestrator.nightly.verdict.judge import detectable
from orchestrator.storage.storage import Storage
from orchestrator.tracking import SingleRun, deliver_run, sync
from trainables.common.errors import InputError
from trainables.common.paths import redacted

WEBHOOK_SECONDS = 10
MAIL_SECONDS = 60
WAYS = ("webhook", "mail")


class Publisher:
    """Publishes verdicts; the next run of the benchmark repeats the steps that failed."""

    def __init__(self, nightly: Nightly, book: Book) -> None:
        self._nightly = nightly
        self._book = book
        self._failed_ways: set[str] = set()
        self._untracked = False  # Whether the tracking server failed.
        self._unwritten = False  # Whether writing this night's summaries failed.

    def publish(self, night: Night) -> list[str]:
        """Publish a night, unless this is done already; return one line per problem.

        Steps that succeeded before are not repeated, except that the summaries are written again.
        """
        record, verdict = night.record, night.verdict
        if record is None or verdict is None or (night.delivered and not self._unsent(night)):
            return []
        problems: list[str] = []
        steps = {"written": self._write, "sent": self._notify, "tracked": self._track}
        for done, step in steps.items():
            try:
                problems += step(night, record, verdict)
            except Exception as error:  # noqa: BLE001 - keep the verdict, let later nights run
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                if isinstance(error, InputError):
                    reason = str(error)
                problems.append(
                    f"the verdict on {night.name} was not {done}; the next start tries again: "
                    f"{reason}"
                )
        return problems

    def _write(self, night: Night, record: NightRecord, verdict: Verdict) -> list[str]:
        self._unwritten = True
        name, number, nights = self._nightly.name, night.number, self._book.nights()
        earlier = [past.record for past in nights if past.number <= number]
        history = [past for past in earlier if past is not None][-self._nightly.model.history :]
        limits, restarts = self._nightly.model.limits, self._book.restarts()
        sight = detectable(history, limits, restarts)
        blocks = page.night_summary(name, history, verdict, sight)
        found = [*verdict.alarms, *verdict.suspicions]
        charts = [page.series_chart(history, f.cell) for f in found if f.cell.metric]
        texts = {
            "markdown": page.to_markdown(blocks),
            "html": page.to_html(blocks, charts),
            "junit": page.night_junit(name, record, verdict),
        }
        for kind, text in texts.items():
            night.write(REPORTS[kind], text)
        if not any(later.verdict for later in nights if later.number > number):
            _write_latest(self._nightly, self._book, texts)
        self._unwritten = False
        return []

    def _notify(self, night: Night, record: NightRecord, verdict: Verdict) -> list[str]:
        """Send the verdict by webhook and mail, if ``when`` asks for it; record ways that failed.

        A way that has the verdict already, or failed since this process started, is left out.
        """
        unsent, failed = self._unsent(night), {}
        if not unsent and (night.folder / TOLD).exists():
            return []
        if not verdict.raised and self._nightly.model.report.when != "always":
            unsent = []
        ways = [way for way in unsent if way not in self._failed_ways]
        if ways:
            title = page.headline(self._nightly.name, night.name, verdict)
            text = (night.folder / REPORTS["markdown"]).read_text(encoding="utf-8")
            body = {"nightly": self._nightly.name, "code": verdict.code, **verdict.to_json()}
            failed = _send(self._nightly, ways, title, body, text)
            self._failed_ways |= set(failed)
        left = [way for way in unsent if way in self._failed_ways]
        night.write(TOLD, {"problems": list(failed.values()), "left": left})
        return list(failed.values())

    def _unsent(self, night: Night) -> list[str]:
        sent, ways = night.read(TOLD), _ways(self._nightly)
        return ways if sent is None else [way for way in ways if way in sent["left"]]

    def _track(self, night: Night, record: NightRecord, verdict: Verdict) -> list[str]:
        if night.delivered or self._untracked:
            return []
        self._untracked = True
        sweep = self._nightly.sweep
        storage = Storage.of(sweep)
        artifacts, journal = storage.tracked_files, self._nightly.sweep_folder(night.name).journal
        # Any machine can publish a verdict, but only the one that ran the night has its journal.
        whole = storage.address is None or journal.exists()
        if journal.exists():
            sync(journal, sweep.tracking_uri, artifacts, interrupted=True)
        started = round(record.started * 1000)
        judged = round((night.folder / VERDICT).stat().st_mtime * 1000)
        run = SingleRun(
            key=f"{self._nightly.name} {night.name}",
            name=page.headline(self._nightly.name, night.name, verdict),
            status="FINISHED",
            started=started,
            ended=max(started, judged),
            tags=_tags(self._nightly, record, verdict),
            metrics=_metrics(record, verdict),
            files={name: night.folder / name for name in (*REPORTS.values(), RECORD, VERDICT)},
        )
        deliver_run(sweep.tracking_uri, f"{sweep.name}-nights", "nights", run, artifacts)
        self._untracked = False
        if whole and not self._unwritten:  # The next start skips delivered nights.
            night.write(DELIVERED, {"uri": redacted(sweep.tracking_uri)})
        return []


def publish_failure(nightly: Nightly, night: str, reason: str) -> list[str]:
    """Write and send the message that a night could not run; return one line per problem."""
    blocks = [page.Block(f"nightly {nightly.name}, {night}: could not run", (reason,))]
    texts = {
        "markdown": page.to_markdown(blocks),
        "html": page.to_html(blocks),
        "junit": page.failure_junit(nightly.name, night, time.time(), reason),
    }
    problems = []
    try:
        book = nightly.book(fresh=False)
        _write_latest(nightly, book, texts)
        book.settle()
    except InputError as error:
        problems.append(f"the summary is missing: {error}")
    body: dict[str, Any] = {"nightly": nightly.name, "night": night, "status": "could not run"}
    body |= {"code": COULD_NOT_RUN, "reason": reason}
    failed = _send(nightly, _ways(nightly), blocks[0].heading, body, texts["markdown"])
    return [*problems, *failed.values()]


def _write_latest(nightly: Nightly, book: Book, texts: dict[str, str]) -> None:
    for kind, text in texts.items():
        if path := getattr(nightly.model.report, kind):
            write_text(Path(path).expanduser().absolute(), text)
        else:
            book.write(REPORTS[kind], text)


def _ways(nightly: Nightly) -> list[str]:
    return [way for way in WAYS if getattr(nightly.model.report, way)]


def _send(
    nightly: Nightly, ways: Sequence[str], title: str, body: dict[str, Any], text: str
) -> dict[str, str]:
    report, problems = nightly.model.report, {}
    if "webhook" in ways and report.webhook:
        problems["webhook"] = _post(report.webhook, {**body, "text": title})
    if "mail" in ways:
        problems["mail"] = _mail(report.mail, title, text)
    return {way: problem for way, problem in problems.items() if problem}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirection as a failure: urllib would repeat the POST as a GET."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Send no further request."""


def _post(url: str, body: dict[str, Any]) -> str:
    """Send a JSON object; return the problem, or an empty string."""
    # The path of an address may be secret, so messages name only the host.
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

    # A socket timeout does not limit a response that arrives slowly, so set a deadline as well.
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(WEBHOOK_SECONDS)
    return "".join(f"{where} failed: {fault}" for fault in faults)


def _fault(error: Exception) -> str:
    """Describe an error without the server's own text, which may contain anything."""
    if isinstance(error, HTTPError):
        return f"it answered with status {error.code}"
    inner = getattr(error, "reason", error)
    named = inner if isinstance(inner, Exception) else error
    return getattr(named, "strerror", None) or type(named).__name__


def _mail(command: Sequence[str], title: str, text: str) -> str:
    arguments = [title if argument == "{subject}" else argument for argument in command]
    try:
        done = subprocess.run(
            arguments,
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,  # The command may print anything, of any length.
            stderr=subprocess.DEVNULL,
            timeout=MAIL_SECONDS,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"mail command {command[0]!r} failed: {_fault(error)}"
    if done.returncode:
        return f"mail command {command[0]!r} failed with exit code {done.returncode}"
    return ""


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
    figures = {kind: float(len(found)) for kind, found in verdict.findings.items()}
    for cell in record.cells:
        value = record.mean(cell)
        if value is not None and math.isfinite(value):
            name = "/".join((cell.task, cell.recipe, cell.metric)).replace("*", "all")
            figures[name] = value
    return figures
