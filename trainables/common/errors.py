"""The exceptions that a sweep tells apart: what a user can mend, and what ends a trial."""

import re
import resource
from collections.abc import Collection
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec

LONGEST = 300  # Characters of a message; the command line shows about as many.
GAP = " ... "
# A list, perhaps one that was cut before: a message may hold another one.
ENTRY = r"(?:[^\s,;:()]|:(?=\S))+(?: [^\s,;:()]+){0,2}"
LISTING = re.compile(rf"((?:{ENTRY}, ){{3,}}(?!or ){ENTRY})(?:(?<=\.\.\.) \((\d+) more\))?")
WORD = re.compile(r"\S{80,}(?: \.\.\. \S{80,})?")
# Paths and addresses are for people to copy: they stay whole, and count as this many characters.
PATH = re.compile(r"(?:\b[a-z0-9+]+:|(?<![^\s'\"(=])(?=\S{60,})[\w.~-]*)/\S+")
PATH_LENGTH, LONGEST_PATH = 40, 300
# How operating systems and libraries say that no memory, or no thread, is left.
NO_MEMORY = re.compile(
    "cannot allocate memory|can't allocate memory|can't start new thread|bad_alloc"
    "|failed to map segment|unable to mmap|resource temporarily unavailable",
    re.IGNORECASE,
)
ADDRESSES = 4096 << 20  # Bytes: what the libraries of a sweep map, with room for its arrays.
PLACE = re.compile("\ue000(\\d\\d)\ue001*|[\ue000\ue001]\\d*")


def printable(text: str) -> str:
    """Return text fit for a terminal: invisible characters are spelled as ``repr`` does."""
    return "".join(c if c.isprintable() or c == "\n" else _spelled(c) for c in text)


def one_line(text: str, longest: int) -> str:
    """Return text as one printable line of at most ``longest`` characters, paths shortened."""
    # Nobody reads more, and spelling a long text takes long.
    line = printable(_cut(text, 10 * longest).replace("\n", " "))
    paths: list[str] = []

    def mark(found: re.Match[str]) -> str:
        paths.append(_cut(found[0], LONGEST_PATH))
        return f"\ue000{len(paths) - 1:02}".ljust(PATH_LENGTH, "\ue001")

    if len(line) > longest:
        line = WORD.sub(lambda found: _cut(found[0], 60), PATH.sub(mark, line))
    short = line
    for most in (24, 16, 12, 8, 5, 3):
        if len(short) > longest:
            short = LISTING.sub(partial(_listed, most), line)
    return PLACE.sub(lambda found: paths[int(found[1])] if found[1] else "", _cut(short, longest))


def known_names(name: object, known: Collection[str], word: str = "") -> str:
    """Return the part of a message that says what a misspelled ``calsweep list word`` may mean."""
    near = get_close_matches(str(name), known, n=3)
    text = f"near are: {', '.join(near)}" if near else f"there are: {', '.join(known) or 'none'}"
    return f"{text}; {listed_by(word)}" if word else text


def listed_by(word: str) -> str:
    """Return the part of a message that names the command which shows all names."""
    return f"`calsweep list {word}` shows all"


def lacks_memory(error: BaseException) -> str:
    """Return in words that memory ran out, where an error or its cause says so, else nothing."""
    found: BaseException | None = error
    while found and not (isinstance(found, MemoryError) or NO_MEMORY.search(str(found))):
        found = found.__cause__ or found.__context__
    if found is None:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    remedy = "free memory or use a machine with more"
    if limit != resource.RLIM_INFINITY:
        remedy = f"this process is limited to {limit >> 20} MiB; raise the limit with `ulimit -v`"
    said = " ".join(str(found).split()) or "no more is known"
    return f"out of memory or threads ({type(found).__name__}: {said}); {remedy}"


def require_installed(module: str, user: str) -> None:
    """Raise ``InputError`` if a module that ``user`` needs cannot be imported; "" needs nothing."""
    if module and find_spec(module) is None:
        raise InputError(f"{user} needs {module}, which is not installed: pip install {module}")


def require_addresses() -> None:
    """Raise ``MemoryError`` if ``ulimit -v`` is too low for the libraries: some try for ever."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESSES:
        raise MemoryError(f"the libraries of a sweep need {ADDRESSES >> 20} MiB of addresses")


def _listed(most: int, found: re.Match[str]) -> str:
    entries = found[1].split(", ")
    left = len(entries) - most + (int(found[2]) - 1 if found[2] else 0)
    return ", ".join([*entries[:most], f"... ({left} more)"]) if left > 1 else found[0]


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    kept = longest - len(GAP)
    return f"{text[: kept - kept // 2]}{GAP}{text[-(kept // 2) :]}"


class InputError(ValueError):
    """Something a user gave is wrong: a file, a name or a value.

    The text is one printable line, whatever the value or a library's message holds, that says what
    is wrong, where, with which value, and what is allowed. The command line prints it and exits
    with code 2.
    """

    def __str__(self) -> str:
        return one_line(super().__str__(), LONGEST)


class StorageError(InputError):
    """The storage cannot be written, such as a full disk: every trial would end by it."""


class UnwrittenError(InputError):
    """A result could not be written after the work: the command line exits with code 1."""


class AlteredCodeError(RuntimeError):
    """A process runs other code than the sweep that it computes for."""


class AlteredPluginError(InputError, AlteredCodeError):
    """Something that a plugin imports is not as it was when the sweep began."""


class AwayError(OSError):
    """A bucket gave no answer, or none that can be used, again and again."""


class TrainingDivergedError(ArithmeticError):
    """A loss or a metric became infinite or NaN, or accuracy was lost: the outcome is of no use."""
