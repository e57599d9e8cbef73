"""Child processes of one's own code, that end with the process which started them."""

import os
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe


def start_child(module: str, **environment: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """Run a module as a program, and return the process and a connection to it.

    Its one argument is the number of the file that its ``Connection`` is made of. That connection
    meets its end when this process goes, however it goes. The environment is that of this process,
    changed as given.
    """
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process; the child ends with it.
    )
    theirs.close()
    return process, ours
