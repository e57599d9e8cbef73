"""Exceptions that a sweep handles, and their messages."""

import re
import resource
from collections.abc import Collection
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec

LONGEST = 300  # Maximum number of characters in a message.
GAP = " ... "
# A list in a message. It may be shortened already, if the message contains another message.
ENTRY = r"(?:[^\s,;:()]|:(?=\S))+(?: [^\s,;:()]+){0,2}"
LISTING = re.compile(rf"((?:{ENTRY}, ){{3,}}(?!or ){ENTRY})(?:(?<=\.\.\.) \((\d+) more\))?")
WORD = re.compile(r"\S{80,}(?: \.\.\. \S{80,})?")
# Users must be able to copy addresses and paths of 60 characters and more: each counts as
# PATH_LENGTH characters, and only those longer than LONGEST_PATH are shortened.
PATH = re.compile(r"(?:\b[a-z0-9+]+:|(?<![^\s'\"(=])(?=\S{60,})[\w.~-]*)/\S+")
PATH_LENGTH, LONGEST_PATH = 40, 300
# Messages of operating systems and libraries that ran out of memory or threads.
NO_MEMORY = re.compile(
    "cannot allocate memory|can't allocate memory|can't start new thread|bad_alloc"
    "|failed to map segment|unable to mmap|resource temporarily unavailable",
    re.IGNORECASE,
)
ADDRESSES = 4096 << 20  # Bytes of address space that the libraries and arrays of a sweep need.
PLACE = re.compile("\ue000(\\d\\d)\ue001*|[\ue000\ue001]\\d*")


def printable(text: str) -> str:
    """Return text for a terminal: invisible characters, except line breaks, are escaped."""
    return "".join(c if c.isprintable() or c == "\n" else _spelled(c) for c in text)


def one_line(text: str, longest: int) -> str:
    """Return text as one printable line, shortened if it is longer than ``longest`` characters.

    Each address, or path of at least 60 characters, then counts as 40 characters (``PATH_LENGTH``)
    and stays whole, unless it is longer than ``LONGEST_PATH``.
    """
    # Cut first, because escaping a very long text is slow.
    line = printable(_cut(text, 10 * longest).replace("\n", " "))
    paths: list[str] = []

    def mark(found: re.Match[str]) -> str:
        paths.append(_cut(found[0], LONGEST_PATH))
        return f"\ue000{len(paths) - 1:02}".ljust(PATH_LENGTH, "\ue001")

    if len(line) > longest:
        line = WORD.sub(lambda found: _cut(found[0], 60), PATH.sub(mark, line))
    short = line
    for entries in (24, 16, 12, 8, 5, 3):
        if len(short) > longest:
            short = LISTING.sub(partial(_listed, entries), line)
    return PLACE.sub(lambda found: paths[int(found[1])] if found[1] else "", _cut(short, longest))


def known_names(name: object, known: Collection[str], word: str = "") -> str:
    """Return, for a message, up to three names similar to an unknown name, or else all names.

    ``word`` is the argument of ``calsweep list`` that shows all names, if there is one.
    """
    near = get_close_matches(str(name), known, n=3)
    text = f"near are: {', '.join(near)}" if near else f"there are: {', '.join(known) or 'none'}"
    return f"{text}; {listed_by(word)}" if word else text


def listed_by(word: str) -> str:
    """Return, for a message, which ``calsweep list`` command shows all names."""
    return f"`calsweep list {word}` shows all"


def lacks_memory(error: BaseException) -> str:
    """Return a message if a lack of memory or threads caused an error, else ""."""
    cause: BaseException | None = error
    while cause and not (isinstance(cause, MemoryError) or NO_MEMORY.search(str(cause))):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    remedy = "free memory or use a machine with more"
    if limit != resource.RLIM_INFINITY:
        remedy = f"this process is limited to {limit >> 20} MiB; raise the limit with `ulimit -v`"
    text = " ".join(str(cause).split()) or "no more is known"
    return f"out of memory or threads ({type(cause).__name__}: {text}); {remedy}"


def require_installed(module: str, user: str) -> None:
    """Raise ``InputError`` if ``module``, which ``user`` needs, is not installed.

    If ``module`` is "", nothing is needed.
    """
    if module and find_spec(module) is None:
        raise InputError(f"{user} needs {module}, which is not installed: pip install {module}")


def require_addresses() -> None:
    """Raise ``MemoryError`` if ``ulimit -v`` is too low for the libraries that a sweep uses.

    Some of them would otherwise try again for ever.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESSES:
        raise MemoryError(f"the libraries of a sweep need {ADDRESSES >> 20} MiB of address space")


def _listed(count: int, found: re.Match[str]) -> str:
    entries = found[1].split(", ")
    left = len(entries) - count + (int(found[2]) - 1 if found[2] else 0)
    return ", ".join([*entries[:count], f"... ({left} more)"]) if left > 1 else found[0]


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    kept = longest - len(GAP)
    return f"{text[: kept - kept // 2]}{GAP}{text[-(kept // 2) :]}"


class InputError(ValueError):
    """A user's file, name or value is wrong.

    The text is one printable line that names problem, place, value and allowed values. The command
    line prints it and exits with code 2.
    """

    def __str__(self) -> str:
        return one_line(super().__str__(), LONGEST)


class StorageError(InputError):
    """The storage cannot be used (for example, its disk is full), so every trial would fail."""


class UnwrittenError(InputError):
    """A finished result could not be written; the command line exits with code 1."""


class AlteredCodeError(RuntimeError):
    """The code of this process differs from the code of its sweep."""


class AlteredPluginError(InputError, AlteredCodeError):
    """Code that a plugin imports has changed since the sweep began."""


class AwayError(OSError):
    """A bucket gave no usable answer."""


class TrainingDivergedError(ArithmeticError):
    """A training gave infinite or NaN values, or a refinement lost too much accuracy."""
