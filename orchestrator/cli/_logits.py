"""``calsweep logits calibrate`` and ``apply``: post-hoc calibration of files of logits."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli._console import echo
from orchestrator.cli._options import Bins, Kind, Plugins, split_names, use_plugins
from trainables.common.errors import InputError


def calibrate(
    logits: Annotated[
        list[Path], typer.Argument(help="Files: .npz, .npy pairs, .csv, .tsv, .parquet, .h5, .p.")
    ],
    with_: Annotated[
        str, typer.Option("--with", help="Calibrators, separated by commas.")
    ] = "ts,ets,pts,cts",
    objectives: Annotated[
        str, typer.Option(help="Fitting objectives, separated by commas.")
    ] = "ce,ls,fl,cls",
    fit_rows: Annotated[
        str | None, typer.Option(help="Rows to fit on, such as 0:5000; the others are scored.")
    ] = None,
    fit: Annotated[
        Path | None, typer.Option(help="Another file to fit on; all rows of LOGITS are scored.")
    ] = None,
    kind: Kind = None,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for the fitted calibrators and the table."),
    ] = None,
    bins: Bins = 15,
    plugin: Plugins = None,
) -> None:
    """Fit calibrators on logits and print ECE (accuracy) and the gain over the objective ce.

    No row is scored by a calibrator that was fitted on it. Without --fit-rows or --fit, calibrators
    are fitted on the first part of a pickled pair and scored on the second; other files are scored
    by cross-validation with five folds.
    """
    from rich.console import Console

    from orchestrator.logits.calibrate import calibrate_table, check_names, plan_task, save_table
    from trainables.data import read_logits

    use_plugins(plugin)
    names, chosen = split_names(with_), split_names(objectives)
    check_names(names, chosen)
    other = None if fit is None else read_logits(fit, kind)
    tasks = [plan_task(read_logits(path, kind), fit_rows, other) for path in logits]
    console = Console(stderr=True, highlight=False)
    table = calibrate_table(tasks, names, chosen, bins, out, console)
    echo("ECE % (accuracy %) and gain over ce; above 0 is better, * see below")
    for line in [*table.lines(), *table.notes()]:
        echo(line)
    if out is not None:
        save_table(table, out)
        echo(f"calibrators and table in {out}")


def apply(
    calibrator: Annotated[Path, typer.Argument(help="Folder of a saved calibrator.")],
    logits: Annotated[Path, typer.Argument(help="File: .npz, or a pickled (val, test).")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="The .npz to write.")] = Path(
        "calibrated.npz"
    ),
    kind: Kind = None,
    bins: Bins = 15,
    plugin: Plugins = None,
) -> None:
    """Apply a saved calibrator to logits; write log-probabilities, print ECE and accuracy.

    The figures are unbiased only for rows on which the calibrator was not fitted.
    """
    from orchestrator.logits.files import make_folder, save_log_probs
    from orchestrator.logits.scoring import score
    from trainables.calibrators import load_calibrator
    from trainables.data import read_logits

    if out.suffix != ".npz":
        raise InputError(f"{out}: expected a name that ends with .npz, got {out.suffix!r}")
    use_plugins(plugin)
    make_folder(out.parent)
    rows = read_logits(logits, kind).rows
    log_probs = load_calibrator(calibrator)(rows.logits)
    save_log_probs(out, log_probs, rows.labels)
    ece, accuracy, nll = score(log_probs, rows.labels, bins)
    echo(f"ECE {100 * ece:.2f} %, accuracy {100 * accuracy:.2f} %, NLL {nll:.4f}: {out}")
