"""Nights as Ray jobs on a cluster that is running."""

import shlex
import time
from itertools import count
from typing import Any

from orchestrator.cluster.jobs import explain_refusal, job_client
from orchestrator.nightly.record import ALARM, COULD_NOT_RUN, FINE
from trainables.common.errors import InputError

POLL_SECONDS = 5.0


def submit_night(
    address: str, name: str, night: str, command: tuple[str, ...], poll: float = POLL_SECONDS
) -> tuple[str, int]:
    """Submit a night to a cluster's job server, or find it there, and wait for its end.

    The job is called ``nightly-NAME-NIGHT``: a server takes a name once, so that a night submitted
    twice runs once. Where an earlier job of the night has ended, the next is called ``...-2``: it
    resumes the night, or finds its verdict. The command runs on the cluster's head; the server
    at ``http://HOST:8265`` is asked every ``poll`` seconds.

    Returns:
        The job's name and the exit code of ``calsweep nightly run``; 4 if the job was stopped or
        died.

    Raises:
        InputError: If no job server answers.
    """
    client = job_client(address)
    job = _start(client, f"nightly-{name}-{night}", shlex.join(command))
    while True:
        found = _find_job(client, job)
        if found is None:
            raise InputError(f"job {job} has vanished from {address}")
        if found.status.is_terminal():
            code = found.driver_exit_code
            return job, code if code in (FINE, ALARM) else COULD_NOT_RUN
        time.sleep(poll)


def _start(client: Any, stem: str, entrypoint: str) -> str:
    """Submit a job under the first name that no ended one has; return the name."""
    for number in count(1):
        job = stem if number == 1 else f"{stem}-{number}"
        found = _find_job(client, job)
        if found is None:
            try:
                with explain_refusal(client.get_address()):
                    client.submit_job(
                        entrypoint=entrypoint, submission_id=job, entrypoint_num_cpus=0
                    )
            except InputError:
                # Somebody else may have submitted the night in between.
                if _find_job(client, job) is None:
                    raise
        if found is None or not found.status.is_terminal():
            break
    return job


def _find_job(client: Any, job: str) -> Any:
    """Return what the server knows of a job, None for nothing."""
    try:
        with explain_refusal(client.get_address()):
            return client.get_job_info(job)
    except InputError as error:
        if "status code 404" in str(error):
            return None
        raise
