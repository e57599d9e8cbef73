"""Checks of users' paths and addresses, and removal of secrets from addresses.

Login, query and fragment of an address may be secret, so they are never stored or printed: pass
addresses through ``redacted``, and texts of errors about them through ``scrubbed``.
"""

import os
import re
import shlex
from pathlib import Path
from unicodedata import category
from urllib.parse import unquote, urlsplit

from trainables.common.errors import InputError

HIDDEN = "***"
LONGEST = 120
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = re.compile(r"(?:[\w.,-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::\d*)?")
_ON_DISK = ("sqlite", "file")
# ``redacted`` keeps this setting: a connection without it would silently be less secure.
_KEPT = re.compile(
    r"[?&](sslmode=(?:disable|allow|prefer|require|verify-ca|verify-full))(?=[&#]|$)"
)


def redacted(address: str) -> str:
    """Return an address, valid or not, without login, query and fragment.

    If a password has a character such as ``/`` or ``#``, the address is ambiguous (``check_server``
    refuses it), and ``SCHEME://***`` is returned, as for an invalid host; ``***`` replaces a text
    with an invalid scheme, or with an ``@`` but no scheme. The address of a file on the disk
    (``_ON_DISK``) only loses its query. A PostgreSQL address keeps its ``sslmode`` and its user,
    because password files are searched by user.
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
    """Return an address for a message: redacted, quoted, and cut if it is long."""
    text = redacted(address)
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def scrubbed(text: str, address: str) -> str:
    """Return a text, such as a library's error, with the secrets of an address replaced."""
    for secret in sorted(_secrets(address), key=len, reverse=True):
        signs = ("|".join(map(re.escape, _spellings(sign))) for sign in secret)
        pattern = "".join(f"(?:{spellings})" for spellings in signs)
        text = re.sub(pattern, HIDDEN, text, flags=re.IGNORECASE)
    return text


def check_server(what: str, address: str, allowed: str) -> None:
    """Raise ``InputError`` unless a server's address is ``SCHEME://[LOGIN@]HOST[:PORT]...``."""
    if fault := _fault(address):
        raise InputError(f"{what} {shown(address)} {fault}; allowed: {allowed}")


def _fault(address: str) -> str:
    """Return the fault of a server's address, or ""."""
    login, _, path, extra = _parts(address.partition("://")[2])
    if "@" in login + path + extra:
        return "has a bare @ / ? or # in its login (write %40 %2F %3F %23)"
    if any(sign.isspace() or not sign.isprintable() for sign in address):
        return "has a space or a control character"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError:
        return "is not an address, or its port is not 1 to 65535"
    if not host:
        return "has no host"
    if port == 0 or redacted(address).endswith(HIDDEN):  # The host has invalid characters.
        return "is not an address, or its port is not 1 to 65535"
    return ""


def _parts(rest: str) -> tuple[str, str, str, str]:
    """Split the text after ``://`` into login, host with port, path, and the rest."""
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    path = re.split("[?#]", rest[len(place) :], maxsplit=1)[0]
    login, _, host = place.rpartition("@")
    return login, host, path, rest[len(place) + len(path) :]


def _secrets(address: str) -> set[str]:
    """Return login, query and fragment, whole and in pieces, except a user ``redacted`` keeps."""
    login, _, _, extra = _parts(address.partition("://")[2])
    user, _, password = login.partition(":")
    values = {piece.partition("=")[2] or piece for piece in re.split("[?&;#]", extra)}
    pieces = {password, extra[1:], *values}
    if f"://{user}@" not in redacted(address):
        pieces |= {login, user}
    return {unquote(piece) for piece in pieces if piece}


def _spellings(sign: str) -> set[str]:
    """Return the plain, percent-encoded and escaped forms of a character."""
    encoded = "".join(f"%{byte:02X}" for byte in sign.encode("utf-8", "surrogatepass"))
    return {sign, encoded, repr(sign)[1:-1], f"\\{sign}", "+" if sign == " " else sign}


DEFAULT_STORAGE = "calsweep-storage"
# Messages add this text after the storage that was searched.
ELSEWHERE = "(another storage: --storage DIR)"
SYNC = "calsweep storage sync STORAGE/sweeps/NAME"  # For messages that do not know the sweep.
# The folder of a storage for copies of plugins, by the hash of their code.
PLUGINS = "plugins"
CACHE = "CALSWEEP_CACHE"  # Environment variable: folder for local copies of storages in buckets.
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:/)(?:/?)")
BUCKET = re.compile(r"(s3|gs)://([a-z0-9][a-z0-9._-]+(?:/[A-Za-z0-9=_-][A-Za-z0-9.=_-]*)*)/?")
IN_BUCKET = re.compile(r"[A-Za-z0-9=._/:@-]")  # A login (with : and @) gets another message.
BUCKETS = "buckets"  # The folder of the cache with a folder for each bucket.
CONTROL = ("Cc", "Zl", "Zp")  # Categories of Unicode: control characters and line breaks.
LONGEST_NAME, LONGEST_PATH = 255, 4095  # Limits in bytes, on Linux and macOS.
SOCKET_PATH = 107  # Bytes of the longest path of a socket, on Linux.


