"""Data sets: reading, splitting, preparing once, and sealing the test data."""

from trainables.data._copies import Copies, count_copies
from trainables.data._guard import (
    TestDataSealedError,
    inherit_seal,
    require_unsealed,
    sealed_within,
)
from trainables.data._images import IMAGE_AUGMENTATIONS, Images, ImageShape
from trainables.data._inputs import Batcher, DatasetInfo, Inputs, InputShape, Pixels, move
from trainables.data._labels import DataNote
from trainables.data._logit_arrays import split_address
from trainables.data._logit_files import LogitFile, LogitRows, logit_sets, read_logits
from trainables.data._masked import (
    MASK_AUGMENTATIONS,
    MASK_OUTSIDE,
    MaskedBatcher,
    MaskedImages,
    MaskedShape,
)
from trainables.data._prepare import (
    find_prepared,
    missing_download,
    prepare,
    preview_copies,
    seal_test_data,
)
from trainables.data._prepared import PreparedData, SearchData
from trainables.data._rows import RowArrays, Rows, SplitSpec
from trainables.data._source import (
    SOURCES,
    Reader,
    Source,
    SourceStatus,
    find_reader,
    read_source,
    source_names,
)
from trainables.data._texts import Texts, TextShape
from trainables.data._whole_images import WholeImages, pictures, read_pictures
from trainables.data.features import Features, FeatureShape
from trainables.data.logits import GivenLogits, LogitShape

inherit_seal()
