"""A disk of which a power cut leaves what was synced, and of the rest what chance decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

Tree: TypeAlias = dict[str, bytes | str | None]
"""Content of files by path below the root; None for a folder, text for where a link leads."""


@dataclass(frozen=True)
class Change:
    """Bytes written at an offset, or a new size where there are none."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray, count: int | None = None) -> None:
        """Change a content; ``count`` tears a write after so many bytes."""
        if self.data is None:
            del content[self.offset :]
        content.extend(bytes(max(0, self.offset - len(content))))
        data = (self.data or b"")[:count]
        content[self.offset : self.offset + len(data)] = data


@dataclass(eq=False)
class File:
    """A file: what the disk has, and the changes that it need not have."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        change.apply(self.content)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable, self.pending = bytes(self.content), []

    def left(self, random: Random) -> bytes:
        """Return what a power cut leaves: each unsynced write whole, torn, or not at all."""
        content = bytearray(self.durable)
        for change in self.pending:
            luck = random.random()
            if luck < 0.5:
                change.apply(content)
            elif luck < 0.75 and change.data:
                change.apply(content, random.randrange(len(change.data)))
        return bytes(content)


@dataclass(eq=False)
class Link:
    """A symbolic link to an absolute path, which the disk has once it has the name."""

    target: str


Node: TypeAlias = "File | Folder | Link"


@dataclass(eq=False)
class Entry:
    """What becomes of names in a folder at once; None takes a name away.

    Attributes:
        target: Where a move from this folder to another one arrives; it leaves only if it arrives.
    """

    names: dict[str, Node | None]
    target: tuple[Folder, Entry] | None = None

    def apply(self, names: dict[str, Node]) -> None:
        for name, node in self.names.items():
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node


@dataclass(eq=False)
class Folder:
    """A folder: the names that the disk has, and the entries that it need not have."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[Entry] = field(default_factory=list)

    def enter(self, entry: Entry) -> None:
        entry.apply(self.names)
        self.pending.append(entry)

    def sync(self) -> None:
        for entry in self.pending:
            entry.apply(self.durable)
        done, self.pending = self.pending, []
        for entry in done:
            if entry.target is not None and entry in entry.target[0].pending:
                entry.target[0].sync()

    def left(self, random: Random, arrived: set[Entry]) -> dict[str, Node]:
        """Return the names that a power cut leaves: those of the first few unsynced entries."""
        names = dict(self.durable)
        for entry in self.pending[: random.randint(0, len(self.pending))]:
            if entry.target is None or entry not in entry.target[0].pending or entry in arrived:
                entry.apply(names)
                arrived.add(entry)
        return names


def now(folder: Folder) -> Tree:
    return _tree(folder, lambda folder: folder.names, lambda file: bytes(file.content))


def synced(folder: Folder) -> Tree:
    return _tree(folder, lambda folder: folder.durable, lambda file: file.durable)


def after_power_cut(folder: Folder, random: Random) -> Tree:
    arrived: set[Entry] = set()
    return _tree(folder, lambda at: at.left(random, arrived), lambda file: file.left(random))


def _tree(
    root: Folder, names: Callable[[Folder], dict[str, Node]], content: Callable[[File], bytes]
) -> Tree:
    found: Tree = {}
    waiting = [("", root)]
    while waiting:
        prefix, folder = waiting.pop()
        for name, node in names(folder).items():
            if isinstance(node, Folder):
                found[prefix + name] = None
                waiting.append((f"{prefix}{name}/", node))
            else:
                found[prefix + name] = node.target if isinstance(node, Link) else content(node)
    return found


def written(tree: Tree) -> Folder:
    """Return a disk that has all of a tree."""
    root = Folder()
    folders = {"": root}
    for name, content in sorted(tree.items()):
        above, _, last = name.rpartition("/")
        node: Node
        if content is None:
            node = folders[name] = Folder()
        elif isinstance(content, str):
            node = Link(content)
        else:
            node = File(bytearray(content), content)
        folders[above].names[last] = folders[above].durable[last] = node
    return root
