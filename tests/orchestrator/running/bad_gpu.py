"""A script: one of two pretended GPUs fails what starts on it.

Prints where jobs ended, which GPU Ray gives to others while that one is held, how many of two wait
for one, and which they get afterwards; then what was said.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from orchestrator.cluster.local import join_cluster
from orchestrator.loop import Loop
from orchestrator.storage.machines import IN_A_ROW, Machines
from orchestrator.storage.storage import Storage
from tests.orchestrator.executors.small_jobs import Jobs, fit, prepared_logits
from trainables.jobs import Job

FAULT = "CUDA error: uncorrectable ECC error"


class OnTwoGpus(Jobs):
    """Each job takes a GPU."""

    sizes = ((1.0, 1.0),)


def main(folder: Path) -> None:
    data, storage, said = prepared_logits(folder), Storage(folder / "storage"), list[str]()
    marks = folder / "marks"
    marks.mkdir()
    os.environ["RAY_OVERRIDE_RESOURCES"] = json.dumps({"CPU": 2, "GPU": 2})
    with join_cluster(None):
        import ray

        from orchestrator.executors import _held_gpus, ray_tune
        from trainables.ray_edge import Holder, JobTrainable, gpu_here

        class OnPretendedCards(JobTrainable):
            busy = False

            def _begin(self, job: Job) -> None:
                self.mark = marks / job.key
                fault = RuntimeError(FAULT) if gpu_here() == "1" else [torch.device("cpu")]
                with mock.patch("trainables.worker.worker.trial_device", side_effect=fault):
                    super()._begin(job)

            def step(self) -> dict[str, Any]:
                if gpu_here() == "1":
                    self.mark.touch()
                # After its first job the good one is busy until the other has had its three, for
                # whose process to start takes longer than all these jobs.
                while self.busy and len(list(marks.iterdir())) < IN_A_ROW:
                    time.sleep(0.1)
                self.busy = gpu_here() == "0"
                return super().step()

        jobs = OnTwoGpus([fit(data.directory, str(number), gpus=1) for number in range(9)])
        loop = Loop(jobs, lambda event: None, 20, machines=Machines(storage, said.append))
        with mock.patch.object(ray_tune, "JobTrainable", OnPretendedCards):
            ray_tune.RayTune(storage.artifacts, folder).run(loop, sealed=False)
        ends = {report.gpu for report in jobs.ends.values()}
        held = ray_tune.HeldGpus(jobs.sizes)
        with mock.patch.object(_held_gpus, "FIRST_SECONDS", 300):
            held.keep(loop.machines.gpus_left_out())
        use = ray.remote(num_gpus=1, num_cpus=0)(Holder)
        first, second = use.remote(), use.remote()
        answers = [first.gpu.remote(), second.gpu.remote()]
        given, waiting = ray.wait(answers, timeout=300)
        _, waiting = ray.wait(waiting, timeout=5)
        sys.stdout.write(f"{ends} {ray.get(given)} {len(waiting)}")
        held.close()
        sys.stdout.write(f" {ray.get(waiting)}\n")
    sys.stdout.write("\n".join(said))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
