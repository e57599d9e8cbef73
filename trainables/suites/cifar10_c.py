"""CIFAR-10-C."""

from trainables.data.cifar10 import CLASSES
from trainables.suites._official import OfficialCorruptions
from trainables.suites._registry import SUITES


@SUITES.register("cifar10-c")
class Cifar10C(OfficialCorruptions):
    """CIFAR-10-C (Hendrycks and Dietterich, ICLR 2019), from the official arrays, 2.9 GB."""

    folder = "CIFAR-10-C"
    address = "https://zenodo.org/records/2535967"
    archive = "CIFAR-10-C.tar"
    md5 = "56bf5dcef84df0e2308c6dcbcbbd8499"
    classes = CLASSES
