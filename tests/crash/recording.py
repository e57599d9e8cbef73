"""All operations on files below a folder, as the system saw them, and their replay."""

from __future__ import annotations

import os.path
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.disk import Change, Entry, File, Folder, Link, Node, Tree, written

TRACED = (
    "open,openat,creat,write,pwrite64,writev,pwritev,pwritev2,truncate,ftruncate,fallocate,rename,"
    "renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,fsync,fdatasync,link,linkat,symlink,"
    "symlinkat,lseek,sendfile,copy_file_range,dup,dup2,dup3,fcntl,clone,clone3,fork,vfork"
)
THREAD = re.compile(r"^(\d+) +clone3?\(.*CLONE_THREAD.* = (\d+)")
LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (\d+)(<.*>)?")
DELETED = "(deleted)"


class Recorder:
    """``strace`` of a program that does each line of its input in a child, whose number it prints.

    What is imported once, slowly when traced, serves all.

    Args:
        program: The program and its arguments.
        log: Where the calls are written. Nothing that a child starts may write beside it.
    """

    def __init__(self, program: Sequence[str], log: Path) -> None:
        strace = shutil.which("strace")
        assert strace is not None
        options = ["-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", str(10**8), "-e", "signal=none"]
        command = [strace, *options, "-e", f"trace={TRACED}", "-o", str(log), "--", *program]
        pipe = subprocess.PIPE
        self._log, self._told = log, 0
        self._program = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def record(self, line: str) -> list[str]:
        """Return the system calls of the threads of a line's child that may touch files.

        Processes that it starts, such as git, have handles of their own.
        """
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        print(line, file=self._program.stdin, flush=True)
        child = self._program.stdout.readline().strip()
        assert child, f"it ended: {line}"
        with self._log.open(encoding="ascii") as log:
            log.seek(self._told)
            lines = list(_whole(log.read().splitlines()))
            self._told = log.tell()
        own, others = _apart(lines, child)
        here = "".join(f"\\x{byte:02x}" for byte in str(self._log.parent).encode())
        wrote = [line for line in others if here in line and "O_RDONLY" not in line]
        assert not wrote, wrote[0][:500]
        return own

    def close(self) -> None:
        self._program.communicate(timeout=600)


def _apart(lines: Sequence[str], first: str) -> tuple[list[str], list[str]]:
    """Return the calls of a process, and those of all others."""
    begun = dict(found.groups()[::-1] for line in lines if (found := THREAD.match(line)))

    def is_own(thread: str) -> bool:
        return thread == first or (thread in begun and is_own(begun[thread]))

    threads = {thread for line in lines if is_own(thread := line.split()[0])}
    own = [line for line in lines if line.split()[0] in threads]
    return own, [line for line in lines if line.split()[0] not in threads]


def _whole(lines: Sequence[str]) -> Iterator[str]:
    """Yield each call where it ended, also one that others interrupted."""
    begun: dict[str, str] = {}
    for line in lines:
        thread, _, call = line.partition(" ")
        if call.endswith("<unfinished ...>"):
            begun[thread] = call.removesuffix("<unfinished ...>")
        elif "resumed>" in call:
            yield f"{thread} {begun.pop(thread).strip()}{call.partition('resumed>')[2]}"
        else:
            yield line


@dataclass
class Place:
    """Where an open file is written next; copies of its handle share it."""

    node: Node
    append: bool
    offset: int = 0


