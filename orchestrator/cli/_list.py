"""``calsweep list``."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["list_names"]


class Catalogue(StrEnum):
    """What can be listed."""

    methods = "methods"
    refinements = "refinements"
    calibrators = "calibrators"
    objectives = "objectives"
    datasets = "datasets"
    suites = "suites"
    models = "models"
    protocols = "protocols"
    layouts = "layouts"


def list_names(what: Annotated[Catalogue, typer.Argument(help="What to list.")]) -> int:
    """List what sweep files may name, with the parameters that a search varies."""
    from rich.table import Table

    from orchestrator.cli._console import output

    console = output()
    if what is Catalogue.layouts:
        console.print(_layouts())
        return 0
    plain = _plain_names(what)
    if plain is not None:
        for name in plain():
            console.print(name)
        return 0
    table = Table(box=None)
    table.add_column("name", no_wrap=True)
    for heading in ("title", "searched: default in [range]", "source"):
        table.add_column(heading, overflow="fold")
    for name in _registered(what):
        table.add_row(name, *_describe(what.value, name))
    console.print(table)
    return 0


def _layouts() -> Table:
    from rich.table import Table

    from orchestrator.layouts import layout_names, load_layout

    table = Table("name", "title", box=None)
    for name in layout_names():
        table.add_row(name, load_layout(name).title)
    return table


def _plain_names(what: Catalogue) -> Callable[[], list[str]] | None:
    from trainables.data import source_names
    from trainables.models import model_names
    from trainables.protocols import protocol_names
    from trainables.suites import suite_names

    listings: dict[Catalogue, Callable[[], list[str]]] = {
        Catalogue.datasets: source_names,
        Catalogue.suites: suite_names,
        Catalogue.models: lambda: [*model_names(), "timm:NAME", "torchvision:NAME"],
        Catalogue.protocols: protocol_names,
    }
    return listings.get(what)


def _registered(what: Catalogue) -> list[str]:
    from trainables.calibrators import CALIBRATORS, OBJECTIVES
    from trainables.methods import method_names
    from trainables.refinements import REFINEMENTS

    listings: dict[Catalogue, Callable[[], list[str]]] = {
        Catalogue.methods: method_names,
        Catalogue.refinements: REFINEMENTS.names,
        Catalogue.calibrators: CALIBRATORS.names,
        Catalogue.objectives: OBJECTIVES.names,
    }
    return listings[what]()


def _describe(kind: str, name: str) -> tuple[str, str, str]:
    from search_spaces import Parameter, load_space

    def show(parameter: Parameter) -> str:
        if parameter.type == "categorical":
            choices = ", ".join(map(str, parameter.choices))
            return f"{parameter.name} {parameter.default} in {{{choices}}}"
        return f"{parameter.name} {parameter.default:g} in [{parameter.low:g}, {parameter.high:g}]"

    space = load_space(kind, name)
    searched = "; ".join(show(parameter) for parameter in space.searched().values())
    return space.title, searched, space.source
