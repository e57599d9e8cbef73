import logging
import os
import signal
import subprocess
import sys
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray._private import services, utils
from ray.exceptions import AuthenticationError

from orchestrator.cluster.interrupt import interrupt_on_sigterm
from orchestrator.cluster.local import (
    ENVIRONMENT,
    _loopback_settings,
    join_cluster,
    short_reason,
    token_fault,
)
from trainables.common.errors import InputError


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "token"
    path.write_text("secret")
    path.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    return path


def test_a_token_that_others_can_read_is_a_fault(token: Path) -> None:
    assert token_fault() == ""
    token.chmod(0o644)
    assert token_fault() == f"other users can read the token in {token}: chmod 600 {token}"
    token.unlink()
    assert token_fault() == ""


def test_the_token_is_read_where_ray_reads_it(token, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    usual = token.rename(tmp_path / ".ray" / "auth_token")
    usual.chmod(0o604)
    for where, fault in (("", True), (str(token), False)):
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", where)
        assert token_fault().endswith(f"chmod 600 {usual}") == fault


def test_a_token_that_others_can_read_is_not_used(token, monkeypatch):
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail("it was joined"))
    token.chmod(0o640)
    with pytest.raises(InputError) as caught, join_cluster("auto"):
        pass
    assert str(caught.value) == f"other users can read the token in {token}: chmod 600 {token}"


