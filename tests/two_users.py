"""Commands of other users than the one who tests: real user ids, which only root can give."""

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GROUP = 7700
"""Both users' second group."""
COMMANDS = """
import contextlib, io, json, sys
from orchestrator.cli import main
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except Exception as error:
            code, problem = 1, repr(error)
            err.write(f"Traceback: {problem}")
    print("answer:", json.dumps([code, out.getvalue(), err.getvalue()]))
"""


class Answer(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


class User(NamedTuple):
    """Somebody with a user id, a umask, and a home folder that is the working folder too."""

    number: int
    umask: int
    home: Path

    def runs(self, *commands: str) -> list[Answer]:
        """Run commands in one process, which is spared the imports of each, and return answers."""
        given = json.dumps([shlex.split(command) for command in commands])
        done = self.started([sys.executable, "-c", COMMANDS, given])
        lines = [line.partition("answer: ")[2] for line in done.stdout.splitlines()]
        answers = [Answer(*json.loads(line)) for line in lines if line]
        assert len(answers) == len(commands), done.stderr
        return answers

    def started(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        ids = [f"--reuid={self.number}", f"--regid={self.number}", f"--groups={GROUP}"]
        own = {"HOME": str(self.home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [*opened(self.home), "setpriv", *ids, *command],
            cwd=self.home,
            env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "USER": "somebody", **own},
            umask=self.umask,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def opened(scratch: Path) -> list[str]:
    """Return the command before those of users who may not enter where Python or this lies.

    For that command and no other, what they need is shown in folders that anybody may enter.
    """
    needed: list[Path] = []
    for place in {Path(sys.base_prefix).resolve(), Path(sys.prefix), ROOT}:
        inside = [entry for entry in place.iterdir() if entry.is_dir()]
        needed += [place] if is_open(place) else inside
    shut = {place: closed(place) for place in needed}
    if not any(shut.values()):
        return []
    lines = ["set -e; wanted=$(umask); umask 022"]
    hidden = [place for place, above in shut.items() if above is not None]
    for number, place in enumerate(hidden):
        held = shlex.quote(str(scratch.parent / f"held{number}"))
        lines.append(f"mkdir -p {held}; mount --rbind {shlex.quote(str(place))} {held}")
    for above in {above for above in shut.values() if above is not None}:
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(above))}")
    for number, place in enumerate(hidden):
        held, name = (shlex.quote(str(p)) for p in (scratch.parent / f"held{number}", place))
        lines.append(f"mkdir -p {name}; mount --rbind {held} {name}")
    script = "\n".join([*lines, 'umask "$wanted"; exec "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


def is_open(place: Path) -> bool:
    wanted = stat.S_IROTH | stat.S_IXOTH
    return place.stat().st_mode & wanted == wanted


def closed(place: Path) -> Path | None:
    above = [p for p in reversed(place.parents) if not p.stat().st_mode & stat.S_IXOTH]
    return above[0] if above else None
