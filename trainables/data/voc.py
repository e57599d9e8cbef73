from trainables.data._masked_files import MaskedReader
from trainables.data._source import SOURCES, PathReader


@SOURCES.register("voc")
class VocReader(PathReader, MaskedReader):
    """``voc:PATH``: a folder in the layout of PASCAL VOC's segmentation; docs/data.md."""
