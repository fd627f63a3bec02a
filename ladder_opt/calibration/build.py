"""From evidence to a cost model whose `fit` says where each number comes from, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ladder_opt.calibration import combine
from ladder_opt.calibration.combine import PartFit
from ladder_opt.calibration.evidence import (
    ATTENTION_CALL,
    ATTENTION_PER_SEQ,
    BASE,
    COMPILE_BASE,
    COMPILE_PER_ITERATION,
    COMPILE_PER_ITERATION_SQ,
    PER_GATHER,
    PER_ITERATION,
    PER_PREFILL_TOKEN,
    PER_SEQ,
    PER_SEQUENCE_GATHER,
    REPLAY_PER_SEQ,
    SEQUENCE_COMPILE_BASE,
    SEQUENCE_COMPILE_PER_ITERATION,
    Equations,
    Evidence,
    ServerTerms,
)
from ladder_opt.calibration.result import Calibration, CalibrationOptions
from ladder_opt.calibration.samples import STEP, Samples
from ladder_opt.calibration.tables import Table, TableMode, choose_table
from ladder_opt.cost.geometry import Kernel, get_kernel
from ladder_opt.cost.model import CostModel
from ladder_opt.cost.poor_fit import NO_COMPILES, poor_fit
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError

SEED: Final = 0
_SERVER_KERNEL: Final = "per_block"  # see `server_steps`
ATTENTION_ALONE: Final = (
    "step_seconds.base is the attention kernel's alone: a replay with it runs too fast; add request records, "
    "a log of iterations or whole steps of the server"
)
NO_STEPS: Final = (
    "no padded step was measured: a padded page is taken to cost what a sequence's own block does"
)
NOTHING_OF_STEPS: Final = (
    "no step was measured: none takes any time under this model, and no plan can be made with it"
)
NO_LAYERS: Final = "--layers {} is left aside: no file times a single layer"
NO_SMALL_STEPS: Final = (
    "replay_seconds.per_sequence_gather was not measured: steps that are not batched take the base alone"
)
LIKE_BATCHED: Final = (
    "compile_seconds: the logs cannot tell graphs of the per-sequence kernel from batched ones; both are "
    "taken to cost the same"
)
MEAN_GRAPH: Final = (
    "compile_seconds: the logs hold sums over graphs of unknown sizes, so that every graph is taken to cost "
    "the same; log at DEBUG, or name the server's limits, to tell them apart"
)


@dataclass
class _Draft:
    """A model in the making: by term its value, its draws, and its entry among `fit.parameters`."""

    values: dict[str, float] = field(default_factory=dict)
    draws: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def take_fit(self, part: PartFit, name: str, *, of: str | None = None) -> None:
        """Take a term from a joint fit, from the term `of` where that stands for it."""
        of = of or name
        if of not in part.fit.names:
            return
        self.values[name] = part.fit.value_of(of)
        self.draws[name] = part.fit.draws[:, part.fit.names.index(of)]
        self.parameters[name] = part.to_parameter(of)

    def take_server(self, server: ServerTerms, name: str, *, of: str | None = None) -> None:
        """Take a term from a server's steps."""
        of = of or name
        if of not in server.values:
            return
        self.values[name] = server.values[of]
        self.draws[name] = server.draws[of]
        self.parameters[name] = {"told_by": server.source.split(", "), **server.parameters[of]}

    def value(self, name: str) -> float:
        return self.values.get(name, 0.0)


