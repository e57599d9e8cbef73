"""Optuna's dashboard on the studies of a sweep: on a copy in memory, filled from the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.view import distribution, searched_for
from orchestrator.view.server._server import bound
from trainables.common.errors import InputError
from trainables.metrics import METRICS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

HOST, PORT = "127.0.0.1", 8730
MISSING = "Optuna's dashboard is not installed: pip install 'calsweep[dashboard]'"


def serve_dashboard(ledger: Ledger, port: int | None, started: Callable[[str], None]) -> None:
    """Serve Optuna's dashboard on this machine until Ctrl-C; ``started`` hears its address.

    Changes made there are made to a copy. A port of None is ``PORT``, or a free one.

    Raises:
        InputError: If the dashboard is not installed, or nothing can be served there.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError as error:
        raise InputError(MISSING) from error
    app = wsgi(optuna_storage(ledger))
    with bound(HOST, port, PORT) as taken:
        found = taken.getsockname()[1]
    with make_server(HOST, found, app, handler_class=_Silent) as server:
        started(f"http://{HOST}:{found}/dashboard")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of a request."""


def optuna_storage(ledger: Ledger) -> BaseStorage:
    """Return the searches of a sweep as studies in Optuna's memory.

    Each has the trials of the search, with the objective, and for a Pareto front what else was
    searched for; the figures of epochs, if the ledger keeps them, as intermediate values.
    """
    from optuna import create_study, logging
    from optuna.storages import InMemoryStorage
    from optuna.study import StudyDirection

    ways = {"higher": StudyDirection.MAXIMIZE}
    storage, before = InMemoryStorage(), logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        for study in ledger.studies.values():
            better = ["lower", *(METRICS[metric].better for metric in ledger.pareto)]
            directions = [ways.get(each, StudyDirection.MINIMIZE) for each in better]
            copy = create_study(storage=storage, study_name=study.name, directions=directions)
            copy.add_trials(list(_copies(study, ledger)))
    finally:
        logging.set_verbosity(before)
    return storage


def _copies(study: Study, ledger: Ledger) -> Iterator[FrozenTrial]:
    searched = study.searched
    names = dict.fromkeys(name for trial in searched for name in trial.parameters)
    spaces = {
        name: distribution([t.parameters[name] for t in searched if name in t.parameters])
        for name in names
    }
    for trial in searched:
        yield _copy(trial, {name: spaces[name] for name in trial.parameters}, ledger)


def _copy(trial: Trial, spaces: dict[str, BaseDistribution], ledger: Ledger) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    states = {"failed": TrialState.FAIL, "pruned": TrialState.PRUNED}
    scored = trial.status == "finished" and trial.objective is not None
    state = TrialState.COMPLETE if scored else states.get(trial.status, TrialState.RUNNING)
    steps = zip(*trial.curve(f"val_{ledger.objective}"), strict=True)
    copy = create_trial(
        state=state,
        values=searched_for(trial, ledger) if scored else None,
        params=dict(trial.parameters),
        distributions=spaces,
        intermediate_values={} if ledger.pareto else dict(steps),
        user_attrs={**trial.metrics, "key": trial.key, "reason": trial.reason},
    )
    copy.datetime_start = datetime.fromtimestamp(trial.time / 1000)
    if state.is_finished():
        copy.datetime_complete = copy.datetime_start + timedelta(seconds=trial.seconds or 0.0)
    return copy
