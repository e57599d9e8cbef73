"""The commit that an alarm is about: partial nights between the last good night and the alarm."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from orchestrator.cluster.interrupt import interrupt_on_sigterm
from orchestrator.nightly.book import BISECTION, Book
from orchestrator.nightly.commits.culprit import Culprit
from orchestrator.nightly.commits.night import CommitNights, Part
from orchestrator.nightly.commits.repository import Repository
from orchestrator.nightly.config import Nightly
from orchestrator.nightly.record import WHOLE_NIGHT, CellKey, Finding, NightRecord, Verdict
from orchestrator.nightly.verdict.contrast import Contrast, contrast
from orchestrator.nightly.verdict.groups import grouped
from orchestrator.nightly.verdict.judge import changes
from orchestrator.nightly.verdict.limits import STAGES
from orchestrator.nightly.verdict.stages import TIME
from orchestrator.running.progress import say
from trainables.common.errors import InputError

TOLD = 12.0  # Logarithm of odds at which no repetition is needed.

Measure = Callable[[str, Part], NightRecord]


@dataclass(frozen=True)
class Step:
    """A partial night: which commit, and how bad it is (0 as usual, 1 as in the alarm).

    Where arithmetic varies, that is the mean of several computations: of ``times``.
    """

    commit: str
    badness: float | None
    why: str = ""
    times: int = 1


@dataclass(frozen=True)
class Bisection:
    """What a bisection came to.

    Attributes:
        cell: The figure that decided.
        commits: How many there were between the last good night and the alarm.
        named: The commit that made it worse, or the few that hold it; empty if none is named.
        chance: Probability that this is right.
        text: The same in one sentence.
        steps: The partial nights, in their order.
    """

    cell: CellKey
    commits: int
    named: tuple[str, ...]
    chance: float
    text: str
    steps: tuple[Step, ...]


def bisect_night(
    nightly: Nightly,
    night: str | None = None,
    repository: Path | None = None,
    console: Console | None = None,
    cell: str | None = None,
) -> Bisection:
    """Find the commit that an alarm of a night is about, and write it beside its verdict.

    The alarm is the worst of those that began after a commit, unless a cell is named.

    Args:
        nightly: The benchmark.
        night: The night; the last one with a verdict if left out.
        repository: A folder of the repository; by default what the file says, else that of this
            code.
        console: Where progress goes.
        cell: The alarmed figure to look into, as ``RECIPE on TASK: METRIC``.

    Raises:
        BusyError: If another run of the benchmark is under way.
        InputError: If there is no alarm, or none about the cell, no good night before it, or no
            repository that has both.
    """
    _until(nightly.book(), night)  # A lock makes the folder, which nothing may be in.
    with nightly.book(fresh=False).held():
        return find_commit(nightly, night, repository, console, cell)


def find_commit(
    nightly: Nightly,
    night: str | None = None,
    repository: Path | None = None,
    console: Console | None = None,
    cell: str | None = None,
) -> Bisection:
    """Do what ``bisect_night`` does, for who owns the benchmark's lock."""
    book = nightly.book()
    records, verdict = _until(book, night)
    place = repository or nightly.model.bisect.place or Path(__file__).parent
    source = Repository(place)
    finding, good, bad, commits = _looked_for(records, verdict, source, cell)
    part, decided = _decided(nightly, book, records, finding)
    if not commits:
        text = f"{decided.cell}: the code is that of {good.night}; what else changed: "
        said = "; ".join(changes([good, bad])) or "nothing that is recorded"
        return _kept(book, verdict, Bisection(decided.cell, 0, (), 1.0, text + said, ()))
    start = source.commit(good.environment["code"])
    other = any(not text.startswith("code: ") for text in changes([good, bad]))
    with interrupt_on_sigterm(), CommitNights(nightly, source, "bisect", console) as nights:
        culprit, steps = search([start, *commits], decided, part, nights.run, other, console)
    return _kept(book, verdict, _outcome(decided, [start, *commits], culprit, steps, source))


def search(
    commits: Sequence[str],
    decided: Contrast,
    part: Part,
    measure: Measure,
    surroundings: bool,
    console: Console | None = None,
) -> tuple[Culprit, list[Step]]:
    """Measure commits, the first being the last good one, until enough is known."""
    culprit, steps = Culprit(len(commits) - 1, decided.clear, surroundings), list[Step]()
    while (place := culprit.next()) is not None:
        try:
            badness, times = _measured(commits[place], decided, part, measure)
        except InputError as error:
            culprit.pass_over(place)
            steps.append(Step(commits[place], None, str(error)))
        else:
            culprit.observe(place, badness, times)
            steps.append(Step(commits[place], badness, times=times))
        first, last, chance = culprit.found()
        open_ = f"commits {first} to {last} of {len(commits) - 1}" if last > first else f"{first}"
        say(console, f"  open: {open_}, probability {chance:.2f}")
    return culprit, steps


