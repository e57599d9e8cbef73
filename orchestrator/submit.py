"""Hands a sweep to a Ray cluster as a job, so that it does not need this machine to stay awake."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator._cluster import require_shared
from orchestrator._jobs import answered, job_client
from orchestrator.spec import SweepSpec
from trainables.addresses import redacted, shown
from trainables.errors import InputError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

__all__ = ["follow", "submit", "travelling"]

FILE = "sweep.yaml"
POLL_SECONDS = 1.0


def submit(sweep: Path, spec: SweepSpec, address: str) -> tuple[JobSubmissionClient, str]:
    """Start a sweep on a cluster and return at once.

    Submitting it again, under the same name, goes on with a sweep that was cut short; one that
    still runs is refused by the job itself, with the name of its owner.

    Args:
        sweep: The sweep file, which travels with the job.
        spec: What it says.
        address: The cluster's dashboard, such as ``http://127.0.0.1:8265``. A cluster with a token
            wants ``RAY_AUTH_MODE=token`` and the token in the environment.

    Returns:
        The client and the job's id.

    Raises:
        InputError: If the sweep cannot run on several machines, or no cluster answers.
    """
    text = travelling(sweep, spec)
    job = f"calsweep-{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with tempfile.TemporaryDirectory() as folder, answered(address):
        client = job_client(address)
        (Path(folder) / FILE).write_text(text, encoding="utf-8")
        client.submit_job(
            submission_id=job,
            # Ray takes a command line, not a list; none of these words comes from a user.
            entrypoint=shlex.join(["calsweep", "run", FILE, "--address", "auto"]),
            entrypoint_num_cpus=0,
            runtime_env={"working_dir": folder},
            metadata={"sweep": spec.name},
        )
    return client, job


def travelling(sweep: Path, spec: SweepSpec) -> str:
    """Return the text of a sweep file that may be sent to a cluster, which keeps it in plain files.

    Raises:
        InputError: If the sweep cannot run on several machines, or its file holds a login.
    """
    require_shared(spec)
    uri = spec.tracking_uri
    if redacted(uri) != uri:
        raise InputError(
            f"tracking.uri {shown(uri)}: its login or query would lie on the cluster in plain "
            "files; leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, "
            "or PGPASSWORD, where the cluster's head is started"
        )
    return sweep.read_text(encoding="utf-8")


def follow(client: JobSubmissionClient, job: str, write: Callable[[str], None]) -> int:
    """Pass a job's output on until it ends; return 0 if it succeeded, 1 otherwise."""
    seen = 0
    while True:
        ended = client.get_job_status(job).is_terminal()
        text = client.get_job_logs(job)
        write(text[seen:])
        seen = len(text)
        if ended:
            return 0 if client.get_job_status(job) == "SUCCEEDED" else 1
        time.sleep(POLL_SECONDS)
