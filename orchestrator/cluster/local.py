"""Starting Ray on one machine, or joining a cluster."""

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
START_SECONDS = 1  # In which Ray may still start after a signal: a sweep ends within ten.
END_SECONDS = 1  # In which a worker, or what it started, ends with Ray; or it is killed.
REFUSED = "InvalidAuthToken"  # So Ray's threads say; what it raises does not tell.
SLOW_START = "timed out during startup"

# Read by Ray when it is imported or started: no files a trial of its own, enough pending trials
# for a searcher to fill the machine, workers as urgent as other programs and none ahead of time,
# which Tune could not use; Ctrl-C is ours to handle; hardly a snapshot of Tune's own, since a sweep
# resumes from its journal; nothing about its use for Ray's makers.
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

    Workers get ``variables`` in their environment.

    On one machine Ray listens on the loopback only, unless it was imported before: it reads where
    to listen when it is imported.
    """
    # Ray reads where to listen and how to authenticate when it is imported; later is too late.
    alone = address is None and "ray" not in sys.modules
    if address is None:
        _check_temporary_folder()
    else:
        _check_token(address)
    for name, value in {**ENVIRONMENT, **(_loopback_settings() if alone else {})}.items():
        os.environ.setdefault(name, value)
    with interrupt_later():  # A half of Ray fails, and shows it, when this program ends.
        import ray

    # Tune warns of files that it was told not to write.
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    # Nothing is restored from Tune's snapshots, so that one that fails is no one's concern.
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
    except Exception as error:  # of a slow start Ray raises just that
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
    """Return the workers of the Ray that this process started, and whatever they started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process().children():
            if child.name() == "raylet":
                return [child, *child.children(recursive=True)]
    return []


def _init(ray: Any, address: str | None, variables: Mapping[str, str]) -> None:
    """Start or join Ray; what Ray itself finds slow to start here is started once more."""
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
            # It waits half a minute, which a busy machine may need for the first files alone.
            if not tries_left or address is not None or SLOW_START not in str(error):
                raise
            ray.shutdown()


def short_reason(error: Exception) -> str:
    """Return the beginning of what Ray says, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]} ..."


@contextlib.contextmanager
def held_back(said: list[str]) -> Iterator[None]:
    """Hold back all text on standard error, by Ray's threads too; ``said`` gets it."""
    sys.stderr.flush()
    before = os.dup(STDERR)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, STDERR)
            os.close(before)
            aside.seek(0)
            said.append(aside.read().decode(errors="replace"))
    sys.stderr.write(said[-1])


def _not_joined(address: str | None, error: Exception, said: str) -> str:
    if address is None:
        return f"Ray does not start on this machine: {short_reason(error)}"
    if REFUSED in said:
        return (
            f"the Ray cluster at {address!r} asks for another token; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH to the file that its head was started with (deploy/README.md)"
        )
    with_token = os.environ.get("RAY_AUTH_MODE") == "token"
    token = ", or it asks for another token" if with_token else ""
    return f"no Ray cluster answers at {address!r}{token}: {short_reason(error)}"


