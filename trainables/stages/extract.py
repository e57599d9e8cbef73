"""Computes the features of a network on a data set, block by block, and stores them."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from trainables.common.errors import InputError
from trainables.common.files import LOCK_MODE, make_folders, write_whole, writing
from trainables.data import Rows, Source, read_pictures, read_source
from trainables.models import CLIP, TEMPLATES, ImageTextModel, Network, check_templates
from trainables.stages.engine import EVALUATION_BATCH, every_row, in_batches, place, seeded_network

DESCRIPTION = "features.json"
UNFINISHED = ".part"
CHANGING = (
    "rows",
    "weights",
    "settings",
    "templates",
)  # Fields of the description that names do not show.
Notice = Callable[[str], None]


def extract_features(
    model: str,
    dataset: str,
    root: Path | str,
    out: Path,
    device: torch.device,
    notice: Notice,
    templates: Sequence[str] = (),
) -> dict[str, int]:
    """Store the features of all rows as ``.npy`` files in a folder for a task of ``features``.

    Files of features get their final names once all are complete. After an interruption, the next
    call with the same network and data continues and gives the same bits. Features of an image-text
    model are stored with class embeddings, for tasks of ``logits`` as well.

    Args:
        model: See ``build_model``; random weights are those of seed 0. Or see ``ImageTextModel``.
        dataset: A name as in ``source_names``.
        root: The folder of downloaded data sets.
        out: The folder to write to; created if missing.
        device: The device of the network.
        notice: Receives messages about the progress.
        templates: Prompts of an image-text model; the default is ``TEMPLATES``.

    Returns:
        Number of rows of each part: ``train``, and ``validation`` and ``test`` if the data set has
        its own.
    """
    if model.startswith(CLIP):
        source, encoder = _image_text(model, dataset, root, device, templates or TEMPLATES)
    elif templates:
        raise InputError(f"model {model!r} has no text tower; leave out --template")
    else:
        source, encoder = _network(model, dataset, root, device)
    parts = _parts(source.train, source.test)
    with writing(out), _locked(out):
        fields = {"model": model, "dataset": dataset, "rows": source.fingerprint}
        _describe(out, {**fields, **encoder.fields})
        drafts = [
            _write_part(out / f"features_{name}.npy", rows, encoder, notice)
            for name, rows in parts.items()
        ]
        for name, rows in parts.items():
            np.save(out / f"labels_{name}.npy", rows.labels)
        for name, values in {"classes": source.info.classes, **encoder.arrays}.items():
            np.save(out / f"{name}.npy", np.array(values))
        # Rename the training rows last: a folder without them is refused.
        for draft in reversed(drafts):
            if draft.exists():
                os.replace(draft, draft.with_suffix(""))
    return {name: len(rows) for name, rows in parts.items()}


@dataclass(frozen=True)
class _Encoder:
    """Computes features (N, ``width``); ``fields`` describe it, ``arrays`` are stored as well."""

    width: int
    compute: Callable[[np.ndarray], np.ndarray]
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)


def _network(
    model: str, dataset: str, root: Path | str, device: torch.device
) -> tuple[Source, _Encoder]:
    source = read_source(dataset, root)
    info = source.info.fitted(source.train)
    network = place(seeded_network(model, info, 0), device)

    def compute(values: np.ndarray) -> np.ndarray:
        batcher = info.inputs.batcher(info.inputs.encode(values), device)
        found = in_batches(network, _features(network, batcher.plain), every_row(batcher))
        return found.cpu().numpy()

    return source, _Encoder(network.feature_dim, compute)


def _image_text(
    model: str, dataset: str, root: Path | str, device: torch.device, templates: Sequence[str]
) -> tuple[Source, _Encoder]:
    check_templates(templates)
    loaded = ImageTextModel(model, device)
    source = read_pictures(dataset, root)
    embeddings = loaded.class_embeddings(source.info.classes, templates)
    fields = {"weights": loaded.weights, "settings": loaded.settings, "templates": [*templates]}
    arrays = {"class_embeddings": embeddings, "logit_scale": np.float32(loaded.logit_scale)}
    return source, _Encoder(embeddings.shape[1], loaded.image_features, fields, arrays)


def _features(network: Network, plain: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def compute(batch: Tensor) -> Tensor:
        found = network.features(plain(batch))
        if found.ndim != 2:
            shape = tuple(found.shape[1:])
            raise InputError(
                f"expected features of shape (D,) per row, got {shape}; use another model"
            )
        return found

    return compute


def _parts(train: Rows, test: Rows | None) -> dict[str, Rows]:
    own = train.validation
    parts = {"train": train}
    if own is not None:
        rest = np.setdiff1d(np.arange(len(train)), own)
        parts = {"train": train.take(rest), "validation": train.take(own)}
    return parts if test is None else {**parts, "test": test}


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    make_folders(out)
    try:
        with FileLock(out / ".lock", blocking=False, mode=LOCK_MODE):
            yield
    except Timeout as error:
        raise InputError(f"{out}: another process writes features there; wait for it") from error


def _describe(out: Path, fields: Mapping[str, Any]) -> None:
    """Write the description of a folder's features, or check that an existing one is the same."""
    path = out / DESCRIPTION
    if not path.exists():
        if found := sorted(out.glob("*.npy")):
            raise InputError(
                f"{out} contains other files, such as {found[0].name}; use a new folder"
            )
        write_whole(path, json.dumps(fields, indent=1))
        return
    try:
        known = dict(json.loads(path.read_text(encoding="utf-8")))
        of = f"features of {known['model']} on {known['dataset']}"
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged ({error}); delete {out}") from error
    if known != fields:
        changed = [key for key in {**known, **fields} if known.get(key) != fields.get(key)]
        only = f", whose {changed[0]} have changed" if changed[1:] == [] else ""
        raise InputError(
            f"{out} contains {of}"
            f"{only if changed[0] in CHANGING else ''}; use a new folder, or delete it"
        )


def _write_part(path: Path, rows: Rows, encoder: _Encoder, notice: Notice) -> Path:
    """Append missing features to a file's draft unless the file exists; return the draft's path."""
    draft = path.with_name(f"{path.name}{UNFINISHED}")
    if path.exists():
        return draft
    row_bytes = 4 * encoder.width
    fields = {"descr": "<f4", "fortran_order": False, "shape": (len(rows), encoder.width)}
    with draft.open("ab") as stream:
        if not stream.tell():
            np.lib.format.write_array_header_1_0(stream, fields)
            stream.flush()
        try:
            with draft.open("rb") as head:
                np.lib.format.read_magic(head)
                np.lib.format.read_array_header_1_0(head)
                start = head.tell()
        except ValueError as error:
            raise InputError(f"{draft} is damaged ({error}); delete it") from error
        # Keep whole blocks only: the last bit of a row's features depends on its batch.
        done = (stream.tell() - start) // row_bytes // EVALUATION_BATCH * EVALUATION_BATCH
        stream.truncate(start + row_bytes * done)
        for first in range(done, len(rows), EVALUATION_BATCH):
            last = min(first + EVALUATION_BATCH, len(rows))
            found = encoder.compute(rows.read(first, last)).astype("<f4")
            if not np.isfinite(found).all():
                raise InputError(
                    f"{path.stem}: the network computes NaN or infinite features for rows {first} "
                    f"to {last - 1}; use other weights"
                )
            stream.write(found.tobytes())
            stream.flush()
            notice(f"{path.stem}: {last:,} of {len(rows):,} rows")
    return draft