def _measured(commit: str, decided: Contrast, part: Part, measure: Measure) -> tuple[float, int]:
    """Return how bad a commit is, and of how many computations that is the mean."""
    found: list[float] = []
    while len(found) < decided.times:
        found.append(decided.badness(measure(commit, part)))
        if len(found) == 2 and found[0] == found[1]:  # The same bits again: here nothing varies.
            return found[0], 1
        # The logarithm of how much likelier its state is than the other one.
        if decided.clear**2 * abs(sum(found) - len(found) / 2) >= TOLD:
            break
    return sum(found) / len(found), len(found)


def _until(book: Book, night: str | None) -> tuple[list[NightRecord], Verdict]:
    judged = book.judged()
    names = [record.night for record, _ in judged]
    name = night or (names[-1] if names else "")
    if name not in names:
        raise InputError(f"--night: {name or 'none'!r} has no verdict in {book.folder}")
    place = names.index(name)
    return [record for record, _ in judged[: place + 1]], judged[place][1]


def _looked_for(
    records: Sequence[NightRecord], verdict: Verdict, source: Repository, cell: str | None
) -> tuple[Finding, NightRecord, NightRecord, list[str]]:
    """Return a finding, the last night before it, its first one, and the commits between.

    The worst that has commits: a busy machine must not hide what one of them did.
    """
    stages = {f"{stage}{TIME}" for stage in STAGES}
    usable = [f for f in verdict.alarms if f.cell.pair != WHOLE_NIGHT or f.cell.metric in stages]
    if not usable:
        raise InputError(
            f"{verdict.night} has no alarm about a recipe or a stage: nothing to look for"
        )
    named = [f for f in usable if cell is None or str(f.cell) == cell]
    if not named:
        alarmed = "; ".join(dict.fromkeys(str(f.cell) for f in usable))
        raise InputError(
            f"--cell: {cell!r} is not in alarm on {verdict.night}; use one of {alarmed}"
        )
    found, faults = [], []
    for finding, *_ in grouped(named):
        try:
            good, bad = _ends(records, finding, source)
            commits = source.between(good.environment["code"], bad.environment["code"])
        except InputError as error:
            faults.append(error)
        else:
            found.append((finding, good, bad, commits))
    if not found:
        raise faults[0]
    return next((each for each in found if each[-1]), found[0])


def _ends(
    records: Sequence[NightRecord], finding: Finding, source: Repository
) -> tuple[NightRecord, NightRecord]:
    """Return the last night before a finding and its first one; both have a commit."""
    since = [record.night for record in records].index(finding.since)
    pair = finding.cell.pair
    good = next(
        (
            record
            for record in reversed(records[:since])
            if records[-1].comparable(record, pair) and pair not in record.failed
        ),
        None,
    )
    if good is None:
        raise InputError(f"{finding.cell}: there is no good night before {finding.since}")
    for record in (good, records[since]):
        source.commit(record.environment.get("code", ""))
    return good, records[since]


def _decided(
    nightly: Nightly, book: Book, records: Sequence[NightRecord], finding: Finding
) -> tuple[Part, Contrast]:
    """Return what to run, and the figure that decides: as few seeds as tell it clearly."""
    limits, restarts = nightly.model.limits, book.restarts()
    decided = contrast(records, finding, limits, restarts)
    if finding.cell.pair == WHOLE_NIGHT:
        return Part(seeds=decided.seeds), decided  # A stage is held against the others.
    recipes: tuple[str, ...] = (finding.cell.recipe,)
    if finding.reason == "twin":
        recipes = tuple(recipe.name for recipe in nightly.sweep.expanded())
    return Part(recipes, (finding.cell.task,), decided.seeds), decided


def _outcome(
    decided: Contrast,
    commits: Sequence[str],
    culprit: Culprit,
    steps: Sequence[Step],
    source: Repository,
) -> Bisection:
    first, last, chance = culprit.found()
    count, sure = len(commits) - 1, f"{100 * chance:.0f} % sure after {len(steps)} partial nights"
    named: tuple[str, ...] = ()
    if first == last == count + 1:
        text = f"not confirmed, {sure}: figures are as before, no commit is named"
    elif first == last == 0:
        text = f"no commit, {sure}: {commits[0][:10]}, good before, is as bad now"
    elif first == 0 or last == count + 1:
        text = f"no commit can be named, {sure} of no more than that"
    else:
        named = tuple(source.described(commit) for commit in commits[first : last + 1])
        listed = "; ".join(named)
        if last > first:
            listed = f"one of {len(named)} commits: {listed}"
        text = f"{listed} ({sure})"
        if first == last and "constraints.txt" in source.files(commits[first]):
            text += "; it changes the libraries of constraints.txt"
    found = f"{decided.cell} is worse by " if named else f"{decided.cell}: "
    return Bisection(decided.cell, count, named, chance, found + text, tuple(steps))


def _kept(book: Book, verdict: Verdict, outcome: Bisection) -> Bisection:
    book.night(verdict.night).write(BISECTION, asdict(outcome))
    return outcome
