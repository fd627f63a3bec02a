"""The file that a measurement grows, a whole row at a time.

A row is one write to a file open for appending, synced: whatever ends the process, what stands there are
whole rows, and at most a last line without its end where the machine itself died; that line is dropped, with
a note, when the measurement goes on. The settings stand in every row, so a file says by itself whether a run
may go on with it. A second process on the same file is refused (`flock`).
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ladder_opt.calibration.measurement_rows import (
    COLUMNS,
    MeasurementRow,
    read_measurement_rows,
)
from ladder_opt.errors import InputError, UsageError
from ladder_opt.files import check_output, open_to_read


class RowFile:
    """A file of rows of one set of settings.

    Attributes:
        path: the file.
        rows: all of its rows, in order.
        notes: what was done to a file that was there before, a line each.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        """Open or create it.

        Args:
            path: a regular file, or none yet.
            settings: values that every row has.

        Raises:
            InputError: it holds something else, or cannot be written.
            UsageError: its rows have other settings, or another process is writing it.
        """
        self.path = Path(path)
        self.notes: list[str] = []
        self._settings = dict(settings)
        self._handle = -1
        check_output(path)
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise InputError("a device or a pipe", "a regular file, which rows are added to", path=path)
        # Never replaced, not even an empty one: another run may have just begun to write it.
        self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self._begin()
            self._drop_torn_line()
            self.rows = [] if self._holds_a_header_only() else list(read_measurement_rows(self.path))
            self._check_settings()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def append(self, row: MeasurementRow) -> None:
        """Add a row.

        Raises:
            OSError: the disk is full, or fails; nothing of the row is left then.
        """
        cells = {name: "" if value is None else value for name, value in asdict(row).items()}
        out = io.StringIO()
        csv.DictWriter(out, COLUMNS, lineterminator="\n").writerow(cells)
        line = out.getvalue().encode()
        before = os.fstat(self._handle).st_size
        try:
            while line:  # a regular file takes a row at once, unless its disk is full
                line = line[os.write(self._handle, line) :]
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, before)
            error.filename = str(self.path)
            raise
        self.rows.append(row)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{self.path}: found another measurement writing it, expected one") from None
        except OSError:
            return  # a file system without locks

    def _begin(self) -> None:
        """Write a new file's header; of another, see that it is one of ours before it is changed."""
        with open_to_read(self.path) as stream:
            first = stream.readline(1 << 16).decode(errors="replace")
        header = ",".join(COLUMNS)
        if header.startswith(first):  # new, or a run that was ended within its first write
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"{header}\n".encode())
            os.fsync(self._handle)
            return
        first = first.rstrip("\r\n")
        if first != header:
            raise InputError(
                repr(first[:80]),
                "the columns that ladder-opt measure writes in this release; name another file",
                path=self.path,
                line=1,
            )

    def _holds_a_header_only(self) -> bool:
        return self.path.read_bytes().count(b"\n") == 1

    def _drop_torn_line(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole == len(data):
            return
        os.ftruncate(self._handle, whole)
        self.notes.append(f"{self.path}: dropped a last line that was cut short")

    def _check_settings(self) -> None:
        for at, row in enumerate(self.rows):
            for name, value in self._settings.items():
                if getattr(row, name) != value:
                    raise UsageError(
                        f"{self.path}: found rows of {name} {getattr(row, name)} (line {at + 2}), expected "
                        f"{value} as asked for: go on with the same settings, or name another file"
                    )
