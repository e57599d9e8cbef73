"""Opening a tracking store to ask it, and saying what it knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.tracking import _names as names
from orchestrator.tracking._server import Server
from orchestrator.tracking._uri import check_tracking_uri, is_sqlite, sqlite_file
from trainables.addresses import redacted
from trainables.errors import InputError

STUDY = {names.KIND: "study"}


def existing(uri: str) -> Server:
    """Return a store that is there already.

    Raises:
        InputError: If it is not.
    """
    check_tracking_uri(uri)
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise InputError(f"no tracking database at {file}; `calsweep sync` builds it")
    if file is not None and not is_sqlite(file):
        raise InputError(f"{file} is no SQLite database; name another file")
    return Server(uri)


def experiments_of(server: Server, sweep: str | None) -> dict[str, str]:
    """Return experiment ids by the name of their sweep.

    Raises:
        InputError: If there is no such sweep; the text lists those there are.
    """
    known = {found.name: found.experiment_id for found in server.experiments()}
    if sweep is None:
        return known
    if sweep not in known:
        raise InputError(f"no sweep {sweep!r} on {redacted(server.uri)}; {_there_are(known)}")
    return {sweep: known[sweep]}


def check_known(server: Server, experiments: Sequence[str], wanted: Mapping[str, str]) -> None:
    """Refuse a task, or a recipe on that task, for which there has never been a study.

    Raises:
        InputError: The text lists what there is.
    """
    so_far: dict[str, str] = {}
    for tag, value in wanted.items():
        runs = server.runs(experiments, {**STUDY, **so_far})
        known = {run.data.tags[tag] for run in runs}
        if value not in known:
            what = tag.removeprefix(names.PREFIX)
            where = "".join(f" for {task!r}" for task in so_far.values())
            raise InputError(
                f"no {what} {value!r}{where} on {redacted(server.uri)}; {_there_are(known)}"
            )
        so_far[tag] = value


def _there_are(known: Iterable[str]) -> str:
    return f"there are: {', '.join(sorted(known)) or 'none'}"
