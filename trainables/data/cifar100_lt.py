"""CIFAR-100 with a long tail."""

from trainables.data._long_tail import LongTailMixin
from trainables.data._registry import SOURCES
from trainables.data.cifar100 import Cifar100Reader


@SOURCES.register("cifar100-lt")
class Cifar100LongTailReader(LongTailMixin, Cifar100Reader):
    """CIFAR-100 with exponentially shrinking training classes: ``cifar100-lt:RATIO``, else 10."""
