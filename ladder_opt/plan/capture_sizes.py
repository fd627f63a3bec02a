"""vLLM's CUDA graph capture sizes, as a ladder of one axis solved from decode batch sizes.

vLLM pads a decode batch of n tokens up to the next of `cudagraph_capture_sizes`; a batch beyond the largest
runs without a graph. Every size costs a capture at start-up, and memory. Its default list goes in steps of 8
(from 256 in steps of 16) whatever the traffic. Source: vllm 0.28, `VllmConfig._set_cudagraph_sizes` in
`vllm/config/vllm.py`, and `adjust_cudagraph_sizes_for_spec_decode` in `vllm/config/compilation.py`.

Not modelled: steps that mix prefill with decodes (their tokens are padded to the same list where they are few
enough; vLLM's own goes on to twice max_num_seqs, this one does not), and what else a size changes in a
compiled kernel.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from ladder_opt.arguments import checked
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.solve.sizes import SizePrices, SizesPrice, price_sizes, solve_sizes

LARGEST_DEFAULT_SIZE = 512
"""vLLM captures no larger graph by default (1024 on data-centre Blackwell)."""
_FINE_STEP, _COARSE_FROM, _COARSE_STEP = 8, 256, 16


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """What capture sizes are asked to be.

    Attributes:
        row_seconds: what a padded row (a sequence that is not there) adds to a step; None: padded rows are
            counted, and only `max_sizes` holds sizes back.
        graph_seconds: what capturing one size takes at each start; asks for `row_seconds`.
        eager_seconds: what a step without a graph takes longer; None: no step is left without one.
        max_sizes: the most sizes; by default, without `graph_seconds`, as many as vLLM's own list has.
        multiple_of: sizes are multiples of this: the tensor parallel size under sequence parallelism.
        restarts: server starts charged.
        compile_sizes: let Inductor compile for each size too; `graph_seconds` then has to hold that.
    """

    row_seconds: float | None = None
    graph_seconds: float | None = None
    eager_seconds: float | None = None
    max_sizes: int | None = None
    multiple_of: int = 1
    restarts: float = 1.0
    compile_sizes: bool = False

    def __post_init__(self) -> None:
        check_amounts(
            {
                "--row-seconds": self.row_seconds,
                "--graph-seconds": self.graph_seconds,
                "--eager-seconds": self.eager_seconds,
                "--restarts": self.restarts,
            },
            {"--max-graphs": self.max_sizes, "--multiple-of": self.multiple_of},
        )
        if self.row_seconds is None:
            for option, value in (
                ("--graph-seconds", self.graph_seconds),
                ("--eager-seconds", self.eager_seconds),
            ):
                if value is not None:
                    raise UsageError(f"{option}: found without --row-seconds, expected both or neither")

    def prices(self) -> SizePrices:
        """For the solver; without prices a padded row counts 1."""
        return SizePrices(
            row_seconds=1.0 if self.row_seconds is None else self.row_seconds,
            size_seconds=self.graph_seconds or 0.0,
            beyond_seconds=self.eager_seconds,
            restarts=self.restarts,
        )


def check_amounts(seconds: dict[str, float | None], numbers: dict[str, int | None]) -> None:
    """Refuse options out of range: `seconds` are finite and >= 0, `numbers` >= 1, None is no value.

    Raises:
        UsageError: naming the first.
    """
    for option, value in seconds.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{option}: found {value:g}, expected a number of 0 or more")
    for option, number in numbers.items():
        if number is not None and number < 1:
            raise UsageError(f"{option}: found {number}, expected 1 or more")


@dataclass(frozen=True, kw_only=True)
class CaptureSizes:
    """Capture sizes beside vLLM's own.

    Attributes:
        plan: the sizes and what they cost.
        default: vLLM's own list for the engine, priced on the same steps.
        options: what was asked.
        engine: the limits.
    """

    plan: SizesPrice
    default: SizesPrice
    options: CaptureOptions
    engine: Engine

    @property
    def sizes(self) -> tuple[int, ...]:
        """The capture sizes, ascending."""
        return self.plan.sizes

    def to_yaml(self) -> str:
        """A file for `vllm serve --config`, with what the sizes save in its comments."""
        settings: dict[str, list[int]] = {"cudagraph_capture_sizes": list(self.sizes)}
        if self.options.compile_sizes:
            settings["compile_sizes"] = list(self.sizes)
        inline = json.dumps(settings, separators=(",", ":"))  # vLLM takes this option as JSON in a string
        lines = [
            "# CUDA graph capture sizes by ladder_opt: optimal, proven",
            _compared("these", self.plan),
            _compared("vLLM's own", self.default),
            f"max-num-seqs: {self.engine.max_num_seqs}",
            f"max-num-batched-tokens: {self.engine.max_num_batched_tokens}",
            f"compilation-config: {json.dumps(inline)}",
        ]
        return "\n".join(lines) + "\n"


def _compared(name: str, price: SizesPrice) -> str:
    share = price.padded_rows / price.rows if price.rows else 0.0
    beyond = price.steps_beyond / price.steps if price.steps else 0.0
    text = f"# {name}: {len(price.sizes)} sizes, decode rows padded by {share:.2%}"
    return text + (f", {beyond:.2%} of the steps without a graph" if beyond else "")


def default_capture_sizes(engine: Engine, *, multiple_of: int = 1) -> tuple[int, ...]:
    """VLLM's own list: 1, 2, 4, multiples of 8 below 256, then of 16, up to twice max_num_seqs or 512.

    Args:
        engine: the limits.
        multiple_of: keep multiples of this alone.
    """
    budget = engine.max_num_batched_tokens
    top = min(2 * engine.max_num_seqs, LARGEST_DEFAULT_SIZE, budget)
    sizes = {size for size in (1, 2, 4) if size <= top}
    sizes |= set(range(_FINE_STEP, min(top + 1, _COARSE_FROM), _FINE_STEP))
    sizes |= set(range(_COARSE_FROM, top + 1, _COARSE_STEP))
    if budget <= top:
        sizes.add(budget)
    return tuple(sorted(size for size in sizes if size % multiple_of == 0))


@checked
def capture_sizes(
    steps: StepHistogram, engine: Engine, options: CaptureOptions | None = None
) -> CaptureSizes:
    """The best capture sizes for decode batches, exactly.

    Args:
        steps: decode steps; every number of sequences counts, from 1 on.
        engine: the limits.
        options: prices and limits.

    Raises:
        UsageError: options that leave no size.
        InputError: a step beyond max_num_seqs.
    """
    options = options or CaptureOptions()
    beyond = steps.num_seqs[steps.num_seqs > engine.max_num_seqs]
    if len(beyond):
        raise InputError(str(beyond[0]), f"at most max_num_seqs = {engine.max_num_seqs}", column="num_seqs")
    rows, cells = np.unique(steps.num_seqs, return_inverse=True)
    weights = np.zeros(len(rows))
    np.add.at(weights, cells.ravel(), steps.steps)
    # The size that holds the largest batch may be above max_num_seqs, though not above the token budget.
    every = options.multiple_of
    last = min(-(-engine.max_num_seqs // every) * every, engine.max_num_batched_tokens // every * every)
    if last < 1 or (options.eager_seconds is None and last < engine.max_num_seqs):
        raise UsageError(
            f"--multiple-of: found {every}, expected a multiple between max_num_seqs = {engine.max_num_seqs} "
            f"and max_num_batched_tokens = {engine.max_num_batched_tokens}"
        )
    own = default_capture_sizes(engine, multiple_of=every) or (last,)
    most = options.max_sizes
    if most is None and options.graph_seconds is None:
        most = sum(size < last for size in own) + 1  # those of vLLM's list that a decode batch can meet
    prices = options.prices()
    return CaptureSizes(
        plan=solve_sizes(rows, weights, range(every, last + 1, every), prices, max_sizes=most),
        default=price_sizes(rows.tolist(), weights.tolist(), own, prices),
        options=options,
        engine=engine,
    )
