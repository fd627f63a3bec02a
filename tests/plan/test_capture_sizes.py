"""Capture sizes against brute force, and against vLLM's own configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.capture_sizes import CaptureOptions, capture_sizes, default_capture_sizes

ENGINE = Engine(max_num_seqs=20)
# One to three sequences never reach Spyre's batched decode; here they count.
STEPS = StepHistogram(
    np.array([1, 2, 3, 3, 11, 20]), np.array([1, 1, 2, 5, 9, 3]), np.array([50.0, 7.0, 30.0, 20.0, 90.0, 1.0])
)


def test_padded_rows_are_fewest_for_as_many_sizes_as_vllm_has() -> None:
    found = capture_sizes(STEPS, ENGINE)
    # vLLM's list up to 40 is 1, 2, 4, 8, 16, 24, 32, 40; decodes meet the first six of them.
    assert found.default.sizes == (1, 2, 4, 8, 16, 24, 32, 40)
    assert found.default.padded_rows == 50 * 1 + 90 * 5 + 1 * 4
    assert found.sizes == (1, 2, 3, 11, 20)
    assert found.plan.padded_rows == 0
    few = capture_sizes(STEPS, ENGINE, CaptureOptions(max_sizes=3))
    assert few.sizes == (3, 11, 20)
    assert few.plan.padded_rows == 50 * 2 + 7 * 1


def test_prices_decide_where_graphs_end() -> None:
    options = CaptureOptions(row_seconds=2e-3, graph_seconds=0.5, eager_seconds=0.2, restarts=2.0)
    found = capture_sizes(STEPS, ENGINE, options)
    # A graph costs 1 s. The one step of 20 goes without (0.2 s); 1 and 2 padded to 3 cost 0.214 s.
    assert found.sizes == (3, 11)
    assert found.plan.steps_beyond == 1.0
    assert found.plan.objective_seconds == pytest.approx(2 * 1.0 + 0.214 + 0.2)
    assert "0.51% of the steps without a graph" in found.to_yaml()


def test_sizes_are_multiples_where_sequence_parallelism_asks() -> None:
    found = capture_sizes(STEPS, ENGINE, CaptureOptions(multiple_of=8))
    assert found.sizes == (8, 16, 24)
    assert found.default.sizes == (8, 16, 24, 32, 40)
    with pytest.raises(UsageError, match="--multiple-of: found 600, expected a multiple between"):
        capture_sizes(STEPS, ENGINE, CaptureOptions(multiple_of=600))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph_seconds": 1.0}, "--graph-seconds: found without --row-seconds, expected both or neither"),
        ({"eager_seconds": 1.0}, "--eager-seconds: found without --row-seconds, expected both or neither"),
        ({"row_seconds": -1.0}, "--row-seconds: found -1, expected a number of 0 or more"),
        ({"row_seconds": float("nan")}, "--row-seconds: found nan, expected a number of 0 or more"),
        ({"max_sizes": 0}, "--max-graphs: found 0, expected 1 or more"),
        ({"multiple_of": 0}, "--multiple-of: found 0, expected 1 or more"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        CaptureOptions(**options)
    assert str(error.value) == message


def test_a_batch_beyond_the_engine_is_refused() -> None:
    with pytest.raises(InputError) as error:
        capture_sizes(STEPS, Engine(max_num_seqs=8))
    assert str(error.value) == "num_seqs: found 11, expected at most max_num_seqs = 8"


@pytest.mark.vllm
@pytest.mark.parametrize("max_num_seqs", [1, 3, 20, 32, 100, 128, 256, 400])
@pytest.mark.parametrize("max_num_batched_tokens", [512, 2048])
def test_the_default_list_is_the_one_that_vllm_makes(max_num_seqs: int, max_num_batched_tokens: int) -> None:
    engine = Engine(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    assert default_capture_sizes(engine) == tuple(vllm_sizes(engine, None))


@pytest.mark.vllm
@pytest.mark.parametrize(
    "options",
    [CaptureOptions(), CaptureOptions(max_sizes=2), CaptureOptions(max_sizes=4, compile_sizes=True)],
)
def test_vllm_keeps_the_sizes_as_they_are_and_pads_to_them(options: CaptureOptions) -> None:
    found = capture_sizes(STEPS, ENGINE, options)
    settings = json.loads(yaml.safe_load(found.to_yaml())["compilation-config"])
    config = vllm_config(ENGINE, settings)
    compilation = config.compilation_config
    assert tuple(compilation.cudagraph_capture_sizes) == found.sizes
    assert compilation.max_cudagraph_capture_size == found.sizes[-1]
    assert sorted(compilation.compile_sizes) == (list(found.sizes) if options.compile_sizes else [])
    # What vLLM's dispatcher pads each batch to is what was priced.
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    dispatcher = CudagraphDispatcher(config)
    dispatcher._compute_bs_to_padded_graph_size()
    padded = sum(
        (dispatcher._bs_to_padded_graph_size[n] - n) * weight
        for n, weight in zip(STEPS.num_seqs.tolist(), STEPS.steps.tolist(), strict=True)
    )
    assert padded == found.plan.padded_rows


@pytest.mark.vllm
def test_serve_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sizes.yaml"
    path.write_text(capture_sizes(STEPS, ENGINE).to_yaml(), encoding="utf-8")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: Any = FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    EngineArgs.add_cli_args(parser)
    parser.add_argument("--config")
    arguments = parser.parse_args(["--config", str(path)])
    assert arguments.max_num_seqs == 20
    assert list(arguments.compilation_config.cudagraph_capture_sizes) == [1, 2, 3, 11, 20]


def vllm_sizes(engine: Engine, settings: dict[str, Any] | None) -> list[int]:
    return list(vllm_config(engine, settings).compilation_config.cudagraph_capture_sizes)


def vllm_config(engine: Engine, settings: dict[str, Any] | None) -> Any:
    """vLLM's own configuration for an engine that captures graphs, sizes settled."""
    from types import SimpleNamespace

    from vllm.config import CompilationConfig, CUDAGraphMode, SchedulerConfig, VllmConfig

    config: Any = VllmConfig(
        compilation_config=CompilationConfig(**(settings or {})),
        scheduler_config=SchedulerConfig(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_model_len=engine.max_model_len,
            is_encoder_decoder=False,
        ),
    )
    asked = CompilationConfig(**(settings or {}))
    asked.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    config.compilation_config = asked
    config.model_config = SimpleNamespace(enforce_eager=False)
    config._set_cudagraph_sizes()
    return config
