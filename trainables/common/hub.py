"""Addresses of repositories on the Hugging Face Hub, and messages for the Hub's errors."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainables.common.errors import InputError

HUB = "hf:"  # Prefix of a repository's address.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_ADDRESS = re.compile(
    rf"(?P<repo>{_NAME}/{_NAME})(?::(?P<part>{_NAME}))?(?:@(?P<revision>{_NAME}(?:/{_NAME})*))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class AwayError(InputError):
    """The Hub does not answer now; callers may use a copy that was downloaded before."""


@dataclass(frozen=True)
class HubAddress:
    """``ORG/NAME[:PART][@REVISION]``; part and revision may be empty."""

    repo: str
    part: str = ""
    revision: str = ""

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Parse an address; error messages begin with ``where``."""
        found = _ADDRESS.fullmatch(text)
        if found is None:
            form = f"{HUB}ORG/NAME, {HUB}ORG/NAME:CONFIG or {HUB}ORG/NAME@REVISION"
            raise InputError(f"{where}: {text!r} is not a repository; use {form}")
        return cls(**{key: value or "" for key, value in found.groupdict().items()})

    @property
    def fixed(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None


def hub_client() -> Any:
    """Return a client of the Hub; importing its package takes a quarter of a second."""
    from huggingface_hub import HfApi

    # Otherwise it prints each retry; an error says enough.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return HfApi(library_name="calsweep")


def download(address: HubAddress, patterns: Sequence[str], where: str) -> Path:
    """Return a folder with the files of a repository that match ``patterns``.

    Raise ``InputError``, beginning with ``where``, if a pattern without ``*`` matches no file.
    """
    with hub_faults(address.repo):
        folder = Path(
            hub_client().snapshot_download(
                address.repo, revision=address.revision, allow_patterns=[*patterns]
            )
        )
    for name in patterns:
        if "*" not in name and not (folder / name).is_file():
            raise InputError(f"{where}: the repository has no {name}")
    return folder


@contextmanager
def hub_faults(repo: str) -> Iterator[None]:
    """Turn the client's errors into ``InputError``, or ``AwayError`` if the Hub is away or busy."""
    from huggingface_hub import errors

    try:
        yield
    except InputError:
        raise
    except (errors.HTTPError, ConnectionError, errors.LocalEntryNotFoundError) as error:
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is None:
            reason = type(cause or error).__name__
            raise AwayError(f"{HUB}{repo}: no connection to the Hub ({reason})") from error
        if status == 429 or status >= 500:
            raise AwayError(f"{HUB}{repo}: the Hub answers {status}; try again later") from error
        raise InputError(f"{HUB}{repo}: {_refusal(cause, status)}") from error


def _refusal(error: object, status: int) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "its owner must grant access; ask on its page, then set HF_TOKEN to your token"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "is private or does not exist; check the name, or set HF_TOKEN to a valid token"
    if isinstance(error, errors.RevisionNotFoundError):
        return "has no such revision; check the text after @"
    if isinstance(error, errors.EntryNotFoundError):
        return "lacks a file that it lists; try again"
    if status in (401, 403):
        return f"the Hub refuses the token ({status}); set HF_TOKEN to a token with access"
    return f"the Hub answers {status}"
