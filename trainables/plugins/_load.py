"""Imports plugins and adds their parts to the catalogues."""

import importlib
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from search_spaces import SearchSpace, SpaceError, part_catalogues, plug_spaces
from trainables.calibrators import CALIBRATORS, OBJECTIVES
from trainables.common.errors import AlteredPluginError, InputError
from trainables.common.paths import on_this_machine
from trainables.common.registry import Addition, Catalogue, collecting
from trainables.common.stages import splits
from trainables.data import SOURCES
from trainables.data.suites import SUITES
from trainables.metrics import METRICS
from trainables.models import MODELS
from trainables.plugins._find import Source, find_source, installed_sources
from trainables.plugins._serve import SERVED, Module, are_served, serve, withdraw
from trainables.plugins._spaces import space_of

NAME = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*:?")
SPACES: Mapping[Catalogue[Any], str] = {
    catalogue: kind for kind, several in part_catalogues().items() for catalogue in several
}
# The entries of these catalogues are parts of recipes, so all of them need different names.
PARTS = [catalogue for catalogue in SPACES if catalogue is not OBJECTIVES]
CATALOGUES = (*SPACES, MODELS, SOURCES, SUITES, METRICS)


class Pinned(NamedTuple):
    """A fixed version of a plugin: its file or package, and the hash of that version's code."""

    path: str
    code: str


@dataclass(frozen=True)
class Plugin:
    """An imported plugin, with the parts that it registered and their search spaces."""

    source: Source
    additions: tuple[Addition, ...]
    spaces: tuple[SearchSpace, ...]

    @property
    def name(self) -> str:
        """Return the name that messages use."""
        return self.source.name

    @property
    def code(self) -> str:
        """Return the hash of the plugin's code."""
        return self.source.code

    def where(self, error: BaseException) -> str:
        """Return the file and line of the plugin or its imports that raised an error, if any."""
        return _where(error, self.source)

    @property
    def covers(self) -> str:
        """Return one line that lists the code covered by the hash."""
        brought = self.source.brought
        counts = Counter(name.partition(".")[0] for name in brought.modules)
        files = [(self.source.root.name, len(self.source.files)), *sorted(counts.items())]
        covers = "the content of " + ", ".join(f"{name} ({_files(count)})" for name, count in files)
        if versions := sorted(brought.versions.items()):
            covers += ", and the versions of " + ", ".join(map(" ".join, versions))
        if brought.computed:
            covers += f"; not covered: imports of computed names ({', '.join(brought.computed)})"
        return f"its code hash covers {covers}"


def _files(count: int) -> str:
    return f"{count} file{'s' if count > 1 else ''}"


# Imported plugins by hash and by the module that the sweep names.
_known: dict[tuple[str, str], Plugin] = {}
_active: list[Plugin] = []
_hides_installed = ContextVar("hides_installed", default=False)


def active_plugins() -> tuple[Plugin, ...]:
    """Return the plugins whose parts are in the catalogues now."""
    return tuple(_active)


def load_plugins(
    named: Iterable[str | Pinned],
    folder: Path | str = ".",
    installed: bool = False,
    exact: bool = True,
) -> tuple[Plugin, ...]:
    """Import plugins and replace the parts of all other plugins in the catalogues by theirs.

    Args:
        named: Paths, modules, names of entry points, or fixed versions.
        folder: The folder that relative paths start from.
        installed: Whether to add every installed plugin as well, unless a named one has its name or
            the call is within ``named_plugins_only``. If False, nothing changes when all named
            plugins are active already.
        exact: Whether to refuse a fixed version if anything that it imports has changed. Commands
            that only show stored results do not need this check.

    Returns:
        The named plugins.

    Raises:
        InputError: If a plugin is not found, has changed, cannot be imported, or uses a name that
            is taken. The active plugins stay the same then.
    """
    found = tuple(_load(each, Path(folder), exact) for each in named)
    if not installed and {id(plugin) for plugin in found} <= {id(plugin) for plugin in _active}:
        return found
    names = [plugin.name for plugin in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"plugin {name!r} is named twice")
    others = _installed() if installed and not _hides_installed.get() else ()
    _activate([*found, *(plugin for plugin in others if plugin.name not in names)])
    return found


