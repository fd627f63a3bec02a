"""Changes to a file that know its structure: bytes, lines, cells, JSON values, YAML scalars, compression."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.packing import zstd

ODD: tuple[str, ...] = (
    "", "0", "-1", "1", "nan", "NaN", "inf", "-Infinity", "1e400", "1e18", "1000000000000000000", "9" * 400,
    "1e-320", "0.5", "-0.0", "true", "false", "null", "[]", "{}", '""', "=1+1", "1_000", "\uff11", "\ufeff",
    "2147483648", "9223372036854775808", "2024-02-30 00:00:00", "1969-01-01T00:00:00Z", "x" * 300, "'", '"',
    "\\ud800", "ladder_opt/plan/2", "&a [*a]", "!!python/object:os.system x", "<<: *a", "../../etc/passwd",
)  # fmt: skip
_NUMBERS = (0, -1, 1, 2**31, 2**63, 10**18, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), True, None)
_TOKEN = re.compile(rb"[A-Za-z0-9_.+-]+")


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    end = min(end, at + 40)
    match rng.randrange(6):
        case 0:
            return data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5))) + data[at:]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + data[at:end] * rng.randrange(2, 5) + data[end:]
        case 3:
            return data[:at]
        case 4:
            return data[:at] + bytes([rng.choice(b"\x00\xff\n\r,\"'{}[]:#&*-= \t")]) + data[at + 1 :]
        case _:
            return data[:at] + rng.choice(ODD).encode("utf-8") + data[at:]


def _token(data: bytes, rng: random.Random) -> bytes:
    tokens = list(_TOKEN.finditer(data))
    if not tokens:
        return _bytes(data, rng)
    one = rng.choice(tokens)
    other = rng.choice(tokens).group() if rng.random() < 0.4 else rng.choice(ODD).encode("utf-8")
    return data[: one.start()] + other + data[one.end() :]


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines.insert(at, rng.choice((b"", b" ", b"\r", b"{}", b"[", b"#", b'"')))
        case _:
            lines[at] = lines[at].replace(b",", rng.choice((b";", b",,", b"")), 1)
    return b"\n".join(lines)


def _json(data: bytes, rng: random.Random) -> bytes:
    try:
        value = json.loads(data)
    except ValueError:
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        try:
            lines[at] = json.dumps(_value(json.loads(lines[at]), rng)).encode()
        except ValueError:
            return _token(data, rng)
        return b"\n".join(lines)
    return json.dumps(_value(value, rng)).encode()


def _value(value: Any, rng: random.Random) -> Any:
    """The value with one thing changed, somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        changed = dict(value)
        match rng.randrange(6):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(ODD)] = changed.pop(key)
            case _:
                changed[key] = _value(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        between: list[Any] = rng.choice(([], [value[at]] * 2, [_value(value[at], rng)]))
        return [*value[:at], *between, *value[at + 1 :]]
    others: list[Any] = [[value], {"a": value}, rng.choice(ODD), rng.choice(_NUMBERS)]
    if isinstance(value, int | float) and abs(value) < 1e300:
        others.append(value + rng.choice((-1, 1, 0.5, 1e9)))
    return rng.choice(others)


def _packed(data: bytes, rng: random.Random) -> bytes:
    pack: Callable[[bytes], bytes] = rng.choice((lambda each: gzip.compress(each, mtime=0), zstd))
    return pack(data)


def _inside(data: bytes, rng: random.Random) -> bytes:
    """A change to what is compressed, packed again."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.compress(mutated(gzip.decompress(data), rng), mtime=0)
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                return zstd(mutated(stream.read(1 << 20), rng))
    except (OSError, EOFError, ValueError, zlib.error):
        pass
    return _bytes(data, rng)


def _encoding(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-8-sig", "utf-16-le", "utf-7")), "replace")


_KINDS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _bytes, _bytes, _token, _token, _token, _lines, _json, _json, _json, _inside, _inside,
)  # fmt: skip
_RARE = (_packed, _encoding)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The content with one to four changes; never longer than a megabyte."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.choice(_RARE if rng.random() < 0.03 else _KINDS)
        data = kind(data, rng)
    return data[: 1 << 20]
