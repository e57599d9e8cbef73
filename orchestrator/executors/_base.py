"""The base of what computes the jobs of a loop."""

from abc import ABC, abstractmethod

from orchestrator.loop import Loop


class Executor(ABC):
    """Computes jobs until their loop is done.

    It asks ``loop.next`` for as many jobs as it can hold, and hands every report of a worker to
    ``loop.take``. A job whose process ends without a last report gets one from it, see ``lost``.
    """

    @abstractmethod
    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Compute the jobs of a loop until it is done.

        Args:
            loop: Gives out the jobs.
            sealed: Whether the workers give up test data.

        Raises:
            InputError: If the journal or the storage could not be written.
        """
