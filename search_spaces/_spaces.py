"""Types of search spaces, and functions that read them and protocols from files and classes."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import Any

import yaml

from trainables.common.fields import NOTHING, check_choice, check_count, check_number
from trainables.common.registry import Catalogue
from trainables.common.stages import splits


@cache
def part_catalogues() -> Mapping[str, tuple[Catalogue[Any], ...]]:
    """Return the catalogues of each kind of search space."""
    # Imported late: a trial only reads a protocol and must not import all parts.
    from trainables.augmentations import AUGMENTATIONS
    from trainables.calibrators import CALIBRATORS, OBJECTIVES
    from trainables.losses import LOSSES
    from trainables.refinements import REFINEMENTS
    from trainables.schemes import SCHEMES

    return {
        "methods": (LOSSES, AUGMENTATIONS, SCHEMES),
        "refinements": (REFINEMENTS,),
        "calibrators": (CALIBRATORS,),
        "objectives": (OBJECTIVES,),
    }


def own_entry(kind: str, name: str) -> Any:
    """Return the class of one of calsweep's own parts, or its outline; see ``Catalogue.own``."""
    return next(found for each in part_catalogues()[kind] if (found := each.own(name)) is not None)


def declared(entry: Any) -> dict[str, dict[str, Any]]:
    """Return the type, default, choices and variants of each argument that a class declares.

    A key is missing if the argument does not have it.
    """
    described = fields(entry) if is_dataclass(entry) else ()
    return {item.name: _described(item) for item in described if item.init}


