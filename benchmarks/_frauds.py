"""Frauds and mistakes to plant in honest packages; apart from the fraud, packages are consistent.

``FRAUDS`` are functions of a ``Forge``. Most of them write the derived files again, as a forger
with this program would do, so that only the claim itself is wrong.
"""

import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import isfunction
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from orchestrator.packages.derive import derive
from orchestrator.packages.package import CELLS, HEADER, JOURNALS, SUITES, TABLE, Cell, Package
from orchestrator.packages.predictions import RowPredictions
from orchestrator.packages.stored import StoredSweep
from orchestrator.storage.events import (
    SEAL,
    SEAL_BYTES,
    Evaluated,
    Event,
    StudyClosed,
    StudyOpened,
    SweepStarted,
    TrialFinished,
    TrialScored,
    TrialStarted,
    to_line,
)
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.storage import Storage
from trainables.calibrators import build_calibrator
from trainables.data.suites import auroc, fpr_at_tpr
from trainables.metrics import evaluation_report
from trainables.stages import evaluate_on_test


@dataclass
class Forge:
    """An unpacked honest package, with the storage of its author and a random generator.

    Attributes:
        sweep: Name of the package's only sweep.
    """

    folder: Path
    root: Storage
    sweep: str
    die: Random

    @property
    def package(self) -> Package:
        """Return the package in its current state."""
        return Package(self.folder)

    @property
    def journal(self) -> Path:
        """Return the path of the package's journal."""
        return next((self.folder / JOURNALS).iterdir())

    def events(self) -> list[Event]:
        """Return the events of the journal."""
        return list(iterate_events(self.journal, kinds=None))

    def tell(self, events: list[Event]) -> None:
        """Replace the journal's events, and write the derived files again."""
        self.journal.write_bytes(b"".join(map(to_line, events)))
        derive(self.package)

    def cell(self) -> Cell:
        """Return a random cell."""
        return self.die.choice(self.package.cells)

    def some(self) -> tuple[Cell, RowPredictions]:
        """Return a random cell and its predictions."""
        cell = self.cell()
        return cell, self.rows(cell)

    def searched(self) -> Cell:
        """Return a random cell of a study with a search, on the seed of the search."""
        cells = [c for c in self.package.cells if c.study.trials > 1 and c.trial.role == "search"]
        return self.die.choice(cells)

    def path(self, cell: Cell) -> Path:
        """Return the file of a cell's predictions."""
        return self.folder / "test" / f"{cell.trial.key}.npz"

    def rows(self, cell: Cell) -> RowPredictions:
        """Return a cell's predictions."""
        return RowPredictions.read(self.path(cell))

    def claim(
        self, cell: Cell, rows: RowPredictions, figures: dict[str, float] | None = None
    ) -> None:
        """Replace a cell's predictions, and its figures by those of ``rows`` (or ``figures``)."""
        rows.save(self.path(cell))
        told = figures or evaluation_report(rows.logits, rows.labels)
        events = self.events()
        for event in events:
            if isinstance(event, Evaluated) and event.key == cell.trial.key:
                suites = self.suite_figures(cell, rows, event)
                event.metrics = {f"test_{name}": value for name, value in told.items()} | suites
        self.tell(events)

    def suite_figures(self, cell: Cell, rows: RowPredictions, event: Evaluated) -> dict[str, float]:
        """Compute the figures on other images from predictions and stored confidences."""
        path = self.folder / SUITES / f"{cell.trial.key}.npz"
        if not path.is_file():
            return {}
        with np.load(path) as found:
            (outside,) = (torch.from_numpy(found[n]) for n in found.files if n.endswith("outside"))
        inside = rows.logits.double().amax(1)
        told = {"auroc": auroc(inside, outside), "fpr95": fpr_at_tpr(inside, outside)}
        return {n: told[n.rpartition("/")[2]] for n in event.metrics if "/" in n}


def edited_table(forge: Forge) -> None:
    """A changed figure in table.csv only."""
    path = forge.folder / TABLE
    text = path.read_text()
    digit = next(i for i in range(text.index("finished"), len(text)) if text[i : i + 2] == "0.") + 3
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])


