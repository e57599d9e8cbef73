import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}


@pytest.mark.slow
def test_ui_serves_on_the_loopback_until_an_interrupt(journal_writer, empty_folder) -> None:
    journal_writer(empty_folder / "calsweep-storage/sweeps/one", "one").start()
    command = [sys.executable, "-m", "calsweep", "ui"]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("open ").strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{40,}", address)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=30) as answer:
            assert "one" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        assert process.communicate()[1] == ""


def test_a_storage_without_sweeps_is_one_line(calsweep) -> None:
    answer = calsweep("ui", "--storage", "nowhere")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "no sweeps in" in answer.err


def test_a_port_that_is_taken_is_one_line(calsweep, journal_writer, empty_folder) -> None:
    journal_writer(empty_folder / "calsweep-storage/sweeps/one", "one").start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = calsweep("ui", "--port", port)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        f"calsweep: cannot serve at 127.0.0.1:{port}: Address already in use; use another --port\n"
    )
    answer = calsweep("ui", "--host", "no.such.place.invalid")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
