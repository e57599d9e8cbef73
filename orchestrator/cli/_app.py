"""The command's frame: its sub-commands, and how it fails."""

import gc as collector
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import typer

from orchestrator.cli import nightly
from orchestrator.cli._arena import arena
from orchestrator.cli._best import best
from orchestrator.cli._claims import claims
from orchestrator.cli._combinations import Command
from orchestrator.cli._compare import compare
from orchestrator.cli._console import complain
from orchestrator.cli._doctor import doctor
from orchestrator.cli._list import check_plugin, list_names
from orchestrator.cli._logits import apply, calibrate
from orchestrator.cli._plan import plan
from orchestrator.cli._predictions import predictions
from orchestrator.cli._ranks import ranks
from orchestrator.cli._replay import replay
from orchestrator.cli._report import plot, report
from orchestrator.cli._reproduce import reproduce
from orchestrator.cli._run import demo, run, submit
from orchestrator.cli._storage import gc, sync
from orchestrator.cli._table import table
from orchestrator.cli._travel import export_blackbox, merge, publish, verify
from orchestrator.cli._ui import dashboard, ui
from orchestrator.cli._watch import cancel, go_on, logs, pause, status
from trainables.common.errors import InputError, UnwrittenError
from trainables.common.sharing import why

UNWRITTEN, WRONG_INPUT = 1, 2
NOTE = "DataNote"  # Its class takes PyTorch's second to import.
INTERRUPTED = 130  # What typer makes of Ctrl-C, and a sweep that ended by it returns.

app = typer.Typer(
    name="calsweep",
    help="Hyper-parameter sweeps and comparison tables for the calibration of neural networks.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calsweep {version('calsweep')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Take the options that stand before a sub-command; without one, show the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WRONG_INPUT)


NAMES = {go_on: "continue", list_names: "list"}  # Which these functions cannot have.
for command in (
    *(demo, run, submit, status, logs, cancel, pause, plan, best, reproduce, table, predictions),
    *(compare, ranks, claims, report, ui, dashboard, publish, verify, merge, export_blackbox),
    *(replay, plot, go_on, sync, calibrate, apply, arena, list_names, check_plugin, doctor, gc),
):
    app.command(NAMES.get(command), cls=Command)(command)
app.add_typer(nightly.app, name="nightly")


def _message(error: typer.TyperException) -> str:
    """Return what typer complains of, in one line."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    # pydantic, by which typer reads values, begins the messages of choices so.
    return " ".join(text.split()).replace(": Value error, ", ": ")


@contextmanager
def _notes_in_a_line() -> Iterator[None]:
    """Show how data were understood as one line each, and each once."""
    told: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_note(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if category.__name__ != NOTE:
                show(message, category, *where)
            elif str(message) not in told:
                told.add(str(message))
                complain(f"note: {message}")

        warnings.showwarning = show_note  # type: ignore[assignment]
        yield


def main(arguments: list[str] | None = None) -> int:
    """Run the command; see ``orchestrator.cli.main``."""
    try:
        with _notes_in_a_line():
            outcome = app(args=arguments, prog_name="calsweep", standalone_mode=False)
    except UnwrittenError as error:
        complain(str(error))
        return UNWRITTEN
    except InputError as error:
        complain(str(error))
        return WRONG_INPUT
    except typer.TyperException as error:
        complain(_message(error))
        return WRONG_INPUT
    except PermissionError as error:
        complain(why(error))
        return WRONG_INPUT
    except (KeyboardInterrupt, typer.Abort):
        outcome = INTERRUPTED
    finally:
        if arguments is None:  # This process ends: another Ctrl-C shall not take its exit code.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            collector.freeze()  # Else the end looks for cycles in all of PyTorch, for a second.
    if outcome == INTERRUPTED:
        # Ctrl-C within a library's ``exec`` of a string leaves a mark, for which ``python -m``
        # would end as if killed by it; another ``exec`` clears that.
        exec("")  # noqa: S102
        complain("interrupted")
    return outcome if isinstance(outcome, int) else 0
