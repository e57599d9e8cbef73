"""Starts Ray on this machine, or joins a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from orchestrator.cluster.interrupt import interrupt_later
from orchestrator.sweep.executors import EXECUTORS
from orchestrator.sweep.tracking_uri import tracker_kind
from trainables.common.errors import InputError
from trainables.common.paths import bucket_address, redacted, require_socket_room, storage_folder

if TYPE_CHECKING:
    from orchestrator.sweep.spec import SweepSpec

log = logging.getLogger(__name__)

REASON_LENGTH = 200
STDERR = 2
START_SECONDS = 1  # Time for Ray to finish its start after a signal; a sweep must end within 10 s.
END_SECONDS = 1  # Time for workers and their children to end with Ray before they are killed.
REFUSED = "InvalidAuthToken"  # Printed by Ray's threads; not in the text of the exception.
SLOW_START = "timed out during startup"

# Ray reads these when it is imported or started. They mean: no usage reports, no files per trial,
# enough pending trials to fill the machine, workers with normal priority and none started in
# advance, no change of CUDA_VISIBLE_DEVICES for trials without a GPU, Tune's older output, Ctrl-C
# handled by calsweep, and almost no snapshots of Tune (a sweep resumes from its journal).
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "1024",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
}


@contextlib.contextmanager
def join_cluster(address: str | None, variables: Mapping[str, str] = {}) -> Iterator[Any]:
    """Start Ray on this machine (``address`` None) or join the cluster at an address.

    Workers get ``variables`` in their environment. A Ray that is started here listens on the
    loopback only, unless Ray was imported before.
    """
    # Ray reads its address and authentication settings only when it is imported.
    alone = address is None and "ray" not in sys.modules
    if address is None:
        _check_temporary_folder()
    else:
        _check_token(address)
    for name, value in {**ENVIRONMENT, **(_loopback_settings() if alone else {})}.items():
        os.environ.setdefault(name, value)
    with interrupt_later():  # A partial import of Ray would print errors when this program ends.
        import ray

    # Tune warns about the files that are switched off above.
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    # Nothing is restored from Tune's snapshots, so failed ones do not matter.
    logging.getLogger("ray.tune.execution.experiment_state").setLevel(logging.CRITICAL)
    said: list[str] = []
    try:
        with (
            interrupt_later(START_SECONDS),
            _apart(),
            held_back(said) if address else contextlib.nullcontext(),
        ):
            _init(ray, address, variables)
    except KeyboardInterrupt:
        ray.shutdown()
        raise
    except Exception as error:  # Ray raises a plain Exception if its start is slow.
        raise InputError(_not_joined(address, error, "".join(said))) from error
    try:
        yield ray
    finally:
        own = _workers() if address is None else []
        ray.shutdown()
        for left in psutil.wait_procs(own, END_SECONDS)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()


def _check_temporary_folder() -> None:
    name = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    session = f"ray/session_2026-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store"
    require_socket_room(os.environ.get(name) or "/tmp", session, "RAY_TMPDIR")


def _workers() -> list[psutil.Process]:
    """Return the node process that Ray started for this process, its workers and their children."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process().children():
            if child.name() == "raylet":
                return [child, *child.children(recursive=True)]
    return []


def _init(ray: Any, address: str | None, variables: Mapping[str, str]) -> None:
    """Start or join Ray; try once more if Ray's start on this machine times out."""
    for tries_left in (1, 0):
        try:
            ray.init(
                address=address or "local",
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                runtime_env={"env_vars": dict(variables)} if variables else None,
            )
            return
        except Exception as error:
            # Ray waits half a minute; a busy machine may need as long to read its files.
            if not tries_left or address is not None or SLOW_START not in str(error):
                raise
            ray.shutdown()


def short_reason(error: Exception) -> str:
    """Return the first ``REASON_LENGTH`` characters of an error's text, as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]} ..."


@contextlib.contextmanager
def held_back(said: list[str]) -> Iterator[None]:
    """Hold back standard error, also of Ray's threads; add it to ``said`` at the end.

    It is printed only if the block raises no error.
    """
    sys.stderr.flush()
    before = os.dup(STDERR)
    with tempfile.TemporaryFile() as buffer:
        os.dup2(buffer.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, STDERR)
            os.close(before)
            buffer.seek(0)
            said.append(buffer.read().decode(errors="replace"))
    sys.stderr.write(said[-1])


def _not_joined(address: str | None, error: Exception, said: str) -> str:
    if address is None:
        return f"Ray does not start on this machine: {short_reason(error)}"
    if REFUSED in said:
        return (
            f"the Ray cluster at {address!r} expects another token; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH to the file that its head was started with (deploy/README.md)"
        )
    with_token = os.environ.get("RAY_AUTH_MODE") == "token"
    token = ", or it expects another token" if with_token else ""
    return f"no Ray cluster answers at {address!r}{token}: {short_reason(error)}"


def token_fault() -> str:
    """Return a message if other users can read the cluster's token file, else an empty string."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if path.exists() and path.stat().st_mode & 0o077:
        return f"other users can read the token in {path}: chmod 600 {path}"
    return ""


