"""Texts as inputs, stored as the numbers of their words, int32 (N, L)."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from trainables.common.errors import InputError
from trainables.common.fields import check_choice, check_count
from trainables.common.later import Tensor, torch
from trainables.data._inputs import Batcher, Inputs, InputShape
from trainables.data._rows import RowArrays, Rows

PADDING = 0  # Fills the beginning of short texts; words are numbered from 1.
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
BLOCK = 4096


def words_of(text: str) -> list[str]:
    """Return a text's words in lower case: runs of letters, digits and inner apostrophes."""
    return WORD.findall(text.lower())


@dataclass(frozen=True)
class TextShape(InputShape):
    """The form of texts, from which a network is built.

    Attributes:
        tokens: Number of different tokens, including the padding.
        length: Number of tokens of a text, L.
        packed: Vectors of the words as text, see ``vectors``; empty if networks learn them.
    """

    kind: ClassVar[str] = "texts"

    tokens: int
    length: int
    packed: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_count("tokens", self.tokens)
        check_count("length", self.length)

    def blank(self, device: torch.device) -> Tensor:
        return torch.zeros(1, self.length, dtype=torch.int32, device=device)

    @property
    def vectors(self) -> Tensor | None:
        """The vectors (tokens, D), float32, with zeros for the padding, or None."""
        if not self.packed:
            return None
        numbers = np.frombuffer(base64.b64decode(self.packed), "<f4").astype(np.float32)
        read = torch.from_numpy(numbers.reshape(self.tokens - 1, -1))
        return torch.cat((torch.zeros(1, read.shape[1]), read))


@dataclass(frozen=True)
class Texts(Inputs, kind="texts"):
    """Texts of one length: padding, then the numbers of a text's last words.

    The vocabulary is the most frequent words of the training rows; other words are removed. As in
    the released code of MbLS (2022), only the last ``length`` words of a text are kept.

    Attributes:
        vocabulary: Maximum number of words in the vocabulary.
        length: Maximum number of words of a text, L; ``fitted`` lowers it to the largest number of
            known words in a training text.
        words: The vocabulary in the order of its numbers, from 1; empty before ``fitted``.
        embeddings: SHA-256 (hex) of the file of the words' vectors, or "".
        packed: The words' vectors, as text; empty if networks learn them.
        augmentation: ``none``.
    """

    dtype: ClassVar[np.dtype] = np.dtype(np.int32)
    seen_as = TextShape
    views = ("none",)

    vocabulary: int = 20_000
    length: int = 500
    words: tuple[str, ...] = ()
    embeddings: str = ""
    packed: str = field(default="", repr=False)
    augmentation: str = "none"

    def __post_init__(self) -> None:
        check_count("vocabulary", self.vocabulary)
        check_count("length", self.length)
        check_choice("augmentation", self.augmentation, self.views)

    @property
    def row(self) -> tuple[int]:
        return (self.length,)

    @property
    def given(self) -> tuple[np.dtype, tuple[int, ...]]:
        return np.dtype(object), ()

    @property
    def shape(self) -> TextShape:
        return TextShape(len(self.words) + 1, self.length, self.packed)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, PADDING + 1)}

    def fitted(self, train: Rows) -> Self:
        """Return the inputs with vocabulary, length and words' vectors for the training rows.

        Equally frequent words are ordered alphabetically.
        """
        texts = [Counter(words_of(text)) for text in train.read(0, len(train))]
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.vocabulary]
        known = set(ranked)
        longest = max(sum(text[word] for word in text.keys() & known) for text in texts)
        length = max(1, min(self.length, longest))
        path = train.vectors if isinstance(train, LabelledTexts) else None
        vectors = "" if path is None else packed(read_vectors(path, ranked))
        return replace(self, words=tuple(ranked), length=length, packed=vectors)

    def encode(self, values: np.ndarray) -> np.ndarray:
        rows = np.full((len(values), self.length), PADDING, self.dtype)
        for row, text in zip(rows, values, strict=True):
            known = [self._numbers[word] for word in words_of(text) if word in self._numbers]
            known = known[-self.length :]
            row[self.length - len(known) :] = known
        return rows

    def check(self, values: np.ndarray) -> None:
        """Raise ``ValueError`` unless values are int32 (N, L), and numbers of words or padding."""
        super().check(values)
        for number in (values.min(), values.max()) if len(values) else ():
            if not PADDING <= number <= len(self.words):
                raise ValueError(f"texts: expected 0 to {len(self.words)}, got {number}")

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> Batcher:
        """Return a batcher of stored rows (N, L), or of texts (N,), objects or str."""
        rows = self.encode(values) if values.dtype.kind in "OU" else values
        return super().batcher(rows, device)


@dataclass(frozen=True, eq=False)
class LabelledTexts(RowArrays):
    """Labelled texts in memory, objects (N,); ``vectors`` is the file of the words' vectors."""

    vectors: Path | None = None

    @classmethod
    def of(cls, texts: Sequence[str], labels: np.ndarray) -> Self:
        return cls(np.array(texts, object), labels)

    def content(self) -> Iterator[bytes | memoryview]:
        """Yield the labels, then length and bytes of every text."""
        yield np.ascontiguousarray(self.labels).data
        for text in self.values:
            content = text.encode()
            yield f"{len(content)} ".encode()
            yield content

    def blocks(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), BLOCK):
            yield self.read(start, start + BLOCK)


def read_vectors(path: Path, words: Sequence[str]) -> np.ndarray:
    """Return the vectors of words, (len(words), D), float32; zeros for words without one.

    A line of the file is a word and the D numbers of its vector, separated by single spaces, as in
    Pennington et al. (2014).
    """
    rows = {word: row for row, word in enumerate(words)}
    found: dict[int, np.ndarray] = {}
    try:
        with path.open(encoding="utf-8-sig") as stream:
            width = stream.readline().count(" ")
            stream.seek(0)
            for number, line in enumerate(stream, 1):
                word, *values = line.rstrip().rsplit(" ", width)
                if len(values) != width or not width:
                    raise InputError(f"{path}, line {number}: expected a word and its vector")
                if word in rows:
                    found[rows[word]] = _vector(values, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not found:
        raise InputError(f"{path} has no vector for any of the {len(words)} words of the texts")
    vectors = np.zeros((len(words), width), np.float32)
    for row, vector in found.items():
        vectors[row] = vector
    return vectors


def _vector(values: list[str], place: str) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from error
    if not np.isfinite(vector).all():
        raise InputError(f"{place}: a value is not finite")
    return vector


def packed(vectors: np.ndarray) -> str:
    """Return vectors (N, D) as text for JSON."""
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode()