def test_a_token_of_the_environment_is_in_no_file(token, monkeypatch):
    joined: list[str] = []
    monkeypatch.setattr("ray.init", lambda **options: joined.append(options["address"]))
    monkeypatch.setattr("ray.shutdown", lambda: joined.append("left"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    token.chmod(0o644)
    with join_cluster("auto"):
        assert joined == ["auto"]
    assert joined == ["auto", "left"]
    with pytest.raises(KeyboardInterrupt), join_cluster("auto"):
        raise KeyboardInterrupt
    assert joined == ["auto", "left"] * 2


RAY = """
asked = []
def init(**options): asked.append(options)
def shutdown(): asked.append("left")
"""


@pytest.mark.parametrize("imported", [True, False])
def test_ray_listens_on_the_loopback_alone(tmp_path, monkeypatch, imported):
    """If it is told in time."""
    loggers = ("ray.tune", "ray.tune.execution.experiment_state")
    for name in loggers:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    environ = {"RAY_worker_niceness": "5"}  # What somebody has set stays.
    monkeypatch.setattr(os, "environ", environ)
    (tmp_path / "ray" / "_private").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text(RAY)
    (tmp_path / "ray" / "_private" / "services.py").write_text("ConsolePopen = dict\n")
    (tmp_path / "ray" / "_private" / "utils.py").write_text("set_sigterm_handler = dict\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray")
    if imported:
        __import__("ray")
    with join_cluster(None) as ray:
        (options,) = ray.asked
    assert ray.asked[1:] == ["left"]
    assert options == {
        "address": "local",
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": False,
        "runtime_env": None,
    }
    token = environ.pop("RAY_AUTH_TOKEN", "")
    alone = {} if imported else _loopback_settings()
    alone.pop("RAY_AUTH_TOKEN", None)
    assert environ == {**ENVIRONMENT, **alone, "RAY_worker_niceness": "5"}
    assert len(token) == (0 if imported else 64)
    assert [logging.getLogger(name).level for name in loggers] == [logging.ERROR, logging.CRITICAL]


def test_signals_to_the_process_group_of_the_program_do_not_reach_ray(monkeypatch):
    def init(**options: Any) -> None:
        with services.ConsolePopen(["sleep", "60"]) as child:
            groups.append(os.getpgid(child.pid))
            child.kill()

    groups: list[int] = []
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    real = services.ConsolePopen
    with join_cluster(None):
        assert services.ConsolePopen is real
    assert len(groups) == 1
    assert groups != [os.getpgid(0)]


SLOW = "The current node timed out during startup. This could happen because\n..."


@pytest.mark.parametrize(
    ("address", "errors", "tried", "complaint"),
    [
        (None, [], ["local"], ""),
        (None, [SLOW], ["local", "shutdown", "local"], ""),
        (None, [SLOW] * 2, ["local", "shutdown", "local"], "Ray does not start on this machine: "),
        (None, ["no port"], ["local"], "Ray does not start on this machine: no port$"),
        ("auto", [SLOW], ["auto"], "no Ray cluster answers at 'auto'"),
    ],
)
def test_a_slow_start_of_ray_is_repeated_once(
    token, monkeypatch, address, errors, tried, complaint
):
    asked: list[str] = []

    def init(**options: Any) -> None:
        asked.append(options["address"])
        assert options["include_dashboard"] == (False if address is None else None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # As Ray does.
        if errors:
            raise Exception(errors.pop())

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: asked.append("shutdown"))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InputError, match=complaint) if complaint else nullcontext():
        with join_cluster(address):
            assert signal.getsignal(signal.SIGTERM) == before
        tried = [*tried, "shutdown"]
    assert asked == tried
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("joined", [True, False])
def test_a_wrong_token_gets_one_line(token, monkeypatch, capfd, joined):
    noise = b"W gcs_client.cc: Unauthenticated: InvalidAuthToken: missing or incorrect\n"

    def init(**options: Any) -> None:
        os.write(2, noise * 20)
        if not joined:
            raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    asks = r"^the Ray cluster at 'auto' expects another token; set RAY_AUTH_MODE=token and "
    with nullcontext() if joined else pytest.raises(InputError, match=asks), join_cluster("auto"):
        pass
    assert capfd.readouterr().err == (noise * 20).decode() * joined


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_ray_is_imported_interrupts_when_it_is_whole(number, tmp_path):
    signalled = f"import os; os.kill(os.getpid(), {number:d})\nprint('whole')\n"
    (tmp_path / "ray.py").write_text(signalled)
    program = (
        "from orchestrator.cluster.interrupt import interrupt_on_sigterm\n"
        "from orchestrator.cluster.local import join_cluster\n"
        "try:\n"
        "    with interrupt_on_sigterm(), join_cluster(None):\n"
        "        print('joined')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["whole", "interrupted"], done.stderr


def test_a_signal_during_the_start_of_ray_interrupts_after_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray answers SIGTERM by an exception, which is lost where it comes while a process forks."""

    def init(**options: Any) -> None:
        utils.set_sigterm_handler(lambda number, frame: sys.exit(number))
        with suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        done.append("started")

    done: list[str] = []
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: done.append("shutdown"))
    real = utils.set_sigterm_handler
    with pytest.raises(KeyboardInterrupt), interrupt_on_sigterm(), join_cluster(None):
        pytest.fail("it went on")
    assert done == ["started", "shutdown"]
    assert utils.set_sigterm_handler is real


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("a\n  b\tc"), "a b c"),
        (TimeoutError(), "TimeoutError"),
        (OSError("x" * 200), "x" * 200),
        (OSError("x" * 201), "x" * 200 + " ..."),
    ],
)
def test_errors_of_ray_become_one_short_line(error: Exception, reason: str) -> None:
    assert short_reason(error) == reason


def test_a_cluster_without_a_token_is_named(monkeypatch, caplog):
    monkeypatch.setattr("ray.init", lambda **options: None)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with join_cluster("10.0.0.1:6379"):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "the cluster at 10.0.0.1:6379 is joined without a token: whoever reaches its ports can run "
        "code; set RAY_AUTH_MODE=token (deploy/README.md)"
    ]


@pytest.mark.parametrize(
    ("mode", "error", "text"),
    [
        ("", ConnectionError("Nobody is there."), "answers at 'auto'"),
        (
            "token",
            AuthenticationError("The token is wrong."),
            "answers at 'auto', or it expects another token",
        ),
    ],
)
def test_no_cluster_at_the_address(token, monkeypatch, mode, error, text):
    def refuse(**options: Any) -> None:
        raise error

    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(InputError) as caught, join_cluster("auto"):
        pass
    assert str(caught.value) == f"no Ray cluster {text}: {short_reason(error)}"


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_a_temporary_folder_too_long_for_rays_sockets_is_named_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail("Ray is started"))
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    if variable == "TMPDIR":
        monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.setenv(variable, "/" + "a" * 60)
    told = r"at most \d+ bytes, got 61: /a+; use .* export RAY_TMPDIR=/tmp$"
    with pytest.raises(InputError, match=told), join_cluster(None):
        pass


def test_processes_that_outlive_ray_are_killed(tmp_path, monkeypatch):
    """A worker does under load, and what it has started always."""
    (tmp_path / "raylet").write_text("#!/bin/sh\nsleep 60 & echo $!\nwait\n")
    (tmp_path / "raylet").chmod(0o755)
    node: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(
        "ray.init",
        lambda **given: node.append(subprocess.Popen(tmp_path / "raylet", stdout=subprocess.PIPE)),
    )
    monkeypatch.setattr("ray.shutdown", lambda: node[0].terminate())
    with join_cluster(None), closing(node[0].stdout) as told:
        work = psutil.Process(int(told.readline()))
    assert psutil.wait_procs([work], 10)[1] == []
