import importlib
from pathlib import Path

import numpy as np

from trainables.common.errors import InputError
from trainables.data._inputs import DatasetInfo
from trainables.data._masked_files import LISTS, MASKS, MaskedFiles, MaskedReader
from trainables.data._published import FAILURES, line_of
from trainables.data._source import SOURCES, SourceStatus

CLASSES = (
    "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse "
    "motorbike person pottedplant sheep sofa train tvmonitor"
)
AUGMENTED, AUGMENTED_MASKS = "trainaug", "SegmentationClassAug"
ADDRESS = "http://host.robots.ox.ac.uk/pascal/VOC/voc2012"


@SOURCES.register("voc2012")
class Voc2012Reader(MaskedReader):
    """PASCAL VOC 2012 (Everingham et al.): the list ``val`` is the test set. See docs/data.md."""

    downloads = True
    names = tuple(CLASSES.split())

    @property
    def path(self) -> Path:
        return self.root / "VOCdevkit" / "VOC2012"

    @property
    def augmented(self) -> bool:
        """Whether list and masks of the augmented training set exist."""
        named = self.path / LISTS / f"{AUGMENTED}.txt"
        return named.is_file() and (self.path / AUGMENTED_MASKS).is_dir()

    @property
    def masks(self) -> str:
        """Return the name of the folder of masks."""
        return AUGMENTED_MASKS if self.augmented else MASKS

    def lists(self) -> dict[str, Path]:
        found = super().lists()
        found.pop("test", None)
        if self.augmented:
            found["train"] = self.path / LISTS / f"{AUGMENTED}.txt"
        return found

    def read(self, download: bool) -> tuple[DatasetInfo, MaskedFiles, MaskedFiles | None]:
        if download and not self.check().present:
            try:
                datasets = importlib.import_module("torchvision.datasets")
                datasets.VOCSegmentation(str(self.root), download=True)
            except FAILURES as error:
                reason = f"{line_of(error)}; put the archive from {ADDRESS} into {self.root}"
                raise InputError(f"dataset {self.name!r}: {reason}") from error
        return super().read(download)

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        return super().labels() if self.path.is_dir() else None

    def test_paths(self) -> list[Path]:
        """Return images and masks of the list ``val``, if they are unpacked, and the archive."""
        archive = self.root / "VOCtrainval_11-May-2012.tar"
        return [*super().test_paths(), archive] if self.path.is_dir() else [archive]

    def check(self) -> SourceStatus:
        found = super().check()
        remedy = found.remedy and f"allow the download, or unpack {ADDRESS} at {self.path}"
        return SourceStatus(found.present, found.detail, remedy)
