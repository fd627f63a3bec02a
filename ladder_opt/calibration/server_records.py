"""Files of per-request records to a cost model whose `fit` says where each number comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ladder_opt.calibration.combine import KEPT_DRAWS, stored_draws
from ladder_opt.calibration.evidence import (
    BASE,
    PER_GATHER,
    PER_PREFILL_TOKEN,
    PER_SEQ,
    PER_SEQUENCE_GATHER,
    REPLAY_PER_SEQ,
    UNITS,
    Evidence,
    ServerTerms,
    Source,
)
from ladder_opt.calibration.request_records import (
    RequestRecords,
    read_request_records,
    that_fit,
    with_distinct_prompts,
)
from ladder_opt.calibration.result import Calibration, CalibrationOptions
from ladder_opt.calibration.server_steps import ServerFit, fit_server_steps
from ladder_opt.calibration.step_fit import StepFit, Term
from ladder_opt.engine import Engine, ServerEngine
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.reasons import set_aside_lines

_REPRODUCED_SHARE = 0.05  # of a request's mean time; a run reproduced well is off by 1 to 2 percent
NO_PLANS = (
    "these are seconds of a server without rungs, and no compile is priced: replay with them, do not plan "
    "Spyre ladders by them"
)
_TERMS = {
    "base": BASE,
    "per_seq": PER_SEQ,
    "per_block": PER_SEQUENCE_GATHER,
    "per_prefill_token": PER_PREFILL_TOKEN,
}
_OWN_TERMS = _TERMS | {"per_seq": REPLAY_PER_SEQ}  # without others' evidence a server's terms price a replay


def calibrate_request_records(
    paths: Sequence[Path], engine: Engine, options: CalibrationOptions
) -> Calibration:
    """Fit a server's step seconds to the records of its runs, one file a run.

    Args:
        paths: the files.
        engine: the server's limits; whatever `min_batched_seqs` says, no step is taken to be padded.
        options: name, and whether the server caches prefixes.

    Raises:
        InputError: a file that cannot be used, or was not made under these limits.
    """
    runs, server, found = _fitted(paths, engine, options)
    asked = {
        "--layers": options.layers,
        "--graphs-per-variant": options.graphs_per_variant,
        "--kernel": options.kernel,
        f"--table {options.table}": None if options.table in {"auto", "never"} else options.table,
    }
    scheduling = Scheduling(prefix_caching=options.prefix_caching)
    warnings = (*found.steps.warnings(), *_reproduced(runs, server, found), NO_PLANS)
    return Calibration(
        cost=found.cost.model_copy(
            update={
                "fit": _fit_part(runs, server, found, warnings)
                | {"scheduling": asdict(scheduling), "draws": _stored_draws(found)}
            }
        ),
        warnings=warnings,
        notes=(
            *_notes(runs, found),
            *(
                f"{option} is left aside: per-request records time whole steps and no compile"
                for option, value in asked.items()
                if value is not None
            ),
        ),
    )


def request_evidence(
    paths: Sequence[Path], engine: Engine, options: CalibrationOptions
) -> Sequence[Evidence]:
    """The same fit as evidence, to be mixed with that of other kinds.

    Raises:
        InputError: a file that cannot be used, or was not made under these limits.
    """
    runs, server, found = _fitted(paths, engine, options)
    steps, warnings = found.steps, (*found.steps.warnings(), *_reproduced(runs, server, found))
    fit = _fit_part(runs, server, found, warnings)
    sources = [source for run in runs for source in run.trace.sources]
    terms = ServerTerms(
        values={_TERMS[term.name]: term.seconds for term in steps.terms},
        draws={_TERMS[term.name]: steps.draws[:, k] for k, term in enumerate(steps.terms)},
        parameters={_TERMS[term.name]: _parameter(term) for term in steps.terms},
        fit={name: fit[name] for name in ("requests", "rows", "rounds", "residuals", "ranges")},
        source=", ".join(str(path) for path in paths),
    )
    return [
        Evidence(
            server=terms,
            sources=tuple(Source(each.path, each.sha256, each.rows, "request_records") for each in sources),
            warnings=warnings,
            notes=_notes(runs, found),
        )
    ]


def _fitted(
    paths: Sequence[Path], engine: Engine, options: CalibrationOptions
) -> tuple[list[RequestRecords], ServerEngine, ServerFit]:
    server = ServerEngine.of(engine)
    runs = [that_fit(read_request_records(path), server, path=path) for path in paths]
    if options.prefix_caching:
        runs = [with_distinct_prompts(run, block_tokens=server.block_size) for run in runs]
    scheduling = Scheduling(prefix_caching=options.prefix_caching)
    return runs, server, fit_server_steps(runs, server, name=options.name, scheduling=scheduling)


def _stored_draws(found: ServerFit) -> dict[str, Any]:
    """Draws of every term of the cost model; the terms of a padded step are those of the server's own."""
    of_terms = {term.name: found.steps.draws[:KEPT_DRAWS, k] for k, term in enumerate(found.steps.terms)}
    draws = {_OWN_TERMS[name]: values for name, values in of_terms.items()}
    draws |= {PER_SEQ: of_terms["per_seq"], PER_GATHER: of_terms["per_block"]}
    return stored_draws(draws)


