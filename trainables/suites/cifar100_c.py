"""CIFAR-100-C."""

from trainables.data.cifar100 import NAMES
from trainables.suites._official import OfficialCorruptions
from trainables.suites._registry import SUITES


@SUITES.register("cifar100-c")
class Cifar100C(OfficialCorruptions):
    """CIFAR-100-C (Hendrycks and Dietterich, ICLR 2019), from the official arrays, 2.9 GB."""

    folder = "CIFAR-100-C"
    address = "https://zenodo.org/records/3555552"
    archive = "CIFAR-100-C.tar"
    md5 = "11f0ed0f1191edbf9fa23466ae6021d3"
    classes = tuple(NAMES.split())
