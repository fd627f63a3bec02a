"""Parquet to raw columns: the named ones only, with nulls kept apart from values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder_opt.errors import InputError
from ladder_opt.trace.readers.stored import Stored
from ladder_opt.trace.readers.table import Cells, RawTable

_BUFFER_BYTES = 1 << 20
_MOST_ROWS = 200_000_000  # a footer may promise any number of rows in a few bytes


class ParquetFile:
    """A Parquet file whose footer has been read.

    Attributes:
        names: its column names.
        metadata: its key-value metadata.
        rows: number of rows.
    """

    def __init__(self, stored: Stored | Path, *, name: str | None = None) -> None:
        """Read the footer.

        Args:
            stored: the content, or where it lies (then it is read as it is needed).
            name: the file as messages name it; None: as it is named there.

        Raises:
            InputError: it is damaged.
        """
        import pyarrow as pa  # noqa: PLC0415 - heavy, and only Parquet needs it
        import pyarrow.parquet as pq  # noqa: PLC0415

        self._path = name or (stored.path if isinstance(stored, Stored) else str(stored))
        self._damage = (pa.ArrowException, OSError, ValueError, TypeError, KeyError)
        try:
            source = pa.BufferReader(stored.data) if isinstance(stored, Stored) else str(stored)
            # Without a buffer size a column of a row group is read whole, however few rows are asked for.
            self._file = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
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
        self._refuse_twice(names)
        try:
            read = self._file.read(columns=list(names), use_threads=False)
            columns = {name: self._cells(read.column(name)) for name in names}
        except self._damage as error:
            raise self._damaged(error) from None
        return RawTable(columns, self.rows)

    def tables(
        self, names: Sequence[str], *, first: int, stop: int, most_rows: int
    ) -> Iterator[tuple[int, RawTable]]:
        """The named columns of rows `first` to `stop` - 1, a piece at a time, each with its first row.

        Row groups outside are not read; inside one, pages are read as they are needed.

        Raises:
            InputError: as `table`.
        """
        import pyarrow as pa  # noqa: PLC0415

        self._refuse_twice(names)
        footer = self._file.metadata
        sizes = [int(footer.row_group(index).num_rows) for index in range(footer.num_row_groups)]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        groups = [
            index
            for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
            if start < stop and start + size > first
        ]
        if not groups:
            return
        row = starts[groups[0]]
        try:
            for batch in self._file.iter_batches(
                most_rows, row_groups=groups, columns=list(names), use_threads=False
            ):
                below, above = max(first - row, 0), min(stop - row, batch.num_rows)
                if below < above:
                    piece = pa.table(batch.slice(below, above - below))
                    yield (
                        row + below,
                        RawTable({name: self._cells(piece.column(name)) for name in names}, above - below),
                    )
                row += batch.num_rows
        except self._damage as error:
            if isinstance(error, InputError):
                raise
            raise self._damaged(error) from None

    def _refuse_twice(self, names: Sequence[str]) -> None:
        for name in names:
            if self.names.count(name) > 1:
                raise InputError(f"column {name!r} twice", "each column once", path=self._path, column=name)

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
