"""MLflow's model registry: one version a run, and an alias that points to one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mlflow.entities.model_registry import RegisteredModel
from mlflow.exceptions import MlflowException

from orchestrator.tracking import _names as names
from orchestrator.tracking._server import RefusedError, Server, quoted, translated
from trainables.errors import InputError

__all__ = ["download", "register"]

PLACE = "model"
"""Folder among a run's artifacts."""


def register(
    server: Server, task: str, run_id: str, folder: Path, tags: Mapping[str, str], alias: str
) -> tuple[str, str, bool]:
    """Make a folder the version of a registered model that an alias points to.

    A run has one version at most: doing it again changes nothing but the alias.

    Args:
        server: The store.
        task: The task that the model is for, after which it is named.
        run_id: The run that the folder comes from.
        folder: What to store.
        tags: Tags of the version.
        alias: The alias.

    Returns:
        The model's name, the version, and whether the alias pointed to another one before.

    Raises:
        InputError: If the store gives no answer, or another task's model has the name.
    """
    name = model_name(task)
    with translated(server.uri):
        model = _model(server, name, task)
        known = server.client.search_model_versions(
            f"name = {quoted(name)} AND run_id = {quoted(run_id)}"
        )
        version = str(known[0].version) if known else _create(server, name, run_id, folder, tags)
        moved = str(model.aliases.get(alias, "")) != version
        if moved:
            server.client.set_registered_model_alias(name, alias, version)
    return name, version, moved


def download(server: Server, task: str, alias: str, folder: Path) -> Path:
    """Download the version that an alias points to and return its folder.

    Raises:
        InputError: If there is none, or the store gives no answer.
    """
    name = model_name(task)
    try:
        with translated(server.uri):
            version = server.client.get_model_version_by_alias(name, alias)
            folder.mkdir(parents=True, exist_ok=True)
            # Not by its models:/ address: that is looked up in the process's default registry.
            place = server.client.download_artifacts(str(version.run_id), PLACE, str(folder))
    except RefusedError as error:
        raise InputError(f"no model {name!r} with alias {alias!r}: {error}") from error
    return Path(place)


def model_name(task: str) -> str:
    """Return a task's name with the signs that a registry accepts."""
    return task.replace("/", ".").replace(":", "-")


def _model(server: Server, name: str, task: str) -> RegisteredModel:
    try:
        model = server.client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return server.client.create_registered_model(name, tags={names.TASK: task})
    if model.tags.get(names.TASK) != task:
        raise InputError(
            f"registered model {name!r} is not that of task {task!r}; rename or delete it"
        )
    return model


def _create(server: Server, name: str, run_id: str, folder: Path, tags: Mapping[str, str]) -> str:
    server.client.log_artifacts(run_id, str(folder), PLACE)
    made = server.client.create_model_version(
        name, f"runs:/{run_id}/{PLACE}", run_id, tags=dict(tags)
    )
    return str(made.version)
