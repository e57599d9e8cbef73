"""The job server of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainables.errors import InputError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

__all__ = ["answered", "job_client", "short_reason"]

REASON_LENGTH = 200


def job_client(address: str) -> JobSubmissionClient:
    """Return a client of a cluster's job server.

    Args:
        address: The cluster's dashboard, such as ``http://127.0.0.1:8265``.

    Raises:
        InputError: If Ray's job client is not installed, or no server answers it.
    """
    try:
        from ray.job_submission import JobSubmissionClient

        with answered(address):
            return JobSubmissionClient(address)
    except ImportError as error:
        raise InputError(f"Ray jobs need `pip install 'calsweep[cluster]'`: {error}") from error


@contextlib.contextmanager
def answered(address: str) -> Iterator[None]:
    """Tell in one line that nobody answers, or what a server refuses.

    Raises:
        InputError: If the client raises anything of that kind.
    """
    from ray.exceptions import RayError

    try:
        yield
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise InputError(f"no Ray job server takes jobs at {address}: {short_reason(error)}") from (
            error
        )


def short_reason(error: Exception) -> str:
    """Return the beginning of what Ray says, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]} ..."
