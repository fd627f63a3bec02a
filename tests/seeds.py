"""How many random cases a test tries."""

from __future__ import annotations

import os


def seeds(count: int) -> range:
    """Seeds below `count`; of those a tenth where loops run as plain Python, for coverage."""
    is_plain = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
    return range(-(-count // 10) if is_plain else count)
