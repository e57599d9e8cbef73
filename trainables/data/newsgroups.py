import json
import lzma
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trainables.common.errors import InputError
from trainables.common.files import scratch_folder
from trainables.data._inputs import DatasetInfo
from trainables.data._published import FAILURES, line_of
from trainables.data._source import SOURCES, SourceStatus
from trainables.data._texts import LabelledTexts
from trainables.data.text import CLASSES, TextsReader

LINES = {"train": "train.jsonl.xz", "test": "test.jsonl.xz"}


@SOURCES.register("20newsgroups")
class NewsgroupsReader(TextsReader):
    """20 Newsgroups (Lang, 1995) by date, without headers, stored as JSON lines; docs/data.md."""

    downloads = True
    source = "20 Newsgroups by date, http://qwone.com/~jason/20Newsgroups/, without headers"

    @property
    def path(self) -> Path:
        return self.root / "20newsgroups"

    def instruction(self) -> str:
        names = ", ".join((*LINES.values(), CLASSES))
        return f"allow the download, or put {names} into {self.path} (see docs/data.md)"

    def used(self, text: str) -> str:
        """Return the text after the header, which ends with the first blank line."""
        return text.partition("\n\n")[2]

    def read(self, download: bool) -> tuple[DatasetInfo, LabelledTexts, LabelledTexts | None]:
        if not self._lines():
            if not download:
                raise InputError(f"dataset {self.name!r}: {self._absent()}; {self.instruction()}")
            self._download()
        return super().read(download)

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        return super().labels() if self._lines() else None

    def check(self) -> SourceStatus:
        if not self._lines():
            return SourceStatus(False, self._absent(), self.instruction())
        return super().check()

    def _lines(self) -> list[Path]:
        """Return both files or none, because a missing test set would change the split."""
        found = super()._lines()
        return found if len(found) == len(LINES) else []

    def _absent(self) -> str:
        files = (self.path / name for name in LINES.values())
        return f"{next(path for path in files if not path.is_file())} is missing"

    def _download(self) -> None:
        # Imported here, because the import is slow.
        from sklearn.datasets import fetch_20newsgroups

        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with scratch_folder(".downloading-", self.root) as scratch:
                # One call for both parts, because a second one would unpickle scikit-learn's cache.
                found = fetch_20newsgroups(data_home=str(scratch), subset="all", shuffle=False)
                whole = scratch / "whole"
                whole.mkdir()
                _write(zip(found.filenames, found.target, found.data, strict=True), whole)
                (whole / CLASSES).write_text(
                    json.dumps({"classes": found.target_names}), encoding="utf-8"
                )
                # File by file, because the folder exists if only one file was lost.
                self.path.mkdir(exist_ok=True)
                for file in sorted(whole.iterdir()):
                    os.replace(file, self.path / file.name)
        except FAILURES as error:
            reason = f"{line_of(error)}; {self.instruction()}"
            raise InputError(f"dataset {self.name!r}: {reason}") from error


def _write(articles: Iterable[tuple[str, int, str]], folder: Path) -> None:
    """Write articles (path, label, text) in the fixed order of label and number."""
    rows = sorted((int(label), int(Path(name).name), name, text) for name, label, text in articles)
    for part, file in LINES.items():
        with lzma.open(folder / file, "wt", encoding="utf-8") as stream:
            for label, number, name, text in rows:
                if Path(name).parent.parent.name.endswith(part):
                    row = {"label": label, "file": str(number), "text": text}
                    stream.write(json.dumps(row) + "\n")
