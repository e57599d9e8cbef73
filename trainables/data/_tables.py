"""Reads columns of users' tables: CSV, tab-separated and Parquet files."""

import csv
import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError

TABLES = (".csv", ".tsv", ".parquet")
# If the only column's name contains one of these, the file has another separator.
SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}
SAVE_AS = "save it with commas as .csv, or with tabs as .tsv"


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns, in order."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            names = pyarrow.parquet.read_schema(path).names
        else:
            import pandas

            names = pandas.read_csv(path, header=None, nrows=1, **_csv(path)).iloc[0].tolist()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: cannot be read as a table ({error})") from error
    others = [found for mark, found in SEPARATORS.items() if len(names) == 1 and mark in names[0]]
    if others:
        raise InputError(f"{path}: columns are separated by {others[0]}; {SAVE_AS}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: has two columns named {twice!r}; rename or remove one")
    return names


def read_columns(path: Path, names: Sequence[str], numbers: Sequence[str] = ()) -> dict[str, Any]:
    """Return columns of a table by name, (N,) each; ``numbers`` are read as float64.

    Columns ``names`` of a CSV file are unchanged strings in arrays of objects. Columns of a Parquet
    file keep their types, but lists of one length become an array (N, K), mostly of 64-bit numbers.
    """
    read = _read_parquet if path.suffix == ".parquet" else _read_csv
    try:
        return read(path, names, numbers)
    except InputError:
        raise
    # Errors of pandas and pyarrow on damaged files; their own classes derive from these.
    except (OSError, ValueError, TypeError, KeyError, Warning, MemoryError) as error:
        raise InputError(f"{path}: cannot be read as a table ({error})") from error


def _csv(path: Path) -> dict[str, Any]:
    """Return pandas' options for reading a text file, in which no cell counts as missing."""
    separator = "\t" if path.suffix == ".tsv" else ","
    return {"sep": separator, "dtype": str, "keep_default_na": False, "encoding": "utf-8-sig"}


def _read_csv(path: Path, names: Sequence[str], numbers: Sequence[str]) -> dict[str, Any]:
    import pandas

    # All columns are read: if columns are selected, pandas does not notice rows that are too long.
    types: dict[str, type] = defaultdict(lambda: str, dict.fromkeys(numbers, np.float64))
    options = {**_csv(path), "index_col": False, "dtype": types}
    try:
        with warnings.catch_warnings():
            # Without an error, pandas would cut off rows that are longer than the header.
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(path, **options)
    except (ValueError, Warning) as error:
        if (fault := _first_fault(path, numbers)) is not None:
            raise InputError(f"{path}: {fault}") from error
        raise
    texts = {name: frame[name].to_numpy(dtype=object) for name in names}
    for name, values in texts.items():
        short = next((row for row, value in enumerate(values) if not isinstance(value, str)), None)
        if short is not None:
            raise InputError(f"{path}: row {short} has no column {name!r}")
    return {**texts, **{name: frame[name].to_numpy() for name in numbers}}


def _first_fault(path: Path, numbers: Sequence[str]) -> str | None:
    """Return the fault of the first row of wrong length or with a wrong number, or None."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = (row for row in csv.reader(stream, delimiter=_csv(path)["sep"]) if row)
        header = next(rows)
        for number, row in enumerate(rows):
            if len(row) != len(header):
                return f"row {number} has {len(row)} cells, the header has {len(header)}"
            for name, cell in zip(header, row, strict=True):
                if name in numbers and not _is_number(cell):
                    return f"row {number}, column {name!r}: expected a number, got {cell!r}"
    return None


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _read_parquet(path: Path, names: Sequence[str], numbers: Sequence[str]) -> dict[str, Any]:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path, columns=[*names, *numbers])
    found = {name: _array(path, name, table.column(name)) for name in (*names, *numbers)}
    return found | {name: found[name].astype(np.float64) for name in numbers}


def _array(path: Path, name: str, column: Any) -> np.ndarray:
    import pyarrow.types

    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise InputError(f"{path}: column {name!r} has no value in row {row}")
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pyarrow.types.is_nested(kind):
        flat = _equal_lists(column)
        if flat is not None:
            return flat
        rows = [np.asarray(row) for row in column.to_pylist()]
        if len({row.shape for row in rows}) > 1:
            raise InputError(
                f"{path}: column {name!r} has lists of different lengths; each row needs one score "
                "per class"
            )
        return np.array(rows)
    return column.to_numpy()


def _equal_lists(column: Any) -> np.ndarray | None:
    """Return N lists of K numbers each as an array (N, K), or None for other lists.

    This is a hundred times as fast as a conversion through Python's numbers.
    """
    import pyarrow.compute
    import pyarrow.types as types

    if not any(kind(column.type) for kind in (types.is_list, types.is_large_list)):
        return None
    lengths = pyarrow.compute.unique(pyarrow.compute.list_value_length(column))
    values = pyarrow.compute.list_flatten(column)
    whole, real = types.is_signed_integer(values.type), types.is_floating(values.type)
    if len(lengths) != 1 or values.null_count or not (whole or real):
        return None
    numbers = values.to_numpy().astype(np.float64 if real else np.int64)
    return numbers.reshape(len(column), -1)
