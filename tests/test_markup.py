"""Pieces of HTML: whatever is put in comes out as text; tables that notebooks show of our objects."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.cost.model import read_cost_model
from ladder_opt.markup import facts, joined, printable, table, text
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.plan.frontier import frontier
from ladder_opt.trace.table import Trace, TraceSource
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_spyre_plan, make_trace
from tests.report.reports import ATTACK, Page


class Read(HTMLParser):
    """The tags and the text of a piece."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.words = ""
        self.attributes: list[str | None] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [value for name, value in attrs if name == "data-x"]

    def handle_data(self, data: str) -> None:
        self.words += data


@given(st.text())
def test_any_text_is_shown_and_is_no_markup(anything: str) -> None:
    read = Read(f'<p data-x="{text(anything)}">{text(anything)}</p>')
    assert read.tags == ["p"]
    assert read.attributes == [printable(anything)]
    assert read.words == printable(anything)


def test_what_cannot_be_seen_is_shown_escaped() -> None:
    assert printable("a\x1b[1m\u202eb\n\udcff") == "a\\x1b[1m\\u202eb\\n\\udcff"


def test_tables_have_headers_and_captions() -> None:
    read = Page(table(("a", "b"), [("x<", 1), ("y", 2.5)], caption="c&d"))
    assert [given for name, given in read.elements if name == "th"] == [
        {"scope": "col"},
        {"scope": "col", "style": "text-align:right"},
        {"scope": "row"},
        {"scope": "row"},
    ]
    assert read.count("td") == 2
    assert read.count("caption") == 1
    assert read.unclosed == []
    assert "x<" in read.text
    assert Page(facts([("n", "<v>")], caption="c")).text.split() == ["c", "n", "<v>"]


def test_long_ladders_are_cut_in_the_middle() -> None:
    assert joined(()) == "none"
    assert joined((1, 2, 3), most=3) == "1, 2, 3"
    assert joined(tuple(range(1, 11)), most=4) == "1, 2, ... 7 more ..., 10"


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (make_plan(), ("adopt, optimal", "default", "num_blocks")),
        (make_spyre_plan(), ("num_seqs",)),
        (STEPS, ("4,570", "2 to 8")),
        (StepHistogram(*(np.zeros(0, np.int64),) * 2, np.zeros(0)), ("decode steps", "0")),
        (make_spyre_plan().to_steps(), ("per-sequence calls",)),
        (frontier(STEPS, make_cost(), engine=ENGINE), ("complete", "least in all")),
        (make_trace(requests=5), ("requests", "5", "span")),
        (Trace(None, *(np.zeros(0, np.int64),) * 2), ("requests", "0")),
        (read_cost_model(), ("spyre-granite-3.3-8b", "step_seconds.per_gather", "0.000125")),
        (make_cost(step_table=[[4, 1, 0.5]]), ("1 measured pairs",)),
    ],
)
def test_notebooks_show_tables(shown: object, words: tuple[str, ...]) -> None:
    page = Page(shown._repr_html_())  # type: ignore[attr-defined]
    assert page.unclosed == []
    for word in words:
        assert word in page.text


def test_names_in_notebooks_are_text() -> None:
    trace = replace(
        make_trace(requests=5),
        sources=(TraceSource(path=ATTACK, sha256="", rows=5, format="x"),),
        set_aside={ATTACK: 1},
        notes=(ATTACK,),
    )
    for shown in (trace, make_cost(name=ATTACK[:200])):
        page = Page(shown._repr_html_())
        assert page.count("script") == page.count("img") == 0
        assert ATTACK[:200] in page.text
