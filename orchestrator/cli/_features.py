"""``calsweep features extract``: the features of a network on a data set."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from orchestrator.cli._console import complain, echo
from orchestrator.cli._options import DataRoot, Plugins, Quiet, use_plugins


def extract(
    model: Annotated[
        str, typer.Argument(help="A network, such as timm:NAME@pretrained, or clip:FOLDER.")
    ],
    dataset: Annotated[str, typer.Argument(help="A data set, such as folder:PATH.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the features.")],
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Prompt of clip: models with {} for the class; several are averaged; "
            "default: 'a photo of a {}.'"
        ),
    ] = None,
    data_root: DataRoot = "data",
    quiet: Quiet = False,
    plugin: Plugins = None,
) -> None:
    """Compute a network's features of all rows of a data set, for tasks with `features: FOLDER`.

    After an interruption, run the same command again to continue.
    """
    from trainables.common.devices import default_device
    from trainables.models import CLIP, PRETRAINED, begins_trained
    from trainables.stages.extract import extract_features

    use_plugins(plugin)
    if not begins_trained(model):
        complain(f"note: {model} has random weights; pretrained ones are timm:NAME{PRETRAINED}")
    notice = (lambda text: None) if quiet else complain
    device, prompts = default_device(), tuple(template or ())
    counts = extract_features(model, dataset, data_root, out, device, notice, prompts)
    rows = ", ".join(f"{count:,} {part}" for part, count in counts.items())
    tasks = f"tasks: [{_task(features=str(out))}]"
    if model.startswith(CLIP):
        tasks = f"tasks: [{_task(features=str(out), model='probe')}]"
        tasks += f", or [{_task(logits=str(out))}] for zero-shot logits"
    echo(f"features of {rows} rows in {out}; in a sweep file: {tasks}")


def _task(**fields: str) -> str:
    """Return a task in one line of YAML."""
    options: Any = {"default_flow_style": True, "allow_unicode": True, "sort_keys": False}
    return yaml.safe_dump(fields, width=math.inf, **options).strip()
