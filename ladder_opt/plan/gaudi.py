"""Decode buckets for vllm-gaudi, as a file that VLLM_BUCKETING_FROM_FILE names.

vllm-gaudi pads a decode batch to a bucket (sequences, 1, pages), where pages are those of *all* sequences
together: another second axis than Spyre's, hence another histogram (`occupancy.totals`) and another geometry
(`cost.geometry.FlatPages`). The rest is the same problem: two ladders, compiles against padding, solved and
proven by the same solver.

Not modelled: contiguous paged attention (`VLLM_CONTIGUOUS_PA`, on where prefix caching is off), which pads
to the highest page number in use, something that traffic does not tell; padding between data-parallel ranks;
speculative decoding; unified attention, which takes no such file; and prompts, for which plain powers of two
are written, since vllm-gaudi does not start without any. Source: vllm-project/vllm-gaudi,
`vllm_gaudi/extension/bucketing/file_strategy.py` and `common.py` there.
"""

from __future__ import annotations

from dataclasses import dataclass

from ladder_opt.arguments import checked
from ladder_opt.cost.geometry import FlatPages
from ladder_opt.cost.model import CompileSeconds, CostModel, StepSeconds
from ladder_opt.engine import Engine
from ladder_opt.ladder import powers_of_two
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.totals import TotalsHistogram
from ladder_opt.plan.capture_sizes import check_amounts
from ladder_opt.solve.api import DEFAULT_TIME_LIMIT_SECONDS, solve_ladders
from ladder_opt.solve.problem import Limits
from ladder_opt.solve.result import SolveResult, Status

_MOST_PAGE_RUNGS = 128  # candidates of the page axis, by default: proven within seconds
_BLOCK_TOKENS = 64  # any block size would do: pages are counted here, not tokens


@dataclass(frozen=True, kw_only=True)
class GaudiOptions:
    """What the buckets are asked to be.

    Attributes:
        row_seconds: what a padded sequence adds to a step.
        page_seconds: what a padded page adds to a step.
        graph_seconds: what warming one bucket up takes at each start.
        max_buckets: the most decode buckets; None for no limit.
        page_grain: pages that page rungs are multiples of; None: what keeps their candidates to 128.
        restarts: server starts charged.
        time_limit_seconds: when to stop with what is proven so far.
    """

    row_seconds: float
    page_seconds: float
    graph_seconds: float = 0.0
    max_buckets: int | None = None
    page_grain: int | None = None
    restarts: float = 1.0
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS

    def __post_init__(self) -> None:
        check_amounts(
            {
                "--row-seconds": self.row_seconds,
                "--page-seconds": self.page_seconds,
                "--graph-seconds": self.graph_seconds,
                "--restarts": self.restarts,
            },
            {"--max-graphs": self.max_buckets, "--page-grain": self.page_grain},
        )


@dataclass(frozen=True, kw_only=True)
class GaudiBuckets:
    """Decode buckets, and how good they are.

    Attributes:
        buckets: {sequences: pages of its buckets, ascending}, ascending.
        result: the solver's result; its num_blocks rungs are multiples of `page_grain` pages.
        page_grain: pages that page rungs are multiples of.
        engine: the limits.
    """

    buckets: dict[int, tuple[int, ...]]
    result: SolveResult
    page_grain: int
    engine: Engine

    @property
    def num_buckets(self) -> int:
        """Decode buckets, each warmed up at every start."""
        return sum(len(pages) for pages in self.buckets.values())

    def to_text(self) -> str:
        """The file's text: decode buckets as solved, prompt buckets as powers of two."""
        engine = self.engine
        is_proven = self.result.status is Status.OPTIMAL
        proof = "optimal, proven" if is_proven else f"at most {self.result.gap:.3%} above the optimum"
        limits = (
            f"--max-num-seqs {engine.max_num_seqs} --max-model-len {engine.max_model_len} "
            f"--block-size {engine.block_size}"
        )
        longest = min(engine.max_num_batched_tokens, engine.max_model_len)
        queries = powers_of_two(min(engine.block_size, longest), longest)
        contexts = (0, *powers_of_two(1, -(-(engine.max_model_len - 1) // engine.block_size)))
        lines = [
            f"# {self.num_buckets} decode buckets by ladder_opt: {proof}; steps of {self.page_grain} pages",
            f"# for {limits}, without contiguous paged attention",
            *(f"({seqs}, 1, {list(pages)})" for seqs, pages in self.buckets.items()),
            "# prompts are not modelled: powers of two, to be edited",
            f"(1, {list(queries)}, {list(contexts)})",
        ]
        return "\n".join(lines) + "\n"


@checked
def gaudi_buckets(totals: TotalsHistogram, engine: Engine, options: GaudiOptions) -> GaudiBuckets:
    """The best decode buckets for vllm-gaudi, by the solver of batched decode.

    Args:
        totals: decode steps by sequences and pages of them all; every number of sequences counts, from 1 on.
        engine: the limits.
        options: prices and limits.

    Raises:
        InputError: a step beyond the engine's limits.
        SolveError: `max_buckets` leaves no ladders.
    """
    totals.check_limits(engine)
    most_pages = engine.max_num_seqs * engine.max_num_blocks
    grain = options.page_grain or -(-most_pages // _MOST_PAGE_RUNGS)
    kernel = FlatPages(engine.max_num_blocks, grain)
    flat = Engine(
        block_size=_BLOCK_TOKENS,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=-(-most_pages // grain) * _BLOCK_TOKENS,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        num_kv_blocks=most_pages + engine.max_num_seqs + 2,  # never short: pages are what is counted
        min_batched_seqs=1,
    )
    steps = StepHistogram(totals.num_seqs, -(-totals.total_blocks // grain), totals.steps)
    cost = CostModel(
        schema="ladder_opt/cost/1",
        name="vllm-gaudi",
        step_seconds=StepSeconds(per_seq=options.row_seconds, per_gather=options.page_seconds),
        compile_seconds=CompileSeconds(base=options.graph_seconds),
    ).model_copy(update={"kernel": kernel.full_name})
    result = solve_ladders(
        steps,
        flat,
        cost,
        restarts=options.restarts,
        limits=Limits(max_variants=options.max_buckets),
        time_limit_seconds=options.time_limit_seconds,
    )
    buckets = {
        seqs: tuple(sorted({int(kernel.pages(seqs, rung)) for rung in result.ladders.num_blocks}))
        for seqs in result.ladders.num_seqs
    }
    return GaudiBuckets(buckets=buckets, result=result, page_grain=grain, engine=engine)
