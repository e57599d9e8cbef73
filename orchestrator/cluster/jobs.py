"""Submits sweeps to the job server of a Ray cluster, where they run without this machine."""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cluster.local import require_shared, short_reason
from orchestrator.storage.storage import SPEC
from orchestrator.sweep.documents import read_document
from orchestrator.sweep.tracking_uri import check_no_login
from trainables.common.errors import InputError
from trainables.common.paths import check_server, redacted, shown
from trainables.common.yaml_text import read_mapping, write_mapping
from trainables.plugins import load_plugins

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

    from orchestrator.sweep.spec import SweepSpec

POLL_SECONDS = 1.0
CLIENT = "ray://"
LAST_PORT = 65535
# ASCII letters and digits, with dots, hyphens and ``_`` between them; or [an IPv6 address].
HOST = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(%\w+)?\]", re.ASCII)
CLUSTERS = "auto, HOST:PORT, or http(s)://HOST:PORT of a dashboard"


def check_cluster(address: str, option: str = "--address") -> None:
    """Raise ``InputError`` if a Ray cluster's address is invalid, or has a login or a query."""
    if address in ("auto", "local"):
        return
    if address.startswith(CLIENT):
        raise InputError(
            f"{option}: Ray's client port (ray://) is not supported; use `calsweep submit` with "
            "the dashboard's address, or --address auto on a node of the cluster"
        )
    if not {*"@?#/"} & {*address} and not _is_host_and_port(address):
        raise InputError(f"{option} {shown(address)} is not HOST:PORT; expected {CLUSTERS}")
    full = address if "://" in address else f"{CLIENT}{address}"
    check_server(option, full, CLUSTERS)
    if redacted(full) != full:
        raise InputError(
            f"{option} {shown(full)} has a login or a query; give a cluster's token by "
            "RAY_AUTH_TOKEN_PATH (deploy/README.md)"
        )


def _is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= LAST_PORT
    return is_port and HOST.fullmatch(host) is not None


def job_client(address: str) -> JobSubmissionClient:
    """Return a client for Ray's job server at the address of a dashboard."""
    check_cluster(address)
    try:
        from ray.job_submission import JobSubmissionClient

        with explain_refusal(address):
            return JobSubmissionClient(address)
    except ImportError as error:
        raise InputError(f"Ray jobs need `pip install 'calsweep[cluster]'`: {error}") from error


@contextlib.contextmanager
def explain_refusal(address: str) -> Iterator[None]:
    """Raise an error of the job server as a one-line ``InputError``."""
    from ray.exceptions import RayError

    try:
        yield
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        reason = short_reason(error)
        raise InputError(f"no Ray job server accepts jobs at {address}: {reason}") from error


def submit(sweep: Path, spec: SweepSpec, address: str) -> tuple[JobSubmissionClient, str]:
    """Start a sweep on a cluster; return the client and the job's id at once."""
    files = read_portable(sweep, spec)
    job = f"calsweep-{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    client = job_client(address)
    with tempfile.TemporaryDirectory() as folder, explain_refusal(address):
        write_files(Path(folder), files)
        client.submit_job(
            submission_id=job,
            # Ray requires a command line, not a list.
            entrypoint=shlex.join(["calsweep", "run", SPEC, "--address", "auto"]),
            entrypoint_num_cpus=0,
            runtime_env={"working_dir": folder},
            metadata={"sweep": spec.name},
        )
    return client, job


def read_portable(sweep: Path, spec: SweepSpec) -> dict[str, bytes]:
    """Return the files that a cluster needs, contents by name: a sweep file and its plugins.

    Raises:
        InputError: If the cluster cannot use the sweep's storage or tracker, or if the tracker's
            address has a login, which would be stored in plain text.
    """
    require_shared(spec)
    check_no_login(spec.tracking_uri, "on the cluster", "where the cluster's head is started")
    plugins = load_plugins(spec.pinned, installed=True)
    if not plugins:
        return {SPEC: sweep.read_bytes()}
    place, files = str(sweep), {}
    document = read_mapping(read_document(sweep, place), place, "a sweep", "name")
    places = {plugin.code: f"plugins/{plugin.code}" for plugin in plugins}
    document["plugins"] = [
        {"path": f"{places[plugin.code]}/{plugin.source.path}", "code": plugin.code}
        for plugin in plugins
    ]
    for plugin in plugins:
        for name, content in plugin.source.copied.items():
            files[f"{places[plugin.code]}/{name}"] = content
    return {SPEC: write_mapping(document).encode(), **files}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of ``read_portable`` into a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def follow(client: JobSubmissionClient, job: str, write: Callable[[str], None]) -> int:
    """Write a job's output until the job ends; return 0 if the job succeeded, else 1."""
    seen = 0
    while True:
        ended = client.get_job_status(job).is_terminal()
        text = client.get_job_logs(job)
        write(text[seen:])
        seen = len(text)
        if ended:
            return 0 if client.get_job_status(job) == "SUCCEEDED" else 1
        time.sleep(POLL_SECONDS)
