"""``calsweep list``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from orchestrator.cli._console import output

if TYPE_CHECKING:
    from search_spaces import Parameter

Catalogue = Literal[
    "methods",
    "refinements",
    "calibrators",
    "objectives",
    "datasets",
    "suites",
    "models",
    "protocols",
    "layouts",
]


def list_names(what: Annotated[Catalogue, typer.Argument(help="What to list.")]) -> None:
    """List what sweep files may name, with the parameters that a search varies."""
    if what == "layouts":
        output().print(_layouts())
        return
    names = _names_of(what)()
    if what in ("methods", "refinements", "calibrators", "objectives"):
        output().print(_spaces(what, names))
        return
    for name in names:
        output().print(name)


def _layouts() -> Table:
    from orchestrator.tables.layouts import layout_names, load_layout

    table = Table("name", "title", box=None)
    for name in layout_names():
        table.add_row(name, load_layout(name).title)
    return table


def _names_of(what: str) -> Callable[[], list[str]]:
    from trainables.calibrators import CALIBRATORS, OBJECTIVES
    from trainables.data import source_names
    from trainables.data.suites import suite_names
    from trainables.methods import method_names
    from trainables.models import model_names
    from trainables.refinements import REFINEMENTS
    from trainables.stages.protocols import protocol_names

    return {
        "methods": method_names,
        "refinements": REFINEMENTS.names,
        "calibrators": CALIBRATORS.names,
        "objectives": OBJECTIVES.names,
        "datasets": source_names,
        "suites": suite_names,
        "models": lambda: [*model_names(), "timm:NAME", "torchvision:NAME"],
        "protocols": protocol_names,
    }[what]


def _spaces(kind: str, names: Iterable[str]) -> Table:
    from search_spaces import load_space

    table = Table(box=None)
    table.add_column("name", no_wrap=True)
    for heading in ("title", "searched: default in [range]", "source"):
        table.add_column(heading, overflow="fold")
    for name in names:
        space = load_space(kind, name)
        searched = "; ".join(map(_range, space.searched().values()))
        table.add_row(name, space.title, searched, space.source)
    return table


def _range(parameter: Parameter) -> str:
    if parameter.type == "categorical":
        choices = ", ".join(map(str, parameter.choices))
        return f"{parameter.name} {parameter.default} in {{{choices}}}"
    return f"{parameter.name} {parameter.default:g} in [{parameter.low:g}, {parameter.high:g}]"