def build_calibration(
    evidence: Sequence[Evidence], engine: Engine, options: CalibrationOptions
) -> Calibration:
    """One cost model of all evidence.

    Raises:
        InputError: rows that do not go together.
        UsageError: the number of layers is needed and not given.
    """
    layers = options.layers or _agreed("--layers", [each.layers for each in evidence])
    for each in evidence:
        if each.layers not in {None, layers}:
            says = each.sources[0].path
            raise UsageError(f"--layers: found {layers}, expected {each.layers}, as {says} says")
    of_layers = any(len(each.layer_samples) or each.layer_steps for each in evidence)
    if layers is None and of_layers:
        raise UsageError(
            "--layers: found none, expected the model's attention layers: the files time one of them"
        )
    stated = [each.graphs_per_variant for each in evidence]
    graphs = options.graphs_per_variant or _agreed("--graphs-per-variant", stated) or layers or 1
    asides = [
        f"{each.sources[0].path}: {each.graphs_per_variant} graphs a variant, taken as {graphs} as asked for"
        for each in evidence
        if each.graphs_per_variant not in {None, graphs}
    ]
    if options.layers and not of_layers and not any(each.layers for each in evidence) and graphs != layers:
        asides.append(NO_LAYERS.format(options.layers))
    samples = combine.all_samples(evidence, layers=layers, graphs=graphs)
    samples, notes = combine.one_kernel(samples, options.kernel)
    if len(samples):
        kernel = samples.kernels[0]
    else:
        recorded = any(
            each.compiles or each.mean_graphs for each in evidence
        )  # a warm-up of the Spyre plugin
        kernel = options.kernel or ("chunked" if recorded else _SERVER_KERNEL)
    draft = _Draft(warnings=[line for each in evidence for line in each.warnings])
    server = _server(evidence, draft)
    steps, step_fit = _steps(evidence, samples, layers, server, draft)
    compile_fit = _compiles(evidence, samples, draft)
    startup = _startup(evidence, compile_fit)
    if notes and not draft.values and not startup:
        raise InputError(f"no row of the kernel {kernel}: {notes[0]}", "rows of it, or another --kernel")
    tables = _tables(samples, (step_fit, compile_fit), draft, engine, graphs=graphs, mode=options.table)
    if compile_fit is None:
        draft.warnings.append(NO_COMPILES)
    residuals = {
        name: part.residuals() for name, part in (("step", step_fit), ("compile", compile_fit)) if part
    }
    for name, found in residuals.items():
        line = poor_fit(name, found)
        if line is not None and (name not in tables or tables[name].rows is None):
            draft.warnings.append(line)
    fit = {
        "kind": "+".join(dict.fromkeys(source.kind for each in evidence for source in each.sources)),
        "source": [asdict(source) for each in evidence for source in each.sources],
        "method": "robust non-negative least squares on relative residuals "
        "(docs/design/0016-a-cost-model-fitted-from-measurements.md)",
        "engine": engine.server_limits(),
        "parameters": draft.parameters,
        "residuals": residuals,
        "range": {
            name: _range(each)
            for name, each in (("step", steps), ("compile", samples.take(combine.is_compile(samples))))
            if len(each)
        },
        "tables": {
            name: table.to_dict() for name, table in tables.items() if not np.isnan(table.formula_error)
        },
        "draws": combine.stored_draws(draft.draws),
        "warnings": draft.warnings,
    }
    if server is not None:
        fit["server"] = dict(server.fit)
    if startup:
        fit["startup"] = startup
    return Calibration(
        cost=CostModel.model_validate(
            _model(draft, options.name, kernel, graphs, startup)
            | {f"{name}_table": table.rows for name, table in tables.items()}
            | {"fit": fit}
        ),
        warnings=tuple(draft.warnings),
        notes=(*(note for each in evidence for note in each.notes), *notes, *asides),
    )


def _agreed(option: str, found: Sequence[int | None]) -> int | None:
    """What the files say of a number; None where none does."""
    known = sorted({each for each in found if each is not None})
    if len(known) > 1:
        what = option.removeprefix("--").partition("-")[0]
        raise InputError(
            f"files of {' and '.join(map(str, known))} {what}", f"files of one model, or {option} to choose"
        )
    return known[0] if known else None


def _server(evidence: Sequence[Evidence], draft: _Draft) -> ServerTerms | None:
    """The server's terms: lines of iterations before requests."""
    iterations = [part for each in evidence for part in each.steps]
    requests = next((each.server for each in evidence if each.server is not None), None)
    if not iterations:
        return requests
    found, warnings = combine.server_terms_of(iterations, seed=SEED)
    draft.warnings += warnings
    if requests is None:
        return found
    missing = [name for name in requests.values if name not in found.values]
    return ServerTerms(
        values=found.values | {name: requests.values[name] for name in missing},  # type: ignore[operator]
        draws=found.draws | {name: requests.draws[name] for name in missing},  # type: ignore[operator]
        parameters=found.parameters  # type: ignore[operator]
        | {name: {"told_by": requests.source.split(", "), **requests.parameters[name]} for name in missing},
        fit={**requests.fit, "iterations": dict(found.fit)},
        source=found.source,
    )


