"""Compressing, as tests do it."""

from __future__ import annotations

import pyarrow as pa


def zstd(data: bytes) -> bytes:
    """The data as one zstd frame."""
    return bytes(pa.compress(data, codec="zstd", asbytes=True))
