"""A replay beside the server it replays: running, waiting, batch sizes and latencies over a published run.

The run: vLLM 0.19.0, Llama-3.1-8B on one RTX 4090, 300 requests, published by casys-kaist/LLMServingSim (MIT)
as bench/results/llama-3.1-8b-rtx4090: per-request timings, and the engine's statistics once a second.
`calibrate` fits the step's seconds to the requests' own timings; nothing is fitted to the statistics they are
then compared with.

Limits are those of the run's meta.json. The size of the KV pool is found from the data as well: the only
number of blocks, but for its multiples, of which every kv_cache_pct reading is a whole number of blocks
within its rounding.

Clocks: the statistics count from the start of their logger, an unknown moment. Each of their seconds says how
many prompt tokens came to their first token in it; the shift for which the requests' first tokens give the
same numbers is the one between the clocks.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from ladder_opt.calibration.request_records import (
    RequestRecords,
    read_request_records,
    with_distinct_prompts,
)
from ladder_opt.calibration.server_steps import ServerFit, fit_server_steps
from ladder_opt.calibration.step_fit import fit_steps
from ladder_opt.cost.model import CostModel
from ladder_opt.engine import ServerEngine
from ladder_opt.errors import InternalError
from ladder_opt.occupancy.replay import Replay, simulate
from ladder_opt.occupancy.request_times import FINISH, FIRST_TOKEN, TOTALS, RequestTimes
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.occupancy.timeline import Timeline
from ladder_opt.trace.table import Trace
from ladder_opt.trace.timings import Timings

if TYPE_CHECKING:
    import pandas as pd

REQUESTS = "vllm_run_RTX4090_Llama-3.1-8B.requests.jsonl.gz"
STATISTICS = "vllm_run_RTX4090_Llama-3.1-8B.timeseries.csv.gz"
# engine_kwargs and kv_cache of bench/results/llama-3.1-8b-rtx4090/meta.json
SERVER = ServerEngine(
    block_size=16, max_num_seqs=256, max_model_len=32768, max_num_batched_tokens=2048, num_kv_blocks=2588
)
DOC = common.REPOSITORY / "docs" / "replay-against-a-server.md"
FIGURE = common.REPOSITORY / "docs" / "figures" / "real_run.svg"
BEGIN, END = "<!-- real-run:begin -->", "<!-- real-run:end -->"
PERCENTILES = (50, 90, 99)
_FITS = {
    "all": "fitted to all",
    "first_half_predicts_rest": "fitted to half, the rest",
    "without_prefix_caching": "without prefix caching",
}
_CACHING, _NO_CACHING = Scheduling(prefix_caching=True), Scheduling()
_INTERVAL = ("value", "low", "high")
_BIN = 4  # sequences, of the batch sizes' total variation
_SHIFTS = np.arange(0.0, 2.0, 0.001)


@dataclass(frozen=True)
class Run:
    """The run on the clock of its statistics.

    Attributes:
        records: per-request records.
        statistics: one row a second.
        shift_seconds: what was added to the trace's clock.
        shift_range: the smallest and largest that agree equally well.
        seconds_that_agree: share of the seconds whose prompt tokens agree at that shift.
    """

    records: RequestRecords
    statistics: pd.DataFrame
    shift_seconds: float
    shift_range: tuple[float, float]
    seconds_that_agree: float


def find_run(shared: Path) -> tuple[Path, Path] | None:
    """Where the run's two files lie; None where they are absent."""
    for folder in (shared / "traces", shared):
        if (folder / REQUESTS).is_file() and (folder / STATISTICS).is_file():
            return folder / REQUESTS, folder / STATISTICS
    return None


def read_run(requests: Path, statistics: Path) -> Run:
    """Read the run and bring it onto one clock."""
    import pandas as pd

    records = with_distinct_prompts(read_request_records(requests), block_tokens=SERVER.block_size)
    table = pd.read_csv(io.BytesIO(gzip.decompress(statistics.read_bytes())))
    prompts = table["prompt_throughput"].to_numpy(np.float64)
    first = records.timings.first_token_seconds
    agree = np.array([_agreement(first + shift, records.trace.prompt_tokens, prompts) for shift in _SHIFTS])
    ties = _SHIFTS[agree == agree.max()]
    shift = float(np.median(ties))
    timings = Timings(
        **{name: getattr(records.timings, name) + shift for name in records.timings.__dataclass_fields__}
    )
    trace = replace(records.trace, arrival_seconds=timings.queued_seconds)
    return Run(
        RequestRecords(trace, timings), table, shift, (float(ties[0]), float(ties[-1])), float(agree.max())
    )


