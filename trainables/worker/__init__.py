"""Computes jobs in a process with PyTorch and files only, for any executor."""

from trainables.worker._computations import Bench, Computation, stored_report
from trainables.worker._inspection import Inspection, inspect_machine, remove_nonce, write_nonce
from trainables.worker.worker import Worker
