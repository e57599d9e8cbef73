"""Look up and check out commits of a git repository."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainables.common.errors import InputError

SECONDS = 120


class Repository:
    """The git repository that a folder belongs to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.top = Path(self._git("rev-parse", "--show-toplevel"))

    def commit(self, revision: str) -> str:
        """Return the full hash of a revision, which may end in ``-dirty``."""
        name = revision.removesuffix("-dirty")
        try:
            return self._git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        except InputError:
            raise InputError(
                f"{self.top}: {revision!r} is not a commit or branch; `git branch -a` shows them"
            ) from None

    def described(self, commit: str) -> str:
        """Return a commit's short hash and subject."""
        return self._git("log", "-1", "--format=%h %s", commit)

    @contextmanager
    def checked_out(self, commit: str, folder: Path) -> Iterator[Path]:
        """Check out a commit into a folder, which is removed after the block."""
        self._git("worktree", "add", "--detach", "--force", str(folder), commit)
        try:
            yield folder
        finally:
            self._git("worktree", "remove", "--force", str(folder))

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self._folder), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"{self._folder}: git cannot be run: {error}") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise InputError(f"{self._folder}: git {arguments[0]}: {lines[-1]}")
        return done.stdout.strip()
