"""What plans save on public traces: the table of docs/public-traces.md, and the README's short one.

Each row is one `tune` of one trace, as `ladder-opt tune` runs it: replay, solve, again until the ladders
stand still. A second row of each asks for a warm-up no longer than that of the default ladders. All numbers
come from the replay and the built-in cost model. "Overpay" is the KV pages padded above what no ladder can
avoid, as a share of it; "saved" is the share of the default ladders' seconds (steps, and compiles times
server starts) that the plan does without, on the same steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks import common
from ladder_opt.engine import Engine
from ladder_opt.plan import rounds
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.tune import tune
from ladder_opt.solve.result import SolveResult
from ladder_opt.trace.table import Trace

NOTE: Final = (
    "Each pair is default ladders -> plan, both on the steps that the plan leads to; `starts` are the server "
    "starts that compiles are charged for. Seconds are the replay's, under the built-in cost model, and no "
    "measurement of a server."
)
BEGIN, END = "<!-- plans:begin -->", "<!-- plans:end -->"
PAGE: Final = common.REPOSITORY / "docs" / "public-traces.md"
SHORT: Final = ("trace", "engine", "variants", "warm-up", "overpay", "saved", "status")


@dataclass(frozen=True)
class Case:
    """One traffic on one kind of server."""

    name: str
    trace: str
    max_num_seqs: int = 32
    max_model_len: int = 8192
    replicas: int = 1


CASES: Final = (
    Case("azure", "azure-conv"),
    Case("azure-40", "azure-conv", replicas=40),
    Case("mooncake", "mooncake"),
    Case("mooncake-128k", "mooncake", max_num_seqs=64, max_model_len=131072),
    Case("sample", "sample"),
)


@dataclass(frozen=True)
class Outcome:
    """One plan.

    Attributes:
        case: what it was made for.
        at_default_warmup: whether the warm-up was limited to that of the default ladders.
        requests: replayed, of those in the trace.
        trace_requests: in the trace.
        falls_behind: whether the servers cannot keep up with the arrivals.
        extrapolates: whether a good part of the seconds lies beyond what the cost model was fitted to.
        batched_steps: steps that reach the ladders.
        restarts: server starts charged.
        num_seqs: the plan's rungs.
        num_blocks: the plan's rungs.
        default_rungs: how many the default ladders have, by axis.
        status: optimal or feasible.
        gap: how far above the optimum the plan can be, as a share.
        settled: whether replay and solve came to rest.
        rounds: of replay and solve.
        solve_seconds: in the solver, all rounds.
        total_seconds: of `tune`.
        variants: the plan's, and the default's.
        warmup_seconds: the plan's, and the default's.
        overpay: the plan's, and the default's.
        objective_seconds: the plan's, and the default's.
        saved: share of the default's objective.
    """

    case: Case
    at_default_warmup: bool
    requests: int
    trace_requests: int
    falls_behind: bool
    extrapolates: bool
    batched_steps: float
    restarts: float
    num_seqs: tuple[int, ...]
    num_blocks: tuple[int, ...]
    default_rungs: tuple[int, int]
    status: str
    gap: float
    settled: bool
    rounds: int
    solve_seconds: float
    total_seconds: float
    variants: tuple[int, int]
    warmup_seconds: tuple[float, float]
    overpay: tuple[float, float]
    objective_seconds: tuple[float, float]
    saved: float


@contextmanager
def solves_noted() -> Iterator[list[SolveResult]]:
    """Collect what every solve inside `tune` returns."""
    noted: list[SolveResult] = []
    solve = vars(rounds)["solve_ladders"]

    def noting(*args: Any, **options: Any) -> SolveResult:
        noted.append(solve(*args, **options))
        return noted[-1]

    vars(rounds)["solve_ladders"] = noting
    try:
        yield noted
    finally:
        vars(rounds)["solve_ladders"] = solve


def run_case(
    case: Case, trace: Trace, *, time_limit_seconds: float, free_only: bool = False
) -> list[Outcome]:
    """The plan as asked for by default, and the one at no more than the default ladders' warm-up."""
    outcomes = [_plan(case, trace, time_limit_seconds=time_limit_seconds, warmup_budget_seconds=None)]
    _tell(outcomes[0])
    if not free_only:
        budget = outcomes[0].warmup_seconds[1]
        outcomes.append(
            _plan(case, trace, time_limit_seconds=time_limit_seconds, warmup_budget_seconds=budget)
        )
        _tell(outcomes[1])
    return outcomes


