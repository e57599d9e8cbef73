"""Nights started by systemd: a service and a timer of the user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from orchestrator.nightly._book import write_text
from orchestrator.nightly._entry import Entry, call
from trainables.errors import InputError

__all__ = ["available", "install", "present", "uninstall", "unit_folder", "units"]

SERVICE = """\
[Unit]
Description=calsweep nightly benchmark {name}

[Service]
Type=oneshot
WorkingDirectory={directory}
ExecStart={command}
"""
TIMER = """\
[Unit]
Description=Starts the calsweep nightly benchmark {name}

[Timer]
{starts}
AccuracySec=1s
Persistent=true

[Install]
WantedBy=timers.target
"""


def units(entry: Entry) -> dict[str, str]:
    """Return the two units of an entry, file name to text.

    A night that the machine slept through starts when it wakes (``Persistent``).
    """
    stem = _stem(entry.name)
    zone = f" {entry.time_zone}" if entry.time_zone else ""
    starts = [f"OnCalendar=*-*-* {hour:02d}:{entry.minute:02d}:00{zone}" for hour in entry.hours]
    command = " ".join(map(_quoted, entry.command))
    directory = str(entry.directory).replace("%", "%%")
    return {
        f"{stem}.service": SERVICE.format(name=entry.name, directory=directory, command=command),
        f"{stem}.timer": TIMER.format(name=entry.name, starts="\n".join(starts)),
    }


def _stem(name: str) -> str:
    return f"calsweep-nightly-{name}"


def _quoted(argument: str) -> str:
    """Quote an argument for ``ExecStart``, where %, $, quotes and backslashes mean something."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.replace("%", "%%").replace("$", "$$")


def unit_folder() -> Path:
    """Return where systemd looks for the user's own units."""
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "systemd" / "user"


def available() -> bool:
    """Tell whether a systemd of this user answers."""
    return (
        shutil.which("systemctl") is not None
        and call(["systemctl", "--user", "show-environment"]).returncode == 0
    )


def install(entry: Entry) -> list[str]:
    """Write and start the timer; return what was done, a line each.

    Raises:
        InputError: If no systemd of this user answers, or it refuses the units.
    """
    if not available():
        raise InputError("no systemd of this user answers here; use --with cron, or --print")
    files = units(entry)
    for file, text in files.items():
        write_text(unit_folder() / file, text)
    timer = f"{_stem(entry.name)}.timer"
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", timer)
    _systemctl("restart", timer)
    return [
        *(f"wrote {unit_folder() / file}" for file in files),
        f"started {timer}; for nights without you logged in: loginctl enable-linger",
    ]


def uninstall(name: str) -> bool:
    """Stop and remove the timer; tell whether there was one."""
    found = [path for path in unit_folder().glob(f"{_stem(name)}.*") if path.stem == _stem(name)]
    if found and available():
        call(["systemctl", "--user", "disable", "--now", f"{_stem(name)}.timer"])
    for path in found:
        path.unlink()
    if found and available():
        _systemctl("daemon-reload")
    return bool(found)


def present(name: str) -> bool:
    """Tell whether there is a timer of that name."""
    return (unit_folder() / f"{_stem(name)}.timer").is_file()


def _systemctl(*arguments: str) -> None:
    done = call(["systemctl", "--user", *arguments])
    if done.returncode:
        raise InputError(f"systemctl {arguments[0]} failed: {' '.join(done.stderr.split())}")
