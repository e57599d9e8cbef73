"""Executes modules without PyTorch, to read names and check values (``design/outlines.md``).

A class or function that is defined in this way is called an outline.
"""

import builtins
import inspect
import pkgutil
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

ROOMS = ("losses", "augmentations", "schemes", "refinements", "calibrators", "models")
SLOW = ("torch", "torchvision", "timm", "sklearn", "safetensors", "trainables.metrics")

outlining: ContextVar[bool] = ContextVar("outlining", default=False)
"""Whether code runs with placeholders for PyTorch."""
OUTLINE = "outline:"  # Prefix of the names of modules that were executed without PyTorch.
_lock = RLock()  # The server of pages uses several threads.


class AbsentError(Exception):
    """Raised if code that is executed without PyTorch needs a value that PyTorch computes."""


def _needed(*_: Any) -> Any:
    raise AbsentError


class _Absent(ABCMeta):
    """Metaclass of the placeholders for PyTorch's classes; other classes can derive from them."""

    __bool__ = __int__ = __float__ = __iter__ = __len__ = _needed
    __lt__ = __le__ = __gt__ = __ge__ = _needed
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _needed
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _needed

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_is_placeholder" not in vars(cls):
            return super().__call__(*args, **kwargs)
        return _placeholder(cls.__name__)

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's signature; ``inspect`` would return that of ``__call__``."""
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])


def _placeholder(name: str) -> Any:
    return _Absent(name, (), {"_is_placeholder": True, "__getattr__": _of_instance})


def _of_instance(self: object, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _placeholder(name)


@contextmanager
def _without_torch() -> Iterator[None]:
    token = outlining.set(True)
    try:
        yield
    finally:
        outlining.reset(token)


def outlined(build: Callable[[], T]) -> T:
    """Return ``build()``: called without PyTorch, and again with PyTorch if that fails."""
    try:
        with _without_torch():
            return build()
    except AbsentError:
        return build()


def outline_modules(package: str) -> None:
    """Execute a package's modules except ``_registry`` without PyTorch; they register outlines."""
    with _lock, _without_torch():
        place = Path(str(import_module(package).__file__)).parent
        for module in pkgutil.iter_modules([str(place)]):
            if module.name != "_registry":
                _outline(f"{package}.{module.name}")


def real_module(entry: Any) -> str:
    """Return the name of the module of a class, a function or an outline."""
    return str(getattr(entry, "__module__", "")).removeprefix(OUTLINE)


def _is_ours(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "trainables" and parts[1:2] != [] and parts[1] in ROOMS


def _outline(name: str) -> ModuleType:
    """Execute a module of a package without PyTorch, once, and return it."""
    if (known := sys.modules.get(OUTLINE + name)) is not None:
        return known
    path = Path(__file__).parents[1].joinpath(*name.split(".")[1:])
    is_package = path.is_dir()
    # A package imports lazily; its stub has the imports.
    file = path / "__init__.pyi" if is_package else path.with_suffix(".py")
    module = sys.modules[OUTLINE + name] = ModuleType(OUTLINE + name)
    vars(module).update(
        __file__=str(file),
        __package__=name if is_package else name.rpartition(".")[0],
        __builtins__={**vars(builtins), "__import__": _import},
    )
    code = SourceFileLoader(name, str(file)).get_code(name)
    assert code is not None
    exec(code, vars(module))  # noqa: S102
    return module


def _import(
    name: str,
    globals: Any = None,
    locals: Any = None,
    fromlist: tuple[str, ...] | None = (),
    level: int = 0,
) -> Any:
    """Replaces ``__import__``, with the same arguments, in modules executed without PyTorch."""
    if level:
        name = resolve_name("." * level + name, globals["__package__"])
    if any(name == slow or name.startswith(f"{slow}.") for slow in SLOW):
        return _placeholder(name)
    if _is_ours(name) and not name.endswith("._registry"):
        return _outline(name)
    return builtins.__import__(name, globals, locals, fromlist or (), 0)
