"""Notes of users on a sweep, its studies and trials; no figure depends on them."""

import json

from filelock import FileLock

from orchestrator.storage.storage import LOCK_SECONDS, NOTES, SweepFolder, answering
from trainables.common.errors import InputError
from trainables.common.files import LOCK_MODE, make_folders, why, write_whole, writing

SWEEP = "sweep"  # Key of the sweep's note; other keys are ``study NAME`` and ``trial KEY``.
MOST = 10_000  # Maximum characters of a note.
ALL = 1_000_000  # Maximum characters of all notes of a sweep.


class TooLongError(InputError):
    """A note, or all notes of a sweep together, have too many characters."""


def read_notes(folder: SweepFolder) -> dict[str, str]:
    """Return the notes of a sweep by key; see ``SWEEP``."""
    path, remedy = folder.path / NOTES, "correct it, or move it away to start without notes"
    try:
        found = json.loads(folder.text(path) or "{}")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {why(error)}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}; {remedy}") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise InputError(f"{path} is damaged: expected a mapping from names to texts; {remedy}")
    return found


def write_note(folder: SweepFolder, about: str, text: str) -> None:
    """Write the note with the key ``about`` (see ``SWEEP``); an empty ``text`` removes it."""
    if len(text) > MOST:
        raise TooLongError(f"expected at most {MOST} characters in a note, got {len(text)}")
    path = folder.path / NOTES
    lock = FileLock(path.with_suffix(".lock"), timeout=LOCK_SECONDS, mode=LOCK_MODE)
    with writing(path):
        make_folders(folder.path)
        with lock:
            folder.fetch()
            notes = {**read_notes(folder), about: text.strip()}
            whole = {each: written for each, written in notes.items() if written}
            if sum(map(len, whole.values())) > ALL:
                raise TooLongError(f"expected at most {ALL} characters in all notes of a sweep")
            write_whole(path, json.dumps(whole, ensure_ascii=False, indent=1))
            if folder.bucket is not None:
                with answering():
                    folder.bucket.put(path)
