"""The command with its sub-commands, and the handling of errors."""

import gc as collector
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import typer
from typer.core import TyperGroup

from orchestrator.cli import nightly
from orchestrator.cli._arena import arena
from orchestrator.cli._best import best
from orchestrator.cli._compare import compare
from orchestrator.cli._console import complain
from orchestrator.cli._doctor import doctor
from orchestrator.cli._features import extract
from orchestrator.cli._list import list_names
from orchestrator.cli._logits import apply, calibrate
from orchestrator.cli._options import Command
from orchestrator.cli._plan import plan
from orchestrator.cli._predictions import predictions
from orchestrator.cli._replay import replay
from orchestrator.cli._report import report
from orchestrator.cli._run import demo, run, submit
from orchestrator.cli._storage import gc, sync
from orchestrator.cli._table import table
from orchestrator.cli._travel import accept, board, export_blackbox, merge, publish, verify
from orchestrator.cli._ui import ui
from orchestrator.cli._watch import cancel, logs, pause, resume, status
from trainables.common.errors import InputError, UnwrittenError
from trainables.common.files import why

UNWRITTEN, WRONG_INPUT = 1, 2
NOTE = "DataNote"  # Compared by name: importing the class would import PyTorch.
INTERRUPTED = 130  # Exit code after Ctrl-C, of typer and of interrupted sweeps.

Commands = Sequence[Callable[..., Any]]
MOVED = {
    **{name: f"package {name}" for name in ("publish", "merge", "verify", "predictions")},
    **{name: f"logits {name}" for name in ("calibrate", "apply", "arena")},
    **{name: f"storage {name}" for name in ("sync", "gc")},
    "replay": "search replay",
    "export-blackbox": "search blackbox",
    "continue": "resume NAME",
    "dashboard": "ui",
    "plot": "report NAME --plots FOLDER",
    "ranks": "compare NAME --ranks",
    "claims": "compare NAME --claims",
    "reproduce": "run --reproduce RUN",
    "check-plugin": "doctor --plugin PLUGIN",
}


class _Commands(TyperGroup):
    """The top-level commands, including hints for commands that were renamed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first argument names; raise ``InputError`` for an old name."""
        if args[0] in MOVED and not ctx.resilient_parsing:
            raise InputError(f"{args[0]!r} is now 'calsweep {MOVED[args[0]]}'")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="calsweep",
    cls=_Commands,
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
    """Handle options before a sub-command; show the help if there is no sub-command."""
    _show_help(context)


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WRONG_INPUT)


NAMES: Mapping[Callable[..., Any], str] = {list_names: "list", export_blackbox: "blackbox"}
TOP: Commands = (
    *(run, plan, table, compare, best, report, ui, status, logs, pause, resume, cancel),
    *(list_names, doctor, demo, submit),
)
GROUPS: Mapping[str, tuple[str, Commands]] = {
    "package": (
        "Publish results, and verify those of others.",
        (publish, merge, verify, predictions, accept, board),
    ),
    "features": ("Compute the features of a network, to train heads on them.", (extract,)),
    "logits": ("Calibrate files of logits.", (calibrate, apply, arena)),
    "storage": ("Upload missing runs, and remove artifacts that no sweep needs.", (sync, gc)),
    "search": ("Repeat searches on stored trials, or export trials.", (replay, export_blackbox)),
    "nightly": (
        "Run a fixed benchmark every night, and report when something got worse.",
        (nightly.run, nightly.status, nightly.history, nightly.accept, nightly.gate),
    ),
}


def _add(commands: Commands, group: typer.Typer) -> None:
    for command in commands:
        group.command(NAMES.get(command), cls=Command)(command)


_add(TOP, app)
for name, (about, commands) in GROUPS.items():
    group = typer.Typer(
        help=about, callback=_show_help, invoke_without_command=True, rich_markup_mode=None
    )
    _add(commands, group)
    app.add_typer(group, name=name)


def _message(error: typer.TyperException) -> str:
    """Return typer's error message as one line."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    # pydantic, which typer uses, begins messages about choices with "Value error".
    return " ".join(text.split()).replace(": Value error, ", ": ")


@contextmanager
def _notes_in_a_line() -> Iterator[None]:
    """Print each different ``DataNote`` once, as one line."""
    printed: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_note(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if category.__name__ != NOTE:
                show(message, category, *where)
            elif str(message) not in printed:
                printed.add(str(message))
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
        if arguments is None:  # The process ends: another Ctrl-C must not change its exit code.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            collector.freeze()  # Otherwise the final garbage collection takes a second.
    if outcome == INTERRUPTED:
        # After Ctrl-C within a library's ``exec``, ``python -m`` would report a death by signal;
        # another ``exec`` clears that state.
        exec("")  # noqa: S102
        complain("interrupted")
    return outcome if isinstance(outcome, int) else 0
