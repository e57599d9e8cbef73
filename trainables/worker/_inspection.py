"""Inspects a machine's code, versions, storage and GPUs before it is used."""

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from trainables.common.files import altered_file, code_files
from trainables.common.paths import bucket_address, on_this_machine
from trainables.store.bucket import Bucket

LIBRARIES = ("torch", "torchvision", "timm", "numpy", "safetensors")
GPU_SECONDS = 120
PRODUCT = """
import sys, torch
a = torch.arange(1.0, 257.0, device=sys.argv[1]).remainder(7).expand(256, 256)
assert torch.equal((a @ a.T).cpu(), a.cpu() @ a.cpu().T), "a matrix product is wrong"
"""


@dataclass(frozen=True)
class Inspection:
    """The result of inspecting a machine."""

    host: str
    code: dict[str, str]  # See ``code_files``.
    versions: dict[str, str]  # Versions of Python and of libraries that affect results.
    nonce: str  # Content of the file of ``write_nonce``; empty if the machine cannot read it.
    gpus: dict[int, str]  # Faults of its GPUs, by number.

    def differs(self, other: "Inspection") -> str:
        """Return why ``other`` cannot work for this machine, the driver's; empty if it can."""
        for gpu, fault in other.gpus.items():
            return f"GPU {gpu}: {fault}"
        if other.nonce != self.nonce:
            return "it cannot read the storage"
        if name := altered_file(self.code, other.code):
            return f"its {name} differs from the driver's"
        for name, here in self.versions.items():
            if (there := other.versions.get(name)) != here:
                return f"it has {name} {there}, the driver has {here}"
        return ""


def inspect_machine(storage: str, nonce: str, gpus: int) -> Inspection:
    """Inspect this machine and its first ``gpus`` GPUs."""
    versions = {name: version(name).partition("+")[0] for name in LIBRARIES}
    versions["python"] = ".".join(map(str, sys.version_info[:2]))
    faults = {number: fault for number in range(gpus) if (fault := _gpu_fault(number))}
    return Inspection(os.uname().nodename, code_files(), versions, _read(storage, nonce), faults)


def _read(storage: str, nonce: str) -> str:
    root = on_this_machine(Path(storage))
    address = bucket_address(root.parent)
    try:
        if address is None:
            return (root / nonce).read_text(encoding="ascii")
        found = Bucket(address).get(nonce)
        return found.content.decode() if found else ""
    except (OSError, ValueError):
        return ""


def write_nonce(storage: Path) -> str:
    """Write a random file to the storage, to check that a machine sees it; return its name."""
    name, address = f"nonce-{uuid.uuid4().hex}.tmp", bucket_address(storage.parent)
    if address is None:
        storage.mkdir(parents=True, exist_ok=True)
        (storage / name).write_text(uuid.uuid4().hex, encoding="ascii")
    else:
        Bucket(address).put(name, uuid.uuid4().hex.encode())
    return name


def remove_nonce(storage: Path, name: str) -> None:
    """Remove the file that ``write_nonce`` wrote."""
    address = bucket_address(storage.parent)
    if address is None:
        (storage / name).unlink(missing_ok=True)
    else:
        Bucket(address).remove(name)


def _gpu_fault(number: int) -> str:
    """Test a GPU in a subprocess, because a bad GPU may hang or break it; return a fault or ""."""
    # Ray hides GPUs from tasks that request none.
    plain = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-c", PRODUCT, f"cuda:{number}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GPU_SECONDS, env=plain
        )
    except subprocess.TimeoutExpired:
        return f"no matrix product within {GPU_SECONDS} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""
