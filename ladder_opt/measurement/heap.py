"""Memory that a step frees stays with the process, so that its next call does not ask for it again.

A step's temporaries, the gathered pages above all, are some MB. glibc gives blocks of that size back to the
system when they are freed (mmap), or the end of the heap when enough of it is free (trim), by thresholds that
it moves with what was freed before. Whoever gets them anew pays a page fault for each 4 KiB: in a virtual
machine the same call took up to twice as long, or did not, by what other points had left of the heap. A
formula of sequences and blocks cannot know that, nor has a device's memory anything like it.

Other C libraries and allocators are left as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

# Of malloc.h, and glibc's defaults: mallopt(3) has no way to ask what was set.
_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD = -1, 128 << 10
_MMAP_MAX, _DEFAULT_MMAP_MAX = -4, 65_536
_MOST = 2**31 - 1


@contextlib.contextmanager
def kept_heap() -> Iterator[None]:
    """Freed memory is kept, under glibc; its defaults hold again afterwards, their thresholds now fixed."""
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_TRIM_THRESHOLD, _MOST)
    mallopt(_MMAP_MAX, 0)
    try:
        yield
    finally:
        mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
