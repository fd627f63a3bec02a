"""What vLLM's CPU worker calls in its C++ library, in torch, for builds without one.

Such is the `empty` build (made with `VLLM_TARGET_DEVICE=empty`). vLLM's own custom ops are to be off then,
which the worker sees to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

# Layers look these up as they are made, with custom ops off too.
_GATED_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu_and_mul": functional.silu,
    "gelu_and_mul": functional.gelu,
    "gelu_tanh_and_mul": lambda x: functional.gelu(x, approximate="tanh"),
}
_libraries: list[Any] = []  # its operators go when a library is collected


def install_stand_ins() -> bool:
    """Define the operators that are missing; whether any was."""
    if hasattr(torch.ops._C, "init_cpu_memory_env"):  # noqa: SLF001 - vLLM's own name for its library
        return bool(_libraries)
    make: Any = torch.library.Library  # without types
    library = make("_C", "FRAGMENT")
    library.define("init_cpu_memory_env(int[] nodes) -> ()")
    library.impl("init_cpu_memory_env", _no_memory_policy, "CompositeExplicitAutograd")
    library.define(
        "compute_slot_mapping_kernel_impl(Tensor query_start_loc, Tensor positions, Tensor block_table, "
        "Tensor(a!) slot_mapping, int block_size) -> ()"
    )
    library.impl("compute_slot_mapping_kernel_impl", compute_slot_mapping, "CPU")
    for name, activation in _GATED_ACTIVATIONS.items():
        library.define(f"{name}(Tensor(a!) out, Tensor x) -> ()")
        library.impl(name, _gated(activation), "CPU")
    _libraries.append(library)
    return True


def _gated(
    activation: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def run(out: torch.Tensor, x: torch.Tensor) -> None:
        half = x.shape[-1] // 2
        out.copy_(activation(x[..., :half]) * x[..., half:])

    return run


def _no_memory_policy(nodes: list[int]) -> None:
    """Leave memory where the system puts it."""


def compute_slot_mapping(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_size: int,
) -> None:
    """The slot of each token of a step, into `slot_mapping` (modified in place); -1 past the last token.

    Args:
        query_start_loc: int (sequences + 1,), first token of each sequence in the step, and the end.
        positions: int (tokens or more,), each token's position in its sequence.
        block_table: int (sequences or more, blocks), pages.
        slot_mapping: int64 (tokens or more,).
        block_size: tokens in a page.
    """
    count = int(query_start_loc[-1])
    lengths = query_start_loc.diff().long()
    rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    at = positions[:count].long()
    pages = block_table[rows, at // block_size].long()
    slot_mapping[:count] = pages * block_size + at % block_size
    slot_mapping[count:] = -1
