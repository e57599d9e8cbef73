"""What every scheduler is told, as the text that it reads: templates over one entry."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from orchestrator.nightly.config import Nightly
from orchestrator.nightly.schedule.clock import make_schedule
from orchestrator.sweep.tracking_uri import check_no_login
from orchestrator.tables.renderers import templates
from trainables.common.errors import InputError

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
LONGEST_NAME = 40  # A CronJob's name may have 52 characters, and its Jobs' more.


@dataclass(frozen=True)
class Entry:
    """A benchmark's start at night, as a scheduler has to know it.

    Attributes:
        command: Program and arguments; no shell is needed.
        directory: Where it runs: the nightly file's relative paths begin there.
        log: Where its output may go.
        at, time_zone: As ``make_schedule`` takes them.
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    log: Path
    at: str
    time_zone: str | None = None

    @property
    def hours(self) -> tuple[int, ...]:
        """Return the hours of the day at which to start.

        A second one, an hour later, where the time of the day does not exist on some days: many
        schedulers leave a night out then. On all other days the second start finds the verdict and
        ends.
        """
        hour = int(self.at[:2])
        second = make_schedule(self.at, self.time_zone).in_a_gap(datetime.now(UTC).date())
        return (hour, (hour + 1) % 24) if second else (hour,)

    @property
    def minute(self) -> int:
        """Return the minute."""
        return int(self.at[3:])


@dataclass(frozen=True)
class KubernetesOptions:
    """What the manifests need to know of the cluster.

    Attributes:
        image: With calsweep and Ray, for every node of the Ray cluster.
        claim: PersistentVolumeClaim for storage and data.
        kubectl_image: With kubectl, which submits the RayJob.
    """

    image: str
    claim: str
    namespace: str = "default"
    kubectl_image: str = "kubectl:1.34"


def make_entry(
    nightly: Nightly, at: str, time_zone: str | None, options: Sequence[str] = ()
) -> Entry:
    """Return the entry that runs a nightly file with this Python, from this folder.

    It starts as ``make_schedule`` tells, with further options of ``calsweep nightly run``.

    Raises:
        InputError: If time or zone are not understood, or a path holds a control character.
    """
    make_schedule(at, time_zone)
    # -P: a folder named like one of our packages, where it runs, is not taken for it.
    command = (
        *(sys.executable, "-P", "-m", "orchestrator"),
        *_night_command(str(nightly.path), at, time_zone, *options),
    )
    log = nightly.folder / "schedule.log"
    for text in (*command, str(Path.cwd()), str(log)):
        if CONTROL.search(text):
            raise InputError(f"{text!r} cannot be scheduled: it holds a control character")
    return Entry(nightly.name, command, Path.cwd(), log, at, time_zone)


def _night_command(file: str, at: str, time_zone: str | None, *options: str) -> tuple[str, ...]:
    zone = ("--time-zone", time_zone) if time_zone else ()
    return ("nightly", "run", file, "--at", at, *zone, *options, "--quiet")


def crontab_block(entry: Entry) -> str:
    """Return the lines of an entry in a crontab, between marks that name the benchmark.

    cron itself sees to a time of the day that does not exist or exists twice.

    Raises:
        InputError: If a path holds a backslash, which cron and the shell read differently, or a
            time zone is named, which cron does not know.
    """
    if entry.time_zone is not None:
        raise InputError(
            f"--time-zone: {entry.time_zone!r} is unknown to cron, which goes by the machine's "
            "own; leave it out, or use --with systemd"
        )
    return _render("crontab.j2", entry=entry)


def systemd_units(entry: Entry) -> dict[str, str]:
    """Return service and timer of an entry, file name to text.

    A night that the machine slept through starts when it wakes (``Persistent``).
    """
    kinds = ("service", "timer")
    stem = f"calsweep-nightly-{entry.name}"
    return {f"{stem}.{kind}": _render(f"{kind}.j2", entry=entry) for kind in kinds}


def kubernetes_manifests(nightly: Nightly, entry: Entry, options: KubernetesOptions) -> str:
    """Return the manifests as YAML: rights to create a RayJob, the files, the CronJob.

    Raises:
        InputError: If the benchmark's name cannot be made a Kubernetes name, or a manifest would
            show a login to its readers.
    """
    file = "/calsweep-nightly/nightly.yaml"
    run = _night_command(file, entry.at, entry.time_zone, "--address", "auto")
    content: dict[str, Any] = {"entry": entry, "options": options, "ray": version("ray")}
    content |= {"name": kubernetes_name(entry.name), "settings": _settings(nightly)}
    content["entrypoint"] = f"cd /calsweep && {shlex.join(('calsweep', *run))}"
    content["rayjob"] = _yaml("rayjob.yaml.j2", **content)
    return _yaml("kubernetes.yaml.j2", **content)


def kubernetes_name(name: str) -> str:
    """Return what everything of a benchmark is called in Kubernetes, where its name allows it."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not plain or len(plain) > LONGEST_NAME:
        raise InputError(
            f"sweep.name: {name!r} cannot name things in Kubernetes; allowed are 1 to "
            f"{LONGEST_NAME} letters, digits and '-'"
        )
    return f"calsweep-{plain}"


def _settings(nightly: Nightly) -> str:
    """Return the nightly file with its sweep inside, its storage on the claim."""
    check_no_login(nightly.sweep.tracking_uri, "in a manifest", "in the image")
    sweep = nightly.sweep.model_dump(mode="json")
    sweep |= {"storage": "/calsweep/storage", "data_root": "/calsweep/data"}
    document = {**nightly.model.model_dump(mode="json"), "sweep": sweep}
    return yaml.safe_dump(document, sort_keys=False)


def _yaml(template: str, **content: Any) -> str:
    """Render a template and write its documents anew, which checks that they are YAML."""
    documents = yaml.safe_load_all(_render(template, **content))
    return yaml.safe_dump_all(documents, sort_keys=False)


def _render(template: str, **content: Any) -> str:
    environment = templates(__package__, keep_trailing_newline=True)
    environment.filters |= {
        "shell": lambda value: shlex.quote(str(value)),
        "cron": _escape_for_cron,
        "systemd": _quote_for_systemd,
        "yaml": lambda text: yaml.safe_dump(text, default_style='"', width=10**9).strip(),
    }
    return environment.get_template(template).render(**content)


def _escape_for_cron(line: str) -> str:
    if "\\" in line:
        raise InputError(f"{line!r} cannot be written as a crontab entry: it holds a backslash")
    # For cron a bare % ends the command.
    return line.replace("%", "\\%")


def _quote_for_systemd(argument: str) -> str:
    """Quote an argument for ``ExecStart``, where %, $, quotes and backslashes mean something."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.replace("%", "%%").replace("$", "$$")