def _agreement(
    first_token: NDArray[np.float64], prompt_tokens: NDArray[np.int64], prompts: NDArray[np.float64]
) -> float:
    second = np.clip(first_token.astype(np.int64), 0, len(prompts) - 1)
    return float(np.mean(np.bincount(second, prompt_tokens, len(prompts)) == prompts))


def pool_blocks(kv_cache_pct: NDArray[np.float64]) -> int | None:
    """The smallest pool, in blocks, of which all readings (percent, two decimals) are whole blocks.

    Its multiples are too, and from 10,000 blocks on every number is: two decimals then tell nothing.
    """
    for blocks in range(100, 10_000):
        held = kv_cache_pct / 100 * blocks
        if np.all(np.abs(held - np.round(held)) <= blocks * 0.5e-4 + 1e-6):
            return blocks
    return None


def replayed(trace: Trace, cost: CostModel, scheduling: Scheduling) -> tuple[Replay, Timeline, RequestTimes]:
    """The replay, sampled once a second on the statistics' clock."""
    replay = simulate(trace, SERVER, cost, scheduling=scheduling, timeline_seconds=1.0, request_times=True)
    if replay.timeline is None or replay.request_times is None:
        raise InternalError("the replay lacks what was asked for")
    return replay, replay.timeline, replay.request_times


def occupancy_errors(statistics: pd.DataFrame, timeline: Timeline, first: int = 0) -> dict[str, float]:
    """How far the replay's counts are from the statistics', second by second from `first` on."""
    from scipy.stats import wasserstein_distance

    seconds = max(len(statistics), len(timeline))
    errors: dict[str, float] = {"seconds": float(seconds - first)}
    for name in ("running", "waiting"):
        measured = _padded(statistics[name].to_numpy(np.float64), seconds)[first:]
        ours = _padded(getattr(timeline, name).astype(np.float64), seconds)[first:]
        errors[f"{name}_mean"] = float(measured.mean())
        errors[f"{name}_mean_absolute_error"] = float(np.abs(ours - measured).mean())
        errors[f"{name}_bias"] = float((ours - measured).mean())
        errors[f"{name}_correlation"] = float(np.corrcoef(ours, measured)[0, 1])
    measured = statistics["running"].to_numpy(np.float64)[first:]
    ours = timeline.running.astype(np.float64)[first:]
    errors["batch_size_wasserstein"] = float(wasserstein_distance(measured, ours))
    bins = np.arange(0, max(measured.max(), ours.max()) + 2 * _BIN, _BIN)
    shares = [np.histogram(one, bins)[0] / len(one) for one in (measured, ours)]
    errors["batch_size_total_variation"] = float(np.abs(shares[0] - shares[1]).sum() / 2)
    return errors


