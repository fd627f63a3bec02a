"""Files that are broken, foreign or malicious: one line that says what, where, and what was wanted."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from ladder_opt.errors import InputError
from ladder_opt.trace.read import read_trace
from ladder_opt.trace.readers import csv_file, stored
from tests.packing import zstd

HEADER = "prompt_tokens,output_tokens,arrival_seconds\n"
COUNT = "an integer from 0 to 2147483647"
KINDS = "a trace as CSV, JSON, JSONL or Parquet, plain, gzip or zstd"


def put(folder: Path, content: str | bytes, name: str = "t") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def message(path: Path | str, **options: object) -> str:
    with pytest.raises(InputError) as error:
        read_trace(path, **options)  # type: ignore[arg-type]
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b" \r\n\n", "an empty file"),
        (b"PK\x03\x04rest", "a zip archive (or .xlsx)"),
        (b"BZh91AY", "bzip2 data"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "binary data (a NUL at byte 7)"),
        (gzip.compress(b""), "an empty file"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, content: bytes, found: str) -> None:
    path = put(tmp_path, content)
    assert message(path) == f"{path}: found {found}, expected {KINDS}"


def test_damaged_compression(tmp_path: Path) -> None:
    rows = HEADER.encode() + b"5,1,0\n" * 20_000
    path = put(tmp_path, gzip.compress(rows)[:-9])
    assert (
        message(path)
        == f"{path}: found gzip data cut off after 0 bytes of content, expected a whole gzip file"
    )
    path = put(tmp_path, b"\x1f\x8b\x08\x00junk-and-more-junk")
    assert message(path).startswith(f"{path}: found damaged gzip data (")
    packed = zstd(os.urandom(300_000))
    path = put(tmp_path, packed[:-100])
    assert message(path).startswith(f"{path}: found zstd data cut off after ")
    path = put(tmp_path, packed[:4] + b"junk" * 10)
    assert message(path).startswith(f"{path}: found damaged zstd data (")


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_compression_bomb_stops_at_the_limit(tmp_path: Path, pack, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    path = put(tmp_path, pack(b"0" * 10_000_000))
    monkeypatch.setattr(stored, "MAX_BYTES", 1_000_000)
    assert message(path) == (
        f"{path}: found more than 1000000 bytes when decompressed, expected a trace of at most that"
    )


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert message(tmp_path) == f"{tmp_path}: found a directory, expected a readable file"
    gone = tmp_path / "gone"
    assert message(gone) == f"{gone}: found No such file or directory, expected a readable file"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert message(pipe) == f"{pipe}: found a pipe, socket or device, expected a regular file"
    assert message("/dev/zero") == "/dev/zero: found a pipe, socket or device, expected a regular file"
    assert "embedded null" in message("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_is_not_ours_to_read(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "5,1,0\n")
    path.chmod(0)
    assert message(path) == f"{path}: found Permission denied, expected a readable file"


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("abc", "'abc'"),
        ("", "an empty cell"),
        ("-5", "'-5'"),
        ("1.5", "'1.5'"),
        ("nan", "'nan'"),
        ("inf", "'inf'"),
        ("1e400", "'1e400'"),
        ("1_000", "'1_000'"),
        ("true", "'true'"),
        ("=1+1", "'=1+1'"),
        ("1000000000000000000", "'1000000000000000000'"),
        ("9" * 5000, "'" + "9" * 40 + "'..."),
        ("\x0b\uff17", "'\\x0b\uff17'"),
    ],
)
def test_cells_that_are_no_count(tmp_path: Path, cell: str, found: str) -> None:
    path = put(tmp_path, HEADER + f"5,1,0\n{cell},1,1\n6,1,2\n")
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == [5, 6]
    assert dict(trace.set_aside) == {"unreadable": 1}
    assert trace.notes[0] == (
        f"1 unreadable row set aside; first at {path}:3: prompt_tokens: found {found}, expected {COUNT}"
    )


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("true", "true"),
        ("null", "nothing"),
        ("NaN", "nan"),
        ("-Infinity", "-inf"),
        ("[1]", "a list"),
        ('{"a":1}', "an object"),
        ("1" + "0" * 60, "an integer of 200 bits"),
        ("-1", "-1"),
        ("2.5", "2.5"),
    ],
)
def test_json_values_that_are_no_count(tmp_path: Path, value: str, found: str) -> None:
    good = '{"prompt_tokens": 5, "output_tokens": 1}\n'
    path = put(tmp_path, good * 2 + f'{{"prompt_tokens": 5, "output_tokens": {value}}}\n')
    trace = read_trace(path)
    assert trace.notes == (
        f"1 unreadable row set aside; first at {path}:3: output_tokens: found {found}, expected {COUNT}",
    )


@pytest.mark.parametrize("cell", ["1e300", "nan", "-inf", "x", "2024-13-01 00:00:00", "=NOW()"])
def test_arrivals_that_are_no_time(tmp_path: Path, cell: str) -> None:
    trace = read_trace(put(tmp_path, HEADER + f"5,1,0\n6,1,1.5\n7,1,{cell}\n"))
    assert trace.prompt_tokens.tolist() == [5, 6]
    assert dict(trace.set_aside) == {"unreadable": 1}


@pytest.mark.parametrize(
    "stamp", ["2024-02-30 00:00:00", "2024-01-01 24:00:00", "1969-12-31 23:59:59", "9999-01-01 00:00:00"]
)
def test_dates_that_do_not_exist(tmp_path: Path, stamp: str) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    path = put(tmp_path, head + f"2024-01-01 00:00:00,5,1\n2024-01-01 00:00:01.5,6,1\n{stamp},7,1\n")
    assert read_trace(path).notes == (
        (
            f"1 unreadable row set aside; first at {path}:4: TIMESTAMP: found '{stamp}', expected a time as "
            "YYYY-MM-DD HH:MM:SS[.fraction][zone], in 1970..2261"
        ),
    )


def test_mostly_unreadable_is_another_format(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "a,1,0\nb,1,0\n5,1,0\n")
    assert message(path) == (
        f"{path}:2: prompt_tokens: found 'a', as in 2 of 3 rows, expected {COUNT}, for the format table"
    )
    path = put(tmp_path, "t,p,o\n1700000000000,5,1\n1700000000001,5,1\n")
    assert message(path, columns={"arrival": "t", "prompt": "p", "output": "o"}) == (
        f"{path}:2: t: found '1700000000000', as in 2 of 2 rows, "
        "expected a number of s within +-1e+11 (or --time-unit ms|us|ns), for the format columns"
    )


def test_ragged_and_blank_csv_lines(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "5,1,0\n\n6,1\n7,1,2,9\n8,1,3\n9,1,4\n")
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == [5, 8, 9]
    assert dict(trace.set_aside) == {"unreadable": 2}
    assert trace.notes[0] == (
        f"2 unreadable rows set aside; first at {path}:4: found 2 cells ('6', ...), "
        "expected 3 as in the header"
    )


def test_the_first_offender_is_the_one_named(tmp_path: Path) -> None:
    path = put(tmp_path, "prompt_tokens,output_tokens\n5,1\n6,x\n7\ny,1\n" + "5,1\n" * 4)
    assert read_trace(path).notes == (
        f"3 unreadable rows set aside; first at {path}:3: output_tokens: found 'x', expected {COUNT}",
    )


def test_a_quote_never_closed_counts_every_line_it_swallows(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "5,1,0\n" * 5 + '"6,1,1\n7,1,2\n8,1,3\n')
    trace = read_trace(path)
    assert (len(trace), dict(trace.set_aside)) == (5, {"unreadable": 3})


def test_a_huge_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, HEADER + "5,1,0\n5,1,0\n" + "9" * 1_000_000 + ",1,0\n")
    assert read_trace(path).notes[0] == (
        f"1 unreadable row set aside; first at {path}:4: prompt_tokens: "
        f"found '{'9' * 40}'..., expected {COUNT}"
    )
    monkeypatch.setattr(csv_file, "_CELL_CHARACTERS", 1000)
    assert read_trace(path).notes[0] == (
        f"1 unreadable row set aside; first at {path}:4: "
        "found a row that is no CSV (field larger than field limit (1000)), expected 3 cells"
    )
    monkeypatch.undo()
    path = put(tmp_path, '{"prompt_tokens": 5, "output_tokens": 1}\n' * 2 + '{"a": "' + "x" * 1_000_000)
    assert dict(read_trace(path).set_aside) == {"unreadable": 1}


def test_json_bombs(tmp_path: Path) -> None:
    good = '{"prompt_tokens": 5, "output_tokens": 1}\n'
    path = put(tmp_path, good * 2 + "[" * 200_000 + "\n")
    assert read_trace(path).notes == (
        (
            f"1 unreadable row set aside; first at {path}:3: found JSON nested too deeply, "
            "expected one JSON object a line"
        ),
    )
    path = put(tmp_path, "[" * 200_000)
    assert message(path) == f"{path}:1: found JSON nested too deeply, expected a trace"
    path = put(tmp_path, '{"a":' * 200_000)
    assert message(path) == f"{path}:1: found JSON nested too deeply, expected a trace"
    path = put(tmp_path, "[" + "9" * 10_000 + "]")
    assert message(path) == f"{path}:1: found JSON with a number too long to read, expected a trace"


def test_broken_json_says_where(tmp_path: Path) -> None:
    path = put(tmp_path, '[\n {"prompt_tokens": 5,\n  "output_tokens" 1}\n]')
    assert message(path) == (
        f"{path}:3: character 19: found no JSON (Expecting ':' delimiter), expected a JSON value"
    )
    path = put(
        tmp_path, json.dumps([{"prompt_tokens": 5, "output_tokens": 1}, 7, {"prompt_tokens": 1}], indent=1)
    )
    assert message(path) == (
        f"{path}:1: [1]: found 7, as in 2 of 3 rows, expected a JSON object, for the format table"
    )


def test_jsonl_with_a_torn_first_line(tmp_path: Path) -> None:
    path = put(tmp_path, '{"prompt_tok\n' + '{"prompt_tokens": 5, "output_tokens": 1}\n' * 2)
    trace = read_trace(path)
    assert (len(trace), dict(trace.set_aside)) == (2, {"unreadable": 1})


def test_duplicated_headers(tmp_path: Path) -> None:
    path = put(tmp_path, "prompt_tokens,output_tokens,prompt_tokens\n5,1,6\n")
    assert message(path) == (
        f"{path}:1: prompt_tokens: found column 'prompt_tokens' twice (columns 1 and 3), "
        "expected each column once"
    )


def test_byte_order_marks_and_mixed_encodings(tmp_path: Path) -> None:
    text = "prompt_tokens,output_tokens,model\n5,1,m\n"
    for encoding in ("utf-8-sig", "utf-16"):
        assert read_trace(put(tmp_path, text.encode(encoding))).prompt_tokens.tolist() == [5]
    mixed = text.encode() + "6,1,modèle\n".encode("latin-1") + "7,1,modèle\n".encode() + b"8\xff,1,m\n"
    trace = read_trace(put(tmp_path, mixed))
    assert trace.prompt_tokens.tolist() == [5, 6, 7]
    assert "found '8\\udcff'" in trace.notes[0]


def test_foreign_bytes_in_a_session_stay_writable(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, b"prompt_tokens,output_tokens,session\n5,1,=cmd\xff\n"))
    assert trace.session is not None
    assert trace.session.tolist() == ["=cmd?"]


def test_no_rows_one_row_equal_rows(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER)
    assert message(path) == f"{path}: found no data rows, expected at least one request"
    path = put(tmp_path, "[]")
    assert message(path).startswith(
        f"{path}: found no known format (it has no names), expected one of ladder_opt, "
    )
    one = read_trace(put(tmp_path, HEADER + "5,1,77\n"))
    assert (len(one), one.span_seconds) == (1, 0.0)
    same = read_trace(put(tmp_path, HEADER + "5,1,77\n" * 10))
    assert (len(same), same.span_seconds, dict(same.set_aside)) == (10, 0.0, {})
    none = read_trace(put(tmp_path, HEADER + "5,0,77\n" * 10))
    assert (len(none), dict(none.set_aside)) == (0, {"zero_output": 10})


def test_options_that_do_not_exist(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "5,1,0\n")
    assert message(path, format="azur").startswith(
        "found --format 'azur', expected one of ladder_opt, azure, "
    )
    assert message(path, time_unit="h") == "found --time-unit 'h', expected one of s, ms, us, ns"
    assert message(path, clock="x") == "found --clock 'x', expected one of auto, sort, unwrap, refuse"
    assert message(path, columns={"in": "a"}) == (
        "found --columns 'in', expected one of arrival, prompt, output, cached, session, priority"
    )
    assert message(path, columns={"prompt": "prompt_tokens"}) == (
        f"{path}: found no output column named, expected --columns with output=NAME"
    )
    assert message(path, columns={"prompt": "p", "output": "output_tokens"}) == (
        f"{path}: found no column 'p' (it has 'arrival_seconds', 'output_tokens', 'prompt_tokens'), "
        "expected the columns of the format columns: p, output_tokens"
    )
    assert message(path, format="azure") == (
        f"{path}: found no column 'ContextTokens' (it has 'arrival_seconds', 'output_tokens', "
        "'prompt_tokens'), expected the columns of the format azure: "
        "TIMESTAMP, ContextTokens, GeneratedTokens"
    )
    assert message(path, format="ladder_opt") == (
        f"{path}: found no ladder_opt trace, expected canonical Parquet with its schema in the metadata"
    )


def test_arrays_of_unequal_length(tmp_path: Path) -> None:
    path = put(tmp_path, json.dumps({"input_lens": [1, 2], "output_lens": [1]}))
    assert message(path) == f"{path}:1: output_lens: found 1 output_lens, expected 2, one for each input_lens"
    path = put(tmp_path, json.dumps({"input_lens": [1, True, 3], "output_lens": [1, 1, 1]}))
    assert read_trace(path).notes == (
        f"1 unreadable row set aside; first at {path}:1: input_lens[1]: found true, expected {COUNT}",
    )


def test_more_cached_than_prompt_is_unreadable(tmp_path: Path) -> None:
    path = put(tmp_path, "prompt_tokens,output_tokens,cached_tokens\n5,1,5\n5,1,6\n5,1,\n")
    trace = read_trace(path)
    assert trace.cached_tokens is not None
    assert trace.cached_tokens.tolist() == [5, 0]
    assert trace.notes == (
        (
            f"1 unreadable row set aside; first at {path}:3: cached_tokens: "
            "found '6', expected at most prompt_tokens of the row"
        ),
    )


def test_damaged_parquet(tmp_path: Path) -> None:
    path = put(tmp_path, b"PAR1" + b"\xff" * 100 + b"PAR1")
    assert message(path).startswith(f"{path}: found damaged Parquet (")
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    far = np.array(["2024-01-01", "9000-01-01"], dtype="datetime64[s]")
    pq.write_table(pa.table({"t": far, "p": [True, False], "o": [1, 2]}), path)
    assert message(path, columns={"arrival": "t", "prompt": "p", "output": "o"}) == (
        f"{path}:1: p: found true, as in 2 of 2 rows, expected {COUNT}, for the format columns"
    )
