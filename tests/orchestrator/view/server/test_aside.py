"""The process that computes with PyTorch for the server."""

import subprocess
import sys
from contextlib import suppress

import psutil

# Prints the number of the other process while its call still runs, and ends.
ENDS_DURING_A_CALL = """
import threading, time
from orchestrator.view.server._aside import Aside

aside = Aside()
aside.call(time.sleep, 0)
print(aside._process.pid)
threading.Thread(target=aside.call, args=(time.sleep, 600), daemon=True).start()
time.sleep(0.2)
"""


def test_a_call_that_still_runs_ends_with_the_server():
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_DURING_A_CALL], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(ended.stdout)).wait(10)
