"""Runs a sweep on the head of a cluster that is reached through Ray's client port (``ray://``)."""

import codecs
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.cluster.jobs import check_cluster, write_files
from orchestrator.cluster.local import join_cluster

FILE = "sweep.yaml"
POLL_SECONDS = 0.5
# Ray gives it to the head alone, to send work there.
HEAD = {"node:__internal_head__": 0.001}


class RemoteCommand:
    """A ``calsweep`` command on the node where this actor lives, and what it has said so far.

    Its arguments lack ``--address``; ``files`` are for the folder that it runs in, by name.
    """

    def __init__(self, arguments: Sequence[str], files: dict[str, bytes]) -> None:
        import ray

        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        write_files(folder, files)
        self._said = folder / "said.txt"
        address = ray.get_runtime_context().gcs_address
        self._process = subprocess.Popen(
            [sys.executable, "-m", "calsweep", *arguments, "--address", address],
            cwd=folder,
            stdout=self._said.open("w"),
            stderr=subprocess.STDOUT,
        )

    def follow(self, seen: int) -> tuple[bytes, int | None]:
        """Return the output after so many bytes, and the exit code once it has ended."""
        code = self._process.poll()
        return self._said.read_bytes()[seen:], code

    def stop(self) -> None:
        """Interrupt it as Ctrl-C does, whose own signal Ray blocks in all that its actors start."""
        self._process.send_signal(signal.SIGTERM)


def run_on_head(
    address: str, arguments: Sequence[str], files: dict[str, bytes], write: Callable[[str], None]
) -> int:
    """Run a ``calsweep`` command on a cluster's head until it ends; return its exit code.

    The driver of a sweep talks to the cluster all the time, which a client port is not made for:
    so it runs on the head, and only what it says comes back. Ctrl-C stops it there.

    ``address`` is ``ray://HOST:PORT``; ``write`` receives what the command says.

    Raises:
        InputError: If no cluster answers.
    """
    check_cluster(address)
    with join_cluster(address) as ray:
        command = ray.remote(num_cpus=0, resources=HEAD)(RemoteCommand).remote(arguments, files)
        seen, code = 0, None
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while code is None:
            with _pass_interrupts_on(ray, command):
                said, code = ray.get(command.follow.remote(seen))
                seen += len(said)
                write(decode(said))
                time.sleep(0 if code is not None else POLL_SECONDS)
    return int(code)


@contextlib.contextmanager
def _pass_interrupts_on(ray: Any, command: Any) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        ray.get(command.stop.remote())
