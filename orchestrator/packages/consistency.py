"""Checks that a package is consistent, without data, search or training."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orchestrator.packages.journals import cleaned, subject
from orchestrator.packages.package import (
    HEADER,
    JOURNALS,
    PLUGINS,
    TEST,
    Cell,
    Package,
    UnfitError,
    header_of,
)
from orchestrator.packages.predictions import RowPredictions
from orchestrator.storage.events import (
    Evaluated,
    Event,
    StudyClosed,
    StudyOpened,
    SweepEnded,
    SweepStarted,
    TrialStarted,
    from_line,
    to_line,
)
from orchestrator.storage.ledger import Study, Trial
from orchestrator.storage.provenance import provenance
from trainables.calibrators import calibrator_from_recipe
from trainables.common.devices import computed_on
from trainables.common.errors import printable
from trainables.common.stages import EVERY_STAGE, GIVEN
from trainables.common.words import many
from trainables.plugins import find_source

SAMPLE = 64  # Number of rows whose mean logit is compared to find possibly equal predictions.
TIE = 1e-3
"""Log-probabilities of a row that differ by less may swap their order on another machine."""


def check_form(package: Package) -> Iterator[str]:
    """Check that header and journals have the form that `package publish` writes."""
    yield from (f"{HEADER}: unknown key {key!r}" for key in {*package.header} - {*header_of("")})
    yield from _unprintable(HEADER, package.header)
    for path in sorted((package.folder / JOURNALS).glob("*.jsonl")):
        known = _Known()
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                where = f"{JOURNALS}/{path.name}, line {number}"
                try:
                    event = from_line(line)
                except ValueError as error:
                    yield f"{where}: {error}"
                    break
                assert event is not None
                yield from (f"{where}: {fault}" for fault in _faults(event, line, known))
        if not isinstance(known.last, SweepEnded):
            yield f"{JOURNALS}/{path.name}: its last line is not the end of the sweep"


def check_plugins(package: Package) -> Iterator[str]:
    """Check that the package has exactly the plugin code that its sweeps name; run none of it."""
    named = package.plugins(package.ledgers)
    for plugin in named:
        source = find_source(plugin.path, package.folder)
        if changed := source.changed_import(plugin.code):
            raise UnfitError(
                f"not verified: {plugin.path} needs {changed}, which differs on this machine"
            )
        if source.code != plugin.code:
            yield f"{plugin.path}: expected code {plugin.code[:12]}, got {source.code[:12]}"
    folders = {f"{PLUGINS}/{plugin.code}/" for plugin in named}
    for name in package.files():
        if name.startswith(f"{PLUGINS}/") and not name.startswith(tuple(folders)):
            yield f"{name} belongs to no sweep"


class _Known:
    """The first event of a journal so far by kind and by trial or study, and its last event."""

    def __init__(self) -> None:
        self.by_subject: dict[tuple[type[Event], str], Event] = {}
        self.last: Event | None = None

    def of(self, kind: type[Event], name: str) -> Any:
        return self.by_subject.get((kind, name))


def _faults(event: Event, line: bytes, known: _Known) -> Iterator[str]:
    """Yield the faults of an event, including contradictions to earlier events."""
    fields = json.loads(line)
    if unknown := {*fields} - {*json.loads(to_line(event))}:
        yield from (f"unknown key {key!r}" for key in sorted(unknown))
    elif to_line(event) != line or cleaned(event) != event:
        yield f"{event.event} differs from the form that `calsweep package publish` writes"
    yield from _unprintable(event.event, fields)
    yield from _out_of_place(event, known)
    known.by_subject.setdefault((type(event), subject(event)), event)
    known.last = event


def _out_of_place(event: Event, known: _Known) -> Iterator[str]:
    """Yield the contradictions between an event and earlier events."""
    name = subject(event)
    if isinstance(event, SweepStarted):
        if event.sweep != event.spec.get("name"):
            named = f"{event.spec.get('name')!r:.80}"
            yield f"sweep {event.sweep!r:.80} has the name {named} in its sweep file"
        yield from _unknown(event.provenance, provenance(), "provenance")
        return
    before = known.of(type(event), name)
    if isinstance(known.last, SweepEnded):
        yield f"{event.event} after the end of the sweep"
    if before is not None and before != event:
        yield f"{event.event} of {name[:40]!r} contradicts an earlier line"
    if isinstance(event, TrialStarted | StudyClosed):
        if known.of(StudyOpened, event.study) is None:
            yield f"{event.event} of study {event.study!r:.80}, which was not opened"
    elif not isinstance(event, StudyOpened | SweepEnded):
        trial = known.of(TrialStarted, name)
        if trial is None:
            yield f"{event.event} of trial {name[:12]!r}, which was not started"
        elif isinstance(event, Evaluated):
            if (event.study, event.seed) != (trial.study, trial.seed):
                where = f"{event.study!r:.80}, seed {event.seed!r}"
                yield f"evaluated of trial {name[:12]} names another study or seed: {where}"
            record = dict.fromkeys(EVERY_STAGE, computed_on(torch.device("cpu")))
            yield from _unknown(event.computed, record, "computed")


def _unknown(record: Any, known: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield a line for each key of a nested record that ``known`` does not have in this form."""
    for key, value in record.items():
        if key not in known:
            yield f"{where}: unknown key {key!r:.80}"
        elif isinstance(known[key], Mapping):
            yield from _unknown(value, known[key], f"{where}.{key}")
        elif isinstance(value, Mapping):
            yield f"{where}.{key}: expected a single value, got a mapping"


