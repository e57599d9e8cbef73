"""Reads the values of requests; a bad value raises 404, or 413 for a long note, with one line."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from orchestrator.storage.notes import MOST
from orchestrator.tables.arrange import check_metrics
from orchestrator.view.server._rows import BINS, SHOWS, SORTS
from trainables.common.errors import InputError

NAMES = {"label": "class", "other": "with"}  # Names in URLs that are keywords in Python, by field.

FORM_BYTES = 13 * MOST  # A character has up to four bytes, each encoded as three characters.


def number(name: str, text: str) -> int:
    """Parse a whole number, of which only the first nine digits count; raise 404 for other text."""
    if not text.isascii() or not text.isdigit():
        raise HTTPException(404, f"{name}={text!r} is not a whole number.")
    return int(text[:9])


def choice(name: str, value: Any, known: Collection[Any]) -> Any:
    """Return a value; raise 404 if it is not in ``known``."""
    if value not in known:
        raise HTTPException(404, f"{name}={value!r} is not one of {', '.join(map(str, known))}.")
    return value


def within(name: str, value: int | None, allowed: range) -> None:
    """Raise 404 for a number outside a range; None is accepted."""
    if value is not None and value not in allowed:
        ends = f"{allowed.start} to {allowed.stop - 1}"
        raise HTTPException(404, f"{name}={value} is outside {ends}.")


def metrics(text: str) -> list[str]:
    """Return the columns of a table from names separated by commas; raise 404 for unknown names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        if names:
            check_metrics(names)
    except InputError as error:
        raise HTTPException(404, f"{error}.") from error
    return names


async def form_text(request: Request) -> str:
    """Return the field ``text`` of a form; reading stops if the form is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES:
            raise HTTPException(413, f"A note has at most {MOST} characters.")
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    return fields.get("text", [""])[0].replace("\r\n", "\n")


class Selection(NamedTuple):
    """The rows of a study that a page shows, as in its URL.

    Attributes:
        bin, label: Only rows of this bin, or class; None for all.
        other: The recipe that is shown next to the study's; empty for none.
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
        """Read a query; missing and empty values have the default."""
        texts = {name: value for name, value in query.items() if value}
        numbers: dict[str, Any] = {
            name: number(NAMES.get(name, name), texts[NAMES.get(name, name)])
            for name in ("seed", "bin", "label", "page")
            if NAMES.get(name, name) in texts
        }
        selection = cls(min(seeds))._replace(**numbers)
        choice("seed", selection.seed, seeds)
        within("bin", selection.bin, range(BINS))
        return selection._replace(
            show=choice("show", texts.get("show", selection.show), SHOWS),
            sort=choice("sort", texts.get("sort", selection.sort), SORTS),
            other=texts.get("with", ""),
        )

    def to(self, **changes: Any) -> str:
        """Return the URL query of this selection with ``changes``, by default its first page."""
        selection = self._replace(**{"page": 1, **changes})
        values = {NAMES.get(name, name): value for name, value in selection._asdict().items()}
        return "?" + urlencode({name: v for name, v in values.items() if v not in (None, "")})
