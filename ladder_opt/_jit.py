"""numba's `njit` with a cache that only ever saves time: where it cannot be kept, loops are compiled again.

numba by itself refuses to define a cached function where no folder can be written (a read-only installation
without a home), and lets a full disk, or a cache torn by a crash, end the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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
            return load(*arguments)
        except Exception:  # noqa: BLE001  (a torn pickle raises anything)
            with contextlib.suppress(OSError):
                cache.flush()
        return None

    def save_if_possible(*arguments: Any) -> None:
        with contextlib.suppress(Exception):  # it reads what is there first
            save(*arguments)

    cache.load_overload, cache.save_overload = load_if_possible, save_if_possible
