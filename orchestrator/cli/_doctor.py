"""``calsweep doctor``: check this machine and show remedies."""

import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from orchestrator.cli._console import echo, print_json
from orchestrator.cli._options import DataRoot, Json
from trainables.common.errors import AwayError, InputError
from trainables.common.files import why
from trainables.common.paths import DEFAULT_STORAGE, bucket_address, shown, storage_folder

if TYPE_CHECKING:
    from trainables.plugins import Plugin

DATASET = "dataset "
STEP_SECONDS = 180  # The first start from a slow disk may take that long.


class Finding(NamedTuple):
    """One line of the report; an empty ``remedy`` means that the check passed."""

    subject: str
    detail: str
    remedy: str = ""
    optional: bool = False

    @property
    def mark(self) -> str:
        """Return ``ok``, ``info`` or ``FAIL``."""
        return "ok" if not self.remedy else "info" if self.optional else "FAIL"


def doctor(
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow URI to check.")] = None,
    storage: Annotated[str, typer.Option(help="Storage folder.")] = DEFAULT_STORAGE,
    data_root: DataRoot = "data",
    as_json: Json = False,
    plugin: Annotated[
        str | None,
        typer.Option(
            help="Check only this plugin, a file, folder or package; its tracker: --tracking-uri."
        ),
    ] = None,
) -> int:
    """Check versions, GPUs, Ray, tracking, storage and data, and show remedies.

    If no check fails and sweeps had excluded this machine, they use it again.
    """
    from orchestrator.storage.storage import Storage

    if plugin is not None:
        return check_plugin(plugin, tracking_uri, as_json)

    findings = []
    for finding in _findings(tracking_uri, storage):
        findings.append(finding)
        _print(finding, as_json)
    data = list(_datasets(data_root))
    for finding in _together(data):
        _print(finding, as_json)
    if as_json:
        print_json([{"mark": each.mark, **each._asdict()} for each in (*findings, *data)])
    if any(each.mark == "FAIL" for each in findings):
        return 1
    if Storage(storage).take_machine_back(os.uname().nodename) and not as_json:
        echo("ok   machine: no longer excluded; sweeps start trials here again")
    return 0


def _print(finding: Finding, as_json: bool) -> None:
    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    if not as_json:
        echo(f"{finding.mark:4} {finding.subject}: {finding.detail}{remedy}")


def _together(data: Sequence[Finding]) -> Iterator[Finding]:
    """Yield one line that lists the present data sets and one that lists the absent ones."""
    names = [finding.subject.removeprefix(DATASET) for finding in data]
    present = [name for name, finding in zip(names, data, strict=True) if finding.mark == "ok"]
    if present:
        yield Finding("data sets", ", ".join(present))
    if absent := [name for name in names if name not in present]:
        remedy = "most are downloaded on first use; calsweep doctor --json says how to get each"
        yield Finding("data sets", f"not stored: {', '.join(absent)}", remedy, optional=True)


def _findings(tracking_uri: str | None, storage: str) -> Iterator[Finding]:
    yield from (_versions(), _gpus(), *_steps(), *_mps(), _ray(), _token())
    yield _tracking(tracking_uri, storage)
    yield _storage(storage)


def _versions() -> Finding:
    from orchestrator.storage.provenance import library_versions

    versions = library_versions()
    listing = ", ".join(f"{name} {number}" for name, number in versions.items())
    missing = [name for name, number in versions.items() if number == "not installed"]
    remedy = f"pip install {' '.join(missing)}" if missing else ""
    return Finding("versions", f"Python {platform.python_version()}, {listing}", remedy)


def _gpus() -> Finding:
    import torch

    if not torch.cuda.is_available():
        remedy = "install a driver that fits this torch build if this machine has an NVIDIA GPU"
        return Finding("GPUs", "none: trials run on the CPU", remedy, optional=True)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding("GPUs", ", ".join(names))


def _steps() -> Iterator[Finding]:
    """Run one training step on every GPU; yield the outcome of each."""
    import torch

    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        fault = _step(f"cuda:{index}")
        remedy = "hide it with CUDA_VISIBLE_DEVICES, and have it reset or replaced"
        yield Finding(f"GPU {index}", fault or "does a training step", remedy if fault else "")


def _step(device: str) -> str:
    """Return why a device cannot do a training step; empty if it can."""
    # In a separate process: a broken GPU may hang or crash it.
    command = [sys.executable, "-m", "trainables.stages.probe", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_SECONDS)
    except subprocess.TimeoutExpired:
        return f"did no training step within {STEP_SECONDS} seconds"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"]
    return lines[-1]


def _mps() -> Iterator[Finding]:
    """Check whether processes that share a GPU can compute at the same time."""
    import torch

    if not torch.cuda.is_available():
        return
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    if (pipes / "control").exists():
        yield Finding("MPS", "on: trials that share a GPU compute side by side")
    else:
        remedy = "nvidia-cuda-mps-control -d, before Ray starts, if trials share GPUs"
        yield Finding("MPS", "off: trials that share a GPU take turns", remedy, optional=True)


def _ray() -> Finding:
    from orchestrator.cluster.local import join_cluster

    try:
        with join_cluster(None) as ray:
            resources = ray.cluster_resources()
    except InputError as error:
        return Finding("Ray", str(error), "free memory and /dev/shm, then try again")
    return Finding("Ray", f"starts on the loopback with {resources.get('CPU', 0):g} CPUs")


