from trainables.common.errors import InputError
from trainables.data._files import Listed, Listing, class_folders, list_classes, read_words
from trainables.data._images import Images
from trainables.data._published import IMAGENET_MEAN, IMAGENET_STD, OfficialReader
from trainables.data._source import SOURCES


@SOURCES.register("tiny-imagenet")
class TinyImageNetReader(OfficialReader):
    """Tiny-ImageNet (CS231n, 2015): 200 classes, 100,000 training and 10,000 test images, 64 x 64.

    Official layout: ``train/<wnid>/images/*.JPEG``, ``val/images``, ``val/val_annotations.txt``.
    The official test images have no labels, so the official validation images are the test set, as
    in MbLS (2022) and ACLS (2023). ImageNet's terms do not allow an automatic download.
    """

    inputs = Images((64, 64), 3, IMAGENET_MEAN, IMAGENET_STD, augmentation="crop-flip")
    split_rule = (
        "test is the official validation set; validation is a stratified draw from the training "
        "set, 50 a class with the usual tenth (MbLS, 2022, appendix B)"
    )
    folder = "tiny-imagenet-200"
    address = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    citation = f"Stanford CS231n, {address}; normalised as Mukhoti et al. (2020)"
    archive = "tiny-imagenet-200.zip"
    md5 = "90528d7ca1a48142e341f4ef8d21d0de"
    lists = ("val/val_annotations.txt",)

    def listing(self) -> Listed:
        """Return training images by class and name, and test images as in the annotations."""
        train = self.path / "train"
        classes = class_folders(train)
        return classes, list_classes(train, classes, "images"), self._annotated(classes)

    def _annotated(self, classes: tuple[str, ...]) -> Listing:
        path = self.path / "val" / "val_annotations.txt"
        numbers = {name: label for label, name in enumerate(classes)}
        listing = []
        for number, words in read_words(path):
            if len(words) < 2 or words[1] not in numbers:
                raise InputError(
                    f"{path}, line {number}: expected an image and one of the {len(classes)} "
                    f"classes of train, got {' '.join(words[:2])!r}"
                )
            listing.append((self.path / "val" / "images" / words[0], numbers[words[1]]))
        if not listing:
            raise InputError(f"{path} lists no image")
        return listing
