"""``calsweep demo``, ``run`` and ``plan``."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from trainables.errors import InputError

__all__ = ["demo", "plan", "run"]

DEMO = "demo.yaml"

SweepFile = Annotated[Path, typer.Argument(help="The sweep file.", show_default=False)]
Fresh = Annotated[
    bool, typer.Option(help="Start over under the next free name, keeping what is there.")
]
Address = Annotated[
    str | None,
    typer.Option(help="A Ray cluster: auto, HOST:PORT or ray://HOST:PORT; default: this machine."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def demo(
    tasks: Annotated[
        str | None, typer.Option(help="dataset/model/protocol, several separated by commas.")
    ] = None,
    recipes: Annotated[str | None, typer.Option(help="Recipes, separated by commas.")] = None,
    trials: Annotated[int | None, typer.Option(help="Trials of each study.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Folder for everything that the demo writes.")
    ] = None,
    fresh: Fresh = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")] = False,
    quiet: Quiet = False,
) -> int:
    """Sweep 28 recipes on scikit-learn's handwritten digits, in a few minutes on two cores."""
    from orchestrator.spec import parse_sweep

    text = (files("orchestrator") / "examples" / DEMO).read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    if tasks is not None:
        document["tasks"] = [_task(text) for text in _items("--tasks", tasks)]
    if recipes is not None:
        document["recipes"] = _items("--recipes", recipes)
    if trials is not None:
        document["search"]["trials"] = trials
    if seeds is not None:
        document["seeds"] = [_whole("--seeds", item) for item in _items("--seeds", seeds)]
    if storage is not None:
        document["storage"] = storage
    if any(choice is not None for choice in (tasks, recipes, trials, seeds)):
        # The demo as shipped keeps its name: another selection is another sweep.
        document["name"] = f"demo-{_short_hash(document)}"
        _drop_foreign_parts(document)
    spec = parse_sweep(yaml.safe_dump(document), "demo")
    return _show_plan(spec) if dry_run else _run(spec, False, fresh, None, quiet)


def run(
    sweep: Annotated[str | None, typer.Argument(help="The sweep file.", show_default=False)] = None,
    resume: Annotated[
        str | None, typer.Option(help="Name of a sweep to go on with; needs no sweep file.")
    ] = None,
    storage: Annotated[
        str, typer.Option(help="With --resume: the folder that the sweep is stored in.")
    ] = "calsweep-storage",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")] = False,
    fresh: Fresh = False,
    address: Address = None,
    quiet: Quiet = False,
) -> int:
    """Run a sweep file, or go on with a sweep that was interrupted."""
    from orchestrator.run import load_existing
    from orchestrator.spec import load_sweep

    if (sweep is None) == (resume is None):
        raise InputError("give either a sweep file or --resume NAME")
    if address is not None and address.startswith("ray://") and not dry_run:
        return _run_on_head(address, sweep, resume, storage, fresh, quiet)
    spec = load_existing(resume, storage) if resume is not None else load_sweep(str(sweep))
    if dry_run:
        return _show_plan(spec)
    return _run(spec, resume is not None, fresh, address, quiet)


def plan(sweep: SweepFile) -> int:
    """Show what a sweep file would compute, and what is there already."""
    from orchestrator.spec import load_sweep

    return _show_plan(load_sweep(sweep))


def _run(spec: Any, resume: bool, fresh: bool, address: str | None, quiet: bool) -> int:
    from orchestrator.cli._report import show_outcome
    from orchestrator.run import run_sweep

    console = None if quiet else Console(stderr=True)
    outcome = run_sweep(spec, resume=resume, fresh=fresh, address=address, console=console)
    return show_outcome(outcome, address)


def _run_on_head(
    address: str, sweep: str | None, resume: str | None, storage: str, fresh: bool, quiet: bool
) -> int:
    """Run a sweep file, or resume a sweep whose storage only the cluster may see."""
    from orchestrator._ray_client import FILE, run_on_head
    from orchestrator.spec import load_sweep
    from orchestrator.submit import travelling

    flags = [flag for flag, given in (("--fresh", fresh), ("--quiet", quiet)) if given]
    if sweep is None:
        target, files = ["--resume", str(resume), "--storage", storage], {}
    else:
        target, files = [FILE], {FILE: travelling(Path(sweep), load_sweep(sweep))}
    write = partial(typer.echo, nl=False)
    return run_on_head(address, ["run", *target, *flags], files, write)


def _show_plan(spec: Any) -> int:
    from orchestrator.cli._report import show_plan
    from orchestrator.plan import make_plan

    show_plan(make_plan(spec))
    return 0


def _items(option: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError(f"{option}: {text!r} names nothing")
    return items


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"{option}: {text!r} is not a whole number") from error


def _task(text: str) -> dict[str, Any]:
    """Read ``dataset/model/protocol``; the data set may be a path with slashes of its own."""
    pieces = text.rsplit("/", 2)
    if len(pieces) == 3 and pieces[2].replace(".", "", 1).isdigit():
        # A short form such as mukhoti2020/0.1: the protocol itself holds a slash.
        pieces = text.rsplit("/", 3)
        pieces = [*pieces[:2], "/".join(pieces[2:])]
    if len(pieces) != 3 or not all(pieces):
        raise InputError(f"--tasks: {text!r} is not dataset/model/protocol")
    dataset, model, protocol = pieces
    return {"dataset": dataset, "model": model, "protocol": protocol}


def _short_hash(document: dict[str, Any]) -> str:
    from trainables.artifacts import stage_key

    content = {key: document[key] for key in ("tasks", "recipes", "search", "seeds")}
    return stage_key("demo", **content)[:8]


def _drop_foreign_parts(document: dict[str, Any]) -> None:
    """Leave out settings of parts that the chosen recipes do not have."""
    from orchestrator.recipes import expand_recipes

    parts = {part for r in expand_recipes(document["recipes"]) for part in r.name.split("+")}
    for section in ("fixed", "spaces"):
        chosen = document["search"].get(section, {})
        document["search"][section] = {k: v for k, v in chosen.items() if k in parts}
