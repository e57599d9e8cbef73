"""Finds the classes of a package by name; a new file is a new entry."""

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
    """An entry that a plugin registers in a catalogue."""

    catalogue: "Catalogue[Any]"
    name: str
    entry: Any


def import_modules(package: str) -> None:
    """Import a module or all modules of a package, so that they register their entries."""
    places = getattr(importlib.import_module(package), "__path__", ())
    for module in pkgutil.iter_modules(places):
        importlib.import_module(f"{package}.{module.name}")


_collected: list[list[Addition]] = []  # Entries of the plugins that are being imported.


@contextmanager
def collecting() -> Iterator[list[Addition]]:
    """Collect the plugins' registrations in the block; ``Catalogue.plug`` adds them later."""
    found: list[Addition] = []
    _collected.append(found)
    try:
        yield found
    finally:
        _collected.pop()


class Catalogue(Generic[E]):
    """The built-in entries and the plugins' entries of one kind, by name.

    Args:
        noun: The word for an entry in messages, such as ``loss``.
        package: The package or module that registers entries when it is imported.
        word: The argument of ``calsweep list`` that shows the entries, if there is one.
        slow: Whether the modules import PyTorch. Each is then imported only when its entry is
            needed; names, fields and checks come from ``outlines``.
    """

    def __init__(self, noun: str, package: str, word: str = "", *, slow: bool = False) -> None:
        self.noun, self.word = noun, word
        self._package, self._slow = package, slow
        self._entries: dict[str, E] = {}
        self._outlines: dict[str, E] = {}
        self._plugged: Mapping[str, tuple[E, str]] = {}
        self._loaded = self._outlined = False

    def add(self, name: str, entry: E) -> None:
        """Register an entry, or collect it if a plugin registers it (see ``collecting``).

        Raises:
            ValueError: If a built-in entry with this name is already registered.
        """
        # A plugin may be the first to import a module with built-in entries.
        if not outlining.get() and _collected and getattr(entry, "__module__", "") != self._package:
            _collected[-1].append(Addition(self, name, entry))
            return
        # Modules of other rooms may be imported for the first time while outlines are made.
        entries = self._outlines if self._slow and outlining.get() else self._entries
        if name in entries:
            raise ValueError(f"{self.noun} {name!r} is registered twice")
        entries[name] = entry

    def plug(self, entries: Mapping[str, tuple[E, str]]) -> None:
        """Replace all plugins' entries; a value is an entry and the hash of its plugin's code."""
        self._plugged = entries

    def code(self, name: str) -> str | None:
        """Return the hash of the code of an entry's plugin, or None for built-in entries."""
        return self._plugged[name][1] if name in self._plugged else None

    def forget(self, module: str) -> None:
        """Remove the entries that a top-level module registered outside of plugins."""
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
        """Return a built-in entry, or its outline if it is not imported yet; None if unknown."""
        return self._known().get(name)

    def own_names(self) -> list[str]:
        """Return the names of the built-in entries."""
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
        """Return the entry itself if it is imported or a plugin's, else its outline."""
        return self._plugged[name][0] if name in self._plugged else self._known()[name]

    def _known(self) -> Mapping[str, E]:
        """Return the built-in entries; those that are not imported yet are outlines."""
        if not self._slow:
            self.load()
            return self._entries
        if not self._outlined:
            outline_modules(self._package)
            self._outlined = True
        return {**self._outlines, **self._entries}

    def load(self) -> None:
        """Import the built-in entries."""
        if self._loaded:
            return
        import_modules(self._package)
        self._loaded = True


class Registry(Catalogue[type[T]]):
    """Classes that derive from one base; see ``Catalogue``.

    ``base`` is a class, or ``MODULE.NAME`` if its module imports PyTorch.
    """

    def __init__(self, noun: str, package: str, base: type | str, word: str = "") -> None:
        super().__init__(noun, package, word, slow=isinstance(base, str))
        self._base = base

    @property
    def base(self) -> str:
        """Return the name of the class that all entries derive from."""
        return self._base.split(".")[-1] if isinstance(self._base, str) else self._base.__name__

    def _derives(self, entry: Any) -> bool:
        if not isinstance(self._base, str):
            return inspect.isclass(entry) and issubclass(entry, self._base)
        # Compared by name, because the class needs PyTorch and its outline is another class.
        bases = getattr(entry, "__mro__", ())
        return any(f"{real_module(base)}.{base.__name__}" == self._base for base in bases)

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that registers a class and sets its attribute ``name``.

        Raises:
            TypeError: If the class does not derive from the base, or is abstract.
        """

        def add(entry: type[T]) -> type[T]:
            if not self._derives(entry):
                own = getattr(entry, "__name__", repr(entry))
                raise TypeError(f"{self.noun} {name!r}: {own} does not derive from {self.base}")
            if missing := ", ".join(sorted(getattr(entry, "__abstractmethods__", ()))):
                raise TypeError(f"{self.noun} {name!r}: {entry.__name__} does not define {missing}")
            self.add(name, entry)
            entry.name = name  # type: ignore[attr-defined]
            return entry

        return add

    def require(self, name: str) -> None:
        """Raise ``InputError``, which lists similar or all names, if there is no such class."""
        if name not in self:
            raise InputError(
                f"unknown {self.noun} {name!r}; {known_names(name, self.names(), self.word)}"
            )

    def get(self, name: str) -> type[T]:
        """Return a class; see ``require`` for the error."""
        self.require(name)
        return self[name]

    def build(self, name: str, **parameters: Any) -> T:
        """Return an instance of a class, constructed with hyper-parameters.

        Raises:
            InputError: If the class or a parameter is unknown.
            ValueError: If a value is out of its range.
        """
        entry = self.get(name)
        known = self.parameter_names(name)
        for parameter in parameters:
            if parameter not in known:
                allowed = ", ".join(known) or "none"
                raise InputError(f"{name} has no parameter {parameter!r}; parameters are {allowed}")
        return entry(**parameters)

    def parameter_names(self, name: str) -> list[str]:
        """Return the names of the constructor arguments of one entry."""
        return list(inspect.signature(self.get(name)).parameters)