def limits_of(item: Field[Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the function that checks a field (or None) and its limits."""
    check = item.metadata.get("check")
    return getattr(check, "func", check), getattr(check, "keywords", {})


def is_number(item: Field[Any]) -> bool:
    """Return True if a field is a number and never None."""
    return limits_of(item)[0] in (check_number, check_count) and item.default is not None


def _described(item: Field[Any]) -> dict[str, Any]:
    function, limits = limits_of(item)
    default = {} if item.default is MISSING else {"default": item.default}
    default |= {key: item.metadata[key] for key in ("default", "variants") if key in item.metadata}
    if function is check_choice:
        return {**default, "type": "categorical", "choices": tuple(limits["choices"])}
    if function in (check_number, check_count):
        return {**default, "type": "int" if function is check_count else "float"}
    return default


KINDS = ("methods", "refinements", "calibrators", "objectives")

Value = float | int | str | bool


class SpaceError(ValueError):
    """A search space or one of its values is wrong; the text names the problem and the place."""


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter of a method, refinement, calibrator or fitting objective.

    Attributes:
        name: The field's name; also the constructor argument and the MLflow parameter.
        symbol: The paper's letter, such as ``λ``.
        type: ``float``, ``int`` or ``categorical``.
        default: The default, published unless ``ours``; every study tries it first.
        source: Paper and section of the default and the range.
        low: Smallest value searched (``float`` and ``int``).
        high: Largest value searched (``float`` and ``int``).
        scale: ``linear`` or ``log``.
        choices: The values of a ``categorical``.
        defaults: Published defaults for a single ``dataset`` or ``dataset/model``.
        variants: Defaults by the value of the part's ``variant``.
        ours: True if no paper gives the default; or the list of each ``dataset`` or
            ``dataset/model`` for which no paper gives it.
        grid: The values that the paper tried, if it lists them; they may be outside the range.
        grids: Other grids, by the value of the part's ``variant``.
        tuned: Each ``dataset`` or ``dataset/model`` on which the paper tuned the value, from
            ``grid`` if there is one, otherwise in the whole range.
        open: Each ``dataset/model`` of the papers for which no source gives a value.
        search: Whether a sweep searches the parameter; otherwise it has its default.
        later: Whether the parameter was added after outcomes had been stored. A configuration then
            includes it only if it differs from the default, so that these outcomes keep their keys.
        note: A remark for readers of the file.
    """

    name: str
    symbol: str
    type: str
    default: Value
    source: str
    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    choices: tuple[Value, ...] = ()
    defaults: Mapping[str, Value] = field(default_factory=dict)
    variants: Mapping[str, Value] = field(default_factory=dict)
    ours: bool | tuple[str, ...] = False
    grid: tuple[Value, ...] = ()
    grids: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    tuned: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    search: bool = True
    later: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        """Check the range, and that it contains every default."""
        if self.type not in ("float", "int", "categorical"):
            raise SpaceError(
                f"{self.name}: type {self.type!r} is not one of float, int, categorical"
            )
        if self.type != "categorical":
            self._check_range()
        elif not self.choices:
            raise SpaceError(f"{self.name}: a categorical parameter needs choices")
        for value in (self.default, *self.defaults.values(), *self.variants.values()):
            self.check(value)

    def _check_range(self) -> None:
        ends = f"got {self.low!r} and {self.high!r}"
        if self.low is None or self.high is None or not self.low <= self.high:
            raise SpaceError(f"{self.name}: needs low <= high, {ends}")
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise SpaceError(f"{self.name}: needs finite low and high, {ends}")
        if self.type == "int" and (self.low % 1 or self.high % 1):
            raise SpaceError(f"{self.name}: needs whole numbers for low and high, {ends}")
        if self.scale not in ("linear", "log"):
            raise SpaceError(f"{self.name}: scale {self.scale!r} is not one of linear, log")
        if self.scale == "log" and self.low <= 0:
            raise SpaceError(f"{self.name}: a log scale needs low > 0, got {self.low!r}")

    def check(self, value: Any) -> Value:
        """Return ``value`` as this parameter's type.

        Raises:
            SpaceError: If it has the wrong type or is out of range.
        """
        try:
            if self.type == "categorical":
                return check_choice(self.name, value, self.choices)
            assert self.low is not None
            assert self.high is not None
            if self.type == "int":
                return check_count(self.name, value, int(self.low), self.high)
            return check_number(self.name, value, self.low, self.high)
        except ValueError as error:
            raise SpaceError(str(error)) from error

    def default_for(self, dataset: str | None = None, model: str | None = None) -> Value:
        """Return the most specific default for a dataset and model.

        ``@pretrained`` is ignored: the same values hold for random and pretrained weights.
        """
        for key in _places(dataset, model):
            if key in self.defaults:
                return self.defaults[key]
        return self.default

    def is_ours(self, dataset: str | None = None, model: str | None = None) -> bool:
        """Return True if no paper gives the default for a dataset and model."""
        if isinstance(self.ours, bool):
            return self.ours
        return any(key in self.ours for key in _places(dataset, model))

    def tuned_on(self, dataset: str | None = None, model: str | None = None) -> bool:
        """Return True if the paper tuned the value on a dataset and model."""
        return any(key in self.tuned for key in _places(dataset, model))

    def is_open(self, dataset: str | None = None, model: str | None = None) -> bool:
        """Return True if papers use a dataset and model but no source gives the value."""
        return any(key in self.open for key in _places(dataset, model))


def _places(dataset: str | None, model: str | None) -> tuple[str, str]:
    return f"{dataset}/{str(model).removesuffix('@pretrained')}", str(dataset)


@dataclass(frozen=True)
class SearchSpace:
    """Every parameter of one method, refinement, calibrator or fitting objective.

    Attributes:
        name: The name in recipes, such as ``mbls``.
        kind: One of ``KINDS``.
        title: The full name.
        source: The paper.
        described: The fields of each parameter in the file, in the file's order.
        declared: Returns the fields that the part's class declares; none if ``described`` has all.
        on_training: The parameter values with which a calibrator is fitted on the networks'
            training rows; empty if it is with all values, None if it never is.
        portfolio: Configurations that ``sampler: prior`` tries after the published default, best
            first; each has a value of every searched parameter.
        where: The file, for messages.
    """

    name: str
    kind: str
    title: str
    source: str
    described: Mapping[str, Mapping[str, Any]]
    declared: Callable[[], Mapping[str, Mapping[str, Any]]] = dict
    on_training: Mapping[str, Value] | None = None
    where: str = ""
    portfolio: tuple[Mapping[str, Value], ...] = ()

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """Return the parameters by name, in the file's order.

        Raises:
            SpaceError: If they are malformed, or a type or default differs from the class.
        """
        try:
            of_class = self.declared()
            found = {
                name: _parameter(name, fields, of_class.get(name, {}))
                for name, fields in self.described.items()
            }
            for values in (self.on_training or {}, *self.portfolio):
                for name, value in values.items():
                    found[name].check(value)
        except (SpaceError, AttributeError, KeyError, TypeError) as error:
            raise SpaceError(f"{self.where}: {_reason(error)}") from error
        return found

    def searched(self) -> dict[str, Parameter]:
        """Return the parameters that a sweep searches."""
        return {name: p for name, p in self.parameters.items() if p.search}

    def default_point(
        self,
        dataset: str | None = None,
        model: str | None = None,
        given: Mapping[str, Any] = NOTHING,
    ) -> dict[str, Any]:
        """Return every parameter's value: from ``given``, otherwise the default.

        A ``variant`` in ``given`` selects the defaults. A ``later`` parameter is included only if
        its value differs from ``default_for`` the dataset and model.
        """
        variant, point = given.get("variant"), {}
        for name, p in self.parameters.items():
            default = p.default_for(dataset, model)
            value = given.get(name, p.variants.get(str(variant), default))
            if not p.later or value != default:
                point[name] = value
        return point

    def own_values(
        self, values: Mapping[str, Any], dataset: str | None = None, model: str | None = None
    ) -> list[str]:
        """Return the names of parameters whose value is a default that no paper gives.

        Defaults are those for the data set and model. ``seed`` is left out.
        """
        # A seed is not a property of the method. ``described`` needs no import of the part.
        named = [n for n, fields in self.described.items() if fields.get("ours") and n != "seed"]
        known = [self.parameters[name] for name in named if name in values]
        return [
            p.name
            for p in known
            if p.is_ours(dataset, model) and values[p.name] == p.default_for(dataset, model)
        ]

    def fits_on_training(self, values: Mapping[str, Any]) -> bool:
        """Return True if a calibrator with these values is fitted on training rows."""
        marks = self.on_training
        return marks is not None and all(values.get(name) == marks[name] for name in marks)


PROTOCOLS = "protocols"
_plugged: dict[tuple[str, str], SearchSpace] = {}


def plug_spaces(spaces: Iterable[SearchSpace]) -> None:
    """Replace the search spaces of earlier plugins by these."""
    _plugged.clear()
    _plugged.update({(space.kind, space.name): space for space in spaces})


def space_names(kind: str) -> list[str]:
    """Return the names of all search spaces of one kind, sorted.

    Raises:
        SpaceError: If ``kind`` is not one of ``KINDS``.
    """
    if kind not in KINDS:
        raise SpaceError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    return sorted([*_names(kind), *(name for own_kind, name in _plugged if own_kind == kind)])


def load_space(kind: str, name: str) -> SearchSpace:
    """Return the search space of one method, refinement, calibrator or fitting objective.

    Raises:
        SpaceError: If the kind or name is unknown, or its file has no title or source. Parameters
            are checked when they are first used.
    """
    return _plugged.get((kind, name)) or _own_space(kind, name)


def known_spaces(part: str) -> list[SearchSpace]:
    """Return the search spaces of a part of a recipe; empty if the part is unknown.

    A calibrator with a fitting objective, such as ``ts-cls``, has two.
    """
    for kind in ("methods", "refinements", "calibrators"):
        if part in space_names(kind):
            return [load_space(kind, part)]
    for name, objective in splits(part):
        if name in space_names("calibrators") and objective in space_names("objectives"):
            return [load_space("calibrators", name), load_space("objectives", objective)]
    return []


@cache
def _own_space(kind: str, name: str) -> SearchSpace:
    if name not in (known := space_names(kind)):
        raise SpaceError(f"no search space {kind}/{name}; known are: {', '.join(known)}")
    where = f"search_spaces/{kind}/{name}.yaml"
    return parse_space(kind, name, _document(kind, name), where, partial(own_entry, kind, name))


def protocol_names() -> list[str]:
    """Return the names of all training protocols, sorted."""
    return _names(PROTOCOLS)


def load_protocol(name: str) -> dict[str, Any]:
    """Return the fields of one training protocol's file.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    return _document(PROTOCOLS, name)


def _names(folder: str) -> list[str]:
    entries = (files("search_spaces") / folder).iterdir()
    return sorted(e.name.removesuffix(".yaml") for e in entries if e.name.endswith(".yaml"))


def _document(folder: str, name: str) -> dict[str, Any]:
    text = (files("search_spaces") / folder / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def parse_space(
    kind: str, name: str, document: dict[str, Any], where: str, entry: Callable[[], Any]
) -> SearchSpace:
    """Return the search space that a document describes; ``where`` names it in messages.

    Types, defaults and choices of parameters come from the fields of the part's class, which
    ``entry`` returns. A document may restrict the searched choices.

    Raises:
        SpaceError: If title or source is missing, or the parameters are not a mapping.
    """
    try:
        given = dict(document.get("parameters") or {})
        title, source = document["title"], document["source"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SpaceError(f"{where}: {_reason(error)}") from error
    of_class = partial(_declared_by, entry)
    marks, portfolio = document.get("on_training"), tuple(document.get("portfolio") or ())
    return SearchSpace(name, kind, title, source, given, of_class, marks, where, portfolio)


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _declared_by(entry: Callable[[], Any]) -> dict[str, dict[str, Any]]:
    return declared(entry())


def _parameter(name: str, given: Mapping[str, Any], of_class: Mapping[str, Any]) -> Parameter:
    fields = {**of_class, **given}
    for key in ("type", "default"):
        if fields.get(key) != of_class.get(key, fields.get(key)):
            raise SpaceError(
                f"{name}: expected the class's {key} {of_class[key]!r}, got {fields[key]!r}; "
                f"leave it out"
            )
    several: dict[str, Any] = {
        key: tuple(fields.get(key) or ()) for key in ("choices", "grid", "tuned", "open")
    }
    ours = fields.get("ours", False)
    several["ours"] = tuple(ours) if isinstance(ours, list) else ours
    several["grids"] = {key: tuple(grid) for key, grid in fields.get("grids", {}).items()}
    return Parameter(name=name, **{**fields, **several})
