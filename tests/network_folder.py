"""A folder on a network file system, as one of its clients sees it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch


class Client:
    """Remembers missing names until a process opens their folder, as a client of NFS does."""

    def __init__(self) -> None:
        self.missing: set[Path] = set()
        self._stat, self._open = os.stat, os.open

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See files as this client; outside the block another machine is at work."""
        with patch.multiple(os, stat=self._seen, open=self._opened):
            yield

    def _require(self, path: Path) -> None:
        if not self.missing.isdisjoint([path, *path.parents]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _seen(self, path: Any, **options: Any) -> os.stat_result:
        if not isinstance(path, int):
            self._require(Path(path))
        try:
            return self._stat(path, **options)
        except FileNotFoundError:
            above = [Path(path), *Path(path).parents]
            self.missing.add([each for each in above if not os.path.lexists(each)][-1])
            raise

    def _opened(self, path: Any, *arguments: Any, **options: Any) -> int:
        self._require(Path(path))
        self.missing = {name for name in self.missing if name.parent != Path(path)}
        return self._open(path, *arguments, **options)