def _unprintable(where: str, value: Any) -> Iterator[str]:
    """Yield a line for each key or value with control characters."""
    if isinstance(value, str) and (printable(value) != value or "\n" in value):
        yield f"{where}: {value!r:.80} has characters that cannot be printed"
    elif isinstance(value, Mapping):
        for key, own in value.items():
            yield from _unprintable(where, key)
            yield from _unprintable(where, own)
    elif isinstance(value, list | tuple):
        for own in value:
            yield from _unprintable(where, own)


@dataclass(frozen=True)
class _Predicted:
    """The file of a trial's predictions; ``place`` is the mean logit of its first rows."""

    cell: Cell
    path: Path
    place: float

    @classmethod
    def at(cls, cell: Cell, path: Path) -> "_Predicted":
        some = RowPredictions.read(path).logits[:SAMPLE].double()
        return cls(cell, path, float(some.nan_to_num(neginf=-1e3).mean()))

    @property
    def rows(self) -> RowPredictions:
        return RowPredictions.read(self.path)

    @property
    def must_differ(self) -> tuple[Any, ...]:
        """Model and seed; if they differ, the predictions of two networks must differ."""
        return self.cell.study.model, self.cell.trial.seed


def check_likeness(package: Package, tolerance: float) -> Iterator[str]:
    """Check that different networks predict differently, and check calibrators with ``_moved``.

    Different seeds or models never give the same predictions. Two methods may give the same
    network, which then also has the same validation figures.
    """
    on_test = [
        _Predicted.at(c, package.folder / TEST / f"{c.trial.key}.npz") for c in package.cells
    ]
    for part, found in (("test", on_test), ("validation", _validated(package))):
        for one, other in _alike(found, tolerance):
            pair = f"{one.cell.title} and {other.cell.title}"
            if one.must_differ != other.must_differ:
                yield f"{pair}: their {part} predictions are identical"
            elif not _same_figures(one.cell.trial, other.cell.trial):
                yield f"{pair}: identical {part} predictions, but different validation figures"
        yield from _moved(found, part)


def _validated(package: Package) -> list[_Predicted]:
    """Return the trials with validation rows in the package, one per artifact."""
    cells = {package.rows_of(cell.trial): cell for cell in package.trials if cell.trial.artifact}
    return [_Predicted.at(cell, path) for path, cell in cells.items() if path.is_file()]


def _alike(
    found: Iterable[_Predicted], tolerance: float
) -> Iterator[tuple[_Predicted, _Predicted]]:
    """Yield pairs of trials with the same predictions; see ``_Predicted``.

    Given logits, and predictions that are the same for all rows, are not compared.
    """
    trained = [each for each in found if each.cell.study.model != GIVEN]
    ordered = sorted(trained, key=lambda each: each.place)
    for number, one in enumerate(ordered):
        for other in ordered[number + 1 :]:
            if other.place - one.place > tolerance:
                break
            ours, theirs = one.rows.logits, other.rows.logits
            same = ours.shape == theirs.shape and _close(ours, theirs, tolerance)
            if same and not _close(ours, ours[:1].expand_as(ours), tolerance):
                yield one, other


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return torch.allclose(ours.double(), theirs.double(), rtol=0.0, atol=tolerance)


def _same_figures(one: Trial, other: Trial) -> bool:
    """Return True if the validation NLL and Brier score of two trials agree.

    A calibrator's validation figures are cross-fitted and not compared: the result is True.
    """
    if "calibrate" in (one.stage, other.stage):
        return True
    return all(abs(one.metrics[n] - other.metrics[n]) <= TIE for n in ("val_nll", "val_brier"))


def _moved(found: Iterable[_Predicted], part: str) -> Iterator[str]:
    """Yield a line for each calibrator that should keep the predicted class but changes it."""
    groups = defaultdict[tuple[str, str | None, int, str], list[_Predicted]](list)
    for each in found:
        study, trial = each.cell.study, each.cell.trial
        chain = list(trial.configuration.items())
        if trial.stage != "calibrate":
            groups[study.sweep_id, study.name, trial.seed, json.dumps(chain)].insert(0, each)
        elif _keeps_classes(study, *chain[-1]):
            groups[study.sweep_id, study.upstream, trial.seed, json.dumps(chain[:-1])].append(each)
    for first, *others in groups.values():
        before = first.rows.logits
        for other in others:
            after = other.rows.logits
            if after.shape == before.shape and (count := _changed(before, after)):
                yield (
                    f"{other.cell.title}: predicts another class than {first.cell.study.recipe} "
                    f"for {many(count, f'{part} row')}, but its calibrator cannot change the class"
                )


def _keeps_classes(study: Study, part: str, values: Mapping[str, Any]) -> bool:
    base = study.origin.get("variants", {}).get(part, part)
    return calibrator_from_recipe(base, values).preserves_accuracy


def _changed(before: Tensor, after: Tensor) -> int:
    """Return the number of rows with another predicted class, ignoring ties within ``TIE``."""
    tops = before.argmax(1, keepdim=True), after.argmax(1, keepdim=True)
    (old, new), (kept, now) = (
        [rows.gather(1, top).double() for top in tops] for rows in (before, after)
    )
    return int(((old - new > TIE) & (now - kept > TIE)).sum())
