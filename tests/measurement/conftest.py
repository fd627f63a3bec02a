"""One thread, and no traces of compiles, as the tests of the kernels have it."""

from tests.reference.conftest import _no_compile_traces, _one_thread

__all__ = ["_no_compile_traces", "_one_thread"]