def token_fault() -> str:
    """Return the fault in how a cluster's token is kept, in words, or an empty string."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if path.exists() and path.stat().st_mode & 0o077:
        return f"others may read the token in {path}: chmod 600 {path}"
    return ""


def _check_token(address: str) -> None:
    """Refuse a token whose file others can read; warn of a cluster that asks for none."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        log.warning(
            "the cluster at %s is joined without a token: whoever reaches its ports can run code "
            "(deploy/README.md tells how to set RAY_AUTH_MODE=token)",
            address,
        )
    elif "RAY_AUTH_TOKEN" not in os.environ and (fault := token_fault()):
        raise InputError(fault)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Have Ray start its processes in process groups of their own: signals reach us first."""
    from ray._private import services, utils

    popen, handle = services.ConsolePopen, utils.set_sigterm_handler
    services.ConsolePopen = partial(popen, process_group=0)  # type: ignore[misc, assignment]
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        services.ConsolePopen, utils.set_sigterm_handler = popen, handle  # type: ignore[misc]


def _loopback_settings() -> dict[str, str]:
    """Return settings for the loopback only, with a token in memory, and without a dashboard."""
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_enable_metrics_collection": "0",
        "RAY_task_events_report_interval_ms": "0",
    }


def slots(resources: Mapping[str, float], cpu: float, gpu: float) -> int:
    """Return how many trials of a given size fit on what the cluster has now, at least one."""
    return max(1, fitting(resources, cpu, gpu))


def require_room(resources: Mapping[str, float], stage: str, cpu: float, gpu: float) -> None:
    """Refuse a trial that would wait endlessly, on a machine that does not grow."""
    if fitting(resources, cpu, gpu) == 0:
        raise InputError(
            f"resources.{stage}: a trial of {cpu:g} CPUs and {gpu:g} GPUs does not fit on this "
            f"machine with {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
        )


def missing_room(nodes: Iterable[Mapping[str, Any]], stage: str, cpu: float, gpu: float) -> str:
    """Return a line on trials that fit on none of ``ray.nodes()``; empty if they fit on one."""
    if any(node["Alive"] and fitting(node["Resources"], cpu, gpu) for node in nodes):
        return ""
    return (
        f"resources.{stage}: no node has {cpu:g} CPUs and {gpu:g} GPUs yet; such trials wait for "
        "one that joins"
    )


def spans_machines(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if living nodes, as ``ray.nodes()`` lists them, are on other machines."""
    here = os.uname().nodename
    return any(node["Alive"] and node["NodeManagerHostname"] != here for node in nodes)


def require_spanning(spec: SweepSpec) -> None:
    """Refuse a sweep that computes on one machine."""
    if not EXECUTORS.get(spec.executor).spans_machines:
        raise InputError(
            f"executor: {spec.executor} computes on one machine; leave it out for a cluster"
        )


def require_shared(spec: SweepSpec) -> None:
    """Refuse places that only one machine sees, for a sweep that runs on several."""
    require_spanning(spec)
    folder = storage_folder(spec.storage)
    if any(map(bucket_address, folder.parents)):
        raise InputError(
            "storage: nights of a storage in a bucket compute on one machine; on a cluster of "
            "several name a folder that every node sees"
        )
    if bucket_address(folder) is None and not Path(spec.storage).expanduser().is_absolute():
        raise InputError(
            f"storage: {spec.storage!r} is relative; on a cluster it is an absolute folder that "
            "every node sees, or s3://BUCKET/PATH or gs://BUCKET/PATH"
        )
    if not tracker_kind(spec.tracking_uri).spans_machines:
        raise InputError(
            f"tracking.uri: {redacted(spec.tracking_uri)} is for one machine; name a tracking "
            "server (deploy/README.md starts one)"
        )


def fitting(resources: Mapping[str, float], cpu: float, gpu: float) -> int:
    """Return how many trials of a given size fit on resources."""
    by_cpu = int(resources.get("CPU", 0) // cpu)
    if not gpu:
        return by_cpu
    gpus = int(resources.get("GPU", 0))
    # A share of a GPU never spreads over two of them.
    return min(by_cpu, gpus * int(1 / gpu) if gpu < 1 else int(gpus // gpu))


def elsewhere(
    nodes: Iterable[Mapping[str, Any]],
    avoided: Collection[str],
    cpu: float,
    gpu: float,
    refused: Collection[str] = (),
) -> dict[str, str]:
    """Return what labels Ray is to look for, to start on none of the nodes that are avoided.

    They are avoided by their id or the name of their machine. Nothing if no other living one, of
    those that ``ray.nodes()`` lists, has as much in all, but for those ``refused``.
    """
    living = [node for node in nodes if node["Alive"]]
    names = {node["NodeID"]: node.get("NodeManagerHostname", "") for node in living}
    out = {node for node, host in names.items() if host in avoided} | {*avoided} - {*names.values()}
    others = (node for node in living if node["NodeID"] not in out)
    if not any(fitting(node["Resources"], cpu, gpu) for node in others):
        out = {*refused}
    return {"ray.io/node-id": f"!in({','.join(sorted(out))})"} if out else {}
