from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from trainables.charts.reliability import reliability_diagram
from trainables.common.errors import StorageError
from trainables.common.files import drafted, make_folders, write_whole
from trainables.common.paths import on_this_machine
from trainables.common.sharing import writing
from trainables.common.stages import ArtifactRef
from trainables.data.suites import SuiteData, find_suite
from trainables.jobs import Job, Measured, Status, TestWork
from trainables.metrics import registered_report, reliability_curve
from trainables.stages import evaluate_on_test, evaluate_suite, pooled
from trainables.store.artifacts import Artifact, ArtifactStore
from trainables.worker._bench import Bench, Computation


class TestComputation(Computation):
    """Measures a configuration on test data and suites; writes its diagram and configuration."""

    __test__ = False

    def __init__(self, bench: Bench, job: Job, work: TestWork) -> None:
        super().__init__(bench, f"{work.title or work.artifact.key} on test data")
        self._work = work
        self._outcome: dict[str, Any] = {}

    def advance(self) -> Status:
        store, work, device = self.bench.store, self._work, self.bench.device
        data, last = self.bench.open_data(work.data), self.bench.last_pass
        default = None
        # First, so that the last pass is that of what others build on.
        if work.default is not None and store.find(work.default) is not None:
            default = evaluate_on_test(store, work.default, data, device, last)[1].key
        metrics, artifact = evaluate_on_test(store, work.artifact, data, device, last)
        rows = artifact.tensors("test")
        # Pixels of one image go wrong together: chance alone is not known of a plugin's metric.
        floors = "images" not in rows
        metrics |= registered_report(rows["log_probs"], rows["labels"], floors)
        for directory in work.suites.values():
            store.fetch_folder(on_this_machine(Path(directory)))
            metrics |= evaluate_suite(store, work.artifact, data, directory, device)[0]
        stored = {label: SuiteData.open(place) for label, place in work.suites.items()}
        pools = {label: find_suite(suite.name, suite.root).pool for label, suite in stored.items()}
        self.metrics = metrics | pooled(metrics, pools)
        written = self._written(rows)
        store.settle()
        chain = chain_of(store, work.artifact)
        computed = {each.stage: each.record["computed"] for each in chain}
        measured = Measured(default, chain_seconds(chain), computed, written)
        self._outcome = {"artifact": artifact.key, "measured": measured}
        return Status.FINISHED

    def outcome(self) -> dict[str, Any]:
        """Return the key of the predictions, and what else is known."""
        return self._outcome

    def _written(self, rows: Mapping[str, Tensor]) -> dict[str, str]:
        """Write the diagram and the configuration, if there is a place for them."""
        if not self._work.folder:
            return {}
        folder = on_this_machine(Path(self._work.folder))
        diagram, configuration = folder / "reliability.png", folder / "configuration.yaml"
        curve = reliability_curve(logits=rows["log_probs"], labels=rows["labels"])
        with writing(folder, StorageError):
            make_folders(folder)
            with drafted(diagram, durable=True) as draft:
                draft.write_bytes(reliability_diagram(curve, self._work.title).image(".png"))
            text = yaml.safe_dump(dict(self._work.configuration), sort_keys=False)
            write_whole(configuration, text, durable=True)
        for path in (diagram, configuration):
            self.bench.store.share(path)
        return {path.name: str(path) for path in (diagram, configuration)}


def chain_of(store: ArtifactStore, ref: ArtifactRef | None) -> list[Artifact]:
    """Return a stage's outcome and the outcomes that it builds on, as far as they are stored."""
    chain: list[Artifact] = []
    while ref is not None and (found := store.find(ref)):
        chain.append(found)
        ref = found.upstream
    return chain


def chain_seconds(chain: Sequence[Artifact]) -> float | None:
    """Return the cost of a chain of stages; None if a link is missing or does not know."""
    costs = [link.record["seconds"] for link in chain if link.record.get("seconds") is not None]
    whole = bool(chain) and chain[-1].upstream is None
    return round(sum(costs), 3) if whole and len(costs) == len(chain) else None
