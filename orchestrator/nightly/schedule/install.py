"""Schedules of nights, in whichever scheduler the system has."""

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.cluster.jobs import check_cluster
from orchestrator.nightly.book import read_json, write_text
from orchestrator.nightly.config import Nightly
from orchestrator.nightly.schedule import entry as entries
from trainables.common.errors import InputError

INSTALLED = "installed.json"


@dataclass(frozen=True)
class Installation:
    """What has been installed for a benchmark.

    Attributes:
        scheduler: ``systemd``, ``cron``, ``kubernetes`` or ``ray``.
        at, time_zone: As ``make_schedule`` takes them.
        namespace: Of Kubernetes; else empty.
    """

    scheduler: str
    at: str
    time_zone: str | None = None
    namespace: str = ""


@dataclass(frozen=True)
class Request:
    """A schedule that somebody asks for.

    Ray has no scheduler of its own: ``ray`` has systemd or cron of this machine submit the night
    to a cluster that is running.

    Attributes:
        scheduler: As in ``Installation``; None for systemd or else cron.
        options: Further options of ``calsweep nightly run``.
        job_server: Ray's job server, for ``ray``.
        cluster: What to write into the manifests, for ``kubernetes``.
    """

    nightly: Nightly
    at: str
    time_zone: str | None = None
    scheduler: str | None = None
    options: tuple[str, ...] = ()
    job_server: str | None = None
    cluster: entries.KubernetesOptions | None = None

    def entry(self) -> entries.Entry:
        """Return what the scheduler is told.

        Raises:
            InputError: If the request contradicts itself or is not understood.
        """
        if (self.scheduler == "ray") != (self.job_server is not None):
            raise InputError("--job-server URL and --with ray go together")
        server: tuple[str, ...] = ()
        if self.job_server is not None:
            check_cluster(self.job_server, "--job-server")
            server = ("--job-server", self.job_server)
        return entries.make_entry(self.nightly, self.at, self.time_zone, (*self.options, *server))


def preview(request: Request) -> str:
    """Return what ``install`` would write, and write nothing; see ``Request.entry``."""
    entry = request.entry()
    if request.scheduler == "kubernetes":
        if request.cluster is None:
            raise InputError("--with kubernetes needs --image and --claim")
        return entries.kubernetes_manifests(request.nightly, entry, request.cluster)
    if _starter(request) == "cron":
        return entries.crontab_block(entry)
    return "\n".join(f"# {name}\n{text}" for name, text in entries.systemd_units(entry).items())


def install(request: Request, out: Path | None = None) -> list[str]:
    """Write and activate the schedule of a benchmark; one that is there is replaced.

    A refused request leaves the old one. Returns a line per change made. ``out`` is where the
    manifests of ``kubernetes`` go.

    Raises:
        InputError: If the scheduler is not there or refuses.
    """
    nightly, starter, namespace = request.nightly, _starter(request), ""
    entry, text = request.entry(), preview(request)
    if starter == "systemd" and not _has_systemd():
        raise InputError("no systemd of this user answers here; use --with cron, or --print")
    if starter == "cron":
        _read_crontab()
    uninstall(nightly)
    if request.scheduler == "kubernetes":
        lines = _apply(text, out or nightly.folder / "kubernetes.yaml")
        namespace = request.cluster.namespace if request.cluster else ""
    else:
        lines = _start_timer(entry) if starter == "systemd" else _enter_crontab(entry)
    done = Installation(request.scheduler or starter, request.at, request.time_zone, namespace)
    write_text(nightly.folder / INSTALLED, json.dumps(asdict(done)))
    return lines


def installation(nightly: Nightly) -> Installation | None:
    """Return what has been installed for a benchmark from this machine, if anything."""
    path = nightly.folder / INSTALLED
    known = read_json(path)
    try:
        return None if known is None else Installation(**known)
    except TypeError as error:
        raise InputError(f"{path} is damaged: {error}") from error


def uninstall(nightly: Nightly) -> list[str]:
    """Remove the schedule of a benchmark; return a line per removed file.

    Raises:
        InputError: If the scheduler refuses.
    """
    lines = []
    if _remove_timer(nightly.name):
        lines.append("removed the systemd timer")
    if shutil.which("crontab") is not None:
        before = _read_crontab()
        after = without_entry(before, nightly.name)
        if after != before:
            _write_crontab(after)
            lines.append("removed the crontab entry")
    known = installation(nightly)
    if known is not None:
        if known.scheduler == "kubernetes":
            lines += _delete(nightly.name, known.namespace)
        (nightly.folder / INSTALLED).unlink()
    return lines


