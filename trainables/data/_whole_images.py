"""Images stored as the bytes of their files and decoded for each batch."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from trainables.common.errors import InputError
from trainables.common.fields import check_choice
from trainables.common.later import Generator, Tensor, torch
from trainables.common.pulse import beat
from trainables.data._files import (
    ImageFiles,
    ListedReader,
    Listing,
    decoded_centre,
    glance,
    labels_of,
    opened,
    read_content,
    upright,
)
from trainables.data._guard import require_unsealed
from trainables.data._images import ImageBatcher, Images, draw_resized_crops
from trainables.data._inputs import Batcher, DatasetInfo, Inputs, move
from trainables.data._prepared import read_array
from trainables.data._source import Source, find_reader, handed_out, read_source

BLOCK = 512  # Files in memory at the same time while they are stored.


class Encoded(np.ndarray):
    """Rows (N, 4), int64: start and end in ``content`` (the bytes of all files), height, width."""

    content: np.ndarray

    def __array_finalize__(self, other: Any) -> None:
        self.content = getattr(other, "content", np.empty(0, np.uint8))


@dataclass(frozen=True)
class WholeImages(Images, kind="whole-images"):
    """RGB images of any size, stored as the bytes of their files.

    Training uses crops of random size and place from the whole image (``resized-crop-flip``), as
    torchvision's ``RandomResizedCrop`` does; evaluation resizes the shorter side to ``shorter``
    and uses the centre.

    Attributes:
        size: Height and width of the networks' inputs, in pixels.
        shorter: Shorter side of resized images in evaluation, in pixels.
    """

    dtype: ClassVar[np.dtype] = np.dtype(np.int64)
    views: ClassVar[tuple[str, ...]] = ("none", "resized-crop-flip")

    shorter: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("augmentation", self.augmentation, self.views)
        if self.channels != 3 or self.shorter < max(self.size):
            raise ValueError(
                f"channels={self.channels}, shorter={self.shorter}: expected 3 channels, and a "
                f"shorter side of {max(self.size)} or more"
            )

    @property
    def row(self) -> tuple[int, ...]:  # type: ignore[override]
        return (4,)

    @property
    def given(self) -> tuple[np.dtype, tuple[int, ...]]:
        return np.dtype(object), ()

    @property
    def decoded_as(self) -> Inputs:
        return Images(self.size, self.channels, self.mean, self.std, "none")

    def encode(self, values: np.ndarray) -> np.ndarray:
        sizes = [glance(io.BytesIO(content))[0] for content in values]
        ends = np.cumsum([0, *map(len, values)])
        rows = [(*pair, h, w) for *pair, (w, h) in zip(ends, ends[1:], sizes, strict=False)]
        found = np.array(rows, np.int64).reshape(-1, 4).view(Encoded)
        found.content = np.frombuffer(b"".join(values), np.uint8)
        return found

    def stored(self, blocks: Iterable[np.ndarray], path: Path) -> Iterator[np.ndarray]:
        """Yield rows, and write the bytes of their images to a second file."""
        done = 0
        with _content_path(path).open("wb") as stream:
            _write_header(stream, done)
            for rows in map(self.encode, blocks):
                assert isinstance(rows, Encoded)
                stream.write(rows.content.data)
                rows[:, :2] += done
                done += len(rows.content)
                yield rows
            stream.seek(0)
            _write_header(stream, done)  # NumPy pads headers, so this one is as long.

    def loaded(self, values: np.ndarray, path: Path) -> np.ndarray:
        found = values.view(Encoded)
        found.content = read_array(_content_path(path))
        return found

    def check(self, values: np.ndarray) -> None:
        """Accept stored rows, bytes of files (N,), and decoded images, uint8 (N, H, W, 3)."""
        if not isinstance(values, Encoded) and values.dtype != object:
            super().check(values)

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> Batcher:
        self.check(values)
        rows = self.encode(values) if values.dtype == object else values
        if isinstance(rows, Encoded):
            return _WholeBatcher(rows, self, device)
        return ImageBatcher(values, self.mean, self.std, device)

    def decoded(self, values: np.ndarray) -> np.ndarray:
        rows = self.encode(values) if values.dtype == object else values
        if not isinstance(rows, Encoded):
            return values
        one = partial(decoded_centre, size=self.size, resized=(self.shorter,))
        return _in_threads(lambda row: one(_stream(rows.content, row)), rows.tolist())


class _WholeBatcher(ImageBatcher):
    """Yields batches of ``Encoded`` rows on the CPU, and decodes views of them in threads."""

    movable = False

    def __init__(self, rows: Encoded, inputs: WholeImages, device: torch.device | str) -> None:
        super().__init__(rows, inputs.mean, inputs.std, device)
        self._content, self._inputs = rows.content, inputs

    def batches(self, order: Tensor, size: int) -> Iterator[Tensor]:
        for indices in order.cpu().split(size):
            beat()
            yield self._rows[indices]

    def plain(self, batch: Tensor) -> Tensor:
        rows = batch.numpy().view(Encoded)
        rows.content = self._content
        return self._shown(self._inputs.decoded(rows))

    def view(self, batch: Tensor, augmentation: str, generator: Generator) -> Tensor:
        check_choice("augmentation", augmentation, self._inputs.views)
        if augmentation == "none":
            return self.plain(batch)
        height, width = batch[:, 2:].T.to(generator.device)
        crops = draw_resized_crops(len(batch), height, width, generator).T.int().tolist()
        one = partial(_crop, self._content, self._inputs.size)
        return self._shown(_in_threads(one, batch.tolist(), crops))

    def _shown(self, pixels: np.ndarray) -> Tensor:
        return super().plain(self.arrange(move(torch.from_numpy(pixels), self.device)))


def _in_threads(decode: Any, *arguments: list[Any]) -> np.ndarray:
    """Return decoded images (N, H, W, 3), decoded by as many threads as torch uses."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return np.stack(list(pool.map(decode, *arguments)))


