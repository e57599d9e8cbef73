"""Compares the settings and figures of two trials."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from orchestrator.storage.ledger import Ledger, Trial
from orchestrator.storage.status import title
from orchestrator.storage.storage import SweepFolder


class Chosen(NamedTuple):
    """A trial and its sweep."""

    folder: SweepFolder
    ledger: Ledger
    trial: Trial


class Setting(NamedTuple):
    """One setting or figure of two trials; None if a trial does not have it."""

    name: str
    first: Any
    second: Any

    @property
    def differs(self) -> bool:
        """Return True if the values differ."""
        return bool(self.first != self.second)


def differences_page(*pair: Chosen) -> dict[str, Any]:
    """Return the settings of two trials, differing ones first, and their figures."""
    first, second = (dict(_settings(each)) for each in pair)
    settings = [Setting(n, first.get(n), second.get(n)) for n in dict.fromkeys([*first, *second])]
    ours, theirs = (dict(_figures(each.trial)) for each in pair)
    return {
        "pair": [(title(each.trial), each.folder.name, each.trial) for each in pair],
        "settings": sorted(settings, key=lambda each: not each.differs),
        "count": sum(each.differs for each in settings),
        "figures": [Setting(n, ours.get(n), theirs.get(n)) for n in {**ours, **theirs}],
        "live": any(each.trial.open for each in pair),
    }


def _settings(chosen: Chosen) -> Iterator[tuple[str, Any]]:
    trial = chosen.trial
    study = chosen.ledger.studies.get(trial.study)
    if study is not None:
        yield from {"task": study.task, "recipe": study.recipe}.items()
        yield from _flat({part: study.origin.get(part, {}) for part in ("protocol", "split")})
    yield from _flat(trial.configuration)
    yield from {"stage": trial.stage, "seed": trial.seed, "code": trial.code or None}.items()


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _figures(trial: Trial) -> Iterator[tuple[str, float]]:
    if trial.objective is not None:
        yield "objective", trial.objective
    yield from sorted(trial.metrics.items())
    yield from ((f"test_{name}", value) for name, value in sorted(trial.test.items()))
