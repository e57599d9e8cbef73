"""The checks of a plugin's parts; the built-in parts pass the same checks."""

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
    """One property that a part must have.

    Attributes:
        part: The part, such as ``loss gce``.
        says: The property in words.
        run: Raises an error if the part does not have the property.
        plugin: The part's plugin.
        is_note: Whether a failure is only worth a note.
    """

    part: str
    says: str
    run: Callable[[], None]
    plugin: Plugin | None = None
    is_note: bool = False

    def broken(self) -> str | None:
        """Run the check; return its finding, "" if it passes, or None if it does not apply."""
        try:
            with one_thread():
                self.run()
        except UntriedError:
            return None
        except Exception as error:  # noqa: BLE001 - code of others may raise anything
            text = " ".join(str(error).split())
            place = self.plugin.where(error) if self.plugin is not None else ""
            own = isinstance(error, AssertionError) and not place
            return text if own else f"{place}{type(error).__name__}: {text}"
        return ""


def checks_of(plugin: Plugin) -> Iterator[Check]:
    """Yield the checks of all parts of an active plugin."""
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
        # A family of suites, such as ood-npz:PATH, is checked with a member that needs no PATH.
        names = addition.entry.names(name) if noun == "suite" else ()
        if whole := next((n for n in names if n == n.lower()), ""):
            measured = partial(measures_the_same_twice, whole)
            yield Check(part, _says(measures_the_same_twice), measured, plugin)


def _says(check: Callable[..., None]) -> str:
    return (inspect.getdoc(check) or "").rstrip(".")
