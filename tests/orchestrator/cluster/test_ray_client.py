"""A sweep through Ray's client port: what is sent to the head, and what comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.cluster import remote as remote_module
from orchestrator.cluster.remote import RemoteCommand, run_on_head
from trainables.common.errors import InputError

SWEEP = "name: far\ntasks: [{dataset: digits, model: convnet, protocol: digits}]\nrecipes: [ce]\n"
AWAY = "ray://head:10001"


class Head:
    """Stands in for the actor: it says a line a call, and ends when it is told to."""

    made: list[Any] = []  # noqa: RUF012 - one head for all

    def __init__(self, arguments: list[str], files: dict[str, str]) -> None:
        self.made.append((arguments, files))
        self.stopped = False
        self.asked: list[int] = []

    def follow(self, seen: int) -> tuple[bytes, int | None]:
        assert len(self.asked) < 9, f"asked for ever: {self.asked}"
        self.asked.append(seen)
        # A character of two bytes is cut in the middle; the last sign is none of UTF-8.
        said = "studies 0/1 · trials\nstopped\n".encode() + b"\xff\n"
        return said[seen : seen + 13], 130 if self.stopped else (0 if seen > 20 else None)

    def stop(self) -> None:
        self.stopped = True


def remote(**options: Any) -> Callable[[Any], Any]:
    """Return what makes a class's methods be called by ``.remote``, at once."""

    assert options == {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}

    def wrap(_: Any) -> Any:
        def make(*arguments: Any) -> Any:
            head = Head(*arguments)
            return SimpleNamespace(
                follow=SimpleNamespace(remote=head.follow), stop=SimpleNamespace(remote=head.stop)
            )

        return SimpleNamespace(remote=make)

    return wrap


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> type[Head]:
    @contextmanager
    def joined(address: str) -> Iterator[Any]:
        assert address == AWAY
        yield SimpleNamespace(remote=remote, get=lambda value: value)

    monkeypatch.setattr(remote_module, "join_cluster", joined)
    monkeypatch.setattr(remote_module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(Head, "made", [])
    return Head


def sweep(folder: Path, storage: str = "/storage") -> str:
    path = folder / "mine.yaml"
    path.write_text(f"{SWEEP}storage: {storage}\ntracking: {{uri: 'http://127.0.0.1:5000'}}\n")
    return str(path)


def test_the_sweep_file_goes_to_the_head(
    head: type[Head], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep(tmp_path)
    assert main(["run", path, "--address", AWAY, "--fresh"]) == 0
    assert head.made == [
        (["run", "sweep.yaml", "--fresh"], {"sweep.yaml": Path(path).read_bytes()})
    ]
    assert capsys.readouterr().out == "studies 0/1 · trials\nstopped\n\ufffd\n"


def test_a_sweep_is_resumed_by_its_name_alone(head: type[Head]) -> None:
    main(["run", "--resume", "far", "--storage", "/storage", "--address", AWAY, "--quiet"])
    assert head.made == [(["run", "--resume", "far", "--storage", "/storage", "--quiet"], {})]


def test_an_address_with_a_login_is_refused(head: type[Head]) -> None:
    with pytest.raises(InputError, match=r"^--address 'ray://head:10001' holds a login or a query"):
        run_on_head("ray://me:secret@head:10001", ["run"], {}, pytest.fail)
    assert head.made == []


def test_what_only_one_machine_sees_is_refused(head: type[Head], tmp_path: Path) -> None:
    assert main(["run", sweep(tmp_path, storage="here"), "--address", AWAY]) == 2
    assert head.made == []


def test_an_interruption_is_passed_on(
    head: type[Head], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = iter([KeyboardInterrupt])

    def sleep(seconds: float) -> None:
        for error in pauses:
            raise error

    monkeypatch.setattr(remote_module.time, "sleep", sleep)
    assert main(["run", sweep(tmp_path), "--address", AWAY]) == 130


class Process:
    """Stands in for a command that says its last words while it is asked whether it has ended."""

    def __init__(self, words: list[str], **options: Any) -> None:
        self.words, self.options = words, options
        self.signals: list[int] = []

    def poll(self) -> int:
        self.options["stdout"].write("last words\n")
        self.options["stdout"].flush()
        return 3

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


def test_a_command_speaks_and_heeds_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Process] = []

    def start(words: list[str], **options: Any) -> Process:
        made.append(Process(words, **options))
        return made[-1]

    processes = SimpleNamespace(Popen=start, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr(remote_module, "subprocess", processes)
    context = SimpleNamespace(gcs_address="10.0.0.1:6379")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    command = RemoteCommand(["run", "sweep.yaml"], {"sweep.yaml": "name: fär\n".encode()})
    (process,) = made
    asked = ["-m", "calsweep", "run", "sweep.yaml", "--address", "10.0.0.1:6379"]
    assert process.words == [sys.executable, *asked]
    assert process.options["stderr"] == subprocess.STDOUT
    assert (process.options["cwd"] / "sweep.yaml").read_bytes() == "name: fär\n".encode()
    assert command.follow(0) == (b"last words\n", 3)
    command.stop()
    assert process.signals == [signal.SIGTERM]
    process.options["stdout"].close()


def test_the_command_runs_beside_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(gcs_address="127.0.0.1:6379")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    command = RemoteCommand(["run", "sweep.yaml"], {"sweep.yaml": b"name: far\n"})
    while (answer := command.follow(0))[1] is None:
        time.sleep(0.1)
    said, code = answer
    assert code == 2
    assert b"sweep.yaml: " in said
    assert command.follow(len(said)) == (b"", 2)
