"""Buckets for vllm-gaudi: their file, what a server makes of it, and that no other ladders are cheaper."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.cost.geometry import FlatPages, get_kernel
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.occupancy.totals import TotalsHistogram, totals_table_shape
from ladder_opt.occupancy.totals_file import read_totals, write_totals
from ladder_opt.plan.gaudi import GaudiOptions, gaudi_buckets
from ladder_opt.solve.result import Status

Bucket = tuple[int, int, int]


def read_buckets(text: str) -> list[Bucket]:
    """What vllm-gaudi reads: a tuple of three a line, a list anywhere standing for each of its entries."""
    buckets = []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] == "#":
            continue
        entry = ast.literal_eval(stripped)
        assert isinstance(entry, tuple)
        assert len(entry) == 3
        lists = [part if isinstance(part, list) else [part] for part in entry]
        buckets += [(int(a), int(b), int(c)) for a, b, c in itertools.product(*lists)]
    return buckets


def kept_by_the_server(buckets: list[Bucket], engine: Engine) -> tuple[list[Bucket], list[Bucket]]:
    """(prompt, decode) buckets after the server's filters, with regular attention, pages not contiguous."""
    most = -(-engine.max_model_len // engine.block_size)
    prompts = [
        (seqs, query, pages)
        for seqs, query, pages in buckets
        if query != 1
        and pages <= -(-(engine.max_model_len - 1) // engine.block_size)
        and query <= engine.max_model_len
        and seqs * query <= engine.max_num_batched_tokens
    ]
    decodes = {
        (seqs, query, min(pages, seqs * most))
        for seqs, query, pages in buckets
        if query == 1 and seqs <= pages
    }
    return sorted(prompts), sorted(decodes)


def padded_to(decodes: list[Bucket], seqs: int, pages: int) -> Bucket:
    """The server's choice: in sorted order, the first bucket from (seqs, 1, pages) on that holds both."""
    return next(
        bucket
        for bucket in decodes
        if bucket >= (seqs, 1, pages) and bucket[0] >= seqs and bucket[2] >= pages
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Engine, TotalsHistogram, GaudiOptions]:
    seqs, blocks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    engine = Engine(max_num_seqs=seqs, max_model_len=128 * blocks)
    cells = draw(
        st.dictionaries(
            st.integers(1, seqs).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, n * blocks))),
            st.integers(1, 99).map(float),
            min_size=1,
            max_size=6,
        )
    )
    totals = TotalsHistogram(
        np.array([n for n, _ in cells]), np.array([t for _, t in cells]), np.array(list(cells.values()))
    )
    price = st.sampled_from([0.0, 0.01, 0.3])
    options = GaudiOptions(
        row_seconds=draw(price),
        page_seconds=draw(price),
        graph_seconds=draw(st.sampled_from([0.0, 0.5, 5.0])),
        restarts=draw(st.sampled_from([0.5, 2.0])),
        page_grain=draw(st.sampled_from([None, 1, 2, 5])),
        max_buckets=draw(st.one_of(st.none(), st.integers(1, 9))),
    )
    return engine, totals, options


def ladders(top: int) -> Iterator[tuple[int, ...]]:
    for count in range(top):
        for chosen in itertools.combinations(range(1, top), count):
            yield (*chosen, top)


def price(decodes: list[Bucket], totals: TotalsHistogram, options: GaudiOptions) -> tuple[float, int]:
    """(seconds, buckets) of the buckets that a server has, step by step."""
    seconds = options.restarts * options.graph_seconds * len(decodes)
    for n, t, weight in zip(
        totals.num_seqs.tolist(), totals.total_blocks.tolist(), totals.steps.tolist(), strict=True
    ):
        seqs, _, pages = padded_to(decodes, n, t)
        seconds += weight * (options.row_seconds * seqs + options.page_seconds * pages)
    return seconds, len(decodes)


def priced(
    seqs: tuple[int, ...],
    rungs: tuple[int, ...],
    totals: TotalsHistogram,
    options: GaudiOptions,
    blocks: int,
) -> tuple[float, int]:
    """(seconds, buckets) of two ladders, each step padded to the next rung on both."""
    grain = options.page_grain or 1

    def pages_of(s: int, rung: int) -> int:
        return min(max(rung * grain, s), s * blocks)

    buckets = {(s, pages_of(s, rung)) for s in seqs for rung in rungs}
    seconds = options.restarts * options.graph_seconds * len(buckets)
    for n, t, weight in zip(
        totals.num_seqs.tolist(), totals.total_blocks.tolist(), totals.steps.tolist(), strict=True
    ):
        s = next(s for s in seqs if s >= n)
        rung = next(rung for rung in rungs if rung * grain >= t)
        seconds += weight * (options.row_seconds * s + options.page_seconds * pages_of(s, rung))
    return seconds, len(buckets)


