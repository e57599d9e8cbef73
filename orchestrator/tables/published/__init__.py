"""Published results, hyper-parameters, protocols and model sizes of five calibration papers.

They are transcribed from the papers, for comparison with our own runs. Data sets, models and
methods of this package have its names, except some in ``posthoc``; see ``published_key``.

``results``
    One published figure per row: ``paper``, ``table``, ``dataset``, ``model`` (``average`` over
    models), ``method``, ``stage2`` (empty, ``macal``, or ``macal-partial`` for the ablation, whose
    component ``note`` names), ``posthoc`` (empty for none), ``metric`` (``acc``, ``ece``, ``aece``,
    ``cwece``, ``mce``, ``miou``, ``auroc``, ``fpr95`` in percent; ``train_seconds``;
    ``temperature``), ``n_bins`` (missing where the paper does not say), ``value`` (missing for a
    run that did not converge) and ``note``. Several tables may have the same figure, so filter on
    ``table`` before averaging.
``hyperparameters``
    ``paper``, ``method`` (also ``cls``, a fitting objective, and words such as ``all``),
    ``parameter``, ``symbol``, ``published_default`` (a number, a word, or empty),
    ``searched_values`` (a grid, separated by ``;``, or a range), ``dataset``, ``model``, ``source``
    and ``note``.
``protocols``
    One row for each paper, data sets and stage; several names in a cell are separated by ``;``.
``models``
    ``model``, ``classes``, ``parameters`` (count), ``source`` and ``note``.
"""

from collections import defaultdict
from functools import cache
from importlib.resources import files

import pandas as pd

from trainables.common.errors import InputError

__all__ = ["PUBLISHED", "load_published"]

PUBLISHED = ("results", "hyperparameters", "protocols", "models")
# All other columns are text; their empty cells are empty strings.
NUMBERS = {
    "results": {"value": "Float64", "n_bins": "Int64"},
    "models": {"classes": "Int64", "parameters": "Int64"},
}


def load_published(table: str) -> pd.DataFrame:
    """Return a copy of a table; the caller may change it."""
    if table not in PUBLISHED:
        raise InputError(f"published table {table!r} is not one of {', '.join(PUBLISHED)}")
    return _read(table).copy()


@cache
def _read(table: str) -> pd.DataFrame:
    numbers = NUMBERS.get(table, {})
    with (files("orchestrator.tables.published") / f"{table}.csv").open(encoding="utf-8") as stream:
        return pd.read_csv(
            stream,
            dtype=defaultdict(lambda: "str", numbers),
            keep_default_na=False,
            na_values={column: [""] for column in numbers},
        )
