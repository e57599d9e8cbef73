"""Tracking databases that MLflow has made before: it takes seconds for each."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch


@cache
def empty_database() -> bytes:
    """Return what MLflow makes of a new file."""
    from mlflow import MlflowClient

    with TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/mlflow.db"
        MlflowClient(tracking_uri=uri, registry_uri=uri)
        return Path(folder, "mlflow.db").read_bytes()


def place_database(storage: Path) -> Path:
    storage.mkdir(parents=True, exist_ok=True)
    (storage / "mlflow.db").write_bytes(empty_database())
    return storage


def databases_made() -> Any:
    """Return a context within which this process copies one instead of having one made."""
    return patch(
        "orchestrator.tracking.mlflow.server._create",
        lambda file: file.write_bytes(empty_database()),
    )
