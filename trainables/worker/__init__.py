"""What a process does with the jobs that it is given: pure PyTorch and files, whoever runs it."""

from trainables.worker._bench import Bench, Computation
from trainables.worker._stage import stored_report
from trainables.worker.worker import Worker

__all__ = ["Bench", "Computation", "Worker", "stored_report"]
