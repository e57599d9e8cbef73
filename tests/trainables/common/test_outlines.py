import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from search_spaces import declared, part_catalogues
from trainables.common import later
from trainables.common.outlines import OUTLINE, _placeholder, outlined
from trainables.common.registry import Catalogue
from trainables.models import MODELS

PARTS = [catalogue for several in part_catalogues().values() for catalogue in several]
PLAIN = (bool, int, float, str, tuple, dict)
OF_TORCH = {*dir(torch.nn.Module), "_is_placeholder"}


def attributes(entry: Any) -> dict[str, Any]:
    known = {name: getattr(entry, name, None) for name in dir(entry)}
    return {
        name: value
        for name, value in known.items()
        if isinstance(value, PLAIN) and not name.startswith("__") and name not in OF_TORCH
    }


@pytest.mark.parametrize("catalogue", [*PARTS, MODELS], ids=lambda catalogue: catalogue.noun)
def test_an_outline_equals_its_class(catalogue: Catalogue[Any]) -> None:
    outlines = {name: catalogue._outlines[name] for name in catalogue.own_names()}
    catalogue.load()
    assert sorted(outlines) == sorted(catalogue._entries)
    for name, outline in outlines.items():
        entry = catalogue[name]
        if catalogue is MODELS:
            assert entry[1] is outline[1]
            continue
        assert outline.__module__ == OUTLINE + entry.__module__
        assert declared(outline) == declared(entry)
        assert attributes(outline) == attributes(entry)


@pytest.mark.parametrize("catalogue", PARTS, ids=lambda catalogue: catalogue.noun)
def test_values_are_refused_with_the_same_words(catalogue: Catalogue[Any]) -> None:
    checked = 0
    for name in catalogue.own_names():
        outline = catalogue._outlines[name]
        assert list(inspect.signature(outline).parameters) == catalogue.parameter_names(name)
        for field in declared(outline):
            real = refusal(partial(catalogue[name], **{field: "?"}))
            assert refusal(partial(outlined, partial(outline, **{field: "?"}))) == real
            checked += bool(real)
    assert checked


def refusal(build: Callable[[], object]) -> str:
    try:
        build()
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_code_that_needs_a_result_of_torch_is_run_with_torch() -> None:
    base, built = _placeholder("torch"), []

    def build() -> str:
        built.append("torch")
        if len(built) == 1:
            return "less" if base.anything() < 1 else "more"
        return "with torch"

    assert outlined(build) == "with torch"
    assert base.anything.as_often().as_it_is is not None  # It may be kept.


def test_lazily_imported_types_recognise_their_instances() -> None:
    assert isinstance(torch.zeros(1), later.Tensor)
    assert not isinstance(1, later.Tensor)
    assert isinstance(torch.Generator(), later.Generator)
    assert later.F.relu is torch.nn.functional.relu


def test_entries_of_a_catalogue_without_outlines_stay_if_an_outline_imports_them_first() -> None:
    catalogue: Catalogue[object] = Catalogue("thing", "math")
    outlined(lambda: catalogue.add("one", object()))
    assert catalogue.names() == ["one"]
