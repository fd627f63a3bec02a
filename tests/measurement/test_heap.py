"""What a step frees is there for its next call, without a page fault."""

from __future__ import annotations

import ctypes
import platform
import resource

import numpy as np
import pytest

from ladder_opt.measurement.heap import kept_heap

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
_BYTES = 24 << 20  # less than what glibc's moving threshold can reach


def faults_of_a_block() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(_BYTES, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_a_block_freed_and_taken_again_faults_no_more() -> None:
    pages = _BYTES // resource.getpagesize()
    with kept_heap():
        faults_of_a_block()
        assert min(faults_of_a_block() for _ in range(5)) < pages / 100


def test_afterwards_a_block_of_that_size_is_the_systems_again() -> None:
    with kept_heap():
        faults_of_a_block()
    ctypes.CDLL(None).malloc_trim(0)
    # 128 KiB, glibc's default: with its thresholds fixed, each is mapped anew, in huge pages at best.
    assert min(faults_of_a_block() for _ in range(5)) > 0


def test_a_c_library_without_thresholds_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("looked for glibc's functions"))
    with kept_heap():
        pass