def _padded(values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    return np.concatenate([values, np.zeros(length - len(values))])


def latency_errors(records: RequestRecords, times: RequestTimes, rows: NDArray[np.bool_]) -> dict[str, Any]:
    """TTFT and time per output token of some requests: percentiles of both, and mean absolute error."""
    timings = records.timings
    gaps = np.maximum(records.trace.output_tokens - 1, 1)
    pairs = {
        "time_to_first_token": (
            timings.first_token_seconds - timings.queued_seconds,
            times.time_to_first_token_seconds,
        ),
        "time_per_output_token": (
            (timings.last_token_seconds - timings.first_token_seconds) / gaps,
            times.time_per_output_token_seconds,
        ),
    }
    found: dict[str, Any] = {}
    for name, (measured, ours) in pairs.items():
        found[name] = {
            "measured": [float(q) for q in np.percentile(measured[rows], PERCENTILES)],
            "replay": [float(q) for q in np.percentile(ours[rows], PERCENTILES)],
            "mean_absolute_error": float(np.abs(ours - measured)[rows].mean()),
            "measured_mean": float(measured[rows].mean()),
        }
    return found


def compare(run: Run) -> dict[str, Any]:
    """Fit on all requests and on the first half, replay, and compare."""
    requests = len(run.records)
    first_half = np.arange(requests) < requests // 2
    everything = np.ones(requests, np.bool_)
    results: dict[str, Any] = {
        "pool_blocks_from_kv_cache_pct": pool_blocks(run.statistics["kv_cache_pct"].to_numpy(np.float64)),
        "shift_seconds": run.shift_seconds,
        "shift_range": run.shift_range,
        "seconds_whose_prompt_tokens_agree": run.seconds_that_agree,
    }
    # Past this second only requests of the second half begin.
    cut = int(np.ceil(run.records.timings.first_token_seconds[first_half].max()))
    for name, used, judged, first, scheduling in (
        ("all", everything, everything, 0, _CACHING),
        ("first_half_predicts_rest", first_half, ~first_half, cut, _CACHING),
        ("without_prefix_caching", everything, everything, 0, _NO_CACHING),
    ):
        fit = fit_server_steps([run.records], SERVER, used=[used], scheduling=scheduling)
        replay, timeline, times = replayed(run.records.trace, fit.cost, scheduling)
        results[name] = {
            "parameters": _parameters(fit),
            "occupancy": occupancy_errors(run.statistics, timeline, first),
            "latency": latency_errors(run.records, times, judged),
            "preemptions": replay.preemptions,
            "prefill_tokens": replay.prefill_tokens,
            "cached_tokens": replay.cached_tokens,
            "prompt_tokens": int(run.records.trace.prompt_tokens.sum()),
            "end_seconds": replay.end_seconds,
            "timeline": timeline,
        }
        if scheduling is _NO_CACHING:
            results["prefill_split"] = prefill_split(run, fit.cost)
            results["full_step_seconds"] = full_step_seconds(run)
    results["measured_end_seconds"] = float(run.records.timings.last_token_seconds.max())
    return results


def full_step_seconds(run: Run) -> float:
    """Median time between first tokens in seconds 2 to 4, when waiting prompts fill every step's budget."""
    first = np.unique(run.records.timings.first_token_seconds - run.records.timings.queued_seconds.min())
    return float(np.median(np.diff(first[(first > 2) & (first < 4)])))


def prefill_split(run: Run, cost: CostModel) -> dict[str, dict[str, float]]:
    """Seconds of a prompt's token computed for the first time, and of one that the replay computes again.

    Without prefix caching: after a preemption the replay computes all of a sequence again; a server with
    prefix caching computes what has left its cache. The second price over the first is the share that it did.
    """
    _, _, times = replayed(run.records.trace, cost, _NO_CACHING)
    steps, prefill = TOTALS.index("steps"), TOTALS.index("prefill_tokens")
    begun = times.totals[FIRST_TOKEN][:, steps]
    order = np.argsort(begun)
    prompts = np.concatenate([[0.0], np.cumsum(times.prompt_tokens[order], dtype=np.float64)])
    first_time = [
        prompts[np.searchsorted(begun[order], times.totals[kind][:, steps], side="right")]
        for kind in (FIRST_TOKEN, FINISH)
    ]
    total = times.totals[FINISH] - times.totals[FIRST_TOKEN]
    fresh = first_time[1] - first_time[0]
    again = np.maximum(total[:, prefill] - fresh, 0.0)
    blocks = total[:, TOTALS.index("decode_blocks")]
    timings = run.records.timings
    fit = fit_steps(
        timings.last_token_seconds - timings.first_token_seconds,
        total[:, steps],
        np.column_stack([blocks, fresh, again]),
        ("per_block", "per_first_time_token", "per_recomputed_token"),
    )
    return {term.name: {"value": term.seconds, "low": term.low, "high": term.high} for term in fit.terms}


def _parameters(fit: ServerFit) -> dict[str, dict[str, float]]:
    return {
        term.name: {"value": term.seconds, "low": term.low, "high": term.high} for term in fit.steps.terms
    }


def figure(run: Run, results: dict[str, Any], path: Path) -> None:
    """Running and waiting over time, and the sizes of batches, measured and replayed."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "real_run"
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    all_requests, held_out = results["all"]["timeline"], results["first_half_predicts_rest"]["timeline"]
    panes, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for axis, name in zip(axes, ("running", "waiting"), strict=False):
        axis.plot(run.statistics["t"], run.statistics[name], color="black", lw=1.2, label="vLLM's statistics")
        axis.plot(all_requests.seconds, getattr(all_requests, name), color="tab:blue", lw=1, label="replay")
        axis.plot(
            held_out.seconds,
            getattr(held_out, name),
            color="tab:orange",
            lw=0.8,
            ls="--",
            label="fitted to the first half",
        )
        axis.set(xlabel="seconds", title=f"requests {name}")
    axes[0].legend(fontsize="small", loc="lower center")
    most = int(max(run.statistics["running"].max(), all_requests.running.max()))
    bins = np.arange(0, most + 2 * _BIN, _BIN)
    axes[2].hist(
        [run.statistics["running"], all_requests.running], bins, density=True, color=["black", "tab:blue"]
    )
    axes[2].set(xlabel="requests running", title="share of seconds by batch size")
    axes[2].set_yticks([])
    path.parent.mkdir(parents=True, exist_ok=True)
    panes.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(panes)


def rows_of(results: dict[str, Any]) -> list[dict[str, object]]:
    """The comparison as a table."""
    rows: list[dict[str, object]] = []

    def row(quantity: str, values: list[str]) -> None:
        rows.append({"": quantity, **dict(zip(_FITS.values(), values, strict=True))})

    parts = [results[name] for name in _FITS]
    for name in ("running", "waiting"):
        occupancy = [part["occupancy"] for part in parts]
        row(
            f"{name}: mean absolute error, of a mean of",
            [f"{one[f'{name}_mean_absolute_error']:.2f} of {one[f'{name}_mean']:.1f}" for one in occupancy],
        )
        row(f"{name}: bias", [f"{one[f'{name}_bias']:+.2f}" for one in occupancy])
        row(f"{name}: correlation", [f"{one[f'{name}_correlation']:.3f}" for one in occupancy])
    row("batch sizes: Wasserstein", [f"{part['occupancy']['batch_size_wasserstein']:.2f}" for part in parts])
    row(
        f"batch sizes: total variation, bins of {_BIN}",
        [f"{part['occupancy']['batch_size_total_variation']:.3f}" for part in parts],
    )
    for name, scale, unit in (("time_to_first_token", 1, "s"), ("time_per_output_token", 1000, "ms")):
        latency = [part["latency"][name] for part in parts]
        label = name.replace("_", " ")
        for index, percentile in enumerate(PERCENTILES):
            row(
                f"{label}: p{percentile}, measured -> replay, {unit}",
                [
                    f"{scale * one['measured'][index]:.1f} -> {scale * one['replay'][index]:.1f}"
                    for one in latency
                ],
            )
        row(
            f"{label}: mean absolute error, {unit}",
            [f"{scale * one['mean_absolute_error']:.2f}" for one in latency],
        )
    return rows


def summary(run: Run, results: dict[str, Any]) -> list[str]:
    """The comparison's facts, one line each."""
    low, high = run.shift_range
    one, split = results["all"], results["prefill_split"]
    begun = run.records.trace.arrival_seconds
    prices = [
        "{:.0f} us ({:.0f} to {:.0f})".format(*(1e6 * split[name][key] for key in _INTERVAL))
        for name in ("per_first_time_token", "per_recomputed_token")
    ]
    pool = results["pool_blocks_from_kv_cache_pct"]
    lines = [f"{len(run.records)} requests"]
    if begun is not None:
        lines[0] += f", which arrive within {begun[-1] - begun[0]:.1f} s"
    lines.append(
        f"KV pool by kv_cache_pct alone: {pool} usable blocks; by meta.json: {SERVER.usable_kv_blocks}"
    )
    lines.append(
        f"clocks {run.shift_seconds:.3f} s apart ({low:.3f} to {high:.3f}); with that the prompt tokens of "
        f"{run.seconds_that_agree:.0%} of the seconds agree exactly"
    )
    for name, label in _FITS.items():
        lines.append(f"{label}: {_parameter_text(results[name]['parameters'])}")
    lines.append(
        f"the replay preempts {one['preemptions']} times, computes {one['prefill_tokens']:,} prefill tokens "
        f"for {one['prompt_tokens']:,} of prompts and finds {one['cached_tokens']:,} cached; it ends at "
        f"{one['end_seconds']:.1f} s, the server at {results['measured_end_seconds']:.1f} s"
    )
    lines.append(
        f"without prefix caching, prefill priced apart: {prices[0]} for a token computed for the first time, "
        f"{prices[1]} for one that the replay computes again; {SERVER.max_num_batched_tokens} tokens of "
        f"prompts in a step took the server {results['full_step_seconds']:.3f} s"
    )
    return lines


def _parameter_text(parameters: dict[str, dict[str, float]]) -> str:
    return ", ".join(
        f"{name} {one['value']:.3g} s ({one['low']:.3g} to {one['high']:.3g})"
        for name, one in parameters.items()
    )


def main(arguments: list[str] | None = None) -> int:
    """Run; 1 where the run is not there."""
    parser = common.parser("real_run", __doc__)
    parser.add_argument("--write-doc", action="store_true", help=f"write table and figure into {DOC.name}")
    parser.add_argument("--figure", type=Path, metavar="SVG", help="draw measured and replayed there")
    options = parser.parse_args(arguments)
    found = find_run(Path(options.shared))
    if found is None:
        print(f"no {REQUESTS} and {STATISTICS} under {options.shared}: nothing to compare with")
        return 1
    run = read_run(*found)
    results = compare(run)
    lines = summary(run, results)
    rows = rows_of(results)
    print("\n".join(lines))
    print(common.text_table(rows))
    if options.write_doc:
        figure(run, results, FIGURE)
        bullets = "\n".join(f"* {line}" for line in lines)
        body = f"{common.markdown_table(rows)}\n\n{bullets}"
        DOC.write_text(common.between(DOC.read_text(encoding="utf-8"), BEGIN, END, body), encoding="utf-8")
    if options.figure is not None:
        figure(run, results, options.figure)
    for name in _FITS:
        del results[name]["timeline"]
    common.write_json(options.json, "real_run", results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