@contextmanager
def named_plugins_only() -> Iterator[None]:
    """Begin the block without plugins, and load only named ones in it; restore all afterwards."""
    before, token = [*_active], _hides_installed.set(True)
    try:
        _activate(())
        yield
    finally:
        _hides_installed.reset(token)
        _activate(before)


def part_codes(stage: str, parts: Iterable[str], model: str) -> dict[str, str]:
    """Return the code hash of each part or model of a plugin, by a label such as ``loss NAME``."""
    looked: list[tuple[Catalogue[Any], str]] = [(MODELS, "".join(model.partition(":")[:2]))]
    for part in parts:
        looked += ((catalogue, part) for catalogue in PARTS)
        if stage == "calibrate":
            for name, objective in splits(part):
                looked += ((CALIBRATORS, name), (OBJECTIVES, objective))
    return {
        f"{catalogue.noun} {name}": code
        for catalogue, name in looked
        if (code := catalogue.code(name)) is not None
    }


@cache
def _installed() -> tuple[Plugin, ...]:
    return tuple(_imported(source) for source in installed_sources())


def _load(named: str | Pinned, folder: Path, exact: bool) -> Plugin:
    if isinstance(named, str):
        return _imported(find_source(named, folder))
    for plugin in _known.values():
        if plugin.code == named.code and _ends_with(named.path, plugin.source.path):
            return _imported(plugin.source)
    place = on_this_machine(folder / named.path)
    source = find_source(str(place), folder)
    if source.code != named.code:
        changed = source.changed_import(named.code)
        if changed is None:
            raise InputError(
                f"plugin {place} was changed: expected code {named.code[:12]}, "
                f"got {source.code[:12]}"
            )
        if exact:
            raise AlteredPluginError(
                f"plugin {source.name} imports {changed}, which has changed since the sweep began; "
                "restore it, or run the sweep file with --fresh"
            )
    return _imported(source)


def _ends_with(path: str, ending: str) -> bool:
    last = Path(ending).parts
    return Path(path).parts[-len(last) :] == last


def _imported(source: Source) -> Plugin:
    key = (source.code, source.module)
    known = _known.get(key)
    if known is None or not are_served(_importable(source)):
        additions = _import(source)
        spaced = [each for each in additions if each.catalogue in SPACES]
        try:
            spaces = [
                space_of(each, SPACES[each.catalogue], source, len(spaced) == 1) for each in spaced
            ]
        except SpaceError as error:
            raise InputError(f"plugin {source.name}: {error}") from error
        _known[key] = Plugin(source, additions, tuple(spaces))
    return _known[key]


def _import(source: Source) -> tuple[Addition, ...]:
    for catalogue in CATALOGUES:
        catalogue.load()
    _serve(source)
    try:
        with collecting() as found:
            _import_package(source) if source.is_package else _import_file(source)
    except (Exception, SystemExit) as error:  # Code of others may raise anything.
        raise InputError(
            f"plugin {source.name} cannot be imported: {_where(error, source)}"
            f"{type(error).__name__}: {error}"
        ) from error
    if not found:
        raise InputError(
            f"plugin {source.name} registers nothing; "
            'decorate a class, for example a loss with @LOSSES.register("NAME")'
        )
    return tuple(found)


def _importable(source: Source) -> dict[str, Module]:
    """Return the modules that must be imported exactly as they were hashed."""
    return {**source.brought.modules, **(source.modules if source.is_package else {})}


