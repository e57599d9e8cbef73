"""The checks of a plugin: for each part that it brings, all that ours keep to."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from trainables.calibrators import build_calibrator
from trainables.common.devices import one_thread
from trainables.contracts.losses import LOSS_CHECKS, is_never_cross_entropy
from trainables.contracts.maps import CALIBRATOR_CHECKS
from trainables.contracts.metrics import METRIC_CHECKS
from trainables.contracts.require import UntriedError
from trainables.contracts.training import (
    computes_the_same_twice,
    measures_the_same_twice,
    reads_the_same_twice,
    trains_by_its_parameters,
)
from trainables.plugins import Plugin

TRAINED = {
    *("loss", "augmentation", "training scheme", "refinement"),
    *("calibrator", "fitting objective", "model"),
}


class Check(NamedTuple):
    """One thing that a part is to keep to.

    Attributes:
        part: Such as ``loss gce``.
        says: What is kept.
        run: Raises whatever it raises where it is not.
        plugin: The one that the part is of.
        is_note: Whether it is a matter of taste, and no fault.
    """

    part: str
    says: str
    run: Callable[[], None]
    plugin: Plugin | None = None
    is_note: bool = False

    def broken(self) -> str | None:
        """Return how it is not kept, in a line; empty if it is, None if it could not be tried."""
        try:
            with one_thread():
                self.run()
        except UntriedError:
            return None
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            text = " ".join(str(error).split())
            place = self.plugin.where(error) if self.plugin is not None else ""
            own = isinstance(error, AssertionError) and not place
            return text if own else f"{place}{type(error).__name__}: {text}"
        return ""


def checks_of(plugin: Plugin) -> Iterator[Check]:
    """Yield the checks of all that a plugin brings; its parts must be known."""
    for addition in plugin.additions:
        noun, name = addition.catalogue.noun, addition.name
        part = f"{noun} {name}"
        for named in {"loss": LOSS_CHECKS, "metric": METRIC_CHECKS}.get(noun, ()):
            yield Check(part, _says(named), partial(named, name), plugin)
        if noun == "loss":
            never = partial(is_never_cross_entropy, name)
            yield Check(part, _says(is_never_cross_entropy), never, plugin, is_note=True)
        if noun == "calibrator":
            make = partial(build_calibrator, name)
            for check in CALIBRATOR_CHECKS:
                yield Check(part, _says(check), partial(check, make), plugin)
        if noun in TRAINED and not name.endswith(":"):
            trained = partial(computes_the_same_twice, noun, name)
            yield Check(part, _says(computes_the_same_twice), trained, plugin)
            if noun in ("calibrator", "fitting objective"):
                used = partial(trains_by_its_parameters, noun, name)
                yield Check(part, _says(trains_by_its_parameters), used, plugin, is_note=True)
        if noun == "dataset" and not addition.entry.placeholder:
            read = partial(reads_the_same_twice, name)
            yield Check(part, _says(reads_the_same_twice), read, plugin)
        # Those whose name goes on, such as ood-npz:PATH, are tried by one that needs nothing more.
        names = addition.entry.names(name) if noun == "suite" else ()
        if whole := next((n for n in names if n == n.lower()), ""):
            measured = partial(measures_the_same_twice, whole)
            yield Check(part, _says(measures_the_same_twice), measured, plugin)


def _says(check: Callable[..., None]) -> str:
    return (inspect.getdoc(check) or "").rstrip(".")
