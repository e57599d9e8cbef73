from trainables.data._masked_files import MaskedReader
from trainables.data._source import SOURCES, PathReader


@SOURCES.register("voc")
class VocReader(PathReader, MaskedReader):
    """``voc:PATH``: a folder in the layout of PASCAL VOC's segmentation.

    ``JPEGImages/<name>.jpg``, ``SegmentationClass/<name>.png`` (palette or grey, a class a pixel,
    255 void) and ``ImageSets/Segmentation/train.txt``, ``val.txt`` and ``test.txt`` with a name a
    line. Validation is the list ``val``, unless the split names a share of train and val together.
    Without ``test.txt`` the list ``val`` is the test set, and without both `split.test` is held
    out. ``classes.json``, ``{"classes": [NAME, ...]}``, names the classes; without it they are
    numbers, up to the highest in the training masks. A relative path starts at the working
    directory.
    """
