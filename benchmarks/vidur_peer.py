"""Vidur on a trace, timed: run by an interpreter that has Vidur's requirements, from its checkout.

    python vidur_peer.py REQUESTS.csv TABLE.json

REQUESTS.csv has Vidur's columns (arrived_at, num_prefill_tokens, num_decode_tokens), TABLE.json the engine
and the seconds of a step by its decodes and blocks. Prints one JSON object: seconds of the simulation itself,
which leaves out imports, reading the trace and making its requests; and the batches that had decodes, as
[decodes, blocks of the longest, batches].

Vidur's own step times come from profiles of GPUs. Here a predictor takes them from the table, so that both
simulators price a step alike and the time measured is that of scheduling. Metrics are not collected. Its
Sarathi scheduler is the one with chunked prefill; its rules are not vLLM v1's to the last step.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from vidur.config import (
    ClusterConfig,
    MetricsConfig,
    RandomForrestExecutionTimePredictorConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    TraceRequestGeneratorConfig,
)
from vidur.entities import ExecutionTime
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType

_OTHER_TIMES = 19  # of an ExecutionTime, besides its number of layers


class TablePredictor:
    """Step seconds from a table, in the place of Vidur's regression on profiles.

    Attributes:
        batches: how many were priced, by decodes and blocks of the longest.
    """

    table: ClassVar[dict[str, Any]] = {}
    batches: ClassVar[Counter[tuple[int, int]]] = Counter()

    def __init__(self, **_: object) -> None:
        """Vidur names its configs; the table is set on the class."""

    def get_execution_time(self, batch: Any, _stage: Any) -> Any:
        """What the batch takes, all of it as the first of a layer's parts, in milliseconds."""
        table = self.table
        block_size = table["block_size"]
        decodes = longest = own_blocks = prefill_tokens = 0
        for request, tokens in zip(batch.requests, batch.num_tokens):  # noqa: B905
            if request.is_prefill_complete:
                # The token that this step computes is among the processed ones since it was sampled.
                blocks = (int(request.num_processed_tokens) + block_size - 1) // block_size
                decodes += 1
                own_blocks += blocks
                longest = max(longest, blocks)
            else:
                prefill_tokens += tokens
        seconds = table["per_prefill_token"] * prefill_tokens
        if decodes >= table["min_batched_seqs"]:
            seconds += table["batched_seconds"][decodes][longest]
        else:
            seconds += table["base"] + table["per_sequence_gather"] * own_blocks
        if decodes:
            self.batches[decodes, longest] += 1
        return ExecutionTime(1, seconds * 1e3, *[0.0] * (_OTHER_TIMES - 1))


def main(requests: str, table: str) -> None:
    """Simulate once and print what it took."""
    TablePredictor.table = json.loads(Path(table).read_text())
    kind = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(kind)
    ExecutionTimePredictorRegistry.register(kind, TablePredictor)
    engine = TablePredictor.table
    simulator = Simulator(
        SimulationConfig(
            log_level="error",
            cluster_config=ClusterConfig(
                replica_config=ReplicaConfig(),
                replica_scheduler_config=SarathiSchedulerConfig(
                    batch_size_cap=engine["max_num_seqs"],
                    block_size=engine["block_size"],
                    watermark_blocks_fraction=0.0,
                    num_blocks=engine["usable_kv_blocks"],
                    chunk_size=engine["max_num_batched_tokens"],
                ),
            ),
            request_generator_config=TraceRequestGeneratorConfig(
                trace_file=requests, max_tokens=engine["max_model_len"]
            ),
            execution_time_predictor_config=RandomForrestExecutionTimePredictorConfig(),
            metrics_config=MetricsConfig(write_metrics=False, enable_chrome_trace=False, store_plots=False),
        )
    )
    started = time.perf_counter()
    simulator.run()
    seconds = time.perf_counter() - started
    batches = [[*size, count] for size, count in TablePredictor.batches.items()]
    print(json.dumps({"seconds": seconds, "batches": batches}))
    sys.stdout.flush()
    os._exit(0)  # Vidur writes plots at exit


if __name__ == "__main__":
    main(*sys.argv[1:])
