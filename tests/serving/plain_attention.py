"""A vLLM plugin of the tests' own: dense attention on the CPU, and nothing of this package.

The `empty` build of vLLM has no CPU kernels, so a server without this package could not answer on it.
With this plugin it can: each sequence attends by itself, over the pages that vLLM gave it. It stands in for
vLLM's stock backend wherever a test asks whether this package changed anything. `install` makes a folder
with it that only needs to be on PYTHONPATH: the entry point is found there.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

COMPILATION = {"custom_ops": ["none"]}  # they are in the library that is missing
_METADATA = "Metadata-Version: 2.1\nName: plain-attention\nVersion: 1\n"
_ENTRY_POINT = "[vllm.general_plugins]\nplain_attention = plain_attention:register\n"


def install(folder: Path) -> Path:
    """Make `folder` one to put on PYTHONPATH; returns it."""
    info = folder / "plain_attention-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(_METADATA)
    (info / "entry_points.txt").write_text(_ENTRY_POINT)
    for name in ("plain_attention.py", "plain_backend.py"):
        shutil.copy(Path(__file__).with_name(name), folder / name)
    return folder


def register() -> None:
    """Entry point; vLLM calls it in each process, more than once."""
    import torch

    if not hasattr(torch.ops._C, "init_cpu_memory_env"):
        _define_operators()
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, "plain_backend.PlainBackend")


_libraries: list[Any] = []


def _define_operators() -> None:
    import torch

    library: Any = torch.library.Library("_C", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("init_cpu_memory_env(int[] nodes) -> ()")
    library.impl("init_cpu_memory_env", lambda nodes: None, "CompositeExplicitAutograd")
    library.define(
        "compute_slot_mapping_kernel_impl(Tensor starts, Tensor positions, Tensor table, Tensor(a!) slots, "
        "int block_size) -> ()"
    )
    library.impl("compute_slot_mapping_kernel_impl", _slots, "CPU")
    library.define("silu_and_mul(Tensor(a!) out, Tensor x) -> ()")
    library.impl("silu_and_mul", _silu_and_mul, "CPU")
    _libraries.append(library)


def _slots(starts: Any, positions: Any, table: Any, slots: Any, block_size: int) -> None:
    """Token by token, on purpose: as unlike what it stands beside as can be."""
    slots.fill_(-1)
    bounds = starts.tolist()
    for row, (first, end) in enumerate(itertools.pairwise(bounds)):
        for token in range(first, end):
            at = int(positions[token])
            slots[token] = int(table[row, at // block_size]) * block_size + at % block_size


def _silu_and_mul(out: Any, x: Any) -> None:
    gate, up = x.chunk(2, -1)
    out.copy_(gate * gate.sigmoid() * up)
