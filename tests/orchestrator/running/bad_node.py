"""A script: a trial and an evaluation on two nodes; the one that either starts on first fails it.

Usage: bad_node.py FOLDER. FOLDER/starts names the nodes on which the trial was started, one a line,
FOLDER/measured those of the evaluation.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.cluster_utils import Cluster

from orchestrator.running.evaluate import evaluate_all
from orchestrator.running.searcher import CountingScheduler
from orchestrator.sweep.spec import parse_sweep
from trainables.common.errors import StorageError
from trainables.ray_edge import StageTrainable
from trainables.store.artifacts import ArtifactStore

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
SWEEP = """
name: e
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce]
storage: {storage}
"""
REQUEST = {"stage": "train", "parts": {}, "data": "", "model": "", "protocol": {}, "seed": 0}


def started(starts: Path) -> None:
    here = ray.get_runtime_context().get_node_id()
    with starts.open("a") as stream:
        stream.write(f"{here}\n")
    if here == starts.read_text().split()[0]:
        raise OSError(5, "Input/output error")


class Started(StageTrainable):
    def _advance(self, began: float) -> str:
        started(self._store.root / "starts")
        return "finished"


class Job:
    """Ends the evaluation at its first look at what is chosen, if the node does not."""

    def __init__(self, measured: Path) -> None:
        self.measured = measured

    @property
    def chosen(self) -> Any:
        started(self.measured)
        raise StorageError("this node is good")


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    tune.Tuner(
        tune.with_resources(tune.with_parameters(Started, storage=str(folder)), {"CPU": 1}),
        param_space={"request": REQUEST, "cpus": 1, "gpus": 0, "score": "val_nll"},
        tune_config=tune.TuneConfig(scheduler=CountingScheduler()),
        run_config=tune.RunConfig(
            storage_path=str(folder / "tune"),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=3),
        ),
    ).fit()
    jobs: Any = [Job(folder / "measured")]
    spec = parse_sweep(SWEEP.format(storage=folder), "e")
    with suppress(StorageError):
        evaluate_all(jobs, spec, ArtifactStore(folder), ray, print, print)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
