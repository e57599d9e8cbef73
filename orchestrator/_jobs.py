"""The job server of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainables.addresses import check_server, redacted, shown
from trainables.errors import InputError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

__all__ = ["answered", "check_cluster", "job_client", "short_reason"]

REASON_LENGTH = 200
CLUSTERS = "auto, HOST:PORT, ray://HOST:PORT, or http(s)://HOST:PORT of a dashboard"


def check_cluster(address: str, option: str = "--address") -> None:
    """Refuse what is no address of a Ray cluster, or holds a login, which Ray has no use for.

    Args:
        address: ``auto``, ``local``, ``HOST:PORT``, ``ray://HOST:PORT`` or ``http(s)://HOST:PORT``.
        option: Names it in messages.

    Raises:
        InputError: If it is none of these.
    """
    if address in ("auto", "local"):
        return
    full = address if "://" in address else f"ray://{address}"
    check_server(option, full, CLUSTERS)
    if redacted(full) != full:
        raise InputError(
            f"{option} {shown(full)} holds a login or a query; a cluster's token is given by "
            "RAY_AUTH_TOKEN_PATH (deploy/README.md)"
        )


def job_client(address: str) -> JobSubmissionClient:
    """Return a client of a cluster's job server.

    Args:
        address: The cluster's dashboard, such as ``http://127.0.0.1:8265``.

    Raises:
        InputError: If Ray's job client is not installed, or no server answers it.
    """
    check_cluster(address)
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
