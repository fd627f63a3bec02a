"""`ladder-opt trace info|convert|synth`."""

from __future__ import annotations

from pathlib import Path

from ladder_opt.trace.read import read_trace
from tests.cli.runs import ENGINE, Run


def test_trace_info_convert_and_synth(folder: Path, run: Run) -> None:
    facts = run("trace", "info", "trace.csv", "--json").json()
    assert (facts["requests"], facts["rows"]) == (120, 120)
    assert "requests" in run("trace", "info", "trace.csv").out
    converted = run("trace", "convert", "trace.csv", "-o", "t.parquet", "--json").json()
    own = run("trace", "info", "t.parquet", "--columns", "prompt=x,output=y", "--json").json()["notes"][-1]
    assert own == "t.parquet is a ladder_opt trace, whose columns are its own: --columns was left aside there"
    assert converted["requests"] == 120
    trace, source = read_trace("t.parquet"), read_trace("trace.csv")
    assert trace.prompt_tokens.tolist() == source.prompt_tokens.tolist()
    common = ["--cost", "cost.json", *ENGINE, "--json"]
    first = run("tune", "t.parquet", *common).json()
    assert first["result"] == run("tune", "trace.csv", *common).json()["result"]
    run("trace", "synth", "-o", "a.parquet", "--requests", "50", "--seed", "3")
    run("trace", "synth", "-o", "b.parquet", "--requests", "50", "--seed", "3")
    assert Path("a.parquet").read_bytes() == Path("b.parquet").read_bytes()
    assert len(read_trace("a.parquet")) == 50
    ran = run("trace", "info", "trace.csv", "--max-model-len", "1000", "--strict", code=1)
    assert "44 of 120 requests (36.67%) set aside: prompt and output together are longer" in ran.err
