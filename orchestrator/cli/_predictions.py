import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import echo
from orchestrator.cli._options import StorageFolder, SweepName
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE

if TYPE_CHECKING:
    from orchestrator.storage.ledger import Study, Trial

ENDING = ".npz"


def predictions(
    sweep: SweepName,
    out: Annotated[
        Path, typer.Option(help="FILE.npz for one cell, or a folder.", show_default=False)
    ],
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Only this recipe.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only this seed.")] = None,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> None:
    """Write test logits, labels and row numbers for the cells of a table, one file per seed."""
    from orchestrator.packages.stored import StoredSweep
    from orchestrator.storage.storage import Storage

    stored = StoredSweep.open(Storage(storage), sweep)
    chosen = stored.cells(task, recipe, seed)
    for (study, trial), path in zip(chosen, _paths(out, chosen), strict=True):
        stored.tested(study, trial).save(path)
        echo(f"wrote {path}")


def _paths(out: Path, cells: "list[tuple[Study, Trial]]") -> list[Path]:
    if out.suffix == ENDING:
        if len(cells) > 1:
            raise InputError(
                f"--out {out}: expected one cell for one file, got {len(cells)}; use a folder, or "
                "select a cell with --task, --recipe and --seed"
            )
        return [out]
    from orchestrator.logits.files import make_folder

    stems = [f"{study.task}-{study.recipe}-seed-{trial.seed}" for study, trial in cells]
    names = [re.sub(r"[^\w.+-]+", "_", stem) + ENDING for stem in stems]
    if len(set(names)) < len(names):
        raise InputError(
            f"--out {out}: cells of two tasks would have the same file name; select one with --task"
        )
    folder = make_folder(out)
    return [folder / name for name in names]
