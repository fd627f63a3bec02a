"""A cache of compiled loops only ever saves time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ladder_opt import _jit
from tests.faults.commands import WRITES, make_inputs

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

def hits():
    return sum(double.stats.cache_hits.values())
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


def _started(folder: Path, output: str, cache: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "ladder_opt",
        "tune",
        "trace.csv",
        *WRITES["tune"].arguments[3:],
        "-o",
        output,
    ]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def _plan(folder: Path, run: subprocess.Popen[str], output: str) -> str:
    _, told = run.communicate(timeout=600)
    assert run.returncode == 0, told[-2000:]
    lines = (folder / output).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if '"created":' not in line)


def _kept(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def test_two_cold_runs_at_once_share_a_cache(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    cache = tmp_path / "cache"
    runs = {output: _started(tmp_path, output, cache) for output in ("a.json", "b.json")}
    first, second = (_plan(tmp_path, run, output) for output, run in runs.items())
    assert first == second
    kept = _kept(cache)
    assert len([name for name in kept if name.endswith(".nbi")]) > 5
    assert not [name for name in kept if not name.endswith((".nbi", ".nbc"))]  # nothing half-written
    assert _plan(tmp_path, _started(tmp_path, "c.json", cache), "c.json") == first
    assert _kept(cache) == kept  # all of it was found there


_AT_ONCE = """
import pathlib, sys, time
import loop
pathlib.Path(sys.argv[1], "ready-" + sys.argv[2]).touch()
while not pathlib.Path(sys.argv[1], "go").exists():
    time.sleep(0.001)
print(loop.double(21), loop.double(1.5))
"""


def test_processes_that_save_the_same_loop_at_once_leave_it_whole(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_LOOP, encoding="utf-8")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _AT_ONCE, str(tmp_path), str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("ready-*"))) < len(runs) and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    for run in runs:
        out, told = run.communicate(timeout=120)
        assert (run.returncode, out) == (0, "42 3.0\n"), told
    kept = _kept(tmp_path / "cache")
    command = [sys.executable, "-c", "import loop; print(loop.double(21), loop.double(1.5))"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "42 3.0\n"
    assert {Path(name).suffix for name in kept} == {".nbi", ".nbc"}


_SLOW_INDEX = """
import sys, time
from numba.core import caching
import loop
save = caching.IndexDataCacheFile._save_index
def slow(*arguments):
    time.sleep(2)
    save(*arguments)
caching.IndexDataCacheFile._save_index = slow
print(loop.double(eval(sys.argv[1])))
"""


def test_processes_that_save_different_types_at_once_do_not_mix_them_up(tmp_path: Path) -> None:
    """Without a lock both call their file the first, and the index leads to one code for both."""
    (tmp_path / "loop.py").write_text(_LOOP, encoding="utf-8")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    runs = [
        subprocess.Popen([sys.executable, "-c", _SLOW_INDEX, number], env=environment)
        for number in ("21", "1.5")
    ]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    command = [sys.executable, "-c", "import loop; print(loop.double(21), loop.double(1.5), loop.hits())"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "42 3.0 2\n"


def _a_file(cache: Path) -> None:
    cache.write_bytes(b"")  # no folder can be made there, not by root either


def _read_only(cache: Path) -> None:
    cache.mkdir(mode=0o500)


@pytest.mark.parametrize("make", [_a_file, _read_only])
def test_a_cache_folder_that_cannot_be_written_costs_time_alone(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "loop.py").write_text(_LOOP, encoding="utf-8")
    make(tmp_path / "cache")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import loop; print(loop.double(21))"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("42\n", "")