class Replay:
    """Does the recorded calls once more on a disk that exists in memory only.

    Args:
        top: The folder whose files count.
        start: What it held.
    """

    def __init__(self, top: Path, start: Tree) -> None:
        self.root, self._top = written(start), str(top)
        self._places: dict[str, Place] = {}

    def run(self, lines: Sequence[str]) -> Iterator[str]:
        """Yield the name of each call that changed or synced something, after it."""
        for line in lines:
            found = LINE.match(line)
            does = CALLS.get(found[1]) if found else None
            if found and does and does(self, found[2].split(", "), found[3], found[4] or ""):
                yield found[1]

    def _below(self, text: str) -> str | None:
        """Return a path as it is below the top; None if it lies elsewhere."""
        path = os.path.normpath(text)
        if path == self._top:
            return ""
        return path[len(self._top) + 1 :] if path.startswith(f"{self._top}/") else None

    def _find(self, path: str) -> tuple[Folder, str, Node | None]:
        """Return the folder that holds a path, the name there, and what has it."""
        *above, name = path.split("/")
        folder = self.root
        for count, part in enumerate(above, start=1):
            inner = folder.names[part]
            if isinstance(inner, Link):
                below = self._below(os.path.join(inner.target, *above[count:], name))
                assert below is not None, f"a link that leads elsewhere: {inner.target}"
                return self._find(below)
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name, folder.names.get(name)

    def _place(self, handle: str) -> Place | None:
        number, _, path = handle.partition("<")
        ours = self._below(_text(path).removesuffix(DELETED)) is not None
        return self._places.get(number) if ours else None

    def _opened(self, arguments: list[str], handle: str, path: str) -> bool:
        self._places.pop(handle, None)
        below = self._below(_text(path))
        if below is None:
            return False
        flags = next(each for each in arguments if each.startswith("O_"))
        if "O_TMPFILE" in flags:  # It has no name, and no crash leaves anything of it.
            return False
        if below == "":
            self._places[handle] = Place(self.root, False)
            return False
        folder, name, node = self._find(below)
        before = node
        if node is None:
            node = File()
            folder.enter(Entry({name: node}))
        cut = "O_TRUNC" in flags and isinstance(before, File) and bool(before.content)
        if cut and isinstance(node, File):
            node.change(Change(0, None))
        self._places[handle] = Place(node, "O_APPEND" in flags)
        return before is None or cut

    def _written(self, arguments: list[str], count: str, _: str) -> bool:
        place = self._place(arguments[0])
        data = b"".join(_bytes(each) for each in arguments[1:])[: int(count)]
        return place is not None and _write(place, data)

    def _written_at(self, arguments: list[str], count: str, _: str) -> bool:
        place = self._place(arguments[0])
        if place is None or not isinstance(place.node, File):
            return False
        place.node.change(Change(int(arguments[3]), _bytes(arguments[1])[: int(count)]))
        return True

    def _copied(self, arguments: list[str], count: str, _: str) -> bool:
        to, source = self._place(arguments[0]), self._place(arguments[1])
        if to is None:
            return False
        assert source is not None, "copied from elsewhere"
        assert isinstance(source.node, File)
        start = int(arguments[2].split("]")[0].strip("["))
        return _write(to, bytes(source.node.content[start : start + int(count)]))

    def _resized(self, arguments: list[str], *_: str) -> bool:
        place = self._place(arguments[0])
        if place is None or not isinstance(place.node, File):
            return False
        if len(place.node.content) == int(arguments[1]):
            return False
        place.node.change(Change(int(arguments[1]), None))
        return True

    def _sought(self, arguments: list[str], offset: str, _: str) -> bool:
        if place := self._place(arguments[0]):
            place.offset = int(offset)
        return False

    def _synced(self, arguments: list[str], *_: str) -> bool:
        place = self._place(arguments[0])
        if place is not None:
            assert not isinstance(place.node, Link)
            place.node.sync()
        return place is not None

    def _doubled(self, arguments: list[str], handle: str, _: str) -> bool:
        place = self._place(arguments[0])
        copies = len(arguments) == 1 or not arguments[1].startswith("F_") or "DUPFD" in arguments[1]
        if place is not None and copies:
            self._places[handle] = place
        return False

    def _made(self, arguments: list[str], *_: str) -> bool:
        (path,) = _paths(arguments)
        below = self._below(path)
        if not below:
            return False
        folder, name, _ = self._find(below)
        folder.enter(Entry({name: Folder()}))
        return True

    def _removed(self, arguments: list[str], *_: str) -> bool:
        (path,) = _paths(arguments)
        below = self._below(path)
        if below is None:
            return False
        folder, name, node = self._find(below)
        assert node is not None
        folder.enter(Entry({name: None}))
        return True

    def _moved(self, arguments: list[str], *_: str) -> bool:
        old, new = (self._below(path) for path in _paths(arguments))
        if old is None:
            assert new is None, "moved from elsewhere"
            return False
        assert new is not None, "moved elsewhere"
        folder, name, node = self._find(old)
        target, there, _ = self._find(new)
        if target is folder:
            folder.enter(Entry({name: None, there: node}))
            return True
        arrival = Entry({there: node})
        target.enter(arrival)
        folder.enter(Entry({name: None}, (target, arrival)))
        return True

    def _linked(self, arguments: list[str], *_: str) -> bool:
        target, path = _paths(arguments)
        below = self._below(path)
        if below is None:
            return False
        folder, name, _node = self._find(below)
        folder.enter(Entry({name: Link(target)}))
        return True

    def _refused(self, arguments: list[str], *_: str) -> bool:
        found = [path for path in _paths(arguments) if self._below(path) is not None]
        assert not found, f"a hard link, of which this disk knows nothing: {found}"
        return False


def _write(place: Place, data: bytes) -> bool:
    node = place.node
    assert isinstance(node, File)
    offset = len(node.content) if place.append else place.offset
    node.change(Change(offset, data))
    place.offset = offset + len(data)
    return True


def _bytes(argument: str) -> bytes:
    _, quoted, rest = argument.partition('"')
    return bytes.fromhex(rest.partition('"')[0].replace("\\x", "")) if quoted else b""


def _text(path: str) -> str:
    return bytes.fromhex(re.split("[>(]", path.strip("<>"))[0].replace("\\x", "")).decode()


def _paths(arguments: Sequence[str]) -> list[str]:
    """Return the paths in arguments, each below the folder that stands before it, if one does."""
    found, base = [], ""
    for argument in arguments:
        if argument.startswith('"'):
            found.append(os.path.join(base, _bytes(argument).decode()))
            base = ""
        elif "<" in argument:
            base = _text(argument.partition("<")[2])
    return found


Does = Callable[[Replay, list[str], str, str], bool]
CALLS: dict[str, Does] = {
    "open": Replay._opened,
    "openat": Replay._opened,
    "creat": Replay._opened,
    "write": Replay._written,
    "writev": Replay._written,
    "pwrite64": Replay._written_at,
    "sendfile": Replay._copied,
    "ftruncate": Replay._resized,
    "lseek": Replay._sought,
    "fsync": Replay._synced,
    "fdatasync": Replay._synced,
    "dup": Replay._doubled,
    "dup2": Replay._doubled,
    "dup3": Replay._doubled,
    "fcntl": Replay._doubled,
    "mkdir": Replay._made,
    "mkdirat": Replay._made,
    "unlink": Replay._removed,
    "unlinkat": Replay._removed,
    "rmdir": Replay._removed,
    "rename": Replay._moved,
    "renameat": Replay._moved,
    "renameat2": Replay._moved,
    "link": Replay._refused,
    "linkat": Replay._refused,
    "symlink": Replay._linked,
    "symlinkat": Replay._linked,
}
