"""A script: one trial on two nodes, of which that where it starts first fails whatever it is given.

Usage: bad_node.py FOLDER. FOLDER/starts names the nodes on which the trial was started, one a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray
from ray import tune
from ray.cluster_utils import Cluster

from orchestrator.running.searcher import CountingScheduler
from trainables.ray_edge import StageTrainable

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
REQUEST = {"stage": "train", "parts": {}, "data": "", "model": "", "protocol": {}, "seed": 0}


class Started(StageTrainable):
    def _advance(self, started: float) -> str:
        here, starts = ray.get_runtime_context().get_node_id(), self._store.root / "starts"
        with starts.open("a") as stream:
            stream.write(f"{here}\n")
        if here == starts.read_text().split()[0]:
            raise OSError(5, "Input/output error")
        return "finished"


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
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
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
