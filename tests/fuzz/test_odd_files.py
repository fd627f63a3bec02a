"""Things that are no file, files that fight back, and files that are data and nothing else."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ladder_opt import files
from ladder_opt.cost.model import MAX_COST_FILE_BYTES, read_cost_model
from ladder_opt.errors import InputError
from ladder_opt.occupancy.steps_file import read_steps
from ladder_opt.plan.plan import MAX_PLAN_FILE_BYTES, read_plan
from ladder_opt.trace.read import read_trace
from tests.fuzz.loaders import LOADERS, SMALL, judge
from tests.plan.plans import make_cost, make_plan

ONE_FILE = [name for name in LOADERS if name not in {"record", "stream"}]


def refused(name: str, path: Path) -> str:
    message = judge(name, path)
    assert message != "read"
    return message


@pytest.mark.parametrize("name", ONE_FILE)
def test_what_is_no_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PIPE_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    missing = tmp_path / "missing"
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (pipe, missing, folder):
        assert str(path) in refused(name, path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ONE_FILE)
def test_what_is_not_ours_to_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x")
    path.chmod(0)
    assert "Permission denied" in refused(name, path)


def test_a_pipe_with_a_slow_writer_is_read_whole(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb", buffering=0) as sink:
            threading.Event().wait(0.3)
            for line in (b"num_seqs,num_blocks,steps\n", b"5,3,1\n", b"6,3,1\n"):
                sink.write(line)
                threading.Event().wait(0.1)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_steps(pipe).rows == 2
    writer.join()


def test_a_byte_that_a_look_took_is_the_first_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "rest").write_bytes(b"bc")
    with io.BufferedReader(files._After(b"a", (tmp_path / "rest").open("rb", buffering=0))) as stream:
        assert stream.read(2) == b"ab"
        assert stream.read() == b"c"


def test_a_file_that_grows_while_it_is_read_is_read_as_far_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = b"prompt_tokens,output_tokens\n"
    path.write_bytes(head + b"5,1\n" * 100_000)
    stop = threading.Event()

    def grow() -> None:
        with path.open("ab", buffering=0) as sink:
            while not stop.is_set():
                sink.write(b"5,1\n" * 100)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        trace = read_trace(path)
    finally:
        stop.set()
        writer.join()
    assert trace.sources[0].rows == len(trace) + sum(trace.set_aside.values()) >= 100_000
    assert sum(trace.set_aside.values()) <= 1  # a row that was being written


_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from ladder_opt.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", "info", "line"],
        ["tune", "--steps", "line"],
        ["check", "line"],
        ["tune", "--steps", "steps.csv", "--cost", "./line"],
        ["tune", "--steps", "steps.csv", "--engine", "line"],
    ],
)
def test_a_line_of_200_mb_ends_in_a_line_of_ours(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "steps.csv").write_bytes(b"num_seqs,num_blocks,steps\n5,3,1\n")
    with (tmp_path / "line").open("wb") as sink:
        for _ in range(200):
            sink.write(b"9" * 1_000_000)
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr[-2000:]
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert len(lines[0]) < 1000
    assert "expected " in lines[0]


def test_a_parquet_of_terabytes_in_a_few_bytes_is_refused(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, pa.int32()), pa.array(["9" * 1_000_000]))
    pq.write_table(pa.table(dict.fromkeys(("num_seqs", "num_blocks", "steps"), column)), tmp_path / "s")
    assert (tmp_path / "s").stat().st_size < 10_000_000
    with pytest.raises(InputError, match="expected a column of numbers"):
        read_steps(tmp_path / "s")


def test_a_gzip_bomb_of_gzip_is_no_trace(tmp_path: Path) -> None:
    inner = gzip.compress(b"0" * 50_000_000)
    (tmp_path / "t").write_bytes(gzip.compress(inner))
    assert "found binary data" in refused("trace", tmp_path / "t")


@pytest.mark.parametrize(
    ("read", "limit"), [(read_plan, MAX_PLAN_FILE_BYTES), (read_cost_model, MAX_COST_FILE_BYTES)]
)
def test_plan_and_cost_files_have_a_largest_size(tmp_path: Path, read: object, limit: int) -> None:
    assert callable(read)
    path = tmp_path / "large.json"
    with path.open("wb") as sink:
        sink.write(b"{")
        sink.truncate(limit + 10)  # a hole: it takes no room
    with pytest.raises(InputError, match=f"found more than {limit} bytes"):
        read(path)


def test_what_files_name_is_never_opened_nor_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, code and formulas in plans and cost models are text: kept, and nothing else."""
    trap = tmp_path / "trap"
    texts = [
        f"{trap}",
        f"$(touch {trap})",
        f"__import__('os').system('touch {trap}')",
        f"=cmd|'touch {trap}'!A0",
    ]
    opened: list[str] = []
    really = io.open

    def noted(file: object, *rest: object, **more: object) -> object:
        opened.append(str(file))
        return really(file, *rest, **more)  # type: ignore[call-overload]

    for text in texts:
        cost = make_cost(name=text, fit={"source": [{"path": text}]}).to_dict()
        plan = make_plan().to_dict()
        plan["warnings"] = [text]
        plan["provenance"]["inputs"] = [{"path": text, "sha256": text, "rows": 1}]
        plan["provenance"]["asked"] = {"o": text}
        (tmp_path / "cost.json").write_text(json.dumps(cost), encoding="utf-8")
        (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        with monkeypatch.context() as patched:
            patched.setattr(io, "open", noted)
            assert read_cost_model(tmp_path / "cost.json").name == text
            assert read_plan(tmp_path / "plan.json").warnings == (text,)
    assert not trap.exists()
    assert set(opened) <= {str(tmp_path / "cost.json"), str(tmp_path / "plan.json")}


def test_formulas_in_cells_are_data(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "prompt_tokens,output_tokens,session\n5,1,=1+1\n6,1,@SUM(A1)\n=5,1,x\n7,1,+2\n", encoding="utf-8"
    )
    trace = read_trace(tmp_path / "t.csv")
    assert trace.session is not None
    assert trace.session.tolist() == ["=1+1", "@SUM(A1)", "+2"]
    assert dict(trace.set_aside) == {"unreadable": 1}
    (tmp_path / "s.csv").write_text("num_seqs,num_blocks,steps\n=5,3,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="found '=5', expected a whole number"):
        read_steps(tmp_path / "s.csv", SMALL)
