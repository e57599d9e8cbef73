"""Addresses of servers and buckets: their valid forms, and the parts fit to show and store.

A login, a query and a fragment may be secret. They are used, but never written to a file and never
printed: whatever shows or stores an address takes it through ``redacted``, and whatever passes on
the text of an error about it through ``scrubbed``.
"""

import re
from urllib.parse import unquote, urlsplit

from trainables.common.errors import InputError

HIDDEN = "***"
LONGEST = 120
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = re.compile(r"(?:[\w.,-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::\d*)?")
_ON_DISK = ("sqlite", "file")
# Left out, it would weaken a later connection without a word.
_KEPT = re.compile(
    r"[?&](sslmode=(?:disable|allow|prefer|require|verify-ca|verify-full))(?=[&#]|$)"
)


def redacted(address: str) -> str:
    """Return an address without login, query and fragment, fit for a file, a message or a log.

    What an address with a sign such as ``/`` or ``#`` inside its password means cannot be told:
    nothing but its scheme is left then, which ``check_server`` refuses anyway. The user of a
    PostgreSQL address stays, since passwords kept elsewhere go by it, and so does its ``sslmode``.
    It may be anything, valid or not.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return HIDDEN if "@" in address else re.split("[?#]", address)[0]
    if not _SCHEME.fullmatch(scheme):
        return HIDDEN
    kind = scheme.partition("+")[0]
    if kind in _ON_DISK and rest.startswith("/"):
        return address.partition("?")[0]
    login, host, path, extra = _parts(rest)
    if "@" in login + path + extra or not _HOST.fullmatch(host):
        return f"{scheme}://{HIDDEN}"
    user = login.partition(":")[0] if kind == "postgresql" else ""
    kept = _KEPT.search(extra) if kind == "postgresql" else None
    query = f"?{kept[1]}" if kept else ""
    return f"{scheme}://{user}{'@' if user else ''}{host}{path}{query}"


def shown(address: str) -> str:
    """Return the address for a message: redacted, quoted, and cut if it is long."""
    text = redacted(address)
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def scrubbed(text: str, address: str) -> str:
    """Return a text about an address, such as a library's error, without the address's secrets.

    It may hold them in full or in part, and percent-encoded in another way.
    """
    for secret in sorted(_secrets(address), key=len, reverse=True):
        signs = ("|".join(map(re.escape, _spellings(sign))) for sign in secret)
        pattern = "".join(f"(?:{spellings})" for spellings in signs)
        text = re.sub(pattern, HIDDEN, text, flags=re.IGNORECASE)
    return text


def check_server(what: str, address: str, allowed: str) -> None:
    """Refuse an invalid address of a server, ``SCHEME://[LOGIN@]HOST[:PORT]...``.

    The scheme is not checked. A message calls it ``what``, and says what is ``allowed``.

    Raises:
        InputError: If it has no host, no such port, or a login whose signs are not encoded.
    """
    if fault := _fault(address):
        raise InputError(f"{what} {shown(address)} {fault}; allowed: {allowed}")


def _fault(address: str) -> str:
    """Return the fault of an address of a server, in words, or an empty string."""
    login, _, path, extra = _parts(address.partition("://")[2])
    if "@" in login + path + extra:
        return "has a bare @ / ? or # in its login (write %40 %2F %3F %23)"
    if any(sign.isspace() or not sign.isprintable() for sign in address):
        return "holds a space or a control character"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError:
        return "is no address, or its port is not 1 to 65535"
    if not host:
        return "names no host"
    if port == 0 or redacted(address).endswith(HIDDEN):  # Such a host could not be stored either.
        return "is no address, or its port is not 1 to 65535"
    return ""


def _parts(rest: str) -> tuple[str, str, str, str]:
    """Return login, host with port, path, and what follows it, of what stands after ``://``."""
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    path = re.split("[?#]", rest[len(place) :], maxsplit=1)[0]
    login, _, host = place.rpartition("@")
    return login, host, path, rest[len(place) + len(path) :]


def _secrets(address: str) -> set[str]:
    """Return what ``redacted`` leaves out of an address: as a whole, and piece by piece."""
    login, _, _, extra = _parts(address.partition("://")[2])
    user, _, password = login.partition(":")
    values = {piece.partition("=")[2] or piece for piece in re.split("[?&;#]", extra)}
    pieces = {password, extra[1:], *values}
    if f"://{user}@" not in redacted(address):
        pieces |= {login, user}
    return {unquote(piece) for piece in pieces if piece}


def _spellings(sign: str) -> set[str]:
    """Return a sign as it is, percent-encoded and escaped."""
    encoded = "".join(f"%{byte:02X}" for byte in sign.encode("utf-8", "surrogatepass"))
    return {sign, encoded, repr(sign)[1:-1], f"\\{sign}", "+" if sign == " " else sign}