def _steps(
    evidence: Sequence[Evidence],
    samples: Samples,
    layers: int | None,
    server: ServerTerms | None,
    draft: _Draft,
) -> tuple[Samples, PartFit | None]:
    """Terms of a step; returns the pairs measured and their fit."""
    pairs = samples.take(~combine.is_compile(samples))
    rows = combine.step_rows(pairs)
    for each in evidence:
        rows += [
            type(part)(part.columns, part.seconds * (layers or 1), part.spread, part.source)
            for part in each.layer_steps
        ]
    part = combine.fit_equations(rows, seed=SEED) if rows else None
    if part is not None:
        draft.warnings += part.warnings()
        for name in (PER_ITERATION, PER_GATHER, PER_SEQUENCE_GATHER):
            draft.take_fit(part, name)
    whole = bool((pairs.quantity == STEP).any())
    if part is not None and whole:
        draft.take_fit(part, BASE)
        draft.take_fit(part, PER_SEQ)
    elif server is not None:
        draft.take_server(server, BASE)
        draft.take_server(server, PER_SEQ)
    elif part is not None and len(pairs):
        draft.take_fit(part, BASE, of=ATTENTION_CALL)
        draft.take_fit(part, PER_SEQ, of=ATTENTION_PER_SEQ)
        draft.warnings.append(ATTENTION_ALONE)
    if server is not None:
        draft.take_server(server, REPLAY_PER_SEQ, of=PER_SEQ)
        draft.take_server(server, PER_PREFILL_TOKEN)
        draft.take_server(server, PER_SEQUENCE_GATHER)
        if not len(pairs):
            draft.take_server(server, PER_GATHER, of=PER_SEQUENCE_GATHER)
            draft.warnings.append(NO_STEPS)
    elif not len(pairs):
        draft.warnings.append(NOTHING_OF_STEPS)
    if PER_SEQUENCE_GATHER not in draft.values:
        draft.warnings.append(NO_SMALL_STEPS)
    return pairs, part


def _compiles(evidence: Sequence[Evidence], samples: Samples, draft: _Draft) -> PartFit | None:
    """Terms of one graph's compile."""
    rows = combine.compile_rows(samples.take(combine.is_compile(samples)))
    rows += [part for each in evidence for part in each.compiles]
    if not any(COMPILE_BASE in part.columns for part in rows):
        means = [part for each in evidence for part in each.mean_graphs]
        if means:
            draft.warnings.append(MEAN_GRAPH)
        rows += means
    if not rows:
        return None
    part = combine.fit_equations(rows, seed=SEED)
    if SEQUENCE_COMPILE_BASE in part.left_out:
        rows = [_as_batched(each) for each in rows]
        part = combine.fit_equations(rows, seed=SEED)
        draft.warnings.append(LIKE_BATCHED)
    draft.warnings += part.warnings()
    for name in (
        COMPILE_BASE,
        COMPILE_PER_ITERATION,
        COMPILE_PER_ITERATION_SQ,
        SEQUENCE_COMPILE_BASE,
        SEQUENCE_COMPILE_PER_ITERATION,
    ):
        draft.take_fit(part, name)
    return part


def _as_batched(part: Equations) -> Equations:
    """Rows in which a graph of the per-sequence kernel counts as a batched one that unrolls its blocks."""
    columns = dict(part.columns)
    for name, of in (
        (SEQUENCE_COMPILE_BASE, COMPILE_BASE),
        (SEQUENCE_COMPILE_PER_ITERATION, COMPILE_PER_ITERATION),
    ):
        units = columns.pop(name, None)
        if units is not None:
            columns[of] = columns.get(of, np.zeros(len(part))) + units
    return Equations(columns, part.seconds, part.spread, part.source)


def _startup(evidence: Sequence[Evidence], part: PartFit | None) -> dict[str, Any]:
    """Seconds of a start that no ladder changes, and what of them the per-sequence kernel's graphs take."""
    starts = [start for each in evidence for start in each.startup]
    if not starts:
        return {}
    recorded, warmups = [], []
    for start in starts:
        if start.warmup_seconds is not None:
            warmups.append(start.warmup_seconds)
        if start.recording_seconds is None:
            continue
        batched = 0.0
        if part is not None and COMPILE_BASE in part.fit.names:
            iterations = np.array(start.batched_iterations or [0.0] * start.batched_graphs)
            columns = {name: np.zeros(len(iterations)) for name in part.fit.names}
            columns[COMPILE_BASE] += 1
            for name, units in (
                (COMPILE_PER_ITERATION, iterations),
                (COMPILE_PER_ITERATION_SQ, iterations**2),
            ):
                if name in columns:
                    columns[name] = units
            batched = float(part.fit.predict(columns).sum()) * start.layers if len(iterations) else 0.0
        recorded.append(max(0.0, start.recording_seconds - batched))
    recording = float(np.mean(recorded)) if recorded else 0.0
    return {
        "seconds": (float(np.mean(warmups)) if warmups else 0.0) + recording,
        "recorded_sequence_graphs_seconds": recording,
        "server_starts": len(starts),
        "how": "the model's own graphs, and what the recording took besides the batched graphs as fitted",
    }


