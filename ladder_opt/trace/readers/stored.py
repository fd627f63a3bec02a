"""A trace file's bytes: read once, digested, decompressed, decoded; nothing about formats.

gzip and zstd are told by their magic bytes, whatever the file is called. Compressed data that ends
early is refused: half a trace would look like a whole one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder_opt.errors import InputError
from ladder_opt.files import open_to_read

MAX_BYTES = 2 << 30  # of text in memory, compressed or not; a bomb stops here
_CHUNK_BYTES = 1 << 20

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PARQUET = b"PAR1"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive (or .xlsx)",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ": "xz data",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"SQLite format 3": "an SQLite database",
}
_KINDS = "a trace as CSV, JSON, JSONL or Parquet, plain, gzip or zstd"


@dataclass(frozen=True)
class Stored:
    """A file as read.

    Attributes:
        path: the file as the user named it.
        sha256: hex digest of the bytes on disk.
        data: the content, decompressed.
    """

    path: str
    sha256: str
    data: bytes

    @property
    def is_parquet(self) -> bool:
        """Whether the content begins as Parquet does."""
        return self.data.startswith(_PARQUET)

    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 survive as lone surrogates.

        One foreign byte in a model's name must not cost the file; in a cell that is read as a number
        it makes that row unreadable.

        Raises:
            InputError: the content is no text.
        """
        if self.data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return self.data.decode("utf-16", errors="replace")
        for magic, what in _FOREIGN.items():
            if self.data.startswith(magic):
                raise InputError(what, _KINDS, path=self.path)
        nul = self.data.find(b"\0", 0, 1 << 16)
        if nul >= 0:
            raise InputError(f"binary data (a NUL at byte {nul})", _KINDS, path=self.path)
        return self.data.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")


def load(path: str | Path) -> Stored:
    """Read a whole trace file, decompressed.

    Raises:
        InputError: it cannot be read, is empty, larger than `MAX_BYTES`, or damaged.
    """
    name = str(path)
    raw = _read(path)
    if raw.startswith(_GZIP):
        data = _gunzip(raw, name)
    elif raw.startswith(_ZSTD):
        data = _unzstd(raw, name)
    else:
        data = raw
    if not data.strip():
        raise InputError("an empty file", _KINDS, path=name)
    return Stored(path=name, sha256=hashlib.sha256(raw).hexdigest(), data=data)


def _read(path: str | Path) -> bytes:
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            reason, "a readable file", path=ascii(str(path)) if "\0" in str(path) else path
        ) from None
    if stat.S_ISDIR(mode):
        raise InputError("a directory", "a readable file", path=path)
    if not stat.S_ISREG(mode):  # a pipe nobody writes to would wait for ever
        raise InputError("a pipe, socket or device", "a regular file", path=path)
    try:
        with open_to_read(path) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(error.strerror or str(error), "a readable file", path=path) from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"more than {MAX_BYTES} bytes", "a trace of at most that", path=path)
    return raw


def _gunzip(raw: bytes, path: str) -> bytes:
    parts: list[bytes] = []
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            _drain(stream, parts, path)
    except EOFError:
        raise _cut_off("gzip", parts, path) from None
    except (OSError, zlib.error) as error:
        raise InputError(f"damaged gzip data ({error})", "a whole gzip file", path=path) from None
    return b"".join(parts)


def _unzstd(raw: bytes, path: str) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - only for the files that need it

    parts: list[bytes] = []
    try:
        with pa.CompressedInputStream(pa.BufferReader(raw), "zstd") as stream:
            _drain(stream, parts, path)
    except OSError as error:
        if str(error) == "Truncated compressed stream":
            raise _cut_off("zstd", parts, path) from None
        reason = str(error).removeprefix("ZSTD decompress failed: ")
        raise InputError(f"damaged zstd data ({reason})", "a whole zstd file", path=path) from None
    return b"".join(parts)


def _drain(stream: Any, parts: list[bytes], path: str) -> None:
    """Read all that a stream holds, in chunks, so that what came before an error is known.

    Raises:
        InputError: it is more than `MAX_BYTES`.
    """
    size = 0
    while chunk := stream.read(_CHUNK_BYTES):
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise InputError(
                f"more than {MAX_BYTES} bytes when decompressed", "a trace of at most that", path=path
            )


def _cut_off(kind: str, parts: list[bytes], path: str) -> InputError:
    size = sum(map(len, parts))
    return InputError(f"{kind} data cut off after {size} bytes of content", f"a whole {kind} file", path=path)
