"""ladder_opt: bucket ladders for vLLM's batched decode attention on IBM Spyre.

    import ladder_opt as lo

    trace = lo.read_trace("traces/sample.parquet")
    plan = lo.tune(trace)
    plan.to_frame()
    lo.write_plan(plan, "plan.json")

Names load on first use: a bare import brings in neither numba, pandas, torch nor vllm.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ladder_opt._version import __version__

if TYPE_CHECKING:
    from ladder_opt import plot
    from ladder_opt.bucketer.bucketer import Bucketer
    from ladder_opt.calibration.api import calibrate
    from ladder_opt.calibration.measurement_rows import (
        MeasurementRow,
        read_measurement_rows,
        write_measurement_rows,
    )
    from ladder_opt.calibration.request_records import RequestRecords, read_request_records
    from ladder_opt.calibration.result import Calibration
    from ladder_opt.calibration.server_steps import fit_server_steps, server_cost
    from ladder_opt.cost.draws import CostDraws, draw_costs
    from ladder_opt.cost.model import CostModel, read_cost_model
    from ladder_opt.engine import Engine, ServerEngine
    from ladder_opt.errors import InputError, InternalError, LadderOptError, SolveError, UsageError
    from ladder_opt.executor import Executor
    from ladder_opt.ladder import Ladders, default_ladders
    from ladder_opt.measurement.api import Measurements, measure
    from ladder_opt.measurement.model_shape import ModelShape, read_model_shape
    from ladder_opt.measurement.options import MeasureOptions
    from ladder_opt.monitor.drift import drift
    from ladder_opt.monitor.history import append_history, history_record, read_drift_history
    from ladder_opt.monitor.prices import Measured
    from ladder_opt.monitor.result import Drift
    from ladder_opt.occupancy.histogram import StepHistogram
    from ladder_opt.occupancy.record_file import read_recorded_steps
    from ladder_opt.occupancy.replay import Replay, simulate
    from ladder_opt.occupancy.request_times import RequestTimes
    from ladder_opt.occupancy.scheduling import Scheduling
    from ladder_opt.occupancy.sequences import SequenceHistogram
    from ladder_opt.occupancy.sequences_file import read_sequences, write_sequences
    from ladder_opt.occupancy.steps_file import read_steps, write_steps
    from ladder_opt.occupancy.timeline import Timeline
    from ladder_opt.occupancy.totals import TotalsHistogram
    from ladder_opt.occupancy.totals_file import read_totals, write_totals
    from ladder_opt.plan.capture_sizes import CaptureOptions, CaptureSizes, capture_sizes
    from ladder_opt.plan.export import export_plan
    from ladder_opt.plan.frontier import Frontier, frontier
    from ladder_opt.plan.gaudi import GaudiBuckets, GaudiOptions, gaudi_buckets
    from ladder_opt.plan.json_schemas import json_schemas
    from ladder_opt.plan.options import ReplayOptions, SolveOptions
    from ladder_opt.plan.plan import Plan, read_plan, write_plan
    from ladder_opt.plan.resolve import resolve_plan
    from ladder_opt.plan.sweep import sweep
    from ladder_opt.plan.tune import evaluate, tune
    from ladder_opt.presets import preset_num_blocks
    from ladder_opt.reference.verify import Verification, VerifyOptions, verify_plan
    from ladder_opt.report.figures import write_figures
    from ladder_opt.report.html import write_report
    from ladder_opt.solve.api import solve_ladders
    from ladder_opt.solve.price import price_ladders
    from ladder_opt.solve.problem import Limits
    from ladder_opt.solve.robust import RobustResult, Workload, solve_robust
    from ladder_opt.trace.open import open_trace
    from ladder_opt.trace.parquet import write_trace
    from ladder_opt.trace.read import read_trace
    from ladder_opt.trace.stream import TraceStream
    from ladder_opt.trace.summary import summarize
    from ladder_opt.trace.synth import PROFILES, synthesize
    from ladder_opt.trace.table import HashIds, Trace

_MODULE_OF = {
    "Bucketer": "bucketer.bucketer",
    "Calibration": "calibration.result",
    "CaptureOptions": "plan.capture_sizes",
    "CaptureSizes": "plan.capture_sizes",
    "CostDraws": "cost.draws",
    "CostModel": "cost.model",
    "Drift": "monitor.result",
    "Engine": "engine",
    "Executor": "executor",
    "Frontier": "plan.frontier",
    "GaudiBuckets": "plan.gaudi",
    "GaudiOptions": "plan.gaudi",
    "HashIds": "trace.table",
    "InputError": "errors",
    "InternalError": "errors",
    "LadderOptError": "errors",
    "Ladders": "ladder",
    "Limits": "solve.problem",
    "Measured": "monitor.prices",
    "MeasureOptions": "measurement.options",
    "Measurements": "measurement.api",
    "ModelShape": "measurement.model_shape",
    "MeasurementRow": "calibration.measurement_rows",
    "PROFILES": "trace.synth",
    "Plan": "plan.plan",
    "Replay": "occupancy.replay",
    "ReplayOptions": "plan.options",
    "RobustResult": "solve.robust",
    "Scheduling": "occupancy.scheduling",
    "RequestRecords": "calibration.request_records",
    "RequestTimes": "occupancy.request_times",
    "SequenceHistogram": "occupancy.sequences",
    "ServerEngine": "engine",
    "SolveError": "errors",
    "SolveOptions": "plan.options",
    "StepHistogram": "occupancy.histogram",
    "Timeline": "occupancy.timeline",
    "TotalsHistogram": "occupancy.totals",
    "Trace": "trace.table",
    "TraceStream": "trace.stream",
    "UsageError": "errors",
    "Verification": "reference.verify",
    "VerifyOptions": "reference.verify",
    "Workload": "solve.robust",
    "append_history": "monitor.history",
    "calibrate": "calibration.api",
    "capture_sizes": "plan.capture_sizes",
    "default_ladders": "ladder",
    "drift": "monitor.drift",
    "draw_costs": "cost.draws",
    "evaluate": "plan.tune",
    "export_plan": "plan.export",
    "fit_server_steps": "calibration.server_steps",
    "frontier": "plan.frontier",
    "gaudi_buckets": "plan.gaudi",
    "json_schemas": "plan.json_schemas",
    "history_record": "monitor.history",
    "measure": "measurement.api",
    "open_trace": "trace.open",
    "preset_num_blocks": "presets",
    "price_ladders": "solve.price",
    "read_cost_model": "cost.model",
    "read_drift_history": "monitor.history",
    "read_model_shape": "measurement.model_shape",
    "read_measurement_rows": "calibration.measurement_rows",
    "read_plan": "plan.plan",
    "read_recorded_steps": "occupancy.record_file",
    "read_request_records": "calibration.request_records",
    "read_sequences": "occupancy.sequences_file",
    "read_steps": "occupancy.steps_file",
    "read_totals": "occupancy.totals_file",
    "read_trace": "trace.read",
    "resolve_plan": "plan.resolve",
    "server_cost": "calibration.server_steps",
    "simulate": "occupancy.replay",
    "solve_ladders": "solve.api",
    "solve_robust": "solve.robust",
    "summarize": "trace.summary",
    "sweep": "plan.sweep",
    "synthesize": "trace.synth",
    "tune": "plan.tune",
    "verify_plan": "reference.verify",
    "write_figures": "report.figures",
    "write_measurement_rows": "calibration.measurement_rows",
    "write_plan": "plan.plan",
    "write_report": "report.html",
    "write_sequences": "occupancy.sequences_file",
    "write_steps": "occupancy.steps_file",
    "write_totals": "occupancy.totals_file",
    "write_trace": "trace.parquet",
}

_MODULES = ("plot",)

__all__ = [
    "PROFILES",
    "Bucketer",
    "Calibration",
    "CaptureOptions",
    "CaptureSizes",
    "CostDraws",
    "CostModel",
    "Drift",
    "Engine",
    "Executor",
    "Frontier",
    "GaudiBuckets",
    "GaudiOptions",
    "HashIds",
    "InputError",
    "InternalError",
    "LadderOptError",
    "Ladders",
    "Limits",
    "MeasureOptions",
    "Measured",
    "MeasurementRow",
    "Measurements",
    "ModelShape",
    "Plan",
    "Replay",
    "ReplayOptions",
    "RequestRecords",
    "RequestTimes",
    "RobustResult",
    "Scheduling",
    "SequenceHistogram",
    "ServerEngine",
    "SolveError",
    "SolveOptions",
    "StepHistogram",
    "Timeline",
    "TotalsHistogram",
    "Trace",
    "TraceStream",
    "UsageError",
    "Verification",
    "VerifyOptions",
    "Workload",
    "__version__",
    "append_history",
    "calibrate",
    "capture_sizes",
    "default_ladders",
    "draw_costs",
    "drift",
    "evaluate",
    "export_plan",
    "fit_server_steps",
    "frontier",
    "gaudi_buckets",
    "history_record",
    "json_schemas",
    "measure",
    "open_trace",
    "plot",
    "preset_num_blocks",
    "price_ladders",
    "read_cost_model",
    "read_drift_history",
    "read_measurement_rows",
    "read_model_shape",
    "read_plan",
    "read_recorded_steps",
    "read_request_records",
    "read_sequences",
    "read_steps",
    "read_totals",
    "read_trace",
    "resolve_plan",
    "server_cost",
    "simulate",
    "solve_ladders",
    "solve_robust",
    "summarize",
    "sweep",
    "synthesize",
    "tune",
    "verify_plan",
    "write_figures",
    "write_measurement_rows",
    "write_plan",
    "write_report",
    "write_sequences",
    "write_steps",
    "write_totals",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ladder_opt.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'ladder_opt' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ladder_opt.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
