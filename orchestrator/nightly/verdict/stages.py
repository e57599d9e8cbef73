"""Find stages that became slower relative to the others, which a busy machine cannot explain."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from orchestrator.nightly.record import WHOLE_NIGHT, CellKey, Finding, NightRecord
from orchestrator.nightly.verdict.limits import STAGES, Limits
from orchestrator.nightly.verdict.series import first_place

SPANS = (2, 3, 5, 8, 13, 21)  # Numbers of last nights that are compared with the nights before.
FEWEST = 10  # Minimum number of nights before such a span.
MOST = 60  # Maximum number of nights before such a span that are used.
CHANCE = 2e-4  # Error level of one stage on one span of nights.
SPEED = "images_per_second"
TIME = "_time"  # Suffix of the metric of a stage's time.

Floats = NDArray[np.float64]


class Slower(NamedTuple):
    """A slowdown of a stage: logarithm of the factor, number of nights, and chance."""

    shift: float
    nights: int
    chance: float


def stage_findings(
    records: Sequence[NightRecord], limits: Limits, accepted: Mapping[CellKey, str]
) -> Iterator[Finding]:
    """Judge the last record (oldest first): yield an alarm for each stage that became slower.

    Other load on a machine slows all stages of a night alike, so times relative to the other stages
    vary several times less than absolute times.
    """
    names = [record.night for record in records]
    for stage, series in contrasts(stage_times(records)).items():
        cell = CellKey(*WHOLE_NIGHT, stage + TIME)
        start = first_place(names, cell, accepted)
        relative = series[start:]
        nights = np.flatnonzero(np.isfinite(relative))
        threshold = float(np.log1p(limits.threshold(cell.metric).relative))
        found = slower(relative[nights], threshold)
        if found is None or start + int(nights[-1]) != len(records) - 1:
            continue
        since, length = names[start + int(nights[-found.nights])], float(np.exp(found.shift))
        yield Finding(
            cell,
            "soft",
            "step",
            f"{stage} takes {100 * (length - 1):.1f} % longer relative to the other stages, "
            f"{found.nights} nights in a row, since {since}",
            value=length,
            expected=1.0,
            threshold=float(np.expm1(threshold)),
            chance=found.chance,
            nights=len(nights) - found.nights,
            since=since,
        )


def relative_times(records: Sequence[NightRecord], cell: CellKey) -> Floats:
    """Return a stage's relative times (T,) of T nights, NaN if missing; see ``contrasts``."""
    stage = cell.metric.removesuffix(TIME)
    return contrasts(stage_times(records)).get(stage, np.full(len(records), np.nan))


def stage_times(records: Sequence[NightRecord]) -> dict[str, Floats]:
    """Return log seconds per image by stage, (T, N): T nights, N pairs of cell and seed.

    The pairs are those of the last night; values are NaN if missing.
    """
    columns: dict[str, list[tuple[CellKey, int]]] = {}
    for cell, values in records[-1].cells.items():
        row = records[-1].rows.get(cell.pair)
        if cell.metric == SPEED and row is not None and row.stage in STAGES:
            columns.setdefault(row.stage, []).extend((cell, seed) for seed in values)
    found = {}
    for stage, own in columns.items():
        speeds = np.array([[_speed(night, *column) for column in own] for night in records])
        found[stage] = -np.log(speeds)
    return found


def _speed(night: NightRecord, cell: CellKey, seed: int) -> float:
    value = night.cells.get(cell, {}).get(seed, np.nan)
    return value if 0 < value < np.inf else np.nan


def contrasts(times: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return for T nights the log time (T,) of each stage minus the mean of the other stages.

    The time of a stage is the median over its columns, each minus its median over the nights.
    """
    own = {
        stage: _nanmedian(values - _nanmedian(values, 0)[None], 1)
        for stage, values in times.items()
    }
    return {
        stage: values - np.mean([other for name, other in own.items() if name != stage], axis=0)
        for stage, values in own.items()
        if len(own) > 1
    }


def _nanmedian(values: Floats, axis: int) -> Floats:
    # NumPy warns about slices that are all NaN, for which NaN is the right result.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return np.nanmedian(values, axis=axis)


def slower(series: Floats, threshold: float) -> Slower | None:
    """Return the most significant slowdown above ``threshold`` at the end of a series (T,), if any.

    Student's t-test compares the last nights (each of ``SPANS``) with up to ``MOST`` before them.
    """
    found = []
    for span in SPANS:
        before, last = series[:-span][-MOST:], series[-span:]
        if len(before) < FEWEST:
            break
        shift = float(last.mean() - before.mean())
        error = float(before.std(ddof=1)) * np.sqrt(1 / span + 1 / len(before))
        if shift > threshold and (chance := _chance(shift, error, len(before) - 1)) < CHANCE:
            found.append(Slower(shift, span, chance))
    return min(found, key=lambda one: (one.chance, -one.nights), default=None)


def _chance(shift: float, error: float, freedom: int) -> float:
    return float(stdtr(freedom, -shift / error)) if error > 0 else 0.0
