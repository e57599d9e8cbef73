"""Options that several sub-commands share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Storage", "TrackingUri"]

TrackingUri = Annotated[
    str | None,
    typer.Option(help="MLflow URI; default: MLFLOW_TRACKING_URI, else the storage's database."),
]
Storage = Annotated[str, typer.Option(help="Storage folder whose database is asked.")]
