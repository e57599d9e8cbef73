"""How far the time left that ``calsweep status`` tells is from the time that it then took.

Run it as ``python benchmarks/time_left.py [SWEEPS]``: the search of made-up sweeps in virtual time,
with the real loop and search, on 1 to 16 places. How long a stage takes depends on the task, the
method, the trial and chance. ``JOURNAL...`` instead: sweeps that really ran.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from orchestrator.executors import Executor
from orchestrator.loop import Loop, Pause
from orchestrator.search.source import SearchSource
from orchestrator.search.state import SweepState
from orchestrator.storage.events import Event, SweepStarted
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.status import time_left
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import parse_sweep
from trainables.data import SplitSpec, prepare
from trainables.jobs import Cost, EpochMetrics, Job, Report, StageWork, Status

SHARES = (0.1, 0.25, 0.5)  # Of the whole time, at which the estimate is looked at.
SHOWN = 1.5
EPOCHS = 20
RECIPES = ("ce", "ls", "mbls", "fl", "mixup", "mdca", "crl", "acls")
SWEEP = """
name: timed
tasks: [{tasks}]
recipes: [{recipes}]
search: {{trials: {trials}, sampler: random, accuracy_tolerance: {tolerance}, objective: ece,
  keep_default: false{fixed}}}
seeds: [{seeds}]
"""


class Timed(Executor):
    """Computes jobs on so many places in virtual time, each for as long as chance says."""

    def __init__(self, random: Random, places: int) -> None:
        self.random, self.places, self.now = random, places, 0.0
        self._factors: dict[str, float] = {}
        self._shares = {"train": 1.0, "refine": random.uniform(0.05, 1.0), "calibrate": 0.003}

    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Run until the source is done."""
        count, coming, busy = itertools.count(), list[tuple[float, int, Job, int, float]](), 0
        while True:
            while busy < self.places and isinstance(job := loop.next(), Job):
                busy += 1
                seconds = self._seconds(job)
                heapq.heappush(coming, (self.now, next(count), job, 0, seconds))
            if not coming:
                assert loop.next() is Pause.DONE
                return
            self.now, _, job, epoch, seconds = heapq.heappop(coming)
            busy -= epoch == EPOCHS
            loop.take(job, self._report(job, epoch, seconds))
            if epoch < EPOCHS:
                after = (self.now + seconds / EPOCHS, next(count), job, epoch + 1, seconds)
                heapq.heappush(coming, after)

    def _seconds(self, job: Job) -> float:
        assert isinstance(job.work, StageWork)
        task, recipe = job.group.split("|")
        method = recipe.split("+")[0]
        draws = ((task, 1.2), (method, 0.25), (job.group, 0.1))
        usual = 600 * self._shares[job.work.request.stage]
        for name, spread in draws:
            usual *= self._factors.setdefault(name, self.random.lognormvariate(0.0, spread))
        return usual * self.random.lognormvariate(0.0, 0.2)

    def _report(self, job: Job, epoch: int, seconds: float) -> Report:
        if epoch < EPOCHS:
            history = (EpochMetrics(step=epoch, metrics={}),) if epoch else ()
            return Report(status=Status.RUNNING, epoch=epoch, history=history, host="here")
        metrics = {"val_ece": self.random.random(), "val_acc": 0.9 + self.random.random() / 100}
        cost = Cost(seconds=seconds)
        return Report(status=Status.FINISHED, metrics=metrics, artifact=job.key, cost=cost)


def simulated(seed: int, folder: Path) -> tuple[list[Event], str]:
    """Return the events of a made-up sweep, and what it was like."""
    random = Random(seed)
    tasks = random.choice((1, 1, 2, 3))
    methods = random.sample(RECIPES, random.randint(2, 6))
    more = random.choice(([], ['"*+ts"'], ['"*+ts"', '"*+macal"'], ['"*+macal"']))
    places = random.choice((1, 2, 4, 8, 16))
    trials, seeds = random.choice((4, 10, 20, 40)), random.choice((1, 3))
    protocol = f"{{base: digits, epochs: {EPOCHS}}}"
    form = f"{{{{name: t{{}}, dataset: digits, model: convnet, protocol: {{{protocol}}}}}}}"
    text = SWEEP.format(
        tasks=", ".join(form.format(number) for number in range(tasks)),
        recipes=", ".join([*methods, *more]),
        trials=trials,
        fixed=f", fixed: {{macal: {{epochs: {EPOCHS}}}}}"
        if any("macal" in m for m in more)
        else "",
        tolerance=random.choice(("null", "0.01")),
        seeds=", ".join(map(str, range(seeds))),
    )
    spec = parse_sweep(text, "timed")
    data = prepare("digits", folder, SplitSpec(train_limit=50), folder / "prepared")
    executor, events = Timed(random, places), list[Event]()

    def write(event: Event) -> None:
        event.time = 1 + int(1000 * executor.now)
        events.append(event)

    plain = spec.model_dump(mode="json")
    write(SweepStarted(sweep="timed", sweep_id="id", spec=plain, provenance={}))
    state = SweepState(make_plan(spec), "id", {task.id: data for task in spec.tasks}, write)
    executor.run(Loop(SearchSource(state), write, most_failures=3))
    size = f"{tasks} tasks, {len(methods)} methods{''.join(more)}, {trials} trials, {seeds} seeds"
    return events, f"{size}, {places} places"


def ratios(events: list[Event]) -> Iterator[tuple[float, float]]:
    """Yield the estimate over the time that was left, and the same of one pace for all trials."""
    first, last = events[0].time / 1000, events[-1].time / 1000
    ledger, coming = Ledger(), list(SHARES)
    for event, after in itertools.pairwise(events):
        ledger.apply(event)
        while coming and after.time / 1000 > (now := first + coming[0] * (last - first)):
            coming.pop(0)
            estimate = time_left(ledger, now)
            ended = sum(trial.ended for trial in ledger.trials.values())
            planned = sum(s.trials + ledger.further_seeds for s in ledger.studies.values())
            pace = (now - first) / ended * (planned - ended) if ended else 0.0
            yield (estimate or 0.0) / (last - now), pace / (last - now)


def main() -> None:
    """Print for each share of the time how many estimates were how far off."""
    words = sys.argv[1:] or ["200"]
    if words[0].isdigit():
        with tempfile.TemporaryDirectory() as folder:
            found = [simulated(seed, Path(folder)) for seed in range(int(words[0]))]
    else:
        found = [(list(iterate_events(Path(word))), word) for word in words]
    results = [(list(ratios(events)), name) for events, name in found]
    print("| after | by | within 1.5 | median | 5 % | 95 % |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for place, share in enumerate(SHARES):
        for column, name in enumerate(("stage and study", "one pace for all")):
            told = sorted(each[place][column] for each, _ in results)
            near = sum(1 / SHOWN <= ratio <= SHOWN for ratio in told)
            ends = [told[int(end * (len(told) - 1))] for end in (0.05, 0.95)]
            figures = f"{statistics.median(told):.2f} | {ends[0]:.2f} | {ends[1]:.2f}"
            print(f"| {share:.0%} | {name} | {near / len(told):.0%} | {figures} |")
    ordered = sorted(results, key=lambda result: result[0][0][0])
    for each, name in ordered[:: max(1, len(results) // 8)]:
        print(f"{each[0][0]:.2f} at a tenth: {name}")


if __name__ == "__main__":
    main()
