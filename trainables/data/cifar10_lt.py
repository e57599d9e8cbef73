"""CIFAR-10 with a long tail."""

from trainables.data._long_tail import LongTailMixin
from trainables.data._registry import SOURCES
from trainables.data.cifar10 import Cifar10Reader


@SOURCES.register("cifar10-lt")
class Cifar10LongTailReader(LongTailMixin, Cifar10Reader):
    """CIFAR-10 with exponentially shrinking training classes: ``cifar10-lt:RATIO``, else 10."""
