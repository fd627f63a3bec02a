"""Parquet to raw columns: the named ones only, with nulls kept apart from values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ladder_opt.errors import InputError
from ladder_opt.trace.readers.stored import Stored
from ladder_opt.trace.readers.table import Cells, RawTable

_MOST_ROWS = 200_000_000  # a footer may promise any number of rows in a few bytes


class ParquetFile:
    """A Parquet file whose footer has been read.

    Attributes:
        names: its column names.
        metadata: its key-value metadata.
        rows: number of rows.
    """

    def __init__(self, stored: Stored) -> None:
        """Read the footer.

        Raises:
            InputError: it is damaged.
        """
        import pyarrow as pa  # noqa: PLC0415 - heavy, and only Parquet needs it
        import pyarrow.parquet as pq  # noqa: PLC0415

        self._path = stored.path
        self._damage = (pa.ArrowException, OSError, ValueError, TypeError, KeyError)
        try:
            self._file = pq.ParquetFile(pa.BufferReader(stored.data))
            self.names: list[str] = [str(name) for name in self._file.schema_arrow.names]
            pairs = self._file.schema_arrow.metadata or {}
            self.rows = int(self._file.metadata.num_rows)
        except self._damage as error:
            raise self._damaged(error) from None
        if self.rows > _MOST_ROWS:
            raise InputError(f"{self.rows} rows", f"at most {_MOST_ROWS}", path=self._path)
        self.metadata = {key.decode("utf-8", "replace"): value for key, value in pairs.items()}

    def table(self, names: Sequence[str]) -> RawTable:
        """The named columns; rows are counted from 1 in messages.

        Raises:
            InputError: a column's pages are damaged, or its name stands there twice.
        """
        for name in names:
            if self.names.count(name) > 1:
                raise InputError(f"column {name!r} twice", "each column once", path=self._path, column=name)
        try:
            read = self._file.read(columns=list(names), use_threads=False)
            columns = {name: self._cells(read.column(name)) for name in names}
        except self._damage as error:
            raise self._damaged(error) from None
        return RawTable(columns, self.rows)

    def _damaged(self, error: Exception) -> InputError:
        reason = (str(error).splitlines() or [""])[0][:120]
        return InputError(f"damaged Parquet ({reason})", "a whole Parquet file", path=self._path)

    @staticmethod
    def _cells(column: Any) -> Cells:
        import pyarrow as pa  # noqa: PLC0415

        kind = column.type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if pa.types.is_timestamp(kind) or (is_number and not column.null_count):  # a date that is null is NaT
            values: np.ndarray[Any, Any] = column.to_numpy()
            return values
        cells: list[object] = column.to_pylist()
        return cells
