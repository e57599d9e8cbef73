"""Nights started by cron: a marked block in the user's crontab."""

from __future__ import annotations

import shlex
import shutil

from orchestrator.nightly._entry import Entry, call
from trainables.errors import InputError

__all__ = ["block", "install", "present", "uninstall", "with_block", "without_block"]

NOTHING_YET = "no crontab for"


def block(entry: Entry) -> str:
    """Return the lines of an entry, marks included.

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
    run = shlex.join(entry.command)
    line = f"cd {_quoted(entry.directory)} && {run} >> {_quoted(entry.log)} 2>&1"
    if "\\" in line:
        raise InputError(f"{line!r} cannot be written as a crontab entry: it holds a backslash")
    # For cron a bare % ends the command.
    command = line.replace("%", "\\%")
    begin, end = _marks(entry.name)
    return f"{begin}\n{entry.minute} {int(entry.at[:2])} * * * {command}\n{end}\n"


def _quoted(path: object) -> str:
    return shlex.quote(str(path))


def _marks(name: str) -> tuple[str, str]:
    return f"# calsweep nightly {name}: begin", f"# calsweep nightly {name}: end"


def with_block(table: str, entry: Entry) -> str:
    """Return a crontab with the entry in it, once; all other lines stay as they are."""
    rest = without_block(table, entry.name)
    return rest + ("\n" if rest and not rest.endswith("\n") else "") + block(entry)


def without_block(table: str, name: str) -> str:
    """Return a crontab without the entry of that name."""
    begin, end = _marks(name)
    kept, inside = [], False
    for line in table.splitlines(keepends=True):
        inside = inside or line.strip() == begin
        if not inside:
            kept.append(line)
        inside = inside and line.strip() != end
    return "".join(kept)


def install(entry: Entry) -> list[str]:
    """Write the entry into the user's crontab; return what was done, a line each.

    Raises:
        InputError: If there is no cron, or it refuses the entry.
    """
    text = block(entry)
    entry.log.parent.mkdir(parents=True, exist_ok=True)
    _write(with_block(_read(), entry))
    return [f"crontab entry: {text.splitlines()[1]}", f"its output goes to {entry.log}"]


def uninstall(name: str) -> bool:
    """Remove the entry of that name; tell whether there was one."""
    before = _read()
    after = without_block(before, name)
    if after != before:
        _write(after)
    return after != before


def present(name: str) -> bool:
    """Tell whether the user's crontab holds an entry of that name."""
    return shutil.which("crontab") is not None and _marks(name)[0] in _read().splitlines()


def _read() -> str:
    if shutil.which("crontab") is None:
        raise InputError("there is no cron here: the program crontab is missing")
    listed = call(["crontab", "-l"])
    if listed.returncode and NOTHING_YET not in listed.stderr:
        raise InputError(f"crontab -l failed: {' '.join(listed.stderr.split())}")
    return "" if listed.returncode else listed.stdout


def _write(table: str) -> None:
    done = call(["crontab", "-"], table)
    if done.returncode:
        raise InputError(f"cron refuses the entry: {' '.join(done.stderr.split())}")
