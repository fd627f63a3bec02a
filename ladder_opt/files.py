"""Reading and writing whole files: digests, and writes that never leave a torn file behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ladder_opt.errors import InputError

_CHUNK_BYTES = 1 << 20


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


def open_to_read(path: str | Path) -> IO[bytes]:
    """Open a regular file for reading bytes.

    Raises:
        InputError: it is missing, a directory, or not ours to read.
    """
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise InputError(error.strerror or str(error), "a readable file", path=path) from None


def read_text(path: str | Path, *, max_bytes: int, what: str) -> str:
    """A whole UTF-8 file of at most `max_bytes`.

    Raises:
        InputError: it cannot be read, is larger, or is not UTF-8.
    """
    with open_to_read(path) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InputError(f"more than {max_bytes} bytes", f"{what} of at most that", path=path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte 0x{data[error.start]:02x} at {error.start}", f"{what} in UTF-8", path=path
        ) from None


@contextlib.contextmanager
def replace_when_whole(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; move it there when the block ends well.

    The file is synced before the rename, so a reader sees the old content or the new, whole.

    Raises:
        InputError: the folder is missing or not ours to write.
    """
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise InputError(
            error.strerror or str(error), "a folder that can be written", path=target.parent
        ) from None
    part = Path(name)
    try:
        os.close(handle)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        try:
            part.replace(target)
        except OSError as error:
            raise InputError(
                error.strerror or str(error), "a path that can be written", path=target
            ) from None
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all."""
    with replace_when_whole(path) as part:
        part.write_text(text, encoding="utf-8")
