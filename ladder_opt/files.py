"""Reading and writing whole files: digests, and writes that never leave a torn file behind."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import os
import select
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from ladder_opt.errors import InputError

_CHUNK_BYTES = 1 << 20
_PIPE_SECONDS = 10.0
_PIPE_LOOK_MILLISECONDS = 50


def sha256_of(path: str | Path) -> str:
    """Hex SHA-256 of a file's bytes as stored.

    Raises:
        InputError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with open_to_read(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_folder(path: str | Path) -> bool:
    """Whether a folder is there; no for a name that cannot be looked up (too long, no permission)."""
    return os.path.isdir(path)  # noqa: PTH112  (pathlib raises for some names)


def is_file(path: str | Path) -> bool:
    """Whether a regular file is there; no for a name that cannot be looked up."""
    return os.path.isfile(path)  # noqa: PTH113


def is_there(path: str | Path) -> bool:
    """Whether anything is there; no for a name that cannot be looked up."""
    return os.path.exists(path)  # noqa: PTH110


def open_to_read(path: str | Path) -> IO[bytes]:
    """Open a file for reading bytes.

    Raises:
        InputError: it is missing, a directory, or not ours to read.
    """
    try:
        if stat.S_ISFIFO(Path(path).stat().st_mode):
            return _open_pipe(path)
        return Path(path).open("rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(_reason(error), "a readable file", path=_named(path)) from None


def _open_pipe(path: str | Path) -> IO[bytes]:
    """A pipe, once somebody writes to it; one that nobody does is given up, not waited for for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    first = _first_byte(handle)
    if first is None:
        os.close(handle)
        raise InputError("a pipe that nothing writes to", "a readable file", path=path)
    os.set_blocking(handle, True)
    return io.BufferedReader(_After(first, os.fdopen(handle, "rb", buffering=0)))


def _first_byte(handle: int) -> bytes | None:
    """What a look at a pipe took from it: nothing most often; None where nobody writes to it in time."""
    until = time.monotonic() + _PIPE_SECONDS
    ends = select.poll()
    ends.register(handle, select.POLLIN)
    while not ends.poll(_PIPE_LOOK_MILLISECONDS):
        try:
            first = os.read(handle, 1)
        except BlockingIOError:
            return b""  # there is a writer, which takes its time
        if first:
            return first
        if time.monotonic() > until:
            return None
    return b""


class _After(io.RawIOBase):
    """A stream with some bytes before it."""

    def __init__(self, first: bytes, rest: io.FileIO) -> None:
        self._first, self._rest = first, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if not self._first:
            return self._rest.readinto(buffer)
        count = min(len(self._first), len(buffer))
        buffer[:count], self._first = self._first[:count], self._first[count:]
        return count

    def close(self) -> None:
        self._rest.close()
        super().close()


def read_bytes(path: str | Path, *, max_bytes: int, what: str) -> bytes:
    """A whole file of at most `max_bytes`, read once (so a pipe will do).

    Raises:
        InputError: it cannot be read, or is larger.
    """
    with open_to_read(path) as stream:
        try:
            data = stream.read(max_bytes + 1)
        except OSError as error:
            raise InputError(_reason(error), "a readable file", path=path) from None
    if len(data) > max_bytes:
        raise InputError(f"more than {max_bytes} bytes", f"{what} of at most that", path=path)
    return data


def read_text(path: str | Path, *, max_bytes: int, what: str) -> str:
    """A whole UTF-8 file of at most `max_bytes`.

    Raises:
        InputError: it cannot be read, is larger, or is not UTF-8.
    """
    return decode_text(read_bytes(path, max_bytes=max_bytes, what=what), path=path, what=what)


def decode_text(data: bytes, *, path: str | Path, what: str) -> str:
    """The text of a file's bytes, less a byte order mark.

    Raises:
        InputError: they are not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte 0x{data[error.start]:02x} at {error.start}", f"{what} in UTF-8", path=path
        ) from None


@contextlib.contextmanager
def replace_when_whole(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; move it there when the block ends well.

    The file is synced before the rename, so a reader sees the old content or the new, whole. A link stays
    and what it points to is replaced; a file that was there keeps its mode. A device or a pipe, such as
    /dev/stdout, is never replaced: the whole content is copied into it.

    Raises:
        InputError: the folder is missing or not ours to write.
        OSError: the disk is full, or fails; `filename` is then `path`.
    """
    mode = _mode_of(path)
    is_stream = mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
    target = Path(path) if is_stream else Path(os.path.realpath(path))
    part = _new_part(Path(tempfile.gettempdir()) if is_stream else target.parent, target.name, path)
    try:
        yield part
        if is_stream:
            _copy(part, target)
        else:
            _sync(part)
            part.chmod(_mode_of_new_files() if mode is None else stat.S_IMODE(mode))
            _move(part, target, path)
    except OSError as error:
        error.filename = str(path) if error.filename in (None, str(part)) else error.filename
        raise
    finally:
        part.unlink(missing_ok=True)


def check_output(path: str | Path | None, *, inputs: Iterable[str | Path | None] = ()) -> None:
    """Find out before long work whether `path` can be written (None: nothing is to be).

    Raises:
        InputError: the folder is missing or not ours to write, or `path` is a folder, or one of `inputs`.
    """
    if path is None:
        return
    mode = _mode_of(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise InputError(os.strerror(errno.EISDIR), "a path that can be written", path=path)
    if mode is None or stat.S_ISREG(mode):
        target = Path(os.path.realpath(path))
        for source in inputs:
            if source is not None and mode is not None and os.path.realpath(source) == str(target):
                raise InputError("an input of this very run", "another file for the output", path=path)
        _new_part(target.parent, target.name, path).unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all; bytes of odd file names come out as they went in."""
    with replace_when_whole(path) as part:
        part.write_text(text, encoding="utf-8", errors="surrogateescape", newline="\n")


def write_csv(path: str | Path, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table as CSV, whole or not at all; None is an empty cell, a float all of its digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, out.getvalue())


def _mode_of(path: str | Path) -> int | None:
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):
        return None


def _new_part(folder: Path, name: str, path: str | Path) -> Path:
    try:
        handle, part = tempfile.mkstemp(prefix=f".{name[:40]}.", suffix=".part", dir=folder)
    except (OSError, ValueError) as error:
        parent = _named(Path(path).parent)
        raise InputError(_reason(error), "a folder that can be written", path=parent) from None
    os.close(handle)
    return Path(part)


def _sync(part: Path) -> None:
    with part.open("rb") as written:
        os.fsync(written.fileno())


def _mode_of_new_files() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _move(part: Path, target: Path, path: str | Path) -> None:
    try:
        part.replace(target)
    except OSError as error:
        raise InputError(_reason(error), "a path that can be written", path=path) from None


def _copy(part: Path, target: Path) -> None:
    with part.open("rb") as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, _CHUNK_BYTES)


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _named(path: str | Path) -> str:
    """A path as messages show it: a NUL would end the line there."""
    return ascii(str(path)) if "\0" in str(path) else str(path)
