"""`hash_ids` and `priority` as the readers take them, and what they say of a column that they cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.trace.read import read_trace


def put(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(timestamp: int, length: int, **more: Any) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": length, "output_length": 2, **more}


@pytest.mark.parametrize(("lengths", "block_tokens"), [((500, 513), 512), ((16, 17), 16), ((130, 70), 64)])
def test_the_block_size_is_told_by_their_number(
    tmp_path: Path, lengths: tuple[int, int], block_tokens: int
) -> None:
    rows = [row(0, one, hash_ids=list(range(-(-one // block_tokens)))) for one in lengths]
    ids = read_trace(put(tmp_path, *rows)).hash_ids
    assert ids is not None
    assert ids.block_tokens == block_tokens


def test_ids_follow_their_rows(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        row(3000, 600, hash_ids=[1, 2], priority=4),
        row(1000, 30, hash_ids=[3]),
        row(2000, 0, hash_ids=[]),
    )
    trace = read_trace(path, clock="sort")
    assert trace.hash_ids is not None
    assert trace.prompt_tokens.tolist() == [30, 600]
    assert trace.hash_ids.offsets.tolist() == [0, 1, 3]
    assert trace.hash_ids.values.tolist() == [3, 1, 2]
    assert trace.priority is not None
    assert trace.priority.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (
            [row(0, 5, hash_ids=[1]), row(1, 5, hash_ids="1")],
            "hash_ids left aside: row 2 holds '1', expected a list of ids",
        ),
        (
            [row(0, 5, hash_ids=[1.5])],
            "hash_ids left aside: expected whole numbers of 0 or more, of 63 bits, in every list",
        ),
        (
            [row(0, 5, hash_ids=[1]), row(1, 700, hash_ids=[1, 2, 3, 4])],
            "hash_ids left aside: row 2 has 4 for 700 prompt tokens, and no size of block fits all rows",
        ),
    ],
)
def test_what_cannot_be_used_is_noted(tmp_path: Path, rows: list[dict[str, Any]], note: str) -> None:
    trace = read_trace(put(tmp_path, *rows))
    assert trace.hash_ids is None
    assert note in trace.notes
    assert len(trace) == len(rows)


@pytest.mark.shared
def test_public_traces_have_them(shared_dir: Path) -> None:
    mooncake = read_trace(shared_dir / "traces" / "mooncake_conversation_trace.jsonl.gz").hash_ids
    bailian = read_trace(shared_dir / "traces" / "qwen_bailian_thinking_row1.jsonl").hash_ids
    assert mooncake is not None
    assert bailian is not None
    assert (mooncake.block_tokens, bailian.block_tokens) == (512, 16)
