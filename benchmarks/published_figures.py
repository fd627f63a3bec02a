"""Published figures of the Spyre plugin's KV-ladder presets, and what models of them count.

Throughput and warm-up of four presets relative to the fifth, for five workloads, are carried over here with
their source. `step_features` and `warmup_features` count what a mean decode step and a server start hold for
a preset; `derive_builtin_cost` fits seconds to the counts of three workloads, `published` compares all five.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.cost.geometry import get_kernel
from ladder_opt.ladder import powers_of_two
from ladder_opt.presets import preset_num_blocks

CONFIGURATION: Final = "torch-spyre/spyre-inference, docs/user_guide/configuration.md"
REFERENCE: Final = "8_5"
PRESETS: Final = ("pow2", "4_3", "9_8", "uniform")
BLOCK_SIZE: Final = 128
MAX_NUM_BATCHED_TOKENS: Final = 512
LAYERS: Final = 40
MIN_BATCHED_SEQS: Final = 4


@dataclass(frozen=True)
class Workload:
    """One row of the published tables: sequences of a batch grow together through the KV range.

    Attributes:
        kv_low: KV length at the first decode step, in tokens.
        kv_high: KV length at the last one, in tokens.
        max_model_len: of the engine, in tokens.
        batch: sequences in the batch, and max_num_seqs.
        throughput: relative to `8_5`, in the order of `PRESETS`.
        warmup: likewise.
        fitted: whether parameters come from it; the others are there to judge the fit by.
    """

    kv_low: int
    kv_high: int
    max_model_len: int
    batch: int
    throughput: tuple[float, float, float, float]
    warmup: tuple[float, float, float, float]
    fitted: bool = True

    @property
    def label(self) -> str:
        """As the tables call it."""
        return f"{self.kv_low}-{self.kv_high}, context {self.max_model_len}, batch {self.batch}"


# Source: CONFIGURATION, "How the presets compare to the default": serving runs of granite-3.3-8b.
# Identical runs agree to about 1 % (throughput) and 2-3 % (warm-up).
WORKLOADS: Final = (
    Workload(7000, 10000, 16384, 4, (0.87, 1.03, 1.05, 1.05), (0.63, 1.09, 1.54, 1.07)),
    Workload(7000, 10000, 32768, 4, (0.89, 1.03, 1.06, 1.01), (0.57, 1.13, 1.68, 1.00), fitted=False),
    Workload(2000, 3000, 4096, 32, (0.90, 1.05, 1.07, 1.07), (0.65, 1.11, 1.38, 1.36)),
    Workload(400, 700, 1024, 4, (1.00, 1.01, 1.02, 1.00), (0.80, 0.95, 1.00, 1.25), fitted=False),
    Workload(400, 700, 4096, 32, (0.97, 1.00, 1.02, 1.00), (0.69, 1.18, 1.48, 1.44)),
)
MEASURED_THROUGHPUT: Final = np.array([workload.throughput for workload in WORKLOADS])
MEASURED_WARMUP: Final = np.array([workload.warmup for workload in WORKLOADS])
FITTED: Final = np.array([workload.fitted for workload in WORKLOADS])

BODY_GRAPHS: Final = 13  # at max_num_seqs 32: 7 token widths and 6 widths of logits

Floats = NDArray[np.float64]
KERNEL: Final = get_kernel("chunked")


def ladder(preset: str, workload: Workload) -> NDArray[np.int64]:
    """The preset's num_blocks rungs for the workload's engine."""
    rungs = preset_num_blocks(preset, max_model_len=workload.max_model_len, block_size=BLOCK_SIZE)
    return np.array(rungs, np.int64)


def step_features(preset: str, workload: Workload) -> Floats:
    """Mean (1, sequences, iterations, gathers) of a decode step of the workload."""
    lengths = np.arange(workload.kv_low, workload.kv_high + 1)
    rungs = ladder(preset, workload)
    blocks = rungs[np.searchsorted(rungs, -(-lengths // BLOCK_SIZE))]
    iterations = KERNEL.iterations(workload.batch, blocks).mean()
    return np.array([1.0, workload.batch, iterations, KERNEL.gathers(workload.batch, blocks).mean()])


def warmup_features(preset: str, workload: Workload) -> Floats:
    """(share of the body graphs, per-sequence variants, batched variants, their iterations) of a start."""
    rungs = ladder(preset, workload)
    step = min(512, MAX_NUM_BATCHED_TOKENS)
    queries = [1, *range(step, MAX_NUM_BATCHED_TOKENS + 1, step)]
    smallest_real = [1, *(query + 1 for query in queries[:-1])]
    per_sequence = sum(int(np.sum(rungs * BLOCK_SIZE >= query)) for query in smallest_real)
    seqs = np.array(powers_of_two(MIN_BATCHED_SEQS, workload.batch))[:, None]
    _, first = np.unique(KERNEL.variant_key(seqs, rungs).ravel(), return_index=True)
    iterations = KERNEL.iterations(seqs, rungs).ravel()[first]
    logits_widths = len(powers_of_two(1, workload.batch))
    body = (2 * logits_widths + 1) / BODY_GRAPHS
    return np.array([body, per_sequence, len(first), iterations.sum()], np.float64)


def _all_features(features: Callable[[str, Workload], Floats]) -> Floats:
    """Array (workload, preset with the reference first, feature)."""
    return np.array([[features(preset, load) for preset in (REFERENCE, *PRESETS)] for load in WORKLOADS])


STEP: Final = _all_features(step_features)
WARMUP: Final = _all_features(warmup_features)
