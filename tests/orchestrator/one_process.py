"""Whole sweeps without Ray: all that a sweep does but to start processes, within the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from ray.tune.utils.util import flatten_dict

from orchestrator.running.searcher import SweepSearcher
from orchestrator.search.state import SweepState
from orchestrator.storage.journal import Journal
from orchestrator.tracking import sync
from orchestrator.tracking._process import delivered
from tests.orchestrator.databases import databases_made
from trainables.ray_edge import ENDED, StageTrainable
from trainables.store.artifacts import ArtifactStore


@contextmanager
def one_process() -> Iterator[None]:
    """Have ``run_sweep``, and every command that calls it, compute and deliver here, in turn.

    Searcher, trainable, evaluation and delivery are the real ones; Tune, the processes and the seal
    of test data, which holds for the rest of a process's life, are left out.
    """
    threads = torch.get_num_threads()
    with ExitStack() as patched:
        patched.enter_context(databases_made())
        for name, instead in REPLACED.items():
            patched.enter_context(patch(name, instead))
        yield
    torch.set_num_threads(threads)


@dataclass
class Remote:
    """A function that Ray would call elsewhere; where makes no difference here."""

    function: Callable[..., Any]

    def options(self, label_selector: dict[str, str]) -> Remote:
        return self

    def remote(self, *arguments: Any) -> Callable[[], Any]:
        return partial(self.function, *arguments)


class Here:
    """What a sweep asks of Ray but for Tune: a call is made when its result is asked for."""

    def nodes(self) -> list[Any]:
        return []

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, **resources: float) -> Callable[[Callable[..., Any]], Any]:
        return Remote

    def wait(self, calls: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        return calls[:1], calls[1:]

    def get(self, call: Callable[[], Any]) -> Any:
        return call()


@contextmanager
def join_here(address: str | None) -> Iterator[Here]:
    yield Here()


def search_here(
    state: SweepState, journal: Journal, store: ArtifactStore, *_: Any, **__: Any
) -> None:
    """Compute one trial after the other, in one trainable, as Tune would with one process."""
    trainable = StageTrainable.__new__(StageTrainable)
    begin: Callable[[Any], Any] = partial(trainable.setup, storage=str(store.root))
    searcher = SweepSearcher(state, journal, find=store.find)
    while isinstance(config := searcher.suggest("here"), dict):
        begin(config)
        begin = trainable.reset_config
        while (report := trainable.step())["status"] not in ENDED:
            searcher.on_trial_result("here", report)
        searcher.on_trial_complete("here", flatten_dict(report))
    assert config == SweepSearcher.FINISHED


@dataclass
class ShipperHere:
    """Delivers a journal when its end is waited for."""

    journal: Path
    uri: str
    artifact_root: Path

    def progress(self) -> tuple[int, int]:
        return delivered(self.journal)

    def wait_drained(self, timeout: float) -> bool:
        sync(self.journal, self.uri, self.artifact_root)
        return True


REPLACED: dict[str, Callable[..., Any]] = {
    "orchestrator.running.run.join_cluster": join_here,
    "orchestrator.running.tune.search": search_here,
    "orchestrator.running.run.start_shipper": ShipperHere,
    "trainables.ray_edge.seal_test_data": lambda *directories: None,
}
