"""``calsweep list``: names for sweep files."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from orchestrator.cli._console import output, print_json, print_plain
from orchestrator.cli._options import Json, Plugins, use_plugins
from orchestrator.cli._watch import status
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE

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
    "metrics",
    "protocols",
    "layouts",
    "sweeps",
]
SPACES = ("methods", "refinements", "calibrators", "objectives")


def list_names(
    what: Annotated[Catalogue, typer.Argument(help="What to list.")],
    storage: Annotated[str | None, typer.Option(help="Storage folder, for `list sweeps`.")] = None,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """List names for sweep files, with the parameters that are searched, or list the sweeps."""
    if plugin and what in ("sweeps", "layouts", "protocols"):
        raise InputError(f"--plugin has no effect on `list {what}`: no plugin adds {what}")
    if storage is not None and what != "sweeps":
        raise InputError(f"--storage has no effect on `list {what}`: leave it out")
    if what not in ("sweeps", "layouts", "protocols"):
        use_plugins(plugin)
    if what == "sweeps":
        status(None, storage or DEFAULT_STORAGE, as_json)
    elif as_json:
        print_json(_records(what))
    elif what in ("layouts", "metrics"):
        records = _records(what)
        print_plain([*records[0]], [[*record.values()] for record in records])
    elif what in SPACES:
        _print_spaces(what)
    else:
        for name in _names_of(what)():
            output().print(name)


def _records(what: str) -> list[dict[str, Any]]:
    if what == "layouts":
        from orchestrator.tables.layouts import layout_names, load_layout

        return [{"name": name, "title": load_layout(name).title} for name in layout_names()]
    if what == "metrics":
        from orchestrator.tables.columns import column
        from trainables.metrics import METRICS

        return [{"name": m.name, "shown as": column(m.name).heading} for m in METRICS.values()]
    names = _names_of(what)()
    if what not in SPACES:
        return [{"name": name} for name in names]
    from search_spaces import load_space

    fields = ("name", "kind", "title", "source", "parameters", "on_training")
    spaces = (load_space(what, name) for name in names)
    return [
        {field: getattr(space, field) for field in fields}
        | {"parameters": {name: asdict(each) for name, each in space.parameters.items()}}
        for space in spaces
    ]


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
        "models": lambda: [*model_names(), "timm:NAME", "torchvision:NAME", "hf:ORG/NAME@COMMIT"],
        "protocols": protocol_names,
    }[what]


def _print_spaces(kind: str) -> None:
    from search_spaces import load_space

    table = Table(box=None)
    table.add_column("name", no_wrap=True)
    for heading in ("title", "searched: default in [range]", "source"):
        table.add_column(heading, overflow="fold")
    for name in _names_of(kind)():
        space = load_space(kind, name)
        searched = "; ".join(map(_range, space.searched().values()))
        table.add_row(name, space.title, searched, space.source)
    output().print(table)


def _range(parameter: "Parameter") -> str:
    if parameter.type == "categorical":
        choices = ", ".join(map(str, parameter.choices))
        return f"{parameter.name} {parameter.default} in {{{choices}}}"
    return f"{parameter.name} {parameter.default:g} in [{parameter.low:g}, {parameter.high:g}]"
