import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError
from trainables.common.files import write_whole
from trainables.common.hub import HUB, AwayError, HubAddress, hub_client, hub_faults
from trainables.data._class_numbers import LabelPart, number_labels
from trainables.data._hub_files import (
    CONVERTED,
    Column,
    EmbeddedImage,
    Splits,
    find_splits,
    read_cells,
    read_features,
)
from trainables.data._images import Images, images_info
from trainables.data._inputs import DatasetInfo, Inputs
from trainables.data._labels import note, plain_values
from trainables.data._rows import RowArrays
from trainables.data._source import SOURCES, SourceStatus
from trainables.data._texts import LabelledTexts, Texts
from trainables.data.folder import stack_images
from trainables.data.text import TextsReader, find_classes

LABELS = ("label", "labels")
SHOWN = 12  # Number of characters of a commit's hash in messages.


@SOURCES.register("hf")
class HubReader(TextsReader):
    """``hf:ORG/NAME[:CONFIG][@REVISION]``: a data set of the Hub, at one commit; docs/data.md."""

    kind: type[Inputs] = Inputs  # type: ignore[type-abstract]  # Known after the download.
    noun = "rows"
    placeholder = "ORG/NAME"
    takes_argument = True
    downloads = True
    accepts = (*TextsReader.accepts, "image", "train", "test")

    def __init__(self, name: str, argument: str, root: Path) -> None:
        super().__init__(name, argument, root)
        self.address = HubAddress.parse(argument, f"dataset {name!r}")

    def adjust(self, settings: Mapping[str, Any]) -> None:
        """Accept names of columns and splits, and the settings of texts."""
        super().adjust(settings)
        for key in ("image", "train", "test"):
            if not isinstance(settings.get(key, ""), str):
                raise InputError(
                    f"dataset {self.name!r}: inputs.{key}: expected a name, got {settings[key]!r}"
                )
        if self._present():
            self.kind = Images if self._content()[0] == "image" else Texts

    @property
    def path(self) -> Path:
        """The record of the downloaded commit and files."""
        return self.root / "hub" / "pins" / f"{re.sub('/', '--', self.argument)}.json"

    @property
    def source(self) -> str:
        """Human-readable repository and commit."""
        commit = self._pin()["commit"]
        return f"https://huggingface.co/datasets/{self.address.repo}, commit {commit}"

    def instruction(self) -> str:
        return "allow the download (from the Hub), or copy the folder `hub` of another data root"

    def files(self) -> list[Path]:
        return [self.path, *(path for paths in self._parts_of_files() for path in paths)]

    def test_paths(self) -> list[Path]:
        """Return the files of the test split, or of the only split, and the files they link to."""
        parts = self._parts_of_files()
        paths = parts[-1] if parts else []
        return [*paths, *(path.resolve() for path in paths)]

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        return super().labels() if self._present() else None

    def check(self) -> SourceStatus:
        if not self._present():
            return SourceStatus(False, f"{self.path} is missing", self.instruction())
        return super().check()

    def read(self, download: bool) -> Any:
        """Return images or texts; if ``download``, fetch missing files first."""
        if download:
            self._fetch()
        if not self._present():
            raise InputError(f"dataset {self.name!r}: not downloaded yet; {self.instruction()}")
        self.adjust(self.settings)
        return super().read(download) if self.kind is Texts else self._images()

    def outline(self) -> Any:
        classes, labels = self._labels()
        return classes, labels[0], labels[1] if labels[1:] else None

    def _images(self) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        for key in TextsReader.accepts:
            if key in self.settings and key != "label":
                raise InputError(f"dataset {self.name!r}: inputs.{key} is for texts, not images")
        classes, labels = self._labels()
        _, column, _ = self._content()
        pixels = stack_images([*self._cells(column)], len(labels[0]))
        train = RowArrays(pixels[: len(labels[0])], labels[0])
        test = RowArrays(pixels[len(train) :], labels[1]) if labels[1:] else None
        rule = "test is the split test; validation is a stratified draw from train" if test else ""
        return images_info(self.name, self.source, classes, train, rule), train, test

    def _cells(self, column: str) -> Iterator[EmbeddedImage]:
        for path in (path for paths in self._parts_of_files() for path in paths):
            for row, cell in enumerate(read_cells(path, column)):
                place = f"{path}: {column} in row {row}"
                if not isinstance(cell, dict) or not cell.get("bytes"):
                    raise InputError(f"{place}: expected an embedded image, got only a path")
                yield EmbeddedImage(cell["bytes"], place)

    def _parts(self) -> tuple[tuple[str, ...], LabelledTexts, LabelledTexts | None]:
        classes, labels = self._labels()
        _, column, _ = self._content()
        parts = []
        for paths, numbers in zip(self._parts_of_files(), labels, strict=True):
            texts = [text for path in paths for text in _texts(path, column)]
            parts.append(LabelledTexts.of(texts, numbers))
        return classes, parts[0], parts[1] if parts[1:] else None

    def _labels(self) -> tuple[tuple[str, ...], list[np.ndarray]]:
        name = self._content()[2]
        parts = []
        for paths in self._parts_of_files():
            cells = [cell for path in paths for cell in read_cells(path, name)]
            hidden = next((row for row, cell in enumerate(cells) if cell in (None, -1)), None)
            place = str(paths[0])
            if paths[1:]:
                place += f" and the following files up to {paths[-1].name}, numbered together"
            if hidden is not None:
                raise InputError(
                    f"{place}: {name}={cells[hidden]!r} in row {hidden} is not a label; if the "
                    "labels of this split are secret, use another split: inputs: {test: SPLIT}"
                )
            parts.append(LabelPart(cells, f"{place}: {name}"))
        if classes := self._features()[name].classes:
            labels = [_checked(part, len(classes)) for part in parts]
        else:
            plain = [plain_values(part.labels, name, part.where) for part in parts]
            parts = [part._replace(labels=each) for part, each in zip(parts, plain, strict=True)]
            classes = find_classes(self.path.with_suffix(""), plain[0], Path(parts[0].where))
            labels = number_labels(parts, classes)
        absent = np.flatnonzero(np.bincount(labels[0], minlength=len(classes)) == 0)
        if len(absent):
            raise InputError(f"{parts[0].where}: class {classes[absent[0]]!r} has no training row")
        return classes, labels

    def _content(self) -> tuple[str, str, str]:
        """Return the kind of rows (``image`` or ``text``), and the columns of rows and labels."""
        features = self._features()
        kinds = {kind: [n for n, f in features.items() if f.kind == kind] for kind in _KINDS}
        labels = kinds["ClassLabel"] or [name for name in LABELS if name in features]
        label = self._choose("label", labels, LABELS)
        images = kinds["Image"] and "text" not in self.settings
        if images or "image" in self.settings:
            return "image", self._choose("image", kinds["Image"], ("image",)), label
        texts = [name for name in kinds["string"] if name != label]
        return "text", self._choose("text", texts, ("text",)), label

    def _choose(self, role: str, candidates: Sequence[str], usual: Sequence[str]) -> str:
        """Return the column named in the settings, or the only likely one, or raise an error."""
        features, named = self._features(), self.settings.get(role)
        likely = [name for name in usual if name in candidates] or candidates
        if named in features or (named is None and len(likely) == 1):
            return named or likely[0]
        fault = f"has no column {named!r}" if named else f"has {len(likely)} columns for `{role}`"
        there = ", ".join(f"{name} ({column.kind})" for name, column in features.items())
        raise InputError(
            f"dataset {self.name!r}: {fault}; use inputs: {{{role}: COLUMN}}; columns are {there}"
        )

    def _features(self) -> dict[str, Column]:
        return read_features(self._parts_of_files()[0][0])

    def _pin(self) -> dict[str, Any]:
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path} cannot be read: {error}; remove it") from error

    def _parts_of_files(self) -> list[list[Path]]:
        """Return the files of the training split, and of the test split if there is one.

        Without a record of a download, the list is empty.
        """
        pin = self._pin()
        if not pin:
            return []
        folder = self.root / "hub" / f"datasets--{self.address.repo.replace('/', '--')}"
        return [
            [folder / "snapshots" / pin["commit"] / name for name in pin["splits"][split]]
            for split in self._used(pin["splits"])
        ]

    def _used(self, splits: Splits) -> list[str]:
        """Return the names of the training split and of the test split, if there is one."""
        train, test = self.settings.get("train", "train"), self.settings.get("test", "test")
        for name in (train, *([test] if "test" in self.settings else ())):
            if name not in splits:
                raise InputError(
                    f"dataset {self.name!r}: no split {name!r}; use inputs: "
                    f"{{train: SPLIT, test: SPLIT}}; splits are {', '.join(splits)}"
                )
        return [train, test] if test in splits else [train]

    def _present(self) -> bool:
        parts = self._parts_of_files()
        return bool(parts) and all(path.is_file() for paths in parts for path in paths)

    def _fetch(self) -> None:
        """Download missing files, of the same commit as earlier downloads."""
        pin = self._pin()
        if not (self.address.fixed and self._present()):
            try:
                pin = self._resolved(pin)
            except AwayError as error:
                if not self._present():
                    raise
                note(self.name, f"{error}; the cached commit {pin['commit'][:SHOWN]} is used")
                return
        if not self._present():
            self._used(pin["splits"])  # Refuse unknown splits before the download.
            self._download(pin)

    def _resolved(self, pin: Mapping[str, Any]) -> dict[str, Any]:
        """Return commit and splits of ``pin``, or else those that the revision has now."""
        repo, revision = self.address.repo, self.address.revision
        found = self._look(revision or "main")
        if not found["splits"] and not revision:
            found = self._look(CONVERTED)
        if not found["splits"]:
            place = f"revision {revision}" if revision else f"main or {CONVERTED}"
            raise InputError(f"dataset {self.name!r}: {HUB}{repo} has no Parquet files in {place}")
        if pin and pin["commit"] != found["commit"]:
            old, new = pin["commit"][:SHOWN], found["commit"]
            change = f"the Hub now has commit {new[:SHOWN]}, but this data root keeps {old}"
            note(self.name, f"{change}; for the new one use {HUB}{repo}@{new}")
        return dict(pin or found)

    def _look(self, revision: str) -> dict[str, Any]:
        """Return commit and splits of a revision; the splits are empty without Parquet files."""
        from huggingface_hub.errors import RevisionNotFoundError

        try:
            with hub_faults(self.address.repo):
                info = hub_client().dataset_info(self.address.repo, revision=revision, timeout=20)
        except InputError as error:
            if revision == CONVERTED and isinstance(error.__cause__, RevisionNotFoundError):
                return {"splits": {}}  # The Hub has not converted this data set.
            raise
        files = [each.rfilename for each in info.siblings or ()]
        card = info.card_data.to_dict() if info.card_data else {}
        try:
            splits = find_splits(files, card, self.address.part)
        except InputError as error:
            raise InputError(f"dataset {self.name!r}: {HUB}{self.address.repo} {error}") from error
        return {"commit": info.sha, "splits": splits}

    def _download(self, pin: Mapping[str, Any]) -> None:
        wanted = [name for split in self._used(pin["splits"]) for name in pin["splits"][split]]
        with hub_faults(self.address.repo):
            hub_client().snapshot_download(
                self.address.repo,
                repo_type="dataset",
                revision=pin["commit"],
                cache_dir=self.root / "hub",
                allow_patterns=wanted,
            )
        self.path.parent.mkdir(exist_ok=True)
        # Written last, because the record means that the download is complete.
        write_whole(self.path, json.dumps(pin, indent=1))


_KINDS = ("Image", "ClassLabel", "string")


def _checked(part: LabelPart, count: int) -> np.ndarray:
    """Return the labels of a ``ClassLabel`` column, (N,), int64."""
    wrong = next((row for row, k in enumerate(part.labels) if not 0 <= int(k) < count), None)
    if wrong is not None:
        got = f"got {part.labels[wrong]} in row {wrong}"
        raise InputError(f"{part.where}: expected classes 0 to {count - 1}, {got}")
    return np.array(part.labels, np.int64)


def _texts(path: Path, column: str) -> list[str]:
    cells = read_cells(path, column)
    for row, cell in enumerate(cells):
        if not isinstance(cell, str) or not cell.strip():
            raise InputError(f"{path}: {column}: expected a text in row {row}, got {cell!r}")
    return cells
