"""Questions in addresses: a bad value is answered with 404 and one line."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from orchestrator.storage.notes import MOST
from orchestrator.tables.arrange import check_metrics
from orchestrator.view.server._rows import BINS, SHOWS, SORTS
from trainables.common.errors import InputError

NAMES = {"label": "class", "other": "with"}  # In an address, where they are Python's words.

FORM_BYTES = 13 * MOST  # A character takes up to four bytes, each is written as three.


def number(name: str, text: str) -> int:
    """Return a whole number that an address gives."""
    if not text.isascii() or not text.isdigit():
        raise HTTPException(404, f"{name}={text!r} is not a whole number.")
    return int(text[:9])


def choice(name: str, value: Any, known: Collection[Any]) -> Any:
    """Return a value that must be one of those that are known."""
    if value not in known:
        raise HTTPException(404, f"{name}={value!r} is not one of {', '.join(map(str, known))}.")
    return value


def within(name: str, value: int | None, allowed: range) -> None:
    """Refuse a number outside a range; None is allowed."""
    if value is not None and value not in allowed:
        ends = f"{allowed.start} to {allowed.stop - 1}"
        raise HTTPException(404, f"{name}={value} is outside {ends}.")


def metrics(text: str) -> list[str]:
    """Return the columns of a table that an address gives, separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        if names:
            check_metrics(names)
    except InputError as error:
        raise HTTPException(404, f"{error}.") from error
    return names


async def asked_text(request: Request) -> str:
    """Return the field ``text`` of a form; a form that is too long is not read to its end."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES:
            raise HTTPException(413, f"A note has at most {MOST} characters.")
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    return fields.get("text", [""])[0].replace("\r\n", "\n")


class Asked(NamedTuple):
    """Which rows of a study a page shows; its address has all of it.

    Attributes:
        bin, label: Only rows of this bin, or class; None for all.
        other: The recipe next to which rows are shown; empty for none.
    """

    seed: int
    bin: int | None = None
    label: int | None = None
    show: str = SHOWS[0]
    sort: str = SORTS[0]
    other: str = ""
    page: int = 1

    @classmethod
    def read(cls, query: Mapping[str, str], seeds: Collection[int]) -> Self:
        """Read an address; a value that it leaves out, or leaves empty, is the default."""
        given = {name: value for name, value in query.items() if value}
        numbers: dict[str, Any] = {
            name: number(NAMES.get(name, name), given[NAMES.get(name, name)])
            for name in ("seed", "bin", "label", "page")
            if NAMES.get(name, name) in given
        }
        asked = cls(min(seeds))._replace(**numbers)
        choice("seed", asked.seed, seeds)
        within("bin", asked.bin, range(BINS))
        return asked._replace(
            show=choice("show", given.get("show", asked.show), SHOWS),
            sort=choice("sort", given.get("sort", asked.sort), SORTS),
            other=given.get("with", ""),
        )

    def to(self, **changes: Any) -> str:
        """Return the query of this page with changes, beginning with its first page."""
        asked = self._replace(**{"page": 1, **changes})
        values = {NAMES.get(name, name): value for name, value in asked._asdict().items()}
        return "?" + urlencode({name: v for name, v in values.items() if v not in (None, "")})