def _stream(content: np.ndarray, row: list[int]) -> io.BytesIO:
    return io.BytesIO(content[row[0] : row[1]].tobytes())


def _crop(
    content: np.ndarray, size: tuple[int, int], row: list[int], crop: list[int]
) -> np.ndarray:
    """Return a crop (top, left, height, width, flip) of an image, resized to ``size``."""
    top, left, height, width, flip = crop
    with opened(_stream(content, row)) as image:
        part = upright(image).convert("RGB").crop((left, top, left + width, top + height))
    shown = part.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else shown)


def _content_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}-bytes.npy")


def _write_header(stream: Any, count: int) -> None:
    fields = {"descr": "|u1", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(stream, fields)


class WholeFiles(ImageFiles):
    """Labelled images whose files are stored unchanged; each is decoded once as a check."""

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(object)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return ()

    def read(self, start: int, stop: int) -> np.ndarray:
        with ThreadPoolExecutor() as pool:
            contents = list(pool.map(_checked, self.paths[start:stop]))
        found = np.empty(len(contents), object)
        found[:] = contents
        return found

    def blocks(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), BLOCK):
            yield self.read(start, start + BLOCK)


def _checked(path: Path) -> bytes:
    with opened(path) as image:
        image.load()
    return read_content(path)


AS_STORED = WholeImages((1, 1), 3, (0.0,) * 3, (1.0,) * 3, "none", shorter=1)


def read_pictures(name: str, root: Path | str) -> Source:
    """Read images like ``read_source``, but do not resize images that are files of their own.

    ``pictures`` converts the rows, whether they are pixels or the bytes of files.
    """
    reader = find_reader(name, root)
    if not isinstance(reader, ListedReader):
        source = read_source(name, root)
        inputs = source.info.inputs
        if not isinstance(inputs, Images) or inputs.channels not in (1, 3):
            form = f"{inputs.kind} of shape {inputs.row}"
            raise InputError(f"dataset {name!r}: expected grey or RGB images, got {form}")
        return source
    require_unsealed(f"read_pictures({name!r})")
    reader.make_ready()
    classes, train, test = reader.listing()
    info = DatasetInfo(name, classes, AS_STORED, "", str(reader.path))
    rows = _as_stored(train, reader.own_validation())
    return handed_out(info, rows, None if test is None else _as_stored(test))


def _as_stored(listing: Listing, validation: np.ndarray | None = None) -> WholeFiles:
    paths = [path for path, _ in listing]
    return WholeFiles(paths, labels_of(listing), AS_STORED.size, validation=validation)


def pictures(values: np.ndarray) -> list[Image.Image]:
    """Return RGB images of pixels (N, H, W, C), uint8, or of the bytes of files (N,)."""
    if values.dtype == object:
        with ThreadPoolExecutor() as pool:
            return list(pool.map(_picture, values))
    pixels = values[..., 0] if values.shape[-1] == 1 else values
    return [Image.fromarray(row).convert("RGB") for row in pixels]


def _picture(content: bytes) -> Image.Image:
    with opened(io.BytesIO(content)) as image:
        return upright(image).convert("RGB")
