"""Handles the SQLite file of a tracking database without MLflow, which takes seconds to import."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock

from orchestrator.sweep.names import is_sweep_name
from orchestrator.sweep.tracking_uri import database_uri, sqlite_file
from trainables.common.errors import InputError
from trainables.common.files import LOCK_MODE, why
from trainables.common.paths import ELSEWHERE, SYNC, sync_command

OPEN_WAIT = 120.0
"""Seconds to wait for another process that creates, renames or writes the database."""

HEADER = b"SQLite format 3\0"


def require_database(file: Path, hint: str = ELSEWHERE) -> None:
    """Raise ``InputError`` if a database is missing (with a hint), unreadable or not SQLite's."""
    try:
        with open(file, "rb") as stream:
            if stream.read(len(HEADER)) not in (b"", HEADER):
                raise InputError(f"{file} is not a SQLite database; {renewal(file)}")
    except FileNotFoundError as error:
        command, filled = _delivery(file)
        if _is_own(file) and not filled:
            raise InputError(f"no sweep in {file.parent / 'sweeps'} {hint}") from error
        raise InputError(f"no tracking database at {file} {hint}; {command} builds it") from error
    except OSError as error:
        raise InputError(f"tracking database {file} cannot be read: {why(error)}") from error


def renewal(file: Path) -> str:
    """Return the remedy for a damaged database, as the end of a message.

    ``calsweep storage sync`` renames a damaged database only if it belongs to a storage.
    """
    command, own = _delivery(file)
    if own:
        return f"{command} renames it and builds it again"
    return f"rename it, then {command} for each sweep builds it again"


def _delivery(file: Path) -> tuple[str, bool]:
    """Return the command that fills a database, and whether a storage with sweeps owns it."""
    journals = sorted(file.parent.glob("sweeps/*/journal.jsonl")) if _is_own(file) else []
    commands = [sync_command(journal.parent) for journal in journals] or [SYNC]
    return f"`{' && '.join(commands)}`", bool(journals)


def _is_own(file: Path) -> bool:
    """Return True if a file has the place of a storage's database."""
    return file == sqlite_file(database_uri(file.parent))


def undelivered(uri: str, sweep: str) -> str:
    """Return how to deliver a sweep that is in the storage of a database, else ""."""
    file = sqlite_file(uri)
    if file is None or not _is_own(file) or not is_sweep_name(sweep):
        return ""
    folder = file.parent / "sweeps" / sweep
    there = (folder / "journal.jsonl").is_file()
    return f"`{sync_command(folder)}` delivers it" if there else ""


def describe_database(file: Path) -> str:
    """Return one line about a database that may not exist yet; ``InputError`` if it is invalid."""
    if not file.exists():
        return f"{file} does not exist yet; the first sweep creates it"
    try:
        with closing(opened(file, "ro")) as database:
            version = database.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise InputError(
            f"{file} is not an MLflow database ({error}); move it away or name another file"
        ) from error
    return f"{file}, schema {version[0] if version else 'unknown'}"


def require_readable(file: Path) -> None:
    """Read from a database once, so that a damaged one fails now: MLflow would try for a minute."""
    with closing(opened(file)) as database:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()


def damage_of(file: Path) -> str:
    """Check a whole database and return its fault; "" if it has none or cannot be checked."""
    if not file.is_file() or not file.stat().st_size:
        return ""
    try:
        with closing(opened(file)) as database:
            verdict = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        return ""  # Locked, or cannot be opened: the next access reports it.
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if verdict == "ok" else " ".join(verdict.split())


def set_aside(file: Path) -> Path:
    """Rename a database and the files that SQLite keeps next to it; return the new path."""
    mark = f".damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    with exclusive(file):
        for end in ("-journal", "-wal", "-shm", ""):
            place = file.with_name(f"{file.name}{end}")
            if place.exists():
                place.rename(file.with_name(f"{file.name}{mark}{end}"))
    return file.with_name(f"{file.name}{mark}")


def opened(file: Path, mode: str = "rw") -> sqlite3.Connection:
    """Return a connection to an existing database."""
    # In read-only mode SQLite cannot roll back the transaction of a writer that was killed.
    uri = f"{file.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=OPEN_WAIT)


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Lock the creation of a database: two processes at once would break its schema."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f"{file.name}.lock"), OPEN_WAIT, LOCK_MODE):
        yield


def relocate(file: Path, experiment: str, before: str, place: str) -> None:
    """Change the folder of an experiment's files from ``before`` to ``place``; MLflow cannot."""
    if before == place:
        return
    with closing(sqlite3.connect(file, timeout=OPEN_WAIT)) as database, database:
        database.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
            (place, experiment),
        )
        database.execute(
            "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
            "WHERE experiment_id = ? AND instr(artifact_uri, ?) = 1",
            (place, len(before) + 1, experiment, before),
        )
