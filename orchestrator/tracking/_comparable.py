"""Selects the studies that may be ranked together."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.storage.ledger import Study
from orchestrator.sweep.names import study_id
from orchestrator.tracking import _names as names
from orchestrator.tracking._queries import there_are
from orchestrator.tracking._tags import study_of
from orchestrator.tracking.tracker import Run, RunQuery, RunReader
from trainables.common.errors import InputError
from trainables.common.paths import redacted

ANY = "any"
"""Value of the filter ``fingerprint`` or ``code`` that lets studies differ in this respect."""

Describe = Callable[["TrackedStudy"], str]
Key = Callable[["TrackedStudy"], object]

_SHOWN = 12  # Characters of a hash in a message.


@dataclass(frozen=True)
class StudyFilter:
    """The filters of ``best_config``; times are seconds since 1970.

    ``fingerprint`` and ``code`` are prefixes or ``any``. With the fingerprint ``any``, models and
    protocols may differ as well.
    """

    since: float | None = None
    until: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str | None = None
    code: str | None = None

    def holds(self, study: Study, tags: Mapping[str, str]) -> bool:
        """Return True if a study passes the filters."""
        opened = study.time / 1000
        return (
            (self.since is None or opened >= self.since)
            and (self.until is None or opened < self.until)
            and all(tags.get(name) == value for name, value in self.tags.items())
            and _begins(study.fingerprint, self.fingerprint)
            and _begins(study.code, self.code)
        )

    def __str__(self) -> str:
        days = {"since": self.since, "until": None if self.until is None else self.until - 1}
        shown = [f"--{name} {_day(value)}" for name, value in days.items() if value is not None]
        shown += [f"--tag {name}={value}" for name, value in self.tags.items()]
        prefixes = {"fingerprint": self.fingerprint, "code": self.code}
        shown += [f"--{name} {value}" for name, value in prefixes.items() if value]
        return " ".join(shown)


class TrackedStudy(NamedTuple):
    """A study with its run on the tracker."""

    study: Study
    run: Run

    @property
    def sweep(self) -> str:
        """Return the name of the study's sweep."""
        return self.run.tags[names.SWEEP]


def comparable_studies(
    tracker: RunReader, experiments: Sequence[str], task: str, recipe: str, where: StudyFilter
) -> tuple[list[TrackedStudy], str]:
    """Return the studies of a recipe on a task that may be ranked together, oldest first.

    Studies without a finished trial are excluded. Unless the filter ``code`` is ``any``, studies
    with other code than the latest are excluded, too; the second value is a note that lists them.

    Raises:
        InputError: If no study passes the filters, or those that do cannot be ranked together.
    """
    every = _studies(tracker, experiments, task, recipe)
    kept = [found for found in every if where.holds(found.study, found.run.tags)]
    if not kept:
        raise InputError(
            f"no study of {recipe!r} on {task!r} on {redacted(tracker.uri)} fulfils {where}; "
            f"there are: {_listing(every, _origin)}"
        )
    kept = [found for found in kept if found.study.chosen or found.study.finished]
    if not kept:
        return [], ""
    if where.fingerprint != ANY:
        _require_one(kept, _setting, _data, "select some with --fingerprint, or name one sweep")
    _require_one(kept, _rule, _rule, "select some with --tag, --since or --until, or name a sweep")
    return (kept, "") if where.code == ANY else _latest_code(kept)


def _studies(
    tracker: RunReader, experiments: Sequence[str], task: str, recipe: str
) -> list[TrackedStudy]:
    # Only studies have the tag ``TRIALS``, so a database that starts from it reads few runs.
    tags = {names.STUDY: study_id(task, recipe)}
    query = RunQuery(experiments, tags, marked=names.TRIALS)
    found = [TrackedStudy(study_of(run), run) for run in tracker.runs(query)]
    if not found:
        check_known(tracker, experiments, {names.TASK: task, names.RECIPE: recipe})
    return sorted(found, key=lambda entry: entry.study.time)


def check_known(tracker: RunReader, experiments: Sequence[str], wanted: Mapping[str, str]) -> None:
    """Raise ``InputError`` if no study has the wanted tags, such as a recipe on a task."""
    so_far: dict[str, str] = {}
    for tag, value in wanted.items():
        runs = tracker.runs(RunQuery(experiments, {names.KIND: "study", **so_far}))
        known = {run.tags[tag] for run in runs}
        if value not in known:
            what = tag.removeprefix(names.PREFIX)
            where = "".join(f" for {task!r}" for task in so_far.values())
            raise InputError(
                f"no {what} {value!r}{where} on {redacted(tracker.uri)}; {there_are(known)}"
            )
        so_far[tag] = value


def _latest_code(kept: Sequence[TrackedStudy]) -> tuple[list[TrackedStudy], str]:
    """Return the studies with the latest code, and a note about the others."""
    code = kept[-1].study.code
    same = [found for found in kept if found.study.code == code]
    others = [found for found in kept if found.study.code != code]
    left_out = (
        f"from code {_short(code)}, the latest; excluded: {_listing(others, _version)}; "
        "select another with --code, or all with --code any"
    )
    return same, left_out if others else ""


def _require_one(kept: Sequence[TrackedStudy], key: Key, describe: Describe, remedy: str) -> None:
    if len({key(found) for found in kept}) > 1:
        study = kept[0].study
        raise InputError(
            f"studies of {study.recipe!r} on {study.task!r} differ and cannot be ranked together: "
            f"{_listing(kept, describe)}; {remedy}"
        )


def _listing(kept: Sequence[TrackedStudy], describe: Describe) -> str:
    """Return the distinct descriptions of studies, each with the names of up to three sweeps."""
    sweeps: dict[str, list[str]] = {}
    for found in kept:
        sweeps.setdefault(describe(found), []).append(found.sweep)
    parts = []
    for kind, known in sweeps.items():
        distinct = list(dict.fromkeys(known))
        more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
        parts.append(f"{kind} ({', '.join(distinct[:3])}{more})")
    return "; ".join(parts)


def _setting(found: TrackedStudy) -> tuple[str, str]:
    return found.study.fingerprint, found.study.setting


def _data(found: TrackedStudy) -> str:
    study = found.study
    return f"fingerprint {_short(study.fingerprint)}, {study.model} by {study.protocol}"


# Optional keys of a rule, and the words for them in messages.
_LATER = {"accuracy_errors": "accuracy errors", "keep_default": "default kept:", "stop": "stop:"}


def _rule(found: TrackedStudy) -> str:
    rule = found.study.rule
    if not rule:
        return "rule unknown"
    text = f"{rule['objective']} with accuracy tolerance {rule['accuracy_tolerance']}"
    return text + "".join(f", {words} {rule[key]}" for key, words in _LATER.items() if key in rule)


def _version(found: TrackedStudy) -> str:
    return f"code {_short(found.study.code)} of {_day(found.study.time / 1000)}"


def _origin(found: TrackedStudy) -> str:
    return f"{_version(found)} on data {_short(found.study.fingerprint)}"


def _short(text: str) -> str:
    mark = "-dirty" if text.endswith("-dirty") else ""
    return text[:_SHOWN] + mark if text else "unknown"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _begins(text: str, prefix: str | None) -> bool:
    return prefix in (None, ANY) or text.startswith(str(prefix))
