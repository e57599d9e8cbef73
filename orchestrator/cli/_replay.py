from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import echo, print_table, progress_bar
from orchestrator.cli._options import Processes

if TYPE_CHECKING:
    from orchestrator.replay import ReplayOutcome, ReplaySettings


def replay(
    storage: Annotated[
        str,
        typer.Argument(help="The storage folder of sweeps that have ended.", show_default=False),
    ],
    settings: Annotated[
        Path | None, typer.Argument(help="The replay file: strategies to compare.")
    ] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help="Only this sweep; may be given again.")
    ] = None,
    searches: Annotated[
        int | None, typer.Option(min=1, help="Number of searches per study, instead of the file's.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Test metric of the choices, instead of the file's.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for tables and plot; default: STORAGE/replay."),
    ] = None,
    processes: Processes = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table for a page.")
    ] = False,
) -> None:
    """Repeat searches with other strategies on stored trials, without training.

    Every stored trial is measured on test data after all choices are made.
    """
    from orchestrator.replay import replay as run
    from orchestrator.replay.output import write_replay
    from orchestrator.storage.storage import Storage

    place, wanted = Storage(storage), _settings(settings, searches, judge)
    with progress_bar("replaying") as show:
        outcome = run(
            place, wanted, sweep or (), processes=processes, measuring=show, searching=show
        )
    _show(outcome, markdown)
    for path in write_replay(outcome, out or place.folder / "replay"):
        echo(f"wrote {path}")


def _settings(path: Path | None, searches: int | None, judge: str | None) -> ReplaySettings:
    from orchestrator.replay import ReplaySettings, load_replay
    from orchestrator.sweep.documents import validate

    found = ReplaySettings() if path is None else load_replay(path)
    given = {"searches": searches, "judge": judge}
    changes = {name: value for name, value in given.items() if value is not None}
    return validate(ReplaySettings, {**found.model_dump(), **changes}, "replay")


def _show(outcome: ReplayOutcome, markdown: bool) -> None:
    from orchestrator.replay.output import cells, headings, notes

    rows = (cells(summary, outcome) for summary in outcome.finals())
    print_table(headings(outcome), rows, ("strategy",), markdown)
    for note in notes(outcome):
        echo(note)