def edited_cells(forge: Forge) -> None:
    """A changed figure in cells.json only."""
    path = forge.folder / CELLS
    cells = json.loads(path.read_text())
    forge.die.choice(cells)["figures"]["ece"] *= 0.5
    path.write_text(json.dumps(cells, indent=1, ensure_ascii=False) + "\n")


def damaged_predictions(forge: Forge) -> None:
    """A file of predictions with some overwritten bytes."""
    path = forge.path(forge.cell())
    content = bytearray(path.read_bytes())
    start = forge.die.randrange(100, len(content) - 300)
    content[start : start + 8] = bytes(8)
    path.write_bytes(content)


def edited_figures(forge: Forge) -> None:
    """A smaller calibration error than the predictions give."""
    cell = forge.cell()
    name = forge.die.choice(["ece", "aece", "cwece", "nll", "brier"])
    figures = {**cell.trial.test, name: cell.trial.test[name] * forge.die.uniform(0.5, 0.99)}
    forge.claim(cell, forge.rows(cell), figures)


def other_bins(forge: Forge) -> None:
    """Errors computed with another number of bins, published as errors with 15 bins."""
    cell, rows = forge.some()
    bins = forge.die.choice([5, 10, 20, 30])
    forge.claim(cell, rows, evaluation_report(rows.logits, rows.labels, bins=bins))


def other_bins_said(forge: Forge) -> None:
    """A header with another number of bins."""
    header = json.loads((forge.folder / HEADER).read_text())
    header["bins"] = forge.die.choice([10, 20])
    (forge.folder / HEADER).write_text(json.dumps(header))
    derive(forge.package)