@given(cases())
def test_a_server_pads_as_priced_and_no_ladders_are_cheaper(
    case: tuple[Engine, TotalsHistogram, GaudiOptions],
) -> None:
    engine, totals, options = case
    blocks, grain = engine.max_num_blocks, options.page_grain or 1
    best = None
    for seqs in ladders(engine.max_num_seqs):
        for rungs in ladders(-(-engine.max_num_seqs * blocks // grain)):
            seconds, count = priced(seqs, rungs, totals, options, blocks)
            if options.max_buckets is None or count <= options.max_buckets:
                best = seconds if best is None else min(best, seconds)
    assert best is not None  # one bucket always does
    found = gaudi_buckets(totals, engine, options)
    assert found.result.status is Status.OPTIMAL
    assert found.result.objective_seconds == pytest.approx(best, rel=1e-9, abs=1e-9)
    written = read_buckets(found.to_text())
    prompts, decodes = kept_by_the_server(written, engine)
    assert len(prompts) + len(decodes) == len(written)  # none is left out, none is cut down
    assert prompts
    served, count = price(decodes, totals, options)
    assert count == found.num_buckets
    # A bucket raised to as many pages as sequences also holds batches of fewer pages than that, which are
    # priced at the next rung: a server never pads more than priced, and less only there.
    assert served <= best + 1e-9 * (1 + best)
    if (totals.total_blocks >= engine.max_num_seqs).all():
        assert served == pytest.approx(best, rel=1e-9, abs=1e-9)
    for n in range(1, engine.max_num_seqs + 1):  # any batch at all finds a bucket
        for t in range(n, n * blocks + 1):
            assert padded_to(decodes, n, t)


ENGINE = Engine(max_num_seqs=8, max_model_len=1024, max_num_batched_tokens=256)
TOTALS = TotalsHistogram(np.array([2, 3, 8]), np.array([2, 17, 40]), np.array([500.0, 900.0, 70.0]))


def test_the_file_as_a_whole() -> None:
    options = GaudiOptions(row_seconds=1e-3, page_seconds=1e-4, graph_seconds=0.5)
    assert gaudi_buckets(TOTALS, ENGINE, options).to_text().splitlines() == [
        "# 3 decode buckets by ladder_opt: optimal, proven; steps of 1 pages",
        "# for --max-num-seqs 8 --max-model-len 1024 --block-size 128, without contiguous paged attention",
        "(2, 1, [16])",
        "(3, 1, [24])",
        "(8, 1, [64])",
        "# prompts are not modelled: powers of two, to be edited",
        "(1, [128, 256], [0, 1, 2, 4, 8])",
    ]


def test_a_limit_that_leaves_nothing_is_told() -> None:
    with pytest.raises(UsageError, match="--max-graphs: found 0, expected 1 or more"):
        GaudiOptions(row_seconds=0.0, page_seconds=0.0, max_buckets=0)
    with pytest.raises(UsageError, match="--page-seconds: found inf"):
        GaudiOptions(row_seconds=0.0, page_seconds=float("inf"))


def test_geometry_follows_the_servers_filters() -> None:
    kernel = FlatPages(max_num_blocks=4, page_grain=3)
    assert get_kernel(kernel.full_name) == kernel
    assert kernel.pages(2, np.array([1, 2, 3, 4])).tolist() == [3, 6, 8, 8]
    assert kernel.pages(5, np.array([1, 2])).tolist() == [5, 6]
    keys = kernel.variant_key(np.array([[2], [5]]), np.array([[3, 4]]))
    assert keys[0, 0] == keys[0, 1]
    assert keys[1, 0] != keys[1, 1]
    with pytest.raises(UsageError, match="kernel: found 'flat_pages:4', expected one of"):
        get_kernel("flat_pages:4")


@pytest.mark.parametrize("name", ["totals.csv", "totals.parquet"])
def test_totals_files_round_trip(tmp_path: Any, name: str) -> None:
    write_totals(TOTALS, tmp_path / name)
    read = read_totals(tmp_path / name, ENGINE)
    assert read.totals.num_seqs.tolist() == [2, 3, 8]
    assert read.totals.total_blocks.tolist() == [2, 17, 40]
    assert read.totals.steps.tolist() == [500.0, 900.0, 70.0]
    assert read.totals.total_steps == 1470.0
    assert len(read.totals) == read.rows == 3


@pytest.mark.parametrize(
    ("row", "message"),
    [  # row, then all of the message but the file's name
        ("3,2,1", "total_blocks: found 2 for num_seqs 3, expected a block or more for each sequence"),
        (
            "1,9,1",
            "total_blocks: found 9 for num_seqs 1, expected at most 8 (ceil(max_model_len / block_size))",
        ),
        ("9,9,1", ":2: num_seqs: found 9, expected at most the engine's max_num_seqs = 8"),
    ],
)
def test_totals_that_no_engine_runs_are_refused(tmp_path: Any, row: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"num_seqs,total_blocks,steps\n{row}\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_totals(path, ENGINE)
    assert str(error.value).removeprefix(str(path)).removeprefix(": ").removesuffix(" a sequence") == message


def test_a_table_that_would_not_fit_is_refused_before_the_work() -> None:
    with pytest.raises(UsageError, match="total blocks: found 1025 x 8388609 cells"):
        totals_table_shape(Engine(max_num_seqs=1024, max_model_len=1 << 20))


def test_steps_beyond_the_engine_are_refused() -> None:
    with pytest.raises(InputError, match="num_seqs: found 3, expected at most max_num_seqs = 2"):
        gaudi_buckets(TOTALS, Engine(max_num_seqs=2), GaudiOptions(row_seconds=1.0, page_seconds=1.0))
