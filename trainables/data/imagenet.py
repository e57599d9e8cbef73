from trainables.common.errors import InputError
from trainables.data._files import Listed, list_classes, same_classes
from trainables.data._published import IMAGENET_MEAN, IMAGENET_STD, OfficialReader
from trainables.data._source import SOURCES
from trainables.data._whole_images import WholeFiles, WholeImages

CLASSES = 1000
WHOLE = WholeImages((224, 224), 3, IMAGENET_MEAN, IMAGENET_STD, "resized-crop-flip", shorter=256)


@SOURCES.register("imagenet")
class ImageNetReader(OfficialReader):
    """ImageNet (ILSVRC 2012) in class folders; tests on its validation images; docs/data.md."""

    kind = WholeImages
    rows = WholeFiles
    inputs = WHOLE
    split_rule = (
        "test is the official validation set; validation is a stratified draw from the training set"
    )
    folder = "imagenet"
    address = "https://image-net.org/challenges/LSVRC/2012"
    citation = f"Russakovsky et al. (2015), {address}; whole images, evaluated at 224 of 256"

    def instruction(self) -> str:
        return (
            f"get ILSVRC2012 from {self.address} and unpack it as "
            f"{self.path}/{{train,val}}/<wnid>/*.JPEG, {CLASSES} folders each"
        )

    def listing(self) -> Listed:
        """Return both parts, whose classes are the sorted WordNet identifiers of the folders."""
        train, val = self.path / "train", self.path / "val"
        classes = same_classes(train, val)
        if len(classes) != CLASSES:
            raise InputError(
                f"{train}: expected the {CLASSES} class folders of ImageNet, got {len(classes)}; "
                "for other images use folder:PATH"
            )
        return classes, list_classes(train, classes), list_classes(val, classes)
