"""numba's `njit` with a cache that only ever saves time: where it cannot be kept, loops are compiled again.

numba by itself refuses to define a cached function where no folder can be written (a read-only installation
without a home), and lets a full disk, or a cache torn by a crash, end the program. And of two processes that
save one function for different types at once, both may name the same file in the index, which then holds the
code of one of them for both; so whoever reads or saves holds the folder's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any

import numba


def njit(*, cache: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` by its keyword arguments."""

    def decorate(function: Callable[..., Any]) -> Any:
        if not cache:
            return numba.njit(**options)(function)
        try:
            compiled = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no folder for it
            return numba.njit(**options)(function)
        _forgive(getattr(compiled, "_cache", None))  # absent where compiling is switched off
        return compiled

    return decorate


def _forgive(cache: Any) -> None:
    """Let a cache that cannot be read or written be as if there were none."""
    if not hasattr(cache, "load_overload"):
        return
    load, save = cache.load_overload, cache.save_overload

    def load_if_possible(*arguments: Any) -> Any:
        try:
            with _lock(cache, fcntl.LOCK_SH):
                return load(*arguments)
        except Exception:  # noqa: BLE001  (a torn pickle raises anything)
            with contextlib.suppress(OSError), _lock(cache, fcntl.LOCK_EX):
                cache.flush()
        return None

    def save_if_possible(*arguments: Any) -> None:
        # It reads what is there first.
        with contextlib.suppress(Exception), _lock(cache, fcntl.LOCK_EX):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_if_possible, save_if_possible


@contextlib.contextmanager
def _lock(cache: Any, kind: int) -> Iterator[None]:
    """Hold the lock of the cache's folder, where its file system has locks; it leaves no file behind."""
    handle = -1
    with contextlib.suppress(OSError, TypeError, AttributeError):
        handle = os.open(cache.cache_path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, kind)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)