def local_path(path: str | Path, what: str, instead: str = "") -> Path:
    """Return the absolute form of a user's path, where a leading ``~`` is expanded.

    Raises:
        InputError: If it is empty, a URL or too long, has a control character, or names an unknown
            user (``~NAME``). The message begins with ``what``; for a URL, it ends with ``instead``,
            another allowed form.
    """
    text = str(path)
    if not text:
        raise InputError(f"{what}: is empty; use a path on this machine")
    if URL.match(text):
        hint = f"; {instead}" if instead else ""
        address = URL.sub(r"\1/", text, count=1)  # `Path` has removed one of the two slashes.
        raise InputError(f"{what}: {address!r} is a URL; use a path on this machine{hint}")
    try:
        # `Path` would drop the `./` of `./~name`, a file in this folder.
        found = (Path(text).expanduser() if text.startswith("~") else Path(text)).absolute()
        fault = control_fault(str(found))
        longest = max(len(os.fsencode(name)) for name in found.parts)
        if longest > LONGEST_NAME or len(os.fsencode(found)) > LONGEST_PATH:
            limits = f"{LONGEST_NAME} bytes per name and {LONGEST_PATH} in all"
            fault = fault or f"it is too long; use at most {limits}"
    except RuntimeError as error:
        fault = f"{str(error).rstrip('.')}; use the whole path, or ./~NAME for a file ~NAME"
    except (OSError, ValueError) as error:
        fault = str(error)
    if fault:
        raise InputError(f"{what}: {text!r} cannot be a path: {fault}")
    return found


def require_writable(path: Path, what: str) -> None:
    """Raise ``InputError`` if results cannot be written to a path.

    It must not be below a file, and its nearest existing folder, perhaps itself, must be writable.
    """
    place = local_path(path, what)
    existing = next((folder for folder in (place, *place.parents) if folder.exists()), place)
    folder = existing.parent if existing == place and not existing.is_dir() else existing
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        fault = "is read-only for you" if folder.is_dir() else "is not a folder"
        raise InputError(f"{what}: {path} cannot be written: {folder} {fault}")


def control_fault(path: str) -> str:
    """Return the fault of a path with a control character or a line break, or ""."""
    found = next((sign for sign in path if category(sign) in CONTROL), None)
    return f"it has the control character {found!r}" if found else ""


def storage_folder(storage: str | Path = DEFAULT_STORAGE) -> Path:
    """Return the absolute path of a storage folder; for a bucket, that of its local copy.

    Args:
        storage: A folder (see ``local_path``), or an address in object storage:
            ``s3://BUCKET/PATH`` or ``gs://BUCKET/PATH``.
    """
    text = str(storage)
    if not text.startswith(("s3:", "gs:")):
        return local_path(storage, "storage", "or s3://BUCKET/PATH or gs://BUCKET/PATH")
    found = BUCKET.fullmatch(text)
    if found is None:
        odd = next((sign for sign in text[len("s3:") :] if not IN_BUCKET.fullmatch(sign)), None)
        fault = "is not the address of a bucket" if odd is None else f"contains {odd!r}"
        raise InputError(
            f"storage: {shown(text)} {fault}; use s3://BUCKET/PATH or gs://BUCKET/PATH with only "
            "letters, digits, '.', '_', '-' and '=', and no user name or password"
        )
    name = "+".join([found[1], *found[2].split("/")])
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = local_path(os.environ.get(CACHE) or f"{home}/calsweep", CACHE)
    return local_path(cache / BUCKETS / name, "storage")


def sweep_command(verb: str, folder: Path) -> str:
    """Return ``calsweep VERB SWEEP`` for the sweep in a folder, with ``--storage`` if needed."""
    storage = folder.absolute().parent.parent
    place = bucket_address(storage) or str(storage)
    option = "" if storage == storage_folder() else f" --storage {shlex.quote(place)}"
    return f"calsweep {verb} {folder.name}{option}"


def sync_command(folder: Path) -> str:
    """Return the command that sends the unsent records of the sweep in a folder."""
    address = bucket_address(folder.absolute().parent.parent)
    place = str(folder) if address is None else f"{address}/sweeps/{folder.name}"
    return f"calsweep storage sync {shlex.quote(place)}"


def bucket_address(folder: Path) -> str | None:
    """Return the address of the bucket if a folder is the local copy of one, else None."""
    kind, sign, place = folder.name.partition("+")
    address = f"{kind}://{place.replace('+', '/')}"
    known = folder.parent.name == BUCKETS and sign and BUCKET.fullmatch(address)
    return address if known else None


def on_this_machine(path: Path) -> Path:
    """Return the path in this machine's copy of a bucket for one in any copy; keep other paths."""
    for folder in path.parents:
        address = bucket_address(folder)
        if address is not None:
            return storage_folder(address) / path.relative_to(folder)
    return path


def require_socket_room(folder: str, below: str, variable: str) -> None:
    """Raise ``InputError`` if a temporary folder's path is too long for a socket ``below`` it.

    ``variable`` is the environment variable that sets the folder.
    """
    limit, length = SOCKET_PATH - len(below) - 1, len(os.fsencode(folder))
    if length > limit:
        raise InputError(
            f"the path of the temporary folder is too long for a socket: expected at most {limit} "
            f"bytes, got {length}: {folder}; use a shorter one, such as: export {variable}=/tmp"
        )
