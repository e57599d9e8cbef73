"""Schedules of nights, in whichever scheduler the system has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from orchestrator._jobs import check_cluster
from orchestrator.nightly import _cron as cron
from orchestrator.nightly import _kubernetes as kubernetes
from orchestrator.nightly import _systemd as systemd
from orchestrator.nightly._book import write_text
from orchestrator.nightly._clock import Schedule, make_schedule
from orchestrator.nightly._config import Nightly
from orchestrator.nightly._entry import Entry, make_entry
from orchestrator.nightly._kubernetes import KubernetesOptions
from trainables.errors import InputError

__all__ = ["SCHEDULERS", "Installation", "install", "installation", "preview", "uninstall"]

SCHEDULERS = ("systemd", "cron", "kubernetes", "ray")
INSTALLED = "installed.json"


@dataclass(frozen=True)
class Installation:
    """What has been installed for a benchmark.

    Attributes:
        scheduler: One of ``SCHEDULERS``.
        at: ``HH:MM``.
        time_zone: Its time zone; None for the machine's own.
        namespace: Of Kubernetes; else empty.
    """

    scheduler: str
    at: str
    time_zone: str | None = None
    namespace: str = ""

    @property
    def schedule(self) -> Schedule:
        """Return when nights begin."""
        return make_schedule(self.at, self.time_zone)


def installation(nightly: Nightly) -> Installation | None:
    """Return what has been installed for a benchmark from this machine, if anything."""
    path = nightly.folder / INSTALLED
    return Installation(**json.loads(path.read_text("utf-8"))) if path.exists() else None


def install(
    nightly: Nightly,
    at: str,
    time_zone: str | None,
    scheduler: str | None = None,
    *,
    options: Sequence[str] = (),
    job_server: str | None = None,
    cluster: KubernetesOptions | None = None,
    out: Path | None = None,
) -> list[str]:
    """Write and activate the schedule of a benchmark; one that is there is replaced.

    Ray has no scheduler of its own: ``ray`` has systemd or cron of this machine submit the night
    to a cluster that is running.

    Args:
        nightly: The benchmark.
        at: ``HH:MM``.
        time_zone: Such as ``Europe/Berlin``; None for the machine's own.
        scheduler: One of ``SCHEDULERS``; systemd or else cron if left out.
        options: Further options of ``calsweep nightly run``.
        job_server: Ray's job server, for ``ray``.
        cluster: What to write into the manifests, for ``kubernetes``.
        out: Where the manifests go, for ``kubernetes``.

    Returns:
        What was done, a line each.

    Raises:
        InputError: If the scheduler is not there or refuses.
    """
    scheduler = scheduler or _local()
    entry = _entry(nightly, at, time_zone, scheduler, options, job_server)
    uninstall(nightly)
    if scheduler == "kubernetes":
        out = out or nightly.folder / "kubernetes.yaml"
        lines = kubernetes.install(nightly, entry, _needed(cluster), out)
    else:
        kind = _local() if scheduler == "ray" else scheduler
        lines = systemd.install(entry) if kind == "systemd" else cron.install(entry)
    namespace = cluster.namespace if cluster and scheduler == "kubernetes" else ""
    done = Installation(scheduler, at, time_zone, namespace)
    write_text(nightly.folder / INSTALLED, json.dumps(asdict(done)))
    return lines


def preview(
    nightly: Nightly,
    at: str,
    time_zone: str | None,
    scheduler: str | None = None,
    *,
    options: Sequence[str] = (),
    job_server: str | None = None,
    cluster: KubernetesOptions | None = None,
) -> str:
    """Return what ``install`` would write, and write nothing; for the arguments see there."""
    scheduler = scheduler or _local()
    entry = _entry(nightly, at, time_zone, scheduler, options, job_server)
    if scheduler == "kubernetes":
        documents = kubernetes.manifests(nightly, entry, _needed(cluster))
        return yaml.safe_dump_all(documents, sort_keys=False)
    if (_local() if scheduler == "ray" else scheduler) == "cron":
        return cron.block(entry)
    return "\n".join(f"# {name}\n{text}" for name, text in systemd.units(entry).items())


def uninstall(nightly: Nightly) -> list[str]:
    """Remove the schedule of a benchmark; return what was removed, a line each.

    Raises:
        InputError: If the scheduler refuses.
    """
    lines = []
    if systemd.uninstall(nightly.name):
        lines.append("removed the systemd timer")
    if cron.present(nightly.name) and cron.uninstall(nightly.name):
        lines.append("removed the crontab entry")
    before = installation(nightly)
    if before is not None:
        if before.scheduler == "kubernetes":
            lines += kubernetes.uninstall(nightly.name, before.namespace)
        (nightly.folder / INSTALLED).unlink()
    return lines


def _entry(
    nightly: Nightly,
    at: str,
    time_zone: str | None,
    scheduler: str,
    options: Sequence[str],
    job_server: str | None,
) -> Entry:
    if scheduler not in SCHEDULERS:
        listing = ", ".join(SCHEDULERS)
        raise InputError(f"--with: {scheduler!r} is no scheduler; there are: {listing}")
    if (scheduler == "ray") != (job_server is not None):
        raise InputError("--job-server URL and --with ray go together")
    if job_server:
        check_cluster(job_server, "--job-server")
    server = ("--job-server", job_server) if job_server else ()
    return make_entry(nightly, at, time_zone, (*options, *server))


def _needed(cluster: KubernetesOptions | None) -> KubernetesOptions:
    if cluster is None:
        raise InputError("--with kubernetes needs --image and --claim")
    return cluster


def _local() -> str:
    return "systemd" if systemd.available() else "cron"