def _serve(source: Source) -> None:
    for name in sorted(source.brought.missing & SERVED.modules.keys()):
        raise InputError(
            f"plugin {source.name} imports {name!r}, which is only part of another plugin; "
            f"install {name!r} or put its folder on PYTHONPATH"
        )
    if source.is_package:
        _check_place(source)
    packages = {plugin.name for plugin in _known.values() if plugin.source.is_package}
    absent = {name for name in source.brought.absent if name.partition(".")[0] not in packages}
    for package in {name.partition(".")[0] for name in serve(_importable(source), absent)}:
        for catalogue in CATALOGUES:
            catalogue.forget(package)


def _import_file(source: Source) -> None:
    # A name of its own, so that the file never replaces a module of the same name.
    name = f"calsweep_plugin_{source.code[:16]}"
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(source.root)
    try:
        # Execute the source that was hashed: bytecode caches compare times only to the second.
        exec(compile(source.files[source.root.name], source.root, "exec"), vars(module))  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise


def _check_place(source: Source) -> None:
    """Unload other versions of a package; refuse it if another module has its name."""
    name = source.name
    there = sys.modules.get(name)
    if there is not None:
        place = Path(getattr(there, "__file__", None) or "")
        known = name in {plugin.name for plugin in _known.values()}
        if not known and not place.is_relative_to(source.root):
            raise InputError(f"another module is called {name!r} ({place}); rename the package")
    for catalogue in CATALOGUES:
        catalogue.forget(name)
    withdraw(name)


def _import_package(source: Source) -> None:
    try:
        importlib.import_module(source.module)
    except BaseException:
        withdraw(source.name)
        raise


def _where(error: BaseException, source: Source) -> str:
    """Return the file and line of the plugin or its imports that raised an error; empty if none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{Path(error.filename).name}, line {error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    imported = {module.origin for module in source.brought.modules.values()}
    own = [
        frame
        for frame in frames
        if frame.filename in imported or Path(frame.filename).is_relative_to(source.root)
    ]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}: " if own else ""


def _activate(plugins: Sequence[Plugin]) -> None:
    _check_names(plugins)
    _check_modules(plugins)
    for catalogue in _catalogues([*_active, *plugins]):
        catalogue.plug(
            {
                each.name: (each.entry, plugin.code)
                for plugin in plugins
                for each in plugin.additions
                if each.catalogue is catalogue
            }
        )
    plug_spaces(space for plugin in plugins for space in plugin.spaces)
    _active[:] = plugins


def _check_names(plugins: Sequence[Plugin]) -> None:
    """Refuse names that are malformed or taken."""
    if not plugins:
        return
    taken = {
        (_scope(catalogue), name): f"a built-in {catalogue.noun} {name!r} exists"
        for catalogue in _catalogues(plugins)
        for name in catalogue.own_names()
        if catalogue.own(name) is not None
    }
    for plugin in plugins:
        for catalogue, name, _ in plugin.additions:
            what = f"plugin {plugin.name}: {catalogue.noun} {name!r}"
            if not NAME.fullmatch(name):
                raise InputError(f"{what}: use only lower-case letters, digits, '-' and '_'")
            if reason := taken.get((_scope(catalogue), name)):
                raise InputError(f"{what}: {reason} already; use another name")
            taken[_scope(catalogue), name] = f"plugin {plugin.name} has that {catalogue.noun}"


def _check_modules(plugins: Sequence[Plugin]) -> None:
    """Refuse plugins that import different modules with the same name."""
    seen: dict[str, tuple[Plugin, Module]] = {}
    for plugin in plugins:
        for name, module in _importable(plugin.source).items():
            first, other = seen.setdefault(name, (plugin, module))
            if other.content != module.content:
                raise InputError(
                    f"plugins {first.name} and {plugin.name} import different modules {name!r}; "
                    "rename one of them"
                )


def _catalogues(plugins: Iterable[Plugin]) -> set[Catalogue[Any]]:
    """Return the catalogues known here and any others that the plugins add to."""
    return {*CATALOGUES, *(each.catalogue for plugin in plugins for each in plugin.additions)}


def _scope(catalogue: Catalogue[Any]) -> str:
    return "part" if catalogue in PARTS else catalogue.noun
