"""What a run of a sweep computes: the search, then one look at test data, both by the same loop."""

from collections.abc import Callable
from functools import partial

from orchestrator.executors import Executor
from orchestrator.loop import Loop, Source
from orchestrator.running.measuring import MeasuringSource, pending_measurements
from orchestrator.search.source import SearchSource
from orchestrator.search.state import SweepState
from orchestrator.storage.events import Event
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.machines import Machines
from trainables.store.artifacts import ArtifactStore
from trainables.worker import stored_report


def is_done(state: SweepState, past: Ledger, store: ArtifactStore) -> bool:
    """Return True if earlier runs, whose trials are taken over, left nothing to compute."""
    if not state.take_over() or not state.finished:
        return False
    return not pending_measurements(state, past, store.contains)


def drive(
    state: SweepState,
    past: Ledger,
    store: ArtifactStore,
    executor: Executor,
    write: Callable[[Event], None],
    say: Callable[[str], None],
    changed: Callable[[], None] = lambda: None,
    held: Callable[[Source], Source] = lambda source: source,
    machines: Machines | None = None,
) -> bool:
    """Search and measure as far as earlier runs did not; return True once all is done.

    Args:
        state: The sweep.
        past: What earlier runs left.
        store: Its artifacts.
        executor: Computes.
        write: Receives the events that the state does not write itself.
        say: Receives what a person should know of.
        changed: Called after every report of the search.
        held: Makes of a source one that gives nothing out while a person holds the sweep.
        machines: Which of them are left out.
    """
    spec, machines = state.plan.spec, machines or Machines()
    most = spec.resources.max_failures
    known = partial(stored_report, store)
    executor.run(Loop(held(SearchSource(state)), write, most, say, known, changed, machines))
    if not state.finished:
        return False
    pending = pending_measurements(state, past, store.contains)
    say(f"measuring {len(pending)} chosen configurations on test data")

    def give_up(study: str, reason: str) -> None:
        say(f"{study} failed: {reason}")
        state.give_up(study, reason)

    source = MeasuringSource(pending, spec, write, give_up)
    executor.run(Loop(held(source), write, most, say, machines=machines), sealed=False)
    return True