def _reproduced(runs: Sequence[RequestRecords], engine: ServerEngine, found: ServerFit) -> tuple[str, ...]:
    """Whether the replay does what the server did at all."""
    spans = [run.timings.last_token_seconds - run.timings.queued_seconds for run in runs]
    mean = float(np.concatenate(spans).mean())
    if found.last_token_error_seconds <= _REPRODUCED_SHARE * mean:
        return ()
    pool = " (num_kv_blocks is not given: the pool is never short)" if engine.num_kv_blocks is None else ""
    line = (
        f"the replay's last tokens are off by {found.last_token_error_seconds:.3g} s where a request took "
        f"{mean:.3g} s: these are not the server's limits{pool}, or it does what the replay does not (was "
        "it told of prefix caching?); the fit means little"
    )
    return (line,)


def _notes(runs: Sequence[RequestRecords], found: ServerFit) -> tuple[str, ...]:
    notes = []
    for run in runs:
        notes += [*run.trace.notes, *set_aside_lines(run.trace.set_aside, len(run.trace))]
    if found.too_quick:
        why = "tokens less than a microsecond apart"
        notes.append(f"{found.too_quick} requests replayed and not fitted: {why}")
    return tuple(notes)


def _fit_part(
    runs: Sequence[RequestRecords], engine: ServerEngine, found: ServerFit, warnings: tuple[str, ...]
) -> dict[str, Any]:
    steps = found.steps
    names = ("p5", "p25", "p50", "p75", "p95")
    return {
        "kind": "request_records",
        "source": [asdict(source) for run in runs for source in run.trace.sources],
        "method": "replay and robust non-negative least squares in turn (docs/replay-against-a-server.md)",
        "engine": engine.server_limits(),
        "requests": sum(map(len, runs)),
        "rows": steps.rows,
        "rounds": found.rounds,
        "parameters": {_OWN_TERMS[term.name]: _parameter(term) for term in steps.terms},
        "residuals": {
            "seconds_per_step": dict(zip(names, steps.residual_seconds, strict=True)),
            "mean_step_seconds": steps.mean_step_seconds,
            "r_squared": steps.r_squared,
            "robust_r_squared": steps.robust_r_squared,
            "first_token_mean_absolute_error_seconds": found.first_token_error_seconds,
            "last_token_mean_absolute_error_seconds": found.last_token_error_seconds,
        },
        "ranges": _ranges(steps),
        "warnings": list(warnings),
    }


def _parameter(term: Term) -> dict[str, Any]:
    return {
        "value": term.seconds,
        "low": term.low,
        "high": term.high,
        "unit": UNITS[_OWN_TERMS[term.name]],
        "how": "95% bootstrap interval over requests",
        "share_of_mean_step": term.share,
        "explained_by_other_terms": term.explained_by_others,
        "told_from_zero": term.is_told_from_zero,
    }


def _ranges(steps: StepFit) -> dict[str, list[float]]:
    names = {"per_seq": "decodes", "per_block": "decode_blocks", "per_prefill_token": "prefill_tokens"}
    return {
        f"{names[term.name]}_per_step": list(term.work_range) for term in steps.terms if term.name in names
    }