def _starter(request: Request) -> str:
    """Return what starts the nights; for ``ray`` that is a scheduler of this machine."""
    if request.scheduler in (None, "ray"):
        return "systemd" if _has_systemd() else "cron"
    return str(request.scheduler)


def without_entry(table: str, name: str) -> str:
    """Return a crontab without the entry of that name.

    That is the marks, and the command that stands below the first: every other line is the user's,
    also where a mark was deleted.
    """
    begin, end = (f"# calsweep nightly {name}: {word}" for word in ("begin", "end"))
    kept, above = [], ""
    for line in table.splitlines(keepends=True):
        ours = line.strip() in (begin, end) or (above == begin and " nightly run " in line)
        if not ours:
            kept.append(line)
        above = line.strip()
    return "".join(kept)


def _enter_crontab(entry: entries.Entry) -> list[str]:
    table, text = _read_crontab(), entries.crontab_block(entry)
    entry.log.parent.mkdir(parents=True, exist_ok=True)
    _write_crontab(table + ("\n" if table and not table.endswith("\n") else "") + text)
    return [f"crontab entry: {text.splitlines()[1]}", f"its output goes to {entry.log}"]


def _read_crontab() -> str:
    if shutil.which("crontab") is None:
        raise InputError("there is no cron here: the program crontab is missing")
    listed = _call("crontab", "-l")
    if listed.returncode and "no crontab for" in listed.stderr:
        return ""
    return _output(listed, "crontab -l failed")


def _write_crontab(table: str) -> None:
    _output(_call("crontab", "-", text=table), "cron refuses the entry")


def _start_timer(entry: entries.Entry) -> list[str]:
    files = {_unit_folder() / name: text for name, text in entries.systemd_units(entry).items()}
    for path, text in files.items():
        write_text(path, text)
    timer = f"calsweep-nightly-{entry.name}.timer"
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", timer)
    _systemctl("restart", timer)
    return [
        *(f"wrote {path}" for path in files),
        f"started {timer}; for nights without you logged in: loginctl enable-linger",
    ]


def _remove_timer(name: str) -> bool:
    """Stop and remove the timer of that name; return whether there was one."""
    stem = f"calsweep-nightly-{name}"
    found = [path for path in _unit_folder().glob(f"{stem}.*") if path.stem == stem]
    answers = bool(found) and _has_systemd()
    if answers:
        _call("systemctl", "--user", "disable", "--now", f"{stem}.timer")
    for path in found:
        path.unlink()
    if answers:
        _systemctl("daemon-reload")
    return bool(found)


def _unit_folder() -> Path:
    """Return where systemd looks for the user's own units."""
    configured = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configured) / "systemd" / "user"


def _has_systemd() -> bool:
    """Return True if a systemd of this user answers."""
    asked = ("systemctl", "--user", "show-environment")
    return shutil.which(asked[0]) is not None and _call(*asked).returncode == 0


def _systemctl(*arguments: str) -> None:
    _output(_call("systemctl", "--user", *arguments), f"systemctl {arguments[0]} failed")


def _apply(manifests: str, out: Path) -> list[str]:
    write_text(out.absolute(), manifests)
    command = ["kubectl", "apply", "--filename", str(out)]
    if shutil.which("kubectl") is None:
        return [f"wrote {out}", f"kubectl is missing here; apply it with: {shlex.join(command)}"]
    failure = f"{out} is written, but `{shlex.join(command)}` failed"
    return [f"wrote {out}", *_output(_call(*command), failure).splitlines()]


def _delete(name: str, namespace: str) -> list[str]:
    kinds = "cronjob,configmap,rolebinding,role,serviceaccount"
    command = ["kubectl", "delete", kinds, entries.kubernetes_name(name), "--namespace", namespace]
    command.append("--ignore-not-found")
    if shutil.which("kubectl") is None:
        return [f"kubectl is missing here; remove it with: {shlex.join(command)}"]
    return _output(_call(*command), f"`{shlex.join(command)}` failed").splitlines()


def _call(*command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of the system's own programs, without a shell."""
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{command[0]} cannot be run here: {error}") from error


def _output(done: subprocess.CompletedProcess[str], failure: str) -> str:
    """Return what a program printed, if it did not fail."""
    if done.returncode:
        raise InputError(f"{failure}: {' '.join(done.stderr.split()) or 'no reason given'}")
    return done.stdout
