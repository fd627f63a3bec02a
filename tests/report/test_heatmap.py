"""The heat map of characters: cells where they belong, within the width, ASCII where need be."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from rich.console import Console

from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.plan import plan_from_dict
from ladder_opt.plan.tune import evaluate
from ladder_opt.plot.ladder_data import occupancy_data
from ladder_opt.report.heatmap import ASCII_SHADES, SHADES, HeatMap, shade_rows
from ladder_opt.report.terminal import console
from ladder_opt.report.text import plan_text
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan


def printed(heat_map: HeatMap, *, encoding: str, width: int = 110) -> list[str]:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    Console(file=stream, width=width, color_system=None).print(heat_map)
    stream.flush()
    return [line.rstrip() for line in raw.getvalue().decode(encoding).splitlines()]


def test_the_map_of_four_cells_by_hand() -> None:
    plan = evaluate(STEPS, Ladders((5, 8), (3, 9, 16)), make_cost(), engine=ENGINE)
    assert HeatMap(plan).lines(ASCII_SHADES) == [
        "steps by num_seqs (up) and num_blocks (right), log shades; at the edges the plan's rungs",
        "8         @         8",
        "7",
        "6",
        "5   #   +           5",
        "4",
        "3",
        "2 .",
        "1",
        "    ^     ^      ^",
        "  1   5   9     16",
    ]


def test_a_plan_for_a_large_engine_takes_a_dozen_narrow_lines() -> None:
    engine = Engine(max_num_seqs=250, max_model_len=1000 * 128)
    rng = np.random.default_rng(0)
    steps = StepHistogram(rng.integers(1, 251, 900), rng.integers(1, 1001, 900), rng.uniform(1, 1e6, 900))
    plan = evaluate(steps, Ladders((4, 100, 250), (1, 500, 1000)), make_cost(), engine=engine)
    lines = HeatMap(plan).lines()
    assert len(lines) <= 12
    assert max(len(line) for line in lines) <= 100
    assert lines[1].startswith("225-250 ")
    assert lines[1].endswith(" 250")
    assert lines[-1].endswith("1000")
    assert lines[-2].count("^") == 3
    for width in (40, 80):
        assert max(len(line) for line in printed(HeatMap(plan), encoding="utf-8", width=width)) <= width


def test_shades_follow_the_logarithm_from_least_to_most() -> None:
    seqs, blocks = np.arange(1, 6), np.ones(5, np.int64)
    steps = StepHistogram(seqs, blocks, 10.0 ** np.arange(5, dtype=np.float64))
    data = occupancy_data(steps, Engine(max_num_seqs=5, max_model_len=128))
    assert shade_rows(data, SHADES) == list(SHADES)
    alone = occupancy_data(StepHistogram(seqs[:1], blocks[:1], np.array([math.pi])), ENGINE)
    assert shade_rows(alone, SHADES)[0][0] == SHADES[-1]
    assert {row.strip() for row in shade_rows(alone, SHADES)[1:]} == {""}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_other_encodings_get_plain_characters(encoding: str) -> None:
    lines = printed(HeatMap(make_plan()), encoding=encoding)
    text = "\n".join(lines)
    assert text.isascii()
    assert "@" in text
    assert any(shade in "\n".join(printed(HeatMap(make_plan()), encoding="utf-8")) for shade in SHADES)


def test_the_plans_text_holds_it_where_the_plan_holds_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    title = "steps by num_seqs (up) and num_blocks (right)"
    console().print(plan_text(make_plan()))
    assert title in capsys.readouterr().out
    data = make_plan().to_dict()
    del data["occupancy"]
    console().print(plan_text(plan_from_dict(data)))
    assert title not in capsys.readouterr().out
