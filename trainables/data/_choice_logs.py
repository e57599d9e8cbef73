"""Answers of language models to multiple-choice questions, read from evaluation logs.

``samples_*.jsonl`` of lm-evaluation-harness has a log-likelihood for each choice. A JSON log of
Inspect AI has the log-probabilities of tokens, including the letters of the choices.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainables.common.errors import InputError
from trainables.common.words import have
from trainables.data._labels import note

LOGS = (".jsonl", ".json")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SUMMARY = "results_"  # Prefix of the harness's files without samples.
FIRST_FILTER = "filter"


class Answers(NamedTuple):
    """Log-likelihoods of choices (N, K), -inf for choices that a row lacks, and labels (N,)."""

    scores: np.ndarray
    labels: np.ndarray


def read_answers(path: Path) -> Answers:
    """Return the answers in a log: ``.jsonl`` of lm-evaluation-harness, or JSON of Inspect AI."""
    rows = [*(_harness_rows(path) if path.suffix == ".jsonl" else _inspect_rows(path))]
    if not rows:
        raise InputError(f"{path}: the log has no samples")
    width = max(len(scores) for scores, _ in rows)
    short = sum(len(scores) < width for scores, _ in rows)
    if short:
        note(
            path,
            f"{short:,} of {len(rows):,} rows {have(short)} fewer than {width} choices; missing "
            "choices are masked",
        )
    table = np.full((len(rows), width), -math.inf)
    for row, (scores, _) in enumerate(rows):
        table[row, : len(scores)] = scores
    return Answers(table, np.array([label for _, label in rows], np.int64))


def _harness_rows(path: Path) -> Iterator[tuple[list[float], int]]:
    """Yield log-likelihoods and label of each sample; of several filters, the first is read."""
    first: Any = None
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream):
            if not line.strip():
                continue
            sample = _parsed(path, line, number)
            first = sample.get(FIRST_FILTER) if first is None else first
            if sample.get(FIRST_FILTER) != first:
                continue
            scores = [_likelihood(path, number, one) for one in _responses(path, number, sample)]
            yield scores, _target(path, number, sample, len(scores))


def _parsed(path: Path, text: str, number: int | None = None) -> dict[str, Any]:
    where = path if number is None else f"{path}: row {number}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a JSON object, got {type(found).__name__}")
    return found


def _responses(path: Path, number: int, sample: dict[str, Any]) -> list[Any]:
    found = sample.get("filtered_resps", sample.get("resps"))
    if not isinstance(found, list) or len(found) < 2:
        raise InputError(
            f"{path}: row {number}: expected `filtered_resps` with a log-likelihood for each of "
            f"two or more choices, got {found!r:.60}; generated answers have no log-likelihoods"
        )
    return found


def _likelihood(path: Path, number: int, response: Any) -> float:
    """Return -3.1 for ``[-3.1, false]``, which some versions write as ``[["-3.1", "False"]]``."""
    while isinstance(response, list) and response:
        response = response[0]
    try:
        value = float(response)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value) or value == math.inf:
        raise InputError(
            f"{path}: row {number}: expected the log-likelihood of a choice, got {response!r:.60}"
        )
    return value


def _target(path: Path, number: int, sample: dict[str, Any], count: int) -> int:
    """Return the number, from 0, of the right choice; the log has its number, letter or text."""
    target, doc = sample.get("target"), sample.get("doc")
    choices = doc.get("choices") if isinstance(doc, dict) else None
    texts = choices.get("text") if isinstance(choices, dict) else choices
    if isinstance(target, list) and len(target) == 1:
        (target,) = target
    if isinstance(target, str):
        known = [str(text).strip() for text in texts] if isinstance(texts, list) else []
        if target.strip() in known[:count]:
            return known.index(target.strip())
        target = _number(target.strip())
    if isinstance(target, int) and not isinstance(target, bool) and 0 <= target < count:
        return target
    raise InputError(
        f"{path}: row {number}: target {sample.get('target')!r:.60} is not one of {count} choices; "
        "expected a number from 0, a letter or the text of a choice"
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else _letter(text)


def _letter(text: str) -> int:
    return LETTERS.index(text) if len(text) == 1 and text in LETTERS else -1


def _inspect_rows(path: Path) -> Iterator[tuple[list[float], int]]:
    samples = _parsed(path, path.read_text(encoding="utf-8")).get("samples")
    if not isinstance(samples, list):
        raise InputError(
            f"{path} has no list `samples`; expected a JSON log of Inspect AI (the package "
            "inspect_ai)"
        )
    absent = 0
    for number, sample in enumerate(samples):
        choices = sample.get("choices") if isinstance(sample, dict) else None
        if not isinstance(choices, list) or len(choices) < 2:
            raise InputError(
                f"{path}: sample {number}: expected a list of two or more choices, "
                f"got {choices!r:.60}"
            )
        listed = _answer_tokens(path, number, sample, len(choices))
        known = [_share(listed, letter) for letter in LETTERS[: len(choices)]]
        least = min(value for _, value in listed)
        absent += any(value == -math.inf for value in known)
        target = sample.get("target")
        (target,) = target if isinstance(target, list) and len(target) == 1 else (target,)
        label = _letter(target.strip()) if isinstance(target, str) else -1
        if not 0 <= label < len(choices):
            raise InputError(
                f"{path}: sample {number}: target {target!r:.60}; expected one letter from A to "
                f"{LETTERS[len(choices) - 1]}"
            )
        yield [max(value, least) for value in known], label
    if absent:
        note(
            path,
            f"{absent:,} of {len(samples):,} samples lack the log-probability of a choice and use "
            "their smallest listed one instead; increase `--top-logprobs`",
        )


def _share(listed: Sequence[tuple[str, float]], letter: str) -> float:
    """Return the log of the summed probability of the tokens equal to a letter; -inf for none."""
    found = [value for token, value in listed if token == letter]
    return float(np.logaddexp.reduce(found)) if found else -math.inf


def _answer_tokens(
    path: Path, number: int, sample: dict[str, Any], count: int
) -> list[tuple[str, float]]:
    """Return the listed tokens and log-probabilities for the answer's last token that is a letter.

    Only the letters of the ``count`` choices are considered.
    """
    try:
        tokens = sample["output"]["choices"][0]["logprobs"]["content"]
        for token in reversed(tokens):
            if 0 <= _letter(token["token"].strip()) < count:
                own = token.get("top_logprobs") or [token]
                return [(each["token"].strip(), float(each["logprob"])) for each in own]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: sample {number} has no log-probabilities; evaluate with `--logprobs` and "
            "`--top-logprobs 20`"
        ) from error
    raise InputError(
        f"{path}: sample {number}: no token of the answer is a letter from A to "
        f"{LETTERS[count - 1]}"
    )
