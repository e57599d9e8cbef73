"""Finds the classes of a package by name: a new file is a new entry, with no list to keep."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from trainables.common.errors import InputError, known_names
from trainables.common.html import html_table
from trainables.common.outlines import outline_modules, outlining, real_module

E = TypeVar("E")
T = TypeVar("T")


class Addition(NamedTuple):
    """What a plugin registers: an entry of a catalogue, and its name."""

    catalogue: "Catalogue[Any]"
    name: str
    entry: Any


def import_modules(package: str) -> None:
    """Import a module, and those in it if it is a package: they register their entries."""
    places = getattr(importlib.import_module(package), "__path__", ())
    for module in pkgutil.iter_modules(places):
        importlib.import_module(f"{package}.{module.name}")


_collected: list[list[Addition]] = []  # Of the plugin that is being imported.


@contextmanager
def collecting() -> Iterator[list[Addition]]:
    """Gather all registrations meanwhile; ``Catalogue.plug`` makes them known."""
    found: list[Addition] = []
    _collected.append(found)
    try:
        yield found
    finally:
        _collected.pop()


class Catalogue(Generic[E]):
    """Entries of one concept by name: ours, from the modules of one package, and those of plugins.

    Args:
        noun: What an entry is called in messages, such as ``loss``.
        package: The package whose modules register their entries when imported, or the module that
            does.
        word: The word of ``calsweep list`` that shows the entries, if there is one.
        slow: Whether the modules import PyTorch. Each is then imported when its entry is needed,
            and names, fields and checks come from ``outlines`` of all of them.
    """

    def __init__(self, noun: str, package: str, word: str = "", *, slow: bool = False) -> None:
        self.noun, self.word = noun, word
        self._package, self._slow = package, slow
        self._entries: dict[str, E] = {}
        self._outlines: dict[str, E] = {}
        self._plugged: Mapping[str, tuple[E, str]] = {}
        self._loaded = self._outlined = False

    def add(self, name: str, entry: E) -> None:
        """Make an entry known under a name; raise ``ValueError`` if another one has it."""
        # A plugin may be the first to import a module that registers ours.
        if not outlining.get() and _collected and getattr(entry, "__module__", "") != self._package:
            _collected[-1].append(Addition(self, name, entry))
            return
        entries = self._outlines if outlining.get() else self._entries
        if name in entries:
            raise ValueError(f"{self.noun} {name!r} is registered twice")
        entries[name] = entry

    def plug(self, entries: Mapping[str, tuple[E, str]]) -> None:
        """Make known what plugins registered, with the hash of their code, and nothing before."""
        self._plugged = entries

    def code(self, name: str) -> str | None:
        """Return the hash of the code of the plugin that an entry came from, or None if ours."""
        return self._plugged[name][1] if name in self._plugged else None

    def forget(self, module: str) -> None:
        """Drop the entries that a module, or one below it, registered outside of any plugin."""
        for name, entry in list(self._entries.items()):
            if getattr(self._maker(entry), "__module__", "").partition(".")[0] == module:
                del self._entries[name]

    def _maker(self, entry: E) -> Any:
        return entry[0] if isinstance(entry, tuple) else entry

    def __repr__(self) -> str:
        return f"<{self.noun} names: {', '.join(self.names())}>"

    def _repr_html_(self) -> str:
        about = {
            name: inspect.getdoc(self._maker(self.outline(name))) or "" for name in self.names()
        }
        rows = ((name, text.partition("\n")[0]) for name, text in about.items())
        return html_table((self.noun, "about"), rows)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted([*self.own_names(), *self._plugged])

    def own(self, name: str) -> E | None:
        """Return the outline of a name that no plugin brought, None if there is none."""
        return self._known().get(name)

    def own_names(self) -> list[str]:
        """Return the names that no plugin brought."""
        return list(self._known())

    def __contains__(self, name: object) -> bool:
        return name in self._plugged or name in self._known()

    def __getitem__(self, name: str) -> E:
        if outlining.get():
            return self.outline(name)
        if name in self._plugged:
            return self._plugged[name][0]
        if name not in self._entries and self._slow:
            importlib.import_module(real_module(self._maker(self._known()[name])))
        if name not in self._entries:
            self.load()
        return self._entries[name]

    def outline(self, name: str) -> E:
        """Return an entry that is there, without its code that needs PyTorch."""
        return self._plugged[name][0] if name in self._plugged else self._known()[name]

    def _known(self) -> Mapping[str, E]:
        """Return the entries that no plugin brought, or their outlines."""
        if not self._slow:
            self.load()
            return self._entries
        if not self._outlined:
            outline_modules(self._package)
            self._outlined = True
        return {**self._outlines, **self._entries}

    def load(self) -> None:
        """Import the modules of the package."""
        if self._loaded:
            return
        import_modules(self._package)
        self._loaded = True


class Registry(Catalogue[type[T]]):
    """Classes of one concept that derive from one base; see ``Catalogue``.

    A base that imports PyTorch is given as its module and name.
    """

    def __init__(self, noun: str, package: str, base: type | str, word: str = "") -> None:
        super().__init__(noun, package, word, slow=isinstance(base, str))
        self._base = base

    @property
    def base(self) -> str:
        """Return the name of the base."""
        return self._base.split(".")[-1] if isinstance(self._base, str) else self._base.__name__

    def _derives(self, entry: Any) -> bool:
        if not isinstance(self._base, str):
            return inspect.isclass(entry) and issubclass(entry, self._base)
        # By name: the class itself takes PyTorch, and its outline is another class.
        bases = getattr(entry, "__mro__", ())
        return any(f"{real_module(base)}.{base.__name__}" == self._base for base in bases)

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that makes the class known under ``name``, its attribute.

        Raises:
            TypeError: If it does not derive from the registry's base, or leaves a method undefined.
        """

        def add(entry: type[T]) -> type[T]:
            if not self._derives(entry):
                given = getattr(entry, "__name__", repr(entry))
                raise TypeError(f"{self.noun} {name!r}: {given} does not derive from {self.base}")
            if missing := ", ".join(sorted(getattr(entry, "__abstractmethods__", ()))):
                raise TypeError(f"{self.noun} {name!r}: {entry.__name__} does not define {missing}")
            self.add(name, entry)
            entry.name = name  # type: ignore[attr-defined]
            return entry

        return add

    def require(self, name: str) -> None:
        """Raise ``InputError``, with near names or all of them, if there is no such class."""
        if name not in self:
            raise InputError(
                f"unknown {self.noun} {name!r}; {known_names(name, self.names(), self.word)}"
            )

    def get(self, name: str) -> type[T]:
        """Return a class; see ``require`` for the error."""
        self.require(name)
        return self[name]

    def build(self, name: str, **parameters: Any) -> T:
        """Make one entry with its hyper-parameters.

        Raises:
            ValueError: If a value is out of its range.
        """
        entry = self.get(name)
        known = self.parameter_names(name)
        for parameter in parameters:
            if parameter not in known:
                allowed = ", ".join(known) or "none"
                raise InputError(f"{name} has no parameter {parameter!r}; it has: {allowed}")
        return entry(**parameters)

    def parameter_names(self, name: str) -> list[str]:
        """Return the names of the constructor arguments of one entry."""
        return list(inspect.signature(self.get(name)).parameters)
