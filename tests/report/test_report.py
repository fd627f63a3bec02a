"""The HTML report: what it says, what it escapes, what it takes only from the user's hands."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_opt.cli.app import main
from ladder_opt.cost.model import read_cost_model
from ladder_opt.engine import Engine
from ladder_opt.errors import InputError, UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.histogram import StepHistogram
from ladder_opt.occupancy.steps_file import write_steps
from ladder_opt.plan.frontier import frontier
from ladder_opt.plan.options import ReplayOptions, SolveOptions
from ladder_opt.plan.plan import Plan, plan_from_dict, write_plan
from ladder_opt.plan.tune import evaluate, tune
from ladder_opt.report import contents as contents_module
from ladder_opt.report.contents import gather
from ladder_opt.report.figures import write_figures
from ladder_opt.report.html import report_html, write_report
from ladder_opt.report.page import script_json
from ladder_opt.trace.parquet import write_trace
from ladder_opt.trace.read import read_trace
from tests.plan.plans import ENGINE, STEPS, make_cost, make_plan, make_spyre_plan, make_trace
from tests.report.reports import ATTACK, Page, hostile_plan

MAKERS: dict[str, Callable[[], Plan]] = {
    "product": make_plan,
    "ragged": lambda: make_plan(structure="ragged"),
    "spyre-env": make_spyre_plan,
    "guard, budget": lambda: make_plan(guard=2.0, warmup_budget_seconds=40.0),
    "worse than the default": lambda: make_plan(num_seqs=[8], num_blocks=[16]),
    "not used": lambda: tune(_few(), make_cost(), engine=ENGINE),
    "never batched": lambda: tune(_few(), make_cost(), engine=Engine(max_num_seqs=3, max_model_len=2048)),
    "no steps": lambda: tune(_none(), make_cost(), engine=ENGINE),
    "many sizes": lambda: evaluate(
        StepHistogram(np.arange(1, 601), np.arange(1, 601), np.full(600, 2.0)),
        Ladders((4, 600), (300, 600)),
        make_cost(),
        engine=Engine(max_num_seqs=600, max_model_len=600 * 128),
    ),
    "robust": lambda: tune(
        [make_trace(requests=80), make_trace(requests=80, seed=1)],
        make_cost(),
        engine=ENGINE,
        options=SolveOptions(robust=True),
    ),
    "evaluated": lambda: evaluate(STEPS, Ladders((4, 8), (8, 16)), make_cost(), engine=ENGINE),
}


def _few() -> StepHistogram:
    return StepHistogram(np.array([1, 3]), np.array([2, 5]), np.array([10.0, 5.0]))


def _none() -> StepHistogram:
    none = np.zeros(0, np.int64)
    return StepHistogram(none, none, np.zeros(0))


def page_of(plan: Plan, **given: Any) -> Page:
    options: dict[str, Any] = {"name": "p.json", "frontier_seconds": 5.0} | given
    return Page(report_html(gather(plan, **options)))


def without(plan: Plan, *keys: str) -> Plan:
    data = plan.to_dict()
    for key in keys:
        data.pop(key)
    return plan_from_dict(data)


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_plan_makes_a_well_formed_page(kind: str) -> None:
    # One bound on the frontier of 600 x 600 sizes takes a second.
    page = page_of(MAKERS[kind](), frontier_seconds=0.0 if kind == "many sizes" else 0.5)
    assert page.unclosed == []
    assert page.count("h1") == 1
    keys = [given.get("id") for _, given in page.elements if given.get("id")]
    assert len(keys) == len(set(keys))
    links = [given["href"] for given in page.attributes("a")]
    assert {f"#{key}" for key in keys} >= set(links)
    assert len(links) == page.count("h2") == page.count("section")
    for given in page.attributes("div"):
        if given.get("class") == "chart":
            assert given["role"] == "img"
            assert len(given["aria-label"] or "") > 30
    assert page.count("table") >= 1
    assert "nan" not in page.text.lower().split()


def test_the_verdict_comes_first_and_in_words() -> None:
    plan = make_plan()
    default = plan.default
    assert default is not None
    saved = default.objective_seconds - plan.result.objective_seconds
    assert saved > 0
    text = page_of(plan).text
    share = f"{saved / default.objective_seconds:.1%}"
    assert f"Load this plan: it saves {share} (" in text
    assert ") against the default ladders" in text
    assert (
        "There is nothing to load: this traffic never reaches the batched kernel."
        in page_of(MAKERS["not used"]()).text
    )
    assert (
        "Keep the default ladders: what was asked for would cost"
        in page_of(MAKERS["worse than the default"]()).text
    )
    assert "Evaluated as given: costs 20 s (3.90%)" in page_of(MAKERS["evaluated"]()).text
    assert "the worst of 2 workloads pays" in page_of(MAKERS["robust"]()).text


def test_tables_hold_the_numbers_of_the_charts() -> None:
    plan = make_plan()
    page = page_of(plan)
    assert page.count("details") >= 4
    for words in (
        "248,500",  # pages needed
        "199,500",  # the default's padding
        "138 ms",  # the default's p99
        "num_seqs 5",  # a rung
        "step_seconds.per_gather",
        plan.provenance.cost_sha256,
    ):
        assert words in page.text
    charts = [given["id"] for given in page.attributes("div") if given.get("class") == "chart"]
    assert charts == [
        "chart-occupancy", "chart-waste", "chart-frontier", "chart-rungs", "chart-step-times", "chart-cost",
    ]  # fmt: skip


def test_charts_hold_the_prepared_numbers() -> None:
    page = page_of(make_plan())
    data = next(text for text in page.scripts if '"orientation":"h"' in text and '"needed' in text)
    figure = json.loads(data)
    bars = figure["data"][2]["x"]
    fixable = np.frombuffer(base64.b64decode(bars["bdata"]), bars["dtype"])
    assert 199_500 in fixable


def test_nothing_out_of_a_plan_is_markup_or_a_program() -> None:
    source = report_html(gather(hostile_plan(), name=ATTACK, frontier_seconds=5.0))
    page = Page(source)
    assert page.unclosed == []
    assert page.count("img") == page.count("svg") == 0
    kinds = [given.get("type") for given in page.attributes("script")]
    assert kinds.count(None) == 2  # plotly and ours
    assert set(kinds) == {None, "application/json"}
    assert not any(name.startswith("on") for _, given in page.elements for name in given)
    assert ATTACK in page.text  # shown as it is written
    assert "\u202e" not in source
    assert "\0" not in source
    for text in page.scripts:
        if text.startswith("{"):
            json.loads(text)


def test_the_policy_names_the_scripts_that_are_there() -> None:
    source = report_html(gather(make_plan(), name="p.json", frontier_seconds=1.0))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', source)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", source, flags=re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert "http-equiv" in source
    assert not re.search(r'<(?:script|img|iframe|link)[^>]+(?:src|href)="(?!data:,)', source)


def test_json_in_a_script_element_cannot_end_it() -> None:
    text = json.dumps({"a": "</script><!-- & \u2028\u2029"}, ensure_ascii=False)
    safe = script_json(text)
    assert not {"<", ">", "&", "\u2028", "\u2029"} & set(safe)
    assert json.loads(safe) == json.loads(text)


def test_what_a_plan_lacks_is_told_with_the_command_that_brings_it() -> None:
    trace = make_trace(requests=80)
    plan = tune(trace, make_cost(), engine=ENGINE)
    contents = gather(without(plan, "occupancy", "cost"), name="my plan.json")
    assert [each.what for each in contents.absent] == [
        "Cost model, step times, frontier",
        "Batch shapes, step times, frontier",
        "Traffic over time",
    ]
    page = Page(report_html(contents))
    assert "ladder-opt report 'my plan.json' --cost COST.json -o report.html" in page.text
    assert "ladder-opt report 'my plan.json' TRACE or --steps STEPS.csv -o report.html" in page.text
    assert [given["id"] for given in page.attributes("div") if given.get("class") == "chart"] == [
        "chart-waste",
        "chart-rungs",
    ]


def test_a_plan_of_the_built_in_prices_needs_none() -> None:
    plan = tune(STEPS, engine=ENGINE)
    bare = without(plan, "cost")
    assert gather(bare, name="p", frontier_seconds=0).cost == read_cost_model()
    data = bare.to_dict()
    data["provenance"]["cost_sha256"] = "0" * 64
    assert gather(plan_from_dict(data), name="p", frontier_seconds=0).cost is None


def test_prices_other_than_the_plans_are_refused() -> None:
    plan = make_plan()
    with pytest.raises(InputError, match="--cost, --kernel: found cost model spyre-granite"):
        gather(plan, name="p", cost=read_cost_model())
    data = plan.to_dict()
    data["cost"]["startup_seconds"] = 31.0
    with pytest.raises(InputError, match="cost: found a cost model of digest"):
        gather(plan_from_dict(data), name="p")
    assert gather(without(plan, "cost"), name="p", cost=make_cost(), frontier_seconds=0).cost == make_cost()


def test_paths_in_a_plan_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(make_trace(requests=80), "t.parquet")
    plan = tune(read_trace("t.parquet"), make_cost(), engine=ENGINE)
    bare = without(plan, "occupancy", "cost")
    opened: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and recording:
            opened.append(str(arguments[0]))

    recording = True
    sys.addaudithook(note)
    report_html(gather(bare, name="p.json"))
    recording = False
    assert not [path for path in opened if "t.parquet" in path]


def test_a_trace_brings_the_traffic_over_time_and_steps_that_a_plan_lacks() -> None:
    trace = make_trace(requests=120)
    plan = tune(trace, make_cost(), engine=ENGINE)
    whole = gather(plan, name="p", traces=[trace], frontier_seconds=0)
    assert whole.traffic is not None
    assert whole.traffic.timeline is not None
    assert whole.absent == ()
    assert not [line for line in whole.warnings if "priced on" in line]
    bare = gather(without(plan, "occupancy"), name="p", traces=[trace], frontier_seconds=0)
    assert bare.steps is not None
    assert plan.to_steps() is not None
    np.testing.assert_array_equal(bare.steps.steps, plan.to_steps().steps)  # type: ignore[union-attr]
    page = Page(report_html(whole))
    assert "120 of 120 rows" in page.text
    assert "chart-trace" in {given.get("id") for given in page.attributes("div")}


def test_options_of_the_run_are_those_of_the_replay() -> None:
    trace = make_trace(requests=200, per_second=2.0)
    options = ReplayOptions(replicas=3, rate_scale=1.5)
    plan = tune(trace, make_cost(), engine=ENGINE, replay_options=options)
    contents = gather(without(plan, "occupancy"), name="p", traces=[trace], frontier_seconds=0)
    assert contents.traffic is not None
    assert contents.traffic.engines == 3
    assert not [line for line in contents.warnings if "priced on" in line]


def test_other_traffic_than_the_plans_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(make_trace(requests=80), "a.parquet")
    write_trace(make_trace(requests=80, seed=1), "b.parquet")
    assert main(["tune", "a.parquet", "-o", "p.json", "--max-num-seqs", "8", "--max-model-len", "2048"]) == 0
    assert main(["report", "p.json", "b.parquet", "-o", "r.html", "--frontier-time", "0s"]) == 0
    source = Path("r.html").read_text(encoding="utf-8")
    assert "b.parquet is not what the plan was made from: no input of the plan has its SHA-256" in source
    assert main(["report", "p.json", "a.parquet", "-o", "r.html", "--frontier-time", "0s"]) == 0
    assert "is not what the plan was made from" not in Path("r.html").read_text(encoding="utf-8")
    write_steps(STEPS.scaled(2.0), "s.csv")
    assert main(["report", "p.json", "--steps", "s.csv", "-o", "r.html", "--frontier-time", "0s"]) == 0
    assert "The steps are not those that the plan was priced on" in Path("r.html").read_text(encoding="utf-8")


def test_hostile_options_of_a_run_are_one_line(tmp_path: Path) -> None:
    trace = make_trace(requests=40)
    plan = tune(trace, make_cost(), engine=ENGINE)
    for asked in (
        {"replicas": "64"},
        {"replicas": True},
        {"concurrency": 1.5},
        {"rate_scale": "fast"},
        {"weights": 3},
        {"scheduling": {"policy": "x"}},
        {"scheduling": [1]},
    ):
        data = plan.to_dict()
        data["provenance"]["asked"] = asked
        with pytest.raises(InputError) as error:
            gather(plan_from_dict(data), name="p", traces=[trace])
        assert len(str(error.value).splitlines()) == 1


def test_many_requests_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_module, "MOST_REPLAYED", 50)
    trace = make_trace(requests=80)
    plan = tune(trace, make_cost(), engine=ENGINE)
    contents = gather(plan, name="p", traces=[trace], frontier_seconds=0)
    assert contents.traffic is not None
    assert contents.traffic.timeline is None
    assert [(each.what, each.how) for each in contents.absent] == [("Batches over time", None)]
    two = gather(plan, name="p", traces=[trace, trace], frontier_seconds=0)
    assert "a clock of its own" in two.absent[0].why


def test_an_incomplete_frontier_knows_the_plan_and_the_presets() -> None:
    plan = make_plan()
    steps, cost = plan.to_steps(), plan.to_cost_model()
    assert steps is not None
    assert cost is not None
    found = frontier(steps, cost, engine=ENGINE, options=SolveOptions(restarts=1.0))
    ends = replace(found, prices=(found.prices[0], found.prices[-1]), complete=False, knee=0, chosen=1)
    grown = ends.with_known([found.prices[2], found.prices[1], found.prices[0]])
    assert [price.step_seconds for price in grown.prices] == [
        price.step_seconds for price in (*found.prices[:3], found.prices[-1])
    ]
    assert grown.prices[grown.chosen].objective_seconds == min(p.objective_seconds for p in grown.prices)
    assert found.with_known([]) is found


def test_the_command_writes_report_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(make_plan(), "p.json")
    arguments = ["report", "p.json", "-o", "r.html", "--figures", "figures/new", "--figures-format", "png"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("report: r.html, ")
    assert err == ""
    for name in ("occupancy", "waste", "frontier", "rungs", "step_seconds", "cost"):
        assert f"figure: figures/new/{name}.png" in out
        assert (tmp_path / f"figures/new/{name}.png").read_bytes().startswith(b"\x89PNG")
    assert main(["report", "p.json", "--figures", "svg"]) == 0
    first = (tmp_path / "svg/occupancy.svg").read_bytes()
    assert first.startswith(b"<?xml")
    assert 4_000_000 < Path("r.html").stat().st_size < 6_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["p.json"], "found no output, expected -o REPORT.html, --figures FOLDER, or both"),
        (["p.json", "-o", "p.json"], "p.json: found an input of this very run"),
        (["nope.json", "-o", "r.html"], "nope.json: found No such file or directory"),
        (["p.json", "nope.csv", "-o", "r.html"], "nope.csv: "),
        (["p.json", "-o", "no/r.html"], "no: found No such file or directory"),
        (["p.json", "--figures", "f", "--figures-format", "gif"], "--figures-format: found 'gif'"),
        (["p.json", "-o", "r.html", "--frontier-time", "soon"], "--frontier-time: found 'soon'"),
        (["p.json", "-o", "r.html", "--sequences", "c.csv"], "--sequences: found without --steps"),
        (["p.json", "t.csv", "--steps", "s.csv", "-o", "r.html"], "found both, expected trace files"),
        (["p.json", "--figures", "p.json"], "p.json: found File exists"),
        (["p.json", "-o", "r.html", "--cost", "spyre-granite-3.3-8b"], "--cost, --kernel: found cost model"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(make_plan(), "p.json")
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"ladder-opt: {message}")
    assert len(err.splitlines()) == 1
    assert not Path("r.html").exists()


def test_an_unknown_format_is_refused_by_the_library_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--figures-format"):
        write_figures(make_plan(), tmp_path, format="gif")


def test_contents_are_put_together_once_for_report_and_figures(tmp_path: Path) -> None:
    contents = write_report(make_plan(), tmp_path / "r.html", name="n", frontier_seconds=1.0)
    assert contents.name == "n"
    assert len(write_figures(contents, tmp_path)) == 6


def test_a_killed_run_leaves_the_old_report_whole(tmp_path: Path) -> None:
    """The new one is moved into its place when it is whole; kill -9 at any time leaves one of the two."""
    write_plan(make_plan(), tmp_path / "p.json")
    command = [
        sys.executable,
        "-m",
        "ladder_opt",
        "report",
        "p.json",
        "-o",
        "r.html",
        "--frontier-time",
        "1s",
    ]
    started = time.monotonic()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    seconds = time.monotonic() - started
    for share in (0.6, 0.8, 0.95):
        (tmp_path / "r.html").write_text("old", encoding="utf-8")
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as run:
            time.sleep(share * seconds)
            run.send_signal(signal.SIGKILL)
        text = (tmp_path / "r.html").read_text(encoding="utf-8")
        assert text == "old" or text.endswith("</html>\n")