def _tell(outcome: Outcome) -> None:
    """One line on stderr while the rest runs."""
    limit = "warm-up as the default's" if outcome.at_default_warmup else "any warm-up"
    print(
        f"{outcome.case.name}, {limit}: {outcome.status}, saved {outcome.saved:.1%}, "
        f"{outcome.rounds} rounds, {outcome.total_seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )


def _plan(
    case: Case, trace: Trace, *, time_limit_seconds: float, warmup_budget_seconds: float | None
) -> Outcome:
    with solves_noted() as solves:
        started = time.perf_counter()
        plan = tune(
            trace,
            engine=Engine(max_num_seqs=case.max_num_seqs, max_model_len=case.max_model_len),
            options=SolveOptions(
                time_limit_seconds=time_limit_seconds, warmup_budget_seconds=warmup_budget_seconds
            ),
            replay_options=ReplayOptions(replicas=case.replicas),
        )
        total = time.perf_counter() - started
    result, default, replay = plan.result, plan.default, plan.provenance.replay
    assert default is not None
    assert replay is not None
    return Outcome(
        case=case,
        at_default_warmup=warmup_budget_seconds is not None,
        requests=replay["requests"],
        trace_requests=len(trace),
        falls_behind=any("falls behind" in warning for warning in plan.warnings),
        extrapolates=any("extrapolated" in warning for warning in plan.warnings),
        batched_steps=result.steps.batched,
        restarts=result.restarts,
        num_seqs=plan.num_seqs,
        num_blocks=plan.num_blocks,
        default_rungs=(len(default.num_seqs), len(default.num_blocks)),
        status=result.status,
        gap=result.gap,
        settled=replay["settled"],
        rounds=replay["rounds"],
        solve_seconds=sum(solve.solve_seconds for solve in solves),
        total_seconds=total,
        variants=(result.num_variants, default.num_variants),
        warmup_seconds=(result.warmup_seconds, default.warmup_seconds),
        overpay=(result.gathers.overpay, default.gathers.overpay),
        objective_seconds=(result.objective_seconds, default.objective_seconds),
        saved=1 - result.objective_seconds / default.objective_seconds,
    )


def row(outcome: Outcome) -> dict[str, str]:
    """One line of the table: "default -> plan" where both are shown."""
    case = outcome.case
    traffic = common.TRACE_LABELS.get(case.trace, case.trace)
    if outcome.requests < outcome.trace_requests:
        traffic += f" ({outcome.requests:,} of {outcome.trace_requests:,} requests fit)"
    engines = f"{case.replicas} x " if case.replicas > 1 else ""
    proof = outcome.status if outcome.status == "optimal" else f"{outcome.status}, gap {outcome.gap:.2%}"
    return {
        "trace": traffic,
        "engine": f"{engines}{case.max_num_seqs} seqs, {case.max_model_len // 1024}k",
        "starts": f"{outcome.restarts:.2g}",
        "warm-up allowed": "as the default's" if outcome.at_default_warmup else "any",
        "rungs": f"{outcome.default_rungs[0]}x{outcome.default_rungs[1]} -> "
        f"{len(outcome.num_seqs)}x{len(outcome.num_blocks)}",
        "variants": f"{outcome.variants[1]} -> {outcome.variants[0]}",
        "warm-up": f"{outcome.warmup_seconds[1] / 60:.0f} -> {outcome.warmup_seconds[0] / 60:.0f} min",
        "overpay": f"{outcome.overpay[1]:.1%} -> {outcome.overpay[0]:.1%}",
        "saved": f"{outcome.saved:.1%}",
        "status": proof + ("" if outcome.settled else ", not settled"),
        "solve": f"{outcome.solve_seconds:.1f} s",
        "total": f"{outcome.total_seconds:.1f} s",
    }


def to_markdown(outcomes: Sequence[Outcome]) -> str:
    """The table and what has to be known to read it."""
    notes = {
        "More traffic than the engine can keep up with, so that batches are always full": "falls_behind",
        "Sizes beyond what the cost model was fitted to, so that seconds are extrapolated": "extrapolates",
    }
    text = NOTE
    for note, name in notes.items():
        told = {outcome.case.name for outcome in outcomes if getattr(outcome, name)}
        if told:
            text += f" {note}: {', '.join(_name(case) for case in CASES if case.name in told)}."
    return "\n".join([common.markdown_table([row(outcome) for outcome in outcomes]), "", text])


def _name(case: Case) -> str:
    engines = f"{case.replicas} engine{'s' if case.replicas > 1 else ''}"
    return f"{common.TRACE_LABELS.get(case.trace, case.trace)} on {engines} of {case.max_model_len // 1024}k"


def short_table(outcomes: Sequence[Outcome]) -> str:
    """Plans that start no later than the default ladders: a gain with nothing given up."""
    rows = [row(outcome) for outcome in outcomes if outcome.at_default_warmup]
    return common.markdown_table([{name: each[name] for name in SHORT} for each in rows])


def to_dict(outcome: Outcome) -> Mapping[str, object]:
    """For the JSON file."""
    return asdict(outcome)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = common.parser("plans", __doc__)
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=[case.name for case in CASES],
        default=[case.name for case in CASES],
        help="which rows [all]",
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each solve [60]")
    parser.add_argument(
        "--free-only", action="store_true", help="leave out the rows at the default ladders' warm-up"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument(
        "--write-docs", action="store_true", help=f"put the tables between {BEGIN} and {END} of their pages"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Make the plans, print the table, write it where asked to."""
    options = _options(arguments)
    pages = (common.README, PAGE) if options.write_docs else ()
    for page in pages:
        try:
            common.between(page.read_text(encoding="utf-8"), BEGIN, END, "")
        except (OSError, ValueError) as error:
            print(f"{page}: {error}", file=sys.stderr)
            return 2
    absent = [
        case.name
        for case in CASES
        if case.name in options.cases and common.trace_path(case.trace, options.shared) is None
    ]
    if absent:
        print(f"note: no traces for {', '.join(absent)} under {options.shared}", file=sys.stderr)
        if pages:
            print(
                "no page is written, for rows would be lost (--cases names those to write)", file=sys.stderr
            )
            return 2
    outcomes: list[Outcome] = []
    for case in CASES:
        if case.name not in options.cases or case.name in absent:
            continue
        trace = common.read_traces([case.trace], options.shared)[case.trace]
        outcomes += run_case(case, trace, time_limit_seconds=options.time_limit, free_only=options.free_only)
    if not outcomes:
        print("nothing to run: every trace asked for is absent", file=sys.stderr)
        return 2
    if options.markdown:
        print(to_markdown(outcomes))
    else:
        print(common.machine_line())
        print(common.text_table([row(outcome) for outcome in outcomes]))
    common.write_json(options.json, "plans", [to_dict(outcome) for outcome in outcomes])
    for page, body in zip(pages, (short_table(outcomes), to_markdown(outcomes)), strict=False):
        written = common.between(page.read_text(encoding="utf-8"), BEGIN, END, body)
        page.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
