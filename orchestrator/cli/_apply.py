"""``calsweep apply``: a saved calibrator on a file of logits."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli._console import echo
from orchestrator.cli._options import Bins, Kind, Plugins, use_plugins
from trainables.common.errors import InputError
from trainables.common.paths import local_path


def apply(
    calibrator: Annotated[Path, typer.Argument(help="Folder of a saved calibrator.")],
    logits: Annotated[Path, typer.Argument(help="File: .npz, or a pickled (val, test).")],
    out: Annotated[Path, typer.Option(help="The .npz to write.")] = Path("calibrated.npz"),
    kind: Kind = None,
    bins: Bins = 15,
    plugin: Plugins = None,
) -> None:
    """Map logits by a saved calibrator; write log-probabilities and print ECE and accuracy.

    The figures are honest only for rows that the calibrator was not fitted on.
    """
    from orchestrator.logits.files import make_folder, save_log_probs
    from orchestrator.logits.scoring import score
    from trainables.calibrators import load_calibrator
    from trainables.data import read_logits

    if out.suffix != ".npz":
        raise InputError(f"{out}: ending {out.suffix!r}, allowed is .npz")
    use_plugins(plugin)
    make_folder(local_path(out, "--out").parent)
    rows = read_logits(logits, kind).rows
    log_probs = load_calibrator(calibrator)(rows.logits)
    save_log_probs(out, log_probs, rows.labels)
    ece, accuracy, nll = score(log_probs, rows.labels, bins)
    echo(f"ECE {100 * ece:.2f} %, accuracy {100 * accuracy:.2f} %, NLL {nll:.4f}: {out}")