def _token() -> Finding:
    from orchestrator.cluster.local import token_fault

    fault, _, remedy = token_fault().partition(": ")
    return Finding("token", fault or "no token that others could read", remedy, optional=True)


def _tracking(tracking_uri: str | None, storage: str) -> Finding:
    from orchestrator.sweep.tracking_uri import check_tracking_uri, default_tracking_uri
    from orchestrator.tracking import check_login, ping

    uri = tracking_uri or default_tracking_uri(storage)
    try:
        check_tracking_uri(uri)
    except InputError as error:
        return Finding("tracking", str(error), "give another --tracking-uri")
    try:
        check_login(uri, 10.0)
    except InputError as error:
        detail, _, remedy = str(error).partition("; ")
        return Finding("tracking", detail, remedy or "ask whoever runs the server")
    answers, detail = ping(uri, 10.0)
    remedy = "" if answers else "start the server, or give another --tracking-uri"
    return Finding("tracking", detail, remedy)


def _storage(storage: str) -> Finding:
    try:
        folder = storage_folder(storage)
        if address := bucket_address(folder):
            return _bucket(address)
    except InputError as error:
        return Finding("storage", str(error), "give another --storage")
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    probe = nearest / f".calsweep-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"calsweep")
        probe.unlink()
    except OSError as error:
        detail = f"{folder} is not writable: {why(error)}"
        return Finding("storage", detail, "give another --storage")
    free = os.statvfs(nearest)
    gigabytes = free.f_bavail * free.f_frsize / 2**30
    return Finding("storage", f"{folder} is writable, {gigabytes:.0f} GB free")


def _bucket(address: str) -> Finding:
    from trainables.store.bucket import Bucket

    bucket, name = Bucket(address), f"doctor/{uuid.uuid4().hex}"
    try:
        written = bucket.create(name, b"calsweep")
        again, found = bucket.create(name, b"another"), bucket.get(name)
        bucket.remove(name)
    except (AwayError, InputError) as error:
        login = "check AWS_ENDPOINT_URL, AWS_REGION and the login in the environment"
        return Finding("storage", str(error), login)
    if written is None or again is not None or found is None or found.content != b"calsweep":
        detail = f"{address} does not support conditional writes"
        return Finding("storage", detail, "use another service")
    return Finding("storage", f"{address} is writable and supports conditional writes")


def _datasets(data_root: str) -> Iterator[Finding]:
    from trainables.data import find_reader, source_names

    for name in source_names():
        if ":" not in name:
            status = find_reader(name, data_root).check()
            remedy = "" if status.present else status.remedy
            yield Finding(f"{DATASET}{name}", status.detail, remedy, optional=True)


def check_plugin(plugin: str, tracker: str | None, as_json: bool) -> int:
    """Run the contract tests on a plugin's parts; return 0 if all pass, else 1."""
    from trainables.plugins import load_plugins

    (found,) = load_plugins([plugin], installed=True)
    checks: list[dict[str, str]] = []
    for check in _plugin_checks(found, tracker):
        checks.append(check)
        if not as_json:
            _print_check(check, [each["error"] for each in checks[:-1]])
    marks = [check["mark"] for check in checks]
    passed, failed = marks.count("ok"), marks.count("failed")
    if as_json:
        about = {"plugin": found.name, "code": found.code, "covers": found.covers}
        print_json({**about, "passed": passed, "failed": failed, "checks": checks})
    else:
        echo(f"info    plugin {found.name}: {found.covers}")
        counted = f"{passed} of {passed + failed} checks passed"
        echo(f"plugin {found.name}, code {found.code[:12]}: {counted}")
    return int(failed > 0)


def _plugin_checks(found: "Plugin", tracker: str | None) -> Iterator[dict[str, str]]:
    """Yield the result of each check that applies, then the parts that no check covers."""
    from orchestrator.tracking.contract import tracker_checks
    from trainables.contracts import checks_of

    unchecked = {f"{each.catalogue.noun} {each.name}" for each in found.additions}
    scheme = (tracker or "").partition(":")[0]
    if tracker and f"tracker {scheme}" not in unchecked:
        raise InputError(f"--tracking-uri {shown(tracker)}: the plugin has no tracker {scheme!r}")
    for check in chain(checks_of(found), tracker_checks(tracker) if tracker else ()):
        if (broken := check.broken()) is None or (check.is_note and not broken):
            continue
        if not check.is_note:
            unchecked.discard(check.part)
        mark = "note" if check.is_note else "failed" if broken else "ok"
        yield {"mark": mark, "part": check.part, "says": check.says, "error": broken}
    for part in sorted(unchecked):
        hint = " without --tracking-uri ADDRESS" if part.startswith("tracker ") else ""
        yield {"mark": "info", "part": part, "says": f"cannot be checked{hint}", "error": ""}


def _print_check(check: dict[str, str], before: Sequence[str]) -> None:
    known = bool(check["error"]) and check["error"] in before
    echo(f"{check['mark']:6}  {check['part']}: {check['says']}{' (the same error)' * known}")
    if check["error"] and not known:
        echo(f"        {check['error']}")
