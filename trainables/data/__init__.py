"""Data sets: read, split, prepared once, and kept out of reach where they must be."""

from trainables.data._arrays import ImageArrays
from trainables.data._device import ImageBatcher
from trainables.data._guard import TestDataSealedError, inherit_seal
from trainables.data._info import AUGMENTATIONS, DatasetInfo
from trainables.data._prepare import find_prepared, missing_download, prepare
from trainables.data._prepared import PreparedData, SearchData
from trainables.data._registry import (
    SOURCES,
    check_source,
    find_reader,
    read_source,
    source_names,
)
from trainables.data._seal import seal_test_data
from trainables.data._source import Reader, Source, SourceStatus
from trainables.data._split import SplitSpec

__all__ = [
    "AUGMENTATIONS",
    "SOURCES",
    "DatasetInfo",
    "ImageArrays",
    "ImageBatcher",
    "PreparedData",
    "Reader",
    "SearchData",
    "Source",
    "SourceStatus",
    "SplitSpec",
    "TestDataSealedError",
    "check_source",
    "find_prepared",
    "find_reader",
    "missing_download",
    "prepare",
    "read_source",
    "seal_test_data",
    "source_names",
]

inherit_seal()
