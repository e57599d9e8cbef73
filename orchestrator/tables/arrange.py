"""Arranges results as rows and columns: selection, order and headings."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, chain, product

from orchestrator.storage.results import StudyResult
from orchestrator.tables.columns import DEFAULT_METRICS, column
from orchestrator.tables.table import ComparisonTable, Row, TableColumn
from trainables.common.errors import InputError

DIMENSIONS = ("recipe", "dataset", "model", "protocol", "task")  # Values of the option --rows.
MOST_TASKS = 8  # More groups of columns than this are replaced by their mean.

Results = Mapping[tuple[str, str], StudyResult]


def build_table(
    results: Iterable[StudyResult],
    metrics: Sequence[str] | None = None,
    rows: Sequence[str] = ("recipe",),
) -> ComparisonTable:
    """Arrange results as a table.

    Recipes and tasks keep the order of first appearance, but each method is followed by its refined
    and calibrated variants, and columns with the same outermost heading are adjacent. Failed and
    running studies keep their row. More than ``MOST_TASKS`` groups of columns are replaced by their
    mean.

    Args:
        results: One per recipe and task.
        metrics: Columns to show; see ``column``. By default ``DEFAULT_METRICS`` and the metrics of
            the sweeps' plugins.
        rows: ``DIMENSIONS`` that distinguish rows; must include ``recipe``. The others distinguish
            columns.
    """
    found = by_pair(results)
    if metrics is None:
        own = dict.fromkeys(name for result in found.values() for name in result.metrics)
        metrics = (*DEFAULT_METRICS, *own)
    check_metrics(metrics)
    for name in rows:
        if name not in DIMENSIONS:
            raise InputError(f"rows: {name!r} is not one of {', '.join(DIMENSIONS)}")
    if "recipe" not in rows or len(set(rows)) < len(rows):
        listing = ",".join(rows) or "none"
        raise InputError(f"rows: expected different names, one of them recipe, got {listing}")
    recipes = _in_families(dict.fromkeys(recipe for recipe, _ in found))
    tasks = _task_places(found)
    suffixes = _levels(tasks, [name for name in rows if name != "recipe"])
    groups, remarks = _folded(_levels(tasks, _heading(tasks, rows)))
    columns = tuple(
        TableColumn(group, members, (metric,), column(metric))
        for group, members in groups.items()
        for metric in metrics
    )
    lines = tuple(
        Row(" · ".join((recipe, *group)), (recipe,), frozenset(members) if group else None)
        for recipe, (group, members) in product(recipes, suffixes.items())
        if any((recipe, task) in found for task in members)
    )
    return ComparisonTable(lines, columns, found, remarks=remarks)


def _folded(
    groups: dict[tuple[str, ...], tuple[str, ...]],
) -> tuple[dict[tuple[str, ...], tuple[str, ...]], tuple[str, ...]]:
    """Replace more than ``MOST_TASKS`` groups by one, and return a remark about it."""
    if len(groups) <= MOST_TASKS:
        return groups, ()
    tasks = tuple(chain.from_iterable(groups.values()))
    text = f"mean over {len(tasks)} tasks; --tasks NAME,... shows up to {MOST_TASKS} separately"
    return {(f"mean over {len(tasks)} tasks",): tasks}, (text,)


def by_pair(results: Iterable[StudyResult]) -> dict[tuple[str, str], StudyResult]:
    """Return ``{(recipe, task): result}``; fail without results or if a pair has two."""
    table: dict[tuple[str, str], StudyResult] = {}
    for result in results:
        key = (result.recipe, result.task)
        if key in table:
            sweeps = " and ".join(dict.fromkeys((table[key].sweep, result.sweep)))
            raise InputError(f"two results for {key[0]} on {key[1]} (sweep {sweeps}); choose one")
        table[key] = result
    if not table:
        raise InputError("there are no results to make a table of")
    return table


def combine(
    sweeps: Sequence[Sequence[StudyResult]],
    say: Callable[[str], None] | None = None,
    mixed: bool = False,
) -> list[StudyResult]:
    """Join the results of sweeps.

    If several sweeps have a result for the same recipe and task, the first sweep's is used and
    ``say`` receives a note; without ``say`` this is an error. If the results that are used differ
    in a task's data, in code or in a plugin, this is also an error, unless ``mixed`` is true.
    """
    owners: dict[tuple[str, str], StudyResult] = {}
    found, left = [], defaultdict(list)
    for result in chain.from_iterable(sweeps):
        owner = owners.setdefault((result.recipe, result.task), result)
        if owner.sweep == result.sweep:
            found.append(result)
        else:
            left[owner.sweep, result.sweep].append((owner, result))
    for (name, other), pairs in left.items():
        first, more = pairs[0][0], f" and {len(pairs) - 1} more" if pairs[1:] else ""
        both = f"sweeps {name} and {other} both have {first.recipe} on {first.task}{more}"
        if say is None:
            raise InputError(f"{both}; leave one out")
        differing = dict.fromkeys(what for pair in pairs for what in _differences(*pair))
        notes = "".join(f"; {what} differs" for what in differing)
        say(f"{both}{notes}; the table shows {name}, which is named first")
    if not mixed:
        _check_same(found)
    return found


def _check_same(results: Sequence[StudyResult]) -> None:
    first: dict[str, StudyResult] = {}
    for result in results:
        for what in _versions(result):
            other = first.setdefault(what, result)
            if result.sweep != other.sweep and what in _differences(other, result):
                raise InputError(
                    f"{what} differs between sweeps {other.sweep} and {result.sweep}; "
                    "--show mixed shows them together"
                )


def _versions(result: StudyResult) -> dict[str, str]:
    found = {f"the data of {result.task}": result.fingerprint, "the code": result.code}
    found |= {f"the code of plugin {name}": code for name, code in result.plugins.items()}
    return {what: version for what, version in found.items() if version}


def _differences(one: StudyResult, other: StudyResult) -> list[str]:
    first, second = _versions(one), _versions(other)
    return [what for what in first if what in second and first[what] != second[what]]


def select(
    results: Iterable[StudyResult],
    recipes: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
) -> list[StudyResult]:
    """Return the results whose recipe and task match one of the patterns.

    Patterns are names with ``*`` for any text, such as ``mbls*``; None selects all.
    """
    found = list(results)
    wanted = _matching("recipe", recipes, [result.recipe for result in found])
    places = _matching("task", tasks, [result.task for result in found])
    return [result for result in found if result.recipe in wanted and result.task in places]


def _matching(what: str, patterns: Sequence[str] | None, names: Sequence[str]) -> set[str]:
    if patterns is None:
        return set(names)
    matches: set[str] = set()
    for pattern in patterns:
        if not (ours := {name for name in names if fnmatchcase(name, pattern)}):
            listing = ", ".join(dict.fromkeys(names))
            raise InputError(f"no {what} matches {pattern!r}; {what}s are {listing}")
        matches |= ours
    return matches


def _task_places(results: Results) -> dict[str, dict[str, str]]:
    """Return data set, model, protocol and name of every task, in order of first appearance."""
    tasks: dict[str, dict[str, str]] = {}
    for (_, task), result in results.items():
        place = {name: getattr(result, name) for name in ("dataset", "model", "protocol")}
        tasks.setdefault(task, {**place, "task": task})
    return tasks


def _heading(tasks: Mapping[str, Mapping[str, str]], rows: Sequence[str]) -> list[str]:
    """Return the dimensions in column headings; none if rows distinguish tasks.

    They are data set, model and, if these two do not tell all tasks apart, protocol, except those
    in ``rows``. Headings show the names of tasks instead if not even the three tell all tasks
    apart, or if rows are recipes only and there is a single task or a task with a custom name.
    """
    if "task" in rows:
        return []
    named = any(task != "/".join(_place(values)) for task, values in tasks.items())
    if set(rows) == {"recipe"} and (named or len(tasks) == 1):
        return ["task"]
    if len(set(map(_place, tasks.values()))) < len(tasks):
        return ["task"]
    pairs = {_place(values)[:2] for values in tasks.values()}
    needed = ["dataset", "model", *(["protocol"] if len(pairs) < len(tasks) else [])]
    return [name for name in needed if name not in rows]


def _place(values: Mapping[str, str]) -> tuple[str, str, str]:
    return values["dataset"], values["model"], values["protocol"]


def _levels(
    tasks: Mapping[str, Mapping[str, str]], names: Sequence[str]
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Group tasks by their values of ``names``; groups with the same first value are adjacent."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for task, place in tasks.items():
        groups.setdefault(tuple(place[name] for name in names), []).append(task)
    firsts = [group[:1] for group in groups]
    return {
        group: tuple(groups[group]) for group in sorted(groups, key=lambda g: firsts.index(g[:1]))
    }


def places(results: Results) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return ``{column headings: tasks}`` for results."""
    tasks = _task_places(results)
    return _levels(tasks, _heading(tasks, ("recipe",)))


def _in_families(recipes: Iterable[str]) -> tuple[str, ...]:
    """Sort recipes by first appearance, but ``a+b`` and ``a+c`` directly after ``a``."""
    first: dict[str, int] = {}
    lineage: dict[str, list[str]] = {}
    for position, recipe in enumerate(recipes):
        lineage[recipe] = list(accumulate(recipe.split("+"), lambda left, part: f"{left}+{part}"))
        for ancestor in lineage[recipe]:
            first.setdefault(ancestor, position)
    return tuple(sorted(lineage, key=lambda recipe: [first[name] for name in lineage[recipe]]))


def check_metrics(metrics: Sequence[str]) -> None:
    """Refuse an unknown metric, the same metric twice, and an empty list."""
    for metric in metrics:
        column(metric)
    if not metrics or len(set(metrics)) < len(metrics):
        listing = ", ".join(metrics) or "none"
        raise InputError(f"metrics: expected one or more different metrics, got {listing}")