def _check_token(address: str) -> None:
    """Raise ``InputError`` if others can read the token file; warn if no token is used."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        log.warning(
            "the cluster at %s is joined without a token: whoever reaches its ports can run code; "
            "set RAY_AUTH_MODE=token (deploy/README.md)",
            address,
        )
    elif "RAY_AUTH_TOKEN" not in os.environ and (fault := token_fault()):
        raise InputError(fault)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Start Ray's processes in their own process groups, without Ray's handler of SIGTERM.

    Ctrl-C then stops this process first, which ends its trials and Ray.
    """
    from ray._private import services, utils

    popen, handle = services.ConsolePopen, utils.set_sigterm_handler
    services.ConsolePopen = partial(popen, process_group=0)  # type: ignore[misc, assignment]
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        services.ConsolePopen, utils.set_sigterm_handler = popen, handle  # type: ignore[misc]


def _loopback_settings() -> dict[str, str]:
    """Return settings for the loopback only, a token in memory, and no metrics or task events."""
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_enable_metrics_collection": "0",
        "RAY_task_events_report_interval_ms": "0",
    }


def slots(resources: Mapping[str, float], cpu: float, gpu: float) -> int:
    """Return the number of trials that fit on the cluster's resources, at least one."""
    return max(1, fitting(resources, cpu, gpu))


def require_room(resources: Mapping[str, float], stage: str, cpu: float, gpu: float) -> None:
    """Raise ``InputError`` if a trial would wait forever, because this machine is too small."""
    if fitting(resources, cpu, gpu) == 0:
        raise InputError(
            f"resources.{stage}: a trial of {cpu:g} CPUs and {gpu:g} GPUs does not fit on this "
            f"machine with {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
        )


def missing_room(nodes: Iterable[Mapping[str, Any]], stage: str, cpu: float, gpu: float) -> str:
    """Return a note if trials fit on none of ``ray.nodes()``, else an empty string."""
    if any(node["Alive"] and fitting(node["Resources"], cpu, gpu) for node in nodes):
        return ""
    return (
        f"resources.{stage}: no node has {cpu:g} CPUs and {gpu:g} GPUs yet; these trials wait "
        "until one joins"
    )


def spans_machines(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if a living node of ``ray.nodes()`` is on another machine."""
    here = os.uname().nodename
    return any(node["Alive"] and node["NodeManagerHostname"] != here for node in nodes)


def require_spanning(spec: SweepSpec) -> None:
    """Raise ``InputError`` if the executor of a sweep computes on one machine only."""
    if not EXECUTORS.get(spec.executor).spans_machines:
        raise InputError(
            f"executor: {spec.executor} computes on one machine; remove the key to use a cluster"
        )


def require_shared(spec: SweepSpec) -> None:
    """Raise ``InputError`` if executor, storage or tracker cannot be used by several machines."""
    require_spanning(spec)
    folder = storage_folder(spec.storage)
    if any(map(bucket_address, folder.parents)):
        raise InputError(
            "storage: nights with a storage in a bucket compute on one machine; on a cluster use "
            "a folder that every node sees"
        )
    if bucket_address(folder) is None and not Path(spec.storage).expanduser().is_absolute():
        raise InputError(
            f"storage: on a cluster expected an absolute folder that every node sees, or "
            f"s3://BUCKET/PATH or gs://BUCKET/PATH, got {spec.storage!r}"
        )
    if not tracker_kind(spec.tracking_uri).spans_machines:
        raise InputError(
            f"tracking.uri: on a cluster expected a tracking server, got "
            f"{redacted(spec.tracking_uri)}; deploy/README.md starts a server"
        )


def fitting(resources: Mapping[str, float], cpu: float, gpu: float) -> int:
    """Return the number of trials with ``cpu`` CPUs and ``gpu`` GPUs that fit on resources."""
    by_cpu = int(resources.get("CPU", 0) // cpu)
    if not gpu:
        return by_cpu
    gpus = int(resources.get("GPU", 0))
    # A fraction of a GPU is always on one GPU.
    return min(by_cpu, gpus * int(1 / gpu) if gpu < 1 else int(gpus // gpu))


def elsewhere(
    nodes: Iterable[Mapping[str, Any]],
    avoided: Collection[str],
    cpu: float,
    gpu: float,
    refused: Collection[str] = (),
) -> dict[str, str]:
    """Return the label selector with which Ray starts a trial on none of the ``avoided`` nodes.

    ``avoided`` has ids of nodes or names of machines. If the trial fits on no other living node of
    ``ray.nodes()``, it is kept off the ``refused`` nodes only. The selector is empty if there is no
    node to keep it off.
    """
    living = [node for node in nodes if node["Alive"]]
    names = {node["NodeID"]: node.get("NodeManagerHostname", "") for node in living}
    out = {node for node, host in names.items() if host in avoided} | {*avoided} - {*names.values()}
    others = (node for node in living if node["NodeID"] not in out)
    if not any(fitting(node["Resources"], cpu, gpu) for node in others):
        out = {*refused}
    return {"ray.io/node-id": f"!in({','.join(sorted(out))})"} if out else {}
