"""What a run of a sweep computes: the search, then one look at test data, both by the same loop."""

from collections.abc import Callable
from functools import partial

from orchestrator.executors import Executor
from orchestrator.loop import Loop
from orchestrator.running.control import Control
from orchestrator.running.measuring import MeasuringSource, pending_measurements
from orchestrator.search.state import SearchSource, SweepState
from orchestrator.storage.journal import Journal
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
    journal: Journal,
    control: Control,
    machines: Machines,
    changed: Callable[[], None] = lambda: None,
) -> bool:
    """Search and measure as far as earlier runs did not; return True once all is done.

    Args:
        state: The sweep.
        past: The ledger of earlier runs.
        store: Its artifacts.
        executor: Computes the jobs.
        journal: Receives the events that the state does not write itself.
        control: Receives messages for the user, and may pause the sweep.
        machines: Excludes machines after repeated failures.
        changed: Called after every report of the search.
    """
    spec, write, say = state.plan.spec, journal.append, control.tell
    most = spec.resources.max_failures
    known = partial(stored_report, store)
    search = control.source(SearchSource(state))
    executor.run(Loop(search, write, most, say, known, changed, machines))
    if not state.finished:
        return False
    pending = pending_measurements(state, past, store.contains)
    say(f"measuring {len(pending)} chosen configurations on test data")

    def give_up(study: str, reason: str) -> None:
        say(f"{study} failed: {reason}")
        state.give_up(study, reason)

    source = MeasuringSource(pending, spec, write, give_up)
    measured = Loop(control.source(source), write, most, say, machines=machines)
    executor.run(measured, sealed=False)
    return True