def other_labels(forge: Forge) -> None:
    """Some labels changed to the wrong predictions."""
    cell, rows = forge.some()
    labels, guess = rows.labels.clone(), rows.logits.argmax(1)
    wrong = (guess != labels).nonzero()[:, 0].tolist()
    for row in forge.die.sample(wrong, max(1, len(wrong) // 4)):
        labels[row] = guess[row]
    forge.claim(cell, replace(rows, labels=labels))


def _kept(rows: RowPredictions, order: Tensor) -> RowPredictions:
    return replace(
        rows, logits=rows.logits[order], labels=rows.labels[order], rows=rows.rows[order]
    )


def dropped_rows(forge: Forge) -> None:
    """Test data without some difficult rows."""
    cell, rows = forge.some()
    loss = -rows.logits.gather(1, rows.labels[:, None])[:, 0]
    order = loss.argsort()[: -forge.die.randint(1, 10)].sort().values
    forge.claim(cell, _kept(rows, order))


def duplicated_rows(forge: Forge) -> None:
    """Some easy rows twice, instead of difficult rows."""
    cell, rows = forge.some()
    order = (-rows.logits.gather(1, rows.labels[:, None])[:, 0]).argsort()
    count = forge.die.randint(1, 10)
    forge.claim(cell, _kept(rows, torch.cat([order[:-count], order[:count]]).sort().values))


def shuffled_rows(forge: Forge) -> None:
    """The same rows in another order: all figures are right, but the rows do not match the data."""
    cell, rows = forge.some()
    order = torch.tensor(forge.die.sample(range(len(rows.labels)), len(rows.labels)))
    forge.claim(cell, _kept(rows, order))


def other_split(forge: Forge) -> None:
    """Another split of the data than the one that was used."""
    seed, events = forge.die.randint(1, 1000), forge.events()
    for event in events:
        if isinstance(event, SweepStarted):
            spec = json.loads(json.dumps(event.spec))
            for task in spec["tasks"]:
                task["split"]["seed"] += seed
            event.spec = spec
        elif isinstance(event, StudyOpened):
            split = {**event.origin["split"], "seed": event.origin["split"]["seed"] + seed}
            event.origin = {**event.origin, "split": split}
    forge.tell(events)


def edited_split(forge: Forge) -> None:
    """A split in which a test row is also a training row."""
    path = next((forge.folder / "splits").iterdir())
    with np.load(path) as found:
        parts = {name: found[name].copy() for name in found.files}
    parts["train"][forge.die.randrange(len(parts["train"]))] = forge.die.choice(list(parts["test"]))
    np.savez_compressed(path, **parts)
    derive(forge.package)


def other_revision(forge: Forge) -> None:
    """Another code revision than the one that computed the package."""
    commit, events = f"{forge.die.randrange(16**40):040x}", forge.events()
    for event in events:
        if isinstance(event, SweepStarted):
            event.provenance = {**event.provenance, "git_commit": commit}
    forge.tell(events)


def tuned_on_test(forge: Forge) -> None:
    """The trial that is best on test data, published as the choice on validation data."""
    cell, stored = forge.searched(), StoredSweep.open(forge.root, forge.sweep)
    data = stored.data_of(cell.study, cell.trial.seed)
    figures = {}
    for trial in cell.study.searched:
        if trial.artifact and trial.key != cell.trial.key:
            metrics, artifact = evaluate_on_test(stored.store, trial.ref, data)
            figures[trial.key] = (metrics["ece"], metrics, artifact)
    key, (_, metrics, artifact) = min(figures.items(), key=lambda item: item[1][0])
    events = forge.events()
    dropped = {c.trial.key for c in forge.package.cells if c.study.name == cell.study.name}
    for other in dropped:
        (forge.folder / "test" / f"{other}.npz").unlink()
    events = [e for e in events if not (isinstance(e, Evaluated) and e.key in dropped)]
    for event in events:
        if isinstance(event, StudyClosed) and event.study == cell.study.name:
            event.chosen = key
    told = {f"test_{name}": value for name, value in metrics.items()}
    measured = Evaluated(
        key=key, study=cell.study.name, seed=cell.trial.seed, metrics=told, time=events[-1].time
    )
    rows = artifact.tensors("test")
    numbers = torch.from_numpy(data.test_numbers().copy())
    named = (cell.study.task, cell.study.recipe, cell.trial.seed)
    predictions = RowPredictions(rows["log_probs"], rows["labels"], numbers, *named)
    predictions.save(forge.folder / "test" / f"{key}.npz")
    forge.tell([*events[:-1], measured, events[-1]])


def fitted_on_test(forge: Forge) -> None:
    """A temperature that was fitted on test rows."""
    cell, rows = forge.some()
    fitted = build_calibrator("ts").fit(rows.logits, rows.labels)
    logits = fitted(rows.logits).log_softmax(1).to(rows.logits.dtype)
    if torch.allclose(logits, rows.logits, atol=1e-4):  # The temperature was optimal already.
        logits = (1.2 * rows.logits).log_softmax(1)
    forge.claim(cell, replace(rows, logits=logits))


def trained_on_test(forge: Forge) -> None:
    """Predictions of a network that was trained on some test rows."""
    cell, rows = forge.some()
    logits = rows.logits.clone()
    for row in forge.die.sample(range(len(logits)), len(logits) // 10):
        logits[row, rows.labels[row]] += 2.0
    forge.claim(cell, replace(rows, logits=logits.log_softmax(1)))


def swapped_predictions(forge: Forge) -> None:
    """Two cells with swapped predictions and figures."""
    one, rows = forge.some()
    # Two methods may train the same network; swapping these would change nothing.
    differing = [c for c in forge.package.cells if not forge.rows(c).logits.equal(rows.logits)]
    other = forge.die.choice(differing)
    others = forge.rows(other)
    forge.claim(one, replace(rows, logits=others.logits))
    forge.claim(other, replace(others, logits=rows.logits))


def copied_seed(forge: Forge) -> None:
    """The predictions of one seed, copied to another seed."""
    cells = forge.package.cells
    one = forge.cell()
    same = [c for c in cells if c.study.name == one.study.name and c.trial.seed != one.trial.seed]
    other = forge.die.choice(same)
    forge.claim(other, replace(forge.rows(other), logits=forge.rows(one).logits))


def edited_configuration(forge: Forge) -> None:
    """Another value of a hyper-parameter than the one that was used."""
    cell, events = forge.searched(), forge.events()
    for event in events:
        if isinstance(event, TrialStarted) and event.configuration == cell.trial.configuration:
            name, value = next(iter(event.parameters.items()))
            part, parameter = name.split(".")
            new = value * forge.die.uniform(0.8, 0.95)
            event.parameters = {**event.parameters, name: new}
            own = {**event.configuration[part], parameter: new}
            event.configuration = {**event.configuration, part: own}
    forge.tell(events)


def hidden_trial(forge: Forge) -> None:
    """A search without one of its trials."""
    cell, events = forge.searched(), forge.events()
    others = [t.key for t in cell.study.searched if t.key != cell.trial.key and t.number > 0]
    key = forge.die.choice(others)
    for event in events:
        if isinstance(event, StudyClosed) and event.study == cell.study.name:
            event.finished -= 1
    forge.tell([event for event in events if getattr(event, "key", "") != key])


def more_trials(forge: Forge) -> None:
    """One study with a larger budget than the others."""
    cell, events = forge.searched(), forge.events()
    for event in events:
        if isinstance(event, StudyOpened) and event.study == cell.study.name:
            event.trials += 1
    forge.tell(events)


def failed_rival(forge: Forge) -> None:
    """A trial that was not chosen, published as failed."""
    cell, events = forge.searched(), forge.events()
    others = [t.key for t in cell.study.searched if t.key != cell.trial.key]
    key = forge.die.choice(others)
    for event in events:
        if isinstance(event, TrialFinished) and event.key == key:
            event.status, event.artifact, event.reason = "failed", "", "loss is NaN"
            event.metrics = {}
        elif isinstance(event, StudyClosed) and event.study == cell.study.name:
            event.finished, event.failed = event.finished - 1, event.failed + 1
            event.reason = "loss is NaN"
    scored = [e for e in events if not (isinstance(e, TrialScored) and e.key == key)]
    for path in (forge.folder / "validation").glob("*.npz"):
        if not any(isinstance(e, TrialFinished) and e.artifact == path.stem for e in scored):
            path.unlink()
    forge.tell(scored)


def lost_rival(forge: Forge) -> None:
    """A trial that was not chosen, published as lost by a machine."""
    cell, events = forge.searched(), forge.events()
    key = forge.die.choice([t.key for t in cell.study.searched if t.key != cell.trial.key])
    for event in events:
        if isinstance(event, TrialFinished) and event.key == key:
            event.status, event.fault, event.reason = "failed", "machine", "node died"
    forge.tell(events)


def another_class(forge: Forge) -> None:
    """An additional class without rows, which lowers class-wise errors."""
    cell, rows = forge.some()
    empty = torch.full((len(rows.logits), 1), -30.0, dtype=rows.logits.dtype)
    forge.claim(cell, replace(rows, logits=torch.cat([rows.logits, empty], dim=1)))


def edited_validation(forge: Forge) -> None:
    """Better validation figures of the chosen trial, so that the choice seems right."""
    cell, events = forge.searched(), forge.events()
    factor = forge.die.uniform(0.6, 0.95)
    for event in events:
        if isinstance(event, TrialFinished) and event.key == cell.trial.key:
            event.metrics = {**event.metrics, "val_nll": event.metrics["val_nll"] * factor}
        elif isinstance(event, TrialScored) and event.key == cell.trial.key:
            event.objective *= factor
    forge.tell(events)


def missing_seed(forge: Forge) -> None:
    """A table without one of the computed seeds."""
    cells = [c for c in forge.package.cells if c.trial.role == "seed"]
    cell = forge.die.choice(cells)
    forge.path(cell).unlink()
    events = forge.events()
    forge.tell([e for e in events if not (isinstance(e, Evaluated) and e.key == cell.trial.key)])


def pickled_objects(forge: Forge) -> None:
    """A file of predictions with a pickled object."""
    cell, rows = forge.some()
    parts = {"labels": rows.labels.numpy(), "rows": rows.rows.numpy(), "seed": np.array(rows.seed)}
    words = {"task": np.array(rows.task), "recipe": np.array([{"code": 1}], dtype=object)}
    np.savez(forge.path(cell), logits=rows.logits.numpy(), **parts, **words)
    derive(forge.package)


def better_suite(forge: Forge) -> None:
    """A better figure on other images than the confidences give."""
    events, cell = forge.events(), forge.cell()
    for event in events:
        if isinstance(event, Evaluated) and event.key == cell.trial.key:
            better = {n: (1 + v) / 2 for n, v in event.metrics.items() if n.endswith("/auroc")}
            event.metrics = {**event.metrics, **better}
    forge.tell(events)


def lower_confidences(forge: Forge) -> None:
    """Lower confidences on other images, with the figures that they give."""
    events, cell = forge.events(), forge.cell()
    path = forge.folder / SUITES / f"{cell.trial.key}.npz"
    with np.load(path) as found:
        arrays = {name: found[name] - name.endswith("outside") for name in found.files}
    np.savez_compressed(path, **arrays)
    for event in events:
        if isinstance(event, Evaluated) and event.key == cell.trial.key:
            event.metrics |= forge.suite_figures(cell, forge.rows(cell), event)
    forge.tell(events)


def nearly_copied_seed(forge: Forge) -> None:
    """The predictions of one seed, slightly changed and copied to another seed."""
    one, other = _two_seeds(forge)
    rows = forge.rows(one)
    noise = 1e-8 * torch.rand(rows.logits.shape, generator=torch.Generator().manual_seed(0))
    forge.claim(other, replace(forge.rows(other), logits=rows.logits + noise))


def copied_method(forge: Forge) -> None:
    """The predictions of one method, copied to another method."""
    cells = [c for c in forge.package.cells if "+" not in c.study.recipe]
    one = forge.die.choice(cells)
    same = [c for c in cells if c.trial.seed == one.trial.seed and c.study.name != one.study.name]
    other = forge.die.choice(same)
    forge.claim(other, replace(forge.rows(other), logits=forge.rows(one).logits))


def copied_validation(forge: Forge) -> None:
    """The validation rows and figures of one seed, copied to another seed."""
    one, other = _two_seeds(forge)
    events, places = forge.events(), [forge.package.rows_of(c.trial) for c in (one, other)]
    rows = replace(RowPredictions.read(places[0]), seed=other.trial.seed)
    rows.save(places[1])
    for event in events:
        if isinstance(event, TrialFinished) and event.key == other.trial.key:
            event.metrics = dict(one.trial.metrics)
    forge.tell(events)


def _two_seeds(forge: Forge) -> tuple[Cell, Cell]:
    one = forge.cell()
    (other,) = (
        c
        for c in forge.package.cells
        if c.study.name == one.study.name and c.trial.seed != one.trial.seed
    )
    return one, other


def other_accuracy(forge: Forge) -> None:
    """A changed class in the predictions of a calibrator that keeps all classes."""
    cells = [c for c in forge.package.cells if c.study.recipe.endswith("+ts")]
    cell = forge.die.choice(cells or forge.package.cells)
    rows = forge.rows(cell)
    logits, wrong = rows.logits.clone(), (rows.logits.argmax(1) != rows.labels).nonzero()[:, 0]
    row = forge.die.choice(wrong.tolist())
    logits[row, rows.labels[row]] = logits[row].max() + 1
    forge.claim(cell, replace(rows, logits=logits.log_softmax(1)))


def other_name(forge: Forge) -> None:
    """Another name of the sweep than in the sweep file, with terminal codes and markup."""
    events = forge.events()
    for event in events:
        if isinstance(event, SweepStarted):
            event.sweep = forge.die.choice(["best", "board\x1b[2J", "<b>board</b>", "board\u202e"])
    forge.tell(events)


def unprintable_license(forge: Forge) -> None:
    """A license with a terminal code that clears the screen."""
    header = json.loads((forge.folder / HEADER).read_text())
    (forge.folder / HEADER).write_text(json.dumps({**header, "license": "MIT\x1b[2J"}))
    derive(forge.package)


def unknown_header_key(forge: Forge) -> None:
    """An unknown key in the package's header."""
    header = json.loads((forge.folder / HEADER).read_text())
    (forge.folder / HEADER).write_text(json.dumps({**header, "certified_by": "nobody"}))
    derive(forge.package)


def unknown_event_key(forge: Forge) -> None:
    """An unknown key in an event of the journal."""
    lines = forge.journal.read_bytes().splitlines(keepends=True)
    place = forge.die.randrange(len(lines))
    content = lines[place][:-SEAL_BYTES] + b',"certified_by":"nobody"'
    lines[place] = content + SEAL % zlib.crc32(content)
    forge.journal.write_bytes(b"".join(lines))
    derive(forge.package)


def unknown_nested_key(forge: Forge) -> None:
    """An unknown key in a nested field of an event."""
    events, kind = forge.events(), forge.die.choice(["provenance", "hardware", "computed"])
    for event in events:
        if isinstance(event, SweepStarted) and kind == "provenance":
            event.provenance = {**event.provenance, "certified_by": "nobody"}
        elif isinstance(event, SweepStarted) and kind == "hardware":
            event.provenance = {**event.provenance, "hardware": {"certified_by": "nobody"}}
        elif isinstance(event, Evaluated) and kind == "computed":
            event.computed = {k: {**v, "certified_by": "nobody"} for k, v in event.computed.items()}
    forge.tell(events)


def unknown_metric(forge: Forge) -> None:
    """A validation figure with an unknown name."""
    cell, events = forge.cell(), forge.events()
    for event in events:
        if isinstance(event, TrialFinished) and event.key == cell.trial.key:
            event.metrics = {**event.metrics, forge.die.choice(["val_trust", "trust"]): 1.0}
    forge.tell(events)


def edited_rival(forge: Forge) -> None:
    """A changed figure of a trial that was not chosen; the search does not use it."""
    cell, events = forge.searched(), forge.events()
    key = forge.die.choice([t.key for t in cell.study.searched if t.key != cell.trial.key])
    name = forge.die.choice(["val_brier", "val_ece", "val_mce", "val_cwece"])
    for event in events:
        if isinstance(event, TrialFinished) and event.key == key:
            event.metrics = {**event.metrics, name: event.metrics[name] * 1.1}
    forge.tell(events)


def torn_journal(forge: Forge) -> None:
    """An additional incomplete line at the end of the journal."""
    lines = forge.journal.read_bytes().splitlines(keepends=True)
    torn = forge.die.choice(lines)
    forge.journal.write_bytes(b"".join([*lines, torn[: forge.die.randrange(1, len(torn) - 1)]]))
    derive(forge.package)


def repeated_event(forge: Forge) -> None:
    """Two different outcomes of the same trial."""
    events, key = forge.events(), forge.searched().trial.key
    place = next(n for n, e in enumerate(events) if isinstance(e, TrialFinished) and e.key == key)
    told = events[place]
    assert isinstance(told, TrialFinished)
    better = replace(told, metrics={name: 0.5 * value for name, value in told.metrics.items()})
    forge.tell([*events[:place], better, *events[place:]])


def event_of_no_trial(forge: Forge) -> None:
    """The outcome of a trial that was never started."""
    events, key = forge.events(), f"{forge.die.randrange(16**64):064x}"
    finished = next(event for event in events if isinstance(event, TrialFinished))
    forge.tell([*events[:-1], replace(finished, key=key), events[-1]])


def other_study_said(forge: Forge) -> None:
    """Test figures with another study or another seed than the trial's."""
    events, cell = forge.events(), forge.cell()
    wrong = forge.die.choice([{"study": "digits/tiny|best"}, {"seed": cell.trial.seed + 1}])
    forge.tell(
        [
            replace(e, **wrong) if isinstance(e, Evaluated) and e.key == cell.trial.key else e
            for e in events
        ]
    )


def event_after_the_end(forge: Forge) -> None:
    """An outcome after the end of the sweep."""
    events = forge.events()
    told = next(event for event in events if isinstance(event, Evaluated))
    forge.tell([*events, told])


FRAUDS: tuple[Callable[[Forge], None], ...] = tuple(
    kind
    for name, kind in list(globals().items())
    if isfunction(kind) and kind.__module__ == __name__ and not name.startswith("_")
)
"""All functions above, in their order."""


def planted(
    honest: Path, kind: Callable[[Forge], None], root: Storage, sweep: str, seed: int, target: Path
) -> Path:
    """Write a copy of an honest package with one fraud or mistake, drawn by a seed."""
    folder = target.with_suffix("")
    with zipfile.ZipFile(honest) as archive:
        archive.extractall(folder)
    kind(Forge(folder, root, sweep, Random(seed)))
    return Package(folder).pack(target)
