"""Seconds of a step from per-request records: replay, compare each request's span, fit, replay again.

Records say when a request's first and last token came, not what the server did in between. The replay says
it: under the server's own limits, the steps between the two, and the decodes, KV blocks and prefill tokens in
them (`RequestTimes.totals`). That is linear in the parameters, so each request gives one row of `step_fit`:

    last_token - first_token = base*steps + per_seq*decodes + per_block*blocks + per_prefill_token*prefill

The replay needs the parameters to know which steps an arrival meets, so the two alternate, from a base alone
(the quickest requests' time a token). Which requests run together hardly depends on the parameters once a
queue has formed, so a few rounds do. Rounds that go in a circle all the same are damped: from the ninth on,
parameters go half the way. The round counts whose replay comes closest to the measured first and last tokens
(mean absolute error over both).

Steps are priced as a server without rungs: every step by its own sequences and blocks. See
`docs/replay-against-a-server.md` for what may be made of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ladder_opt.arguments import checked
from ladder_opt.calibration.request_records import LEAST_REQUESTS, RequestRecords
from ladder_opt.calibration.step_fit import StepFit, fit_steps
from ladder_opt.cost.model import CompileSeconds, CostModel, ReplaySeconds, StepSeconds
from ladder_opt.engine import ServerEngine
from ladder_opt.errors import InputError, InternalError
from ladder_opt.occupancy.replay import simulate
from ladder_opt.occupancy.request_times import FINISH, FIRST_TOKEN, TOTALS, RequestTimes
from ladder_opt.occupancy.scheduling import Scheduling

KERNEL = "per_block"  # whose gathers are sequences x blocks, the nearest to "every sequence its own blocks"
WORK = ("per_seq", "per_block", "per_prefill_token")
_STEPS = TOTALS.index("steps")
_WORK_TOTALS = [TOTALS.index(name) for name in ("decode_tokens", "decode_blocks", "prefill_tokens")]
_ROUNDS = 25
_UNDAMPED_ROUNDS = 8
_LEAST_STEP_SECONDS = 1e-6  # a step launches kernels, which takes microseconds each; less is a clock's grain
_SETTLED = 1e-4  # change of every parameter between rounds, relative


@dataclass(frozen=True)
class ServerFit:
    """What the records gave.

    Attributes:
        cost: a cost model whose replay clock reproduces the server; compiles cost nothing in it.
        steps: the fit of its step seconds.
        rounds: rounds of replay and fit.
        first_token_error_seconds: mean absolute error of the replay's first tokens.
        last_token_error_seconds: and of its last tokens.
        too_quick: requests that are replayed and not fitted: no step is as short as theirs.
    """

    cost: CostModel
    steps: StepFit
    rounds: int
    first_token_error_seconds: float
    last_token_error_seconds: float
    too_quick: int = 0


@checked
def server_cost(
    name: str, *, base: float, per_seq: float = 0.0, per_block: float = 0.0, per_prefill_token: float = 0.0
) -> CostModel:
    """The cost model of a server without rungs, in seconds; a block is one of the engine it is used with."""
    return CostModel(
        schema="ladder_opt/cost/1",
        name=name,
        kernel=KERNEL,
        step_seconds=StepSeconds(base=base, per_seq=per_seq, per_gather=per_block),
        compile_seconds=CompileSeconds(),
        replay_seconds=ReplaySeconds(
            per_sequence_gather=per_block, per_prefill_token=per_prefill_token, per_seq=per_seq
        ),
    )


@checked
def fit_server_steps(
    runs: Sequence[RequestRecords],
    engine: ServerEngine,
    *,
    name: str = "calibrated",
    used: Sequence[NDArray[np.bool_]] | None = None,
    scheduling: Scheduling | None = None,
    seed: int = 0,
) -> ServerFit:
    """Fit the step seconds of one server to its runs.

    Args:
        runs: records of one run each, all requests within the engine's limits.
        engine: the server's limits, its KV pool above all.
        name: of the cost model.
        used: for each run the requests whose timings count, (requests,); all are replayed. Default: all.
        scheduling: the server's settings besides the limits; prefix caching needs `hash_ids` in the traces.
        seed: of the bootstrap.

    Raises:
        InputError: too few requests produced more than one token.
    """
    measured = np.concatenate([_spans(run) for run in runs])
    used = [np.ones(len(run), np.bool_) for run in runs] if used is None else used
    chosen = np.concatenate(used)
    outputs = np.concatenate([run.trace.output_tokens for run in runs])
    quick = (outputs > 1) & chosen & ~(measured >= _LEAST_STEP_SECONDS * (outputs - 1))
    several = (outputs > 1) & chosen & ~quick
    if several.sum() < LEAST_REQUESTS:
        raise InputError(
            f"{int(several.sum())} requests that took time between the first and the last token",
            f"at least {LEAST_REQUESTS}",
        )
    base = float(np.percentile(measured[several] / (outputs[several] - 1), 10))
    cost = server_cost(name, base=base)
    times = [_replayed(run, engine, cost, scheduling) for run in runs]
    best_rows, errors = None, (np.inf, np.inf)
    before = np.zeros(1 + len(WORK))
    rounds = 0
    while rounds < _ROUNDS:
        rounds += 1
        totals = np.concatenate([one.totals[FINISH] - one.totals[FIRST_TOKEN] for one in times])[several]
        rows = (measured[several], totals[:, _STEPS], totals[:, _WORK_TOTALS])
        fit = fit_steps(*rows, WORK, bootstraps=0)
        theta = np.array([term.seconds for term in fit.terms])
        if rounds > _UNDAMPED_ROUNDS:  # going in a circle: meet half way
            theta = (theta + before) / 2
        cost = server_cost(name, **dict(zip(("base", *WORK), theta.tolist(), strict=True)))
        times = [_replayed(run, engine, cost, scheduling) for run in runs]
        found = _errors(runs, times, chosen)
        if best_rows is None or sum(found) < sum(errors):
            best_rows, errors = rows, found
        if np.allclose(theta, before, rtol=_SETTLED, atol=1e-12):
            break
        before = theta
    if best_rows is None:
        raise InternalError("the fit made no round")
    steps = fit_steps(*best_rows, WORK, seed=seed)
    cost = server_cost(name, **{term.name: term.seconds for term in steps.terms})
    times = [_replayed(run, engine, cost, scheduling) for run in runs]
    return ServerFit(cost, steps, rounds, *_errors(runs, times, chosen), int(quick.sum()))


def _replayed(
    run: RequestRecords, engine: ServerEngine, cost: CostModel, scheduling: Scheduling | None
) -> RequestTimes:
    times = simulate(run.trace, engine, cost, scheduling=scheduling, request_times=True).request_times
    if times is None:
        raise InternalError("the replay gave no request times")
    return times


def _spans(run: RequestRecords) -> NDArray[np.float64]:
    return run.timings.last_token_seconds - run.timings.first_token_seconds


def _errors(
    runs: Sequence[RequestRecords], times: Sequence[RequestTimes], chosen: NDArray[np.bool_]
) -> tuple[float, float]:
    first = [
        np.abs(one.first_token_seconds - run.timings.first_token_seconds)
        for run, one in zip(runs, times, strict=True)
    ]
    last = [
        np.abs(one.finish_seconds - run.timings.last_token_seconds)
        for run, one in zip(runs, times, strict=True)
    ]
    return float(np.concatenate(first)[chosen].mean()), float(np.concatenate(last)[chosen].mean())