def _tables(
    samples: Samples,
    fits: tuple[PartFit | None, PartFit | None],
    draft: _Draft,
    engine: Engine,
    *,
    graphs: int,
    mode: TableMode,
) -> dict[str, Table]:
    """Tables in place of the formulas, where there are to be any."""
    tables: dict[str, Table] = {}
    pairs = samples.take(~combine.is_compile(samples))
    if fits[0] is not None and len(pairs):
        whole = _as_whole_steps(pairs, draft, fits[0])
        formula = partial(_step_seconds, draft, get_kernel(whole.kernels[0]))
        tables["step"] = choose_table(whole, formula, engine, what="step", mode=mode)
    compiled = samples.take(combine.is_compile(samples))
    if fits[1] is not None and len(compiled):
        formula = partial(_compile_seconds, draft, get_kernel(compiled.kernels[0]), graphs)
        whole = combine.scaled(compiled, float(graphs))
        tables["compile"] = choose_table(whole, formula, engine, what="compile", mode=mode)
    for name, table in tables.items():
        if table.is_refused:
            draft.warnings.append(
                f"{name}_seconds: the formula is off by {table.formula_error:.0%}, and no table can take its "
                f"place: {table.reason}"
            )
        if table.is_interpolated and table.table_error > table.formula_error:
            draft.warnings.append(
                f"{name}_seconds: the table is off by {table.table_error:.0%} where each pair is told by the "
                f"others, and the formula by {table.formula_error:.0%}: --table never may do better"
            )
    if all(table.rows is not None for table in tables.values()) and len(tables) > 1:
        _check_common_sizes(tables, engine)
    return tables


def _check_common_sizes(tables: Mapping[str, Table], engine: Engine) -> None:
    sizes = [{(row[0], row[1]) for row in table.rows or ()} for table in tables.values()]
    if (engine.max_num_seqs, engine.max_num_blocks) not in sizes[0] & sizes[1]:
        raise InputError(
            "a step table and a compile table without common sizes", "the engine's limits in both"
        )


def _as_whole_steps(pairs: Samples, draft: _Draft, part: PartFit) -> Samples:
    """Rows of the attention kernel with the rest of a step added."""
    call, per_seq = (
        part.fit.value_of(name) if name in part.fit.names else 0.0
        for name in (ATTENTION_CALL, ATTENTION_PER_SEQ)
    )
    rest = draft.value(BASE) - call + (draft.value(PER_SEQ) - per_seq) * pairs.num_seqs
    seconds = np.where(pairs.quantity == STEP, pairs.seconds, pairs.seconds + rest)
    kept = seconds > 0
    return Samples(**{**vars(pairs), "seconds": seconds}).take(kept)


def _step_seconds(
    draft: _Draft, kernel: Kernel, num_seqs: NDArray[np.int64], num_blocks: NDArray[np.int64]
) -> NDArray[np.float64]:
    return np.asarray(
        draft.value(BASE)
        + draft.value(PER_SEQ) * num_seqs
        + draft.value(PER_ITERATION) * kernel.iterations(num_seqs, num_blocks)
        + draft.value(PER_GATHER) * kernel.gathers(num_seqs, num_blocks)
    )


def _compile_seconds(
    draft: _Draft, kernel: Kernel, graphs: int, num_seqs: NDArray[np.int64], num_blocks: NDArray[np.int64]
) -> NDArray[np.float64]:
    iterations = kernel.iterations(num_seqs, num_blocks).astype(np.float64)
    return np.asarray(
        graphs
        * (
            draft.value(COMPILE_BASE)
            + draft.value(COMPILE_PER_ITERATION) * iterations
            + draft.value(COMPILE_PER_ITERATION_SQ) * iterations**2
        )
    )


def _range(samples: Samples) -> dict[str, list[int]]:
    """Least and most of each size, over the rows."""
    kernel = get_kernel(samples.kernels[0])
    sizes = {
        "num_seqs": samples.num_seqs,
        "num_blocks": samples.num_blocks,
        "iterations": kernel.iterations(samples.num_seqs, samples.num_blocks),
        "gathers": kernel.gathers(samples.num_seqs, samples.num_blocks),
    }
    return {name: [int(each.min()), int(each.max())] for name, each in sizes.items()}


def _model(draft: _Draft, name: str, kernel: str, graphs: int, startup: Mapping[str, Any]) -> dict[str, Any]:
    model: dict[str, Any] = {
        "schema": "ladder_opt/cost/1",
        "name": name,
        "kernel": kernel,
        "step_seconds": {},
        "compile_seconds": {},
        "replay_seconds": {},
        "graphs_per_variant": graphs,
        "startup_seconds": startup.get("seconds", 0.0),
    }
    for path, value in draft.values.items():
        *parents, last = path.split(".")
        part = model
        for parent in parents:
            part = part.setdefault(parent, {})
        part[last] = value
    recorded = startup.get("recorded_sequence_graphs_seconds", 0.0)
    if "per_sequence" in model and recorded:
        model["per_sequence"]["recorded_in_startup_seconds"] = recorded
    return model
