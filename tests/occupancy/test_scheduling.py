"""Scheduling settings: their limits, and what an engine file says about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_opt.cost.model import read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.occupancy.engine_file import read_scheduling_settings
from ladder_opt.occupancy.replay import prefix_caching_notes, scheduling_notes, simulate
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.table import HashIds, Trace


def put(folder: Path, content: str) -> Path:
    path = folder / "serve.yaml"
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "lifo"}, "scheduling-policy: found 'lifo', expected fcfs or priority"),
        ({"n": 0}, "n: found 0, expected 1 to 10000"),
        ({"n": True}, "n: found True, expected a whole number"),
        ({"sliding_window": 0}, "sliding-window: found 0, expected 1 to 2147483648"),
        ({"prefix_caching": 1}, "prefix-caching: found 1, expected true or false"),
        (
            {"prefix_caching": True, "sliding_window": 256},
            (
                "prefix-caching: found with a sliding window, expected one of the two: hits that reach back "
                "no further than the window are not replayed"
            ),
        ),
        (
            {"long_prefill_token_threshold": "many"},
            "long-prefill-token-threshold: found 'many', expected a whole number",
        ),
    ],
)
def test_values_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Scheduling(**settings)
    assert str(error.value) == message


def test_a_threshold_beyond_the_model_is_refused() -> None:
    trace = Trace(np.zeros(1), np.array([10]), np.array([2]))
    scheduling = Scheduling(long_prefill_token_threshold=8193)
    with pytest.raises(UsageError, match="found 8193, expected at most max_model_len = 8192"):
        simulate(trace, Engine(), read_cost_model(), scheduling=scheduling)


def test_each_request_has_n_sequences() -> None:
    trace = Trace(np.zeros(2), np.array([100, 300]), np.array([5, 7]))
    replay = simulate(trace, Engine(), read_cost_model(), scheduling=Scheduling(n=3))
    assert replay.requests == 6
    assert replay.prefill_tokens == 3 * 400
    assert replay.decode_tokens == 3 * (4 + 6)


def test_a_closed_loop_counts_requests_and_not_their_sequences() -> None:
    trace = Trace(None, np.full(4, 100), np.array([5, 5, 5, 5]))
    replay = simulate(trace, Engine(), read_cost_model(), concurrency=2, scheduling=Scheduling(n=3))
    assert replay.steps.num_seqs.max() == 6


def test_a_window_caps_the_blocks_of_a_sequence() -> None:
    trace = Trace(np.zeros(1), np.array([2000]), np.array([500]))
    replay = simulate(trace, Engine(), read_cost_model(), scheduling=Scheduling(sliding_window=256))
    # 256 tokens lie in two blocks of 128, or in three where they begin inside of one
    assert set(replay.steps.num_blocks.tolist()) == {2, 3}


def two_turns(block_tokens: int, ids: list[list[int]]) -> Trace:
    """A prompt of 300 tokens, and much later one of 600 that begins with it."""
    return Trace(
        np.array([0.0, 1e6]), np.array([300, 600]), np.array([5, 5]), hash_ids=HashIds.of(ids, block_tokens)
    )


@pytest.mark.parametrize(
    ("trace", "cached"),
    [
        # blocks of 128 in one of 512: both full ones of the first prompt are found again
        (two_turns(512, [[7], [7, 8]]), 256),
        (two_turns(512, [[6], [7, 8]]), 0),
        # eight ids of 16 tokens to a block: the second block parts in its last id
        (two_turns(16, [list(range(19)), [*range(15), 99, *range(16, 38)]]), 128),
        (two_turns(16, [list(range(19)), [*range(7), 99, *range(8, 38)]]), 0),
        (two_turns(16, [list(range(19)), list(range(38))]), 256),
    ],
)
def test_blocks_that_prompts_share_are_computed_once(trace: Trace, cached: int) -> None:
    replay = simulate(trace, Engine(), read_cost_model(), scheduling=Scheduling(prefix_caching=True))
    assert replay.cached_tokens == cached
    assert replay.prefill_tokens == 900 - cached


def test_at_least_one_token_is_computed() -> None:
    trace = Trace(np.array([0.0, 1e6]), np.full(2, 256), np.full(2, 2), hash_ids=HashIds.of([[1], [1]], 512))
    replay = simulate(trace, Engine(), read_cost_model(), scheduling=Scheduling(prefix_caching=True))
    assert replay.cached_tokens == 128


def test_a_small_pool_forgets_the_least_recently_used() -> None:
    ids = HashIds.of([[1], [2], [1]], 512)
    trace = Trace(np.array([0.0, 1e6, 2e6]), np.full(3, 300), np.full(3, 2), hash_ids=ids)
    cost, caching = read_cost_model(), Scheduling(prefix_caching=True)
    for usable, cached in ((3, 0), (4, 128), (5, 256)):
        engine = Engine(max_model_len=384, num_kv_blocks=usable + 1)
        assert simulate(trace, engine, cost, scheduling=caching).cached_tokens == cached


def recorded(prompt: list[int], cached: list[int]) -> Trace:
    """Requests one after the other, with what a server had cached of each."""
    arrivals = np.array(1e6 * np.arange(len(prompt)), np.float64)
    output = np.full(len(prompt), 3)
    return Trace(arrivals, np.array(prompt), output, cached_tokens=np.array(cached))


def test_recorded_hits_are_whole_blocks_and_leave_a_token() -> None:
    trace = recorded([1000] * 7 + [256], [0, 127, 128, 300, 1000, 5000, -9, 256])
    replay = simulate(
        trace, Engine(), read_cost_model(), scheduling=Scheduling(prefix_caching=True), per_sequence=True
    )
    assert replay.cached_tokens == 128 + 256 + 896 + 896 + 128
    assert replay.prefill_tokens == 7256 - replay.cached_tokens
    assert replay.sequences is not None
    calls = replay.sequences.to_frame()
    # what is left of 1000 tokens after 896, and of 256 after 128
    assert calls[(calls.num_blocks == 8) & (calls.query_len == 104)].calls.tolist() == [2]
    assert calls[(calls.num_blocks == 2) & (calls.query_len == 128)].calls.tolist() == [1]


def test_requests_share_no_blocks_where_only_hits_are_recorded() -> None:
    engine = Engine(max_model_len=1024, num_kv_blocks=9)
    together = Trace(np.zeros(2), np.array([600, 600]), np.array([2, 2]), cached_tokens=np.array([0, 512]))
    replay = simulate(together, engine, read_cost_model(), scheduling=Scheduling(prefix_caching=True))
    assert replay.steps.num_seqs.max() == 1  # 5 blocks each of 8, though they have 4 in common
    ids = HashIds.of([[1, 2], [1, 3]], 512)
    shared = replace(together, hash_ids=ids)
    replay = simulate(shared, engine, read_cost_model(), scheduling=Scheduling(prefix_caching=True))
    assert replay.steps.num_seqs.max() == 2
    assert replay.cached_tokens == 512  # by the ids, which come first


def test_a_preempted_request_finds_its_own_blocks_beyond_what_was_recorded() -> None:
    engine = Engine(max_model_len=1024, num_kv_blocks=11)
    trace = Trace(np.zeros(2), np.array([600, 600]), np.array([100, 100]), cached_tokens=np.array([0, 128]))
    replay = simulate(trace, engine, read_cost_model(), scheduling=Scheduling(prefix_caching=True))
    assert replay.preemptions == 1
    # As the first takes a sixth block the second gives its five back: the last, which is not full, is taken
    assert replay.cached_tokens == 128 + 512


def test_what_to_know_of_recorded_hits() -> None:
    counted, keyed = recorded([10], [3]), two_turns(512, [[7], [7, 8]])
    caching = Scheduling(prefix_caching=True)
    assert prefix_caching_notes(counted, Scheduling()) == []
    assert prefix_caching_notes([keyed], caching) == []
    (note,) = prefix_caching_notes([counted, keyed], caching)
    assert note.startswith(
        "prefix-caching: 1 of 2 traces say by cached_tokens alone what a server had cached"
    )
    both = simulate([counted, keyed], Engine(), read_cost_model(), scheduling=caching)
    assert both.cached_tokens == 256


def test_a_priority_policy_without_priorities_is_told() -> None:
    plain = Trace(np.zeros(1), np.array([10]), np.array([2]))
    ranked = replace(plain, priority=np.array([3]))
    by_priority = Scheduling(policy="priority")
    tail = "priorities: requests without one have 0, and come in turn"
    assert scheduling_notes(plain, Scheduling()) == []
    assert scheduling_notes(ranked, by_priority) == []
    assert scheduling_notes(plain, by_priority) == [f"scheduling-policy priority: no trace has {tail}"]
    assert scheduling_notes([plain, ranked], by_priority) == [
        f"scheduling-policy priority: 1 of 2 traces have no {tail}"
    ]


def test_prefix_caching_needs_to_know_what_is_cached() -> None:
    trace = Trace(np.zeros(1), np.array([10]), np.array([2]))
    for traces in (trace, [recorded([10], [3]), trace]):
        with pytest.raises(UsageError) as error:
            simulate(traces, Engine(), read_cost_model(), scheduling=Scheduling(prefix_caching=True))
        assert str(error.value) == (
            "--prefix-caching: found a trace without hash_ids or cached_tokens, expected the ids of each "
            "prompt's blocks, as in Mooncake and Bailian traces, or how much of each prompt was cached "
            "(--no-prefix-caching replays without, whatever an engine file says)"
        )


def test_what_an_engine_file_says(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "max-num-seqs: 8\nscheduling-policy: priority\nlong_prefill_token_threshold: 256\n"
        "async-scheduling: true\nenable-prefix-caching: false\nwatermark: 0.0\nmax-num-partial-prefills: 2\n"
        "data-parallel-size: 1\nkv-transfer-config: {kv_connector: X}\n",
    )
    file = read_scheduling_settings(path)
    assert file.settings == {
        "policy": "priority",
        "long_prefill_token_threshold": 256,
        "prefix_caching": False,
    }
    early = "a step is then scheduled before the last one's tokens are known"
    unknown = "vLLM 0.28 has no such setting, its v1 scheduler admits any number of partial prefills"
    assert [warning.removeprefix(f"{path}: ") for warning in file.warnings] == [
        f"async-scheduling True is not replayed: {early}",
        f"max-num-partial-prefills 2 is not replayed: {unknown}",
        "kv-transfer-config a mapping is not replayed: KV is replayed as computed where it is used",
    ]


def test_speculative_decoding_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "speculative-config: {method: ngram, num_speculative_tokens: 3}\n")
    with pytest.raises(InputError) as error:
        read_scheduling_settings(path)
    assert str(error.value) == (
        f"{path}: speculative-config: found speculative decoding, expected none: a verify step has more than "
        "one token a sequence, which batched decode does not take, so its ladders are not met"
    )
    assert not read_scheduling_settings(put(tmp_path, "speculative-config: null\n")).warnings


def test_a_setting_in_two_spellings_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "scheduling-policy: fcfs\nscheduling_policy: priority\n")
    with pytest.raises(InputError, match="besides another spelling"):
        read_scheduling_settings(path)
