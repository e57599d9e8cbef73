from pathlib import Path

from trainables.common.errors import InputError
from trainables.data._files import Listed, Listing, read_words
from trainables.data._images import ImagesWithMargin
from trainables.data._published import IMAGENET_MEAN, IMAGENET_STD, OfficialReader
from trainables.data._source import SOURCES


@SOURCES.register("cub200")
class Cub200Reader(OfficialReader):
    """CUB-200-2011 (Wah et al., 2011): 200 birds, 5,994 training and 5,794 test images, RGB."""

    inputs = ImagesWithMargin(
        (256, 256), 3, IMAGENET_MEAN, IMAGENET_STD, augmentation="crop-flip", shown=(224, 224)
    )
    folder = "CUB_200_2011"
    test_folder = "images"  # Training and test images are in the same folders.
    address = "https://data.caltech.edu/records/65de6-vp158"
    citation = f"Wah et al. (2011), {address}; normalised as MbLS (2022)"
    archive = "CUB_200_2011.tgz"
    md5 = "97eceeb196236b17998738112f37df78"
    resize = (256, 256)
    lists = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")

    def listing(self) -> Listed:
        """Return both official parts; names of classes are like ``001.Black_footed_Albatross``."""
        named = self._column("classes.txt")
        if list(named) != [str(number) for number in range(1, len(named) + 1)] or len(named) < 2:
            raise InputError(
                f"{self.path / 'classes.txt'}: expected two or more classes, numbered from 1"
            )
        classes = tuple(named.values())
        labels, split = self._column("image_class_labels.txt"), self._column("train_test_split.txt")
        parts: dict[str, list[tuple[Path, int]]] = {"1": [], "0": []}
        for image, name in self._column("images.txt").items():
            label = labels.get(image, "")
            if not (label.isdecimal() and 1 <= int(label) <= len(classes)):
                problem = f"expected a class from 1 to {len(classes)}, got {label!r}"
                raise InputError(
                    f"{self.path / 'image_class_labels.txt'}: image {image}: {problem}"
                )
            part = split.get(image, "")
            if part not in parts:
                problem = f"image {image}: expected 0 or 1, got {part!r}"
                raise InputError(f"{self.path / 'train_test_split.txt'}: {problem}")
            parts[part].append((self.path / "images" / name, int(label) - 1))
        for kind, listing in (("training", parts["1"]), ("test", parts["0"])):
            self._check_complete(kind, listing, classes)
        return classes, parts["1"], parts["0"]

    def _check_complete(self, part: str, listing: Listing, classes: tuple[str, ...]) -> None:
        absent = sorted(set(range(len(classes))) - {label for _, label in listing})
        if absent:
            raise InputError(f"{self.path}: class {classes[absent[0]]!r} has no {part} image")
        for folder in sorted({path.parent for path, _ in listing}):
            if not folder.is_dir():
                raise InputError(f"{folder} does not exist or is not a folder")

    def _column(self, name: str) -> dict[str, str]:
        """Return the second word of every line by the first word, in order."""
        rows = read_words(self.path / name)
        for number, words in rows:
            if len(words) != 2:
                raise InputError(
                    f"{self.path / name}, line {number}: expected two words, got {words}"
                )
        return dict(words for _, words in rows)
