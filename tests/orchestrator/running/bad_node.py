"""A script: on two nodes, a job and one that avoids the node of the first. Prints both nodes."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ray.cluster_utils import Cluster

from orchestrator.cluster.local import join_cluster
from orchestrator.executors.ray_tune import RayTune
from orchestrator.loop import Loop, Pause, Source
from trainables.jobs import FitWork, Job, Report

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
JOB = Job(key="", group="g", number=0, work=FitWork(data="nowhere", calibrators={}, metrics=()))


class Twice(Source):
    """Gives out one job after the other; their process, which could be used again, goes on."""

    sizes = ((1, 0.0),)

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.given = 0

    def next(self) -> Job | Pause:
        if self.given > len(self.nodes):
            return Pause.WAIT
        if self.given == 2:
            return Pause.DONE
        self.given += 1
        return replace(JOB, key=str(self.given), avoided=frozenset(self.nodes))

    def ended(self, job: Job, report: Report) -> None:
        self.nodes.append(report.node)


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    source = Twice()
    with join_cluster(cluster.address):
        RayTune(folder, folder, growing=True).run(Loop(source, lambda event: None, 0))
    cluster.shutdown()
    sys.stdout.write(" ".join(source.nodes))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
