"""A cache of compiled loops only ever saves time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ladder_opt import _jit

_NO_FOLDER = """
import sys
from numba.core import caching
for each in caching.CacheImpl._locator_classes:
    each.from_function = classmethod(lambda cls, *_: None)
from ladder_opt.solve._axis_kernel import trace_back
from ladder_opt.occupancy import _step_kernel
assert trace_back._cache.cache_path is None
"""


def test_loops_are_defined_where_no_folder_can_be_written() -> None:
    subprocess.run([sys.executable, "-c", _NO_FOLDER], check=True, timeout=300)


_LOOP = """
from ladder_opt._jit import njit

@njit(cache=True)
def double(number):
    return 2 * number
"""


def test_a_torn_cache_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_LOOP, encoding="utf-8")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import loop; print(loop.double(21))"]
    for suffix in ("nbi", "nbc", "none"):  # the index torn, the loop torn, nothing
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "42\n"
        kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        assert {path.suffix for path in kept} == {".nbi", ".nbc"}
        for path in kept:
            if path.suffix == f".{suffix}":
                path.write_bytes(path.read_bytes()[:-20])


def test_a_cache_that_cannot_be_saved_is_let_be() -> None:
    class Cache:
        def load_overload(self, *_: object) -> object:
            raise EOFError

        def flush(self) -> None:
            raise OSError(30, "Read-only file system")

        def save_overload(self, *_: object) -> None:
            raise OSError(28, "No space left on device")

    cache = Cache()
    _jit._forgive(cache)
    assert cache.load_overload(1, 2) is None
    cache.save_overload(1, 2)
    _jit._forgive(None)
