"""Computes jobs for any executor, in a process that needs only PyTorch and files."""

from trainables.worker._computations import Bench, Computation, stored_report
from trainables.worker._inspection import Inspection, inspect_machine, remove_nonce, write_nonce
from trainables.worker.worker import Worker
