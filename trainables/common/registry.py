"""Finds the classes of a package by name: a new file is a new entry, with no list to keep."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from trainables.common.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes of one concept, found in the modules of one package.

    Args:
        noun: What an entry is called in messages, such as ``loss``.
        package: The package whose modules register their class when imported.
    """

    def __init__(self, noun: str, package: str) -> None:
        self.noun = noun
        self._package = package
        self._entries: dict[str, type[T]] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that makes the class known under ``name``, its attribute."""

        def add(entry: type[T]) -> type[T]:
            if name in self._entries:
                raise ValueError(f"{self.noun} {name!r} is registered twice")
            self._entries[name] = entry
            entry.name = name  # type: ignore[attr-defined]
            return entry

        return add

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._load()
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        """Return True if there is an entry of that name."""
        self._load()
        return name in self._entries

    def get(self, name: str) -> type[T]:
        """Return the class of one entry.

        Raises:
            InputError: If there is none of that name; the text lists near names or all of them.
        """
        self._load()
        if name not in self._entries:
            near = get_close_matches(name, self._entries, n=3) or self.names()
            raise InputError(f"unknown {self.noun} {name!r}; there are: {', '.join(near)}")
        return self._entries[name]

    def build(self, name: str, **parameters: Any) -> T:
        """Make one entry with its hyper-parameters.

        Raises:
            InputError: If the name or a parameter's name is unknown.
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

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        self._loaded = True
