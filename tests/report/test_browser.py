"""Reports in a real browser: they draw, ask nothing of a network, fit a phone, and let nobody in."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from ladder_opt.cost.model import read_cost_model
from ladder_opt.plan.tune import tune
from ladder_opt.report.html import write_report
from ladder_opt.trace.table import TraceSource
from tests.plan.plans import ENGINE, make_cost, make_trace
from tests.report.reports import ATTACK, hostile_plan

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium here: apt-get install chromium, or .ci/run does it"
    ),
]

CHARTS = ("occupancy", "waste", "frontier", "rungs", "step-times", "trace", "cost")
_INK = "document.querySelector('.js-plotly-plot')._fullLayout.font.color"
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every chart."""
    path = tmp_path_factory.mktemp("report") / "r.html"
    made = make_trace(requests=150)
    source = TraceSource(path=f"/data/{'long' * 30}.parquet", sha256="0" * 64, rows=150, format="csv")
    trace = replace(made, sources=(source,))
    plan = tune(trace, make_cost(fit=read_cost_model().fit), engine=ENGINE)
    write_report(plan, path, traces=[trace], name="p.json", frontier_seconds=5.0)
    return path


@dataclass
class Seen:
    """A page, and what went on in it."""

    page: Page
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def charts(self) -> int:
        """Charts drawn so far."""
        return int(self.page.locator(".js-plotly-plot .main-svg").count() and self._drawn())

    def _drawn(self) -> int:
        return self.page.locator(".js-plotly-plot").count()


@contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Seen]:
    """The page, with every request but for the file itself stopped and noted, and every console line."""
    context = browser.new_context(**options)
    page = context.new_page()
    seen = Seen(page)

    def guard(route: Any) -> None:
        url = route.request.url
        if url == path.as_uri() or url.startswith(("data:", "blob:")):
            route.continue_()
        else:
            seen.asked.append(url)
            route.abort()

    page.route("**/*", guard)
    page.on("console", lambda message: seen.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.said.append(f"error: {error}"))
    page.goto(path.as_uri())
    try:
        yield seen
        assert seen.asked == []
        assert seen.said == []
    finally:
        context.close()


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def chart_ink(page: Page) -> str:
    return str(page.evaluate(_INK))


def until(page: Page, expression: str) -> None:
    """Wait until it holds; `wait_for_function` would need eval, which the page's policy forbids."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


def wider_than_the_window(page: Page) -> bool:
    # A phone's window grows with what is too wide for it, so its own width says nothing.
    size = page.viewport_size
    assert size is not None
    return bool(page.evaluate("document.documentElement.scrollWidth") > size["width"])


def test_every_chart_is_drawn_and_nothing_is_asked_for(browser: Browser, report: Path) -> None:
    with opened(browser, report, viewport={"width": 1100, "height": 900}) as seen:
        assert seen.charts() == len(CHARTS)
        for name in CHARTS:
            chart = seen.page.locator(f"#chart-{name}")
            traces = int(chart.evaluate("each => each.data.length"))
            assert traces >= 1
            drawn = chart.locator(".trace, .hm image, .point, .heatmaplayer image").count()
            assert drawn >= 1, name
            box = chart.bounding_box()
            assert box is not None
            assert box["width"] > 600
            assert box["height"] > 200
        assert not wider_than_the_window(seen.page)


def test_hovering_shows_numbers(browser: Browser, report: Path) -> None:
    with opened(browser, report, viewport={"width": 1100, "height": 900}) as seen:
        bar = seen.page.locator("#chart-waste .barlayer .point path").first
        bar.scroll_into_view_if_needed()
        bar.hover(force=True)
        seen.page.wait_for_selector("#chart-waste .hoverlayer .hovertext")
        assert "pages" in str(seen.page.locator("#chart-waste .hoverlayer").text_content())


def test_a_phone_scrolls_up_and_down_alone(browser: Browser, report: Path) -> None:
    with opened(browser, report, **PHONE) as seen:
        assert seen.charts() == len(CHARTS)
        assert not wider_than_the_window(seen.page)
        for name in CHARTS:
            box = seen.page.locator(f"#chart-{name}").bounding_box()
            assert box is not None
            assert box["width"] <= 360
        # A drag on a chart has to scroll the page.
        modes = seen.page.evaluate(
            "Array.from(document.querySelectorAll('.js-plotly-plot'), each => each._fullLayout.dragmode)"
        )
        assert set(modes) == {False}
        seen.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert not wider_than_the_window(seen.page)


def test_a_wide_table_scrolls_in_its_box_and_shows_where_it_goes_on(browser: Browser, report: Path) -> None:
    size = {"width": 390, "height": 844}
    for scheme in ("light", "dark"):
        with opened(
            browser, report, **(PHONE | {"viewport": size, "device_scale_factor": 1}), color_scheme=scheme
        ) as seen:
            box = seen.page.locator("#comparison .scroll")
            box.scroll_into_view_if_needed()
            wide, shown = box.evaluate("each => [each.scrollWidth, each.clientWidth]")
            assert wide > shown
            assert not wider_than_the_window(seen.page)
            page = tuple(int(part) for part in re.findall(r"\d+", background(seen.page)))
            start, middle, end = ends_of(box)
            assert far_from(end, page) > 40  # more lies to the right
            assert far_from(start, page) < 8
            assert far_from(middle, page) < 8
            box.evaluate("each => each.scrollLeft = each.scrollWidth")
            seen.page.wait_for_timeout(100)
            start, middle, end = ends_of(box)
            assert far_from(start, page) > 40
            assert far_from(end, page) < 8


def ends_of(box: Any) -> list[tuple[int, ...]]:
    """Colours below the text of a box: 3 pixels from its left end, in its middle, 3 from its right."""
    image = Image.open(io.BytesIO(box.screenshot())).convert("RGB")
    row = image.height - 6  # above the last rule, below the last row's letters
    return [image.getpixel((at, row)) for at in (3, image.width // 2, image.width - 4)]  # type: ignore[misc]


def far_from(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("width", [360, 390, 700, 1100])
def test_labels_of_the_frontier_meet_neither_each_other_nor_a_point(
    browser: Browser, report: Path, width: int
) -> None:
    with opened(browser, report, viewport={"width": width, "height": 900}) as seen:
        chart = seen.page.locator("#chart-frontier")
        chart.scroll_into_view_if_needed()
        labels = [each.bounding_box() for each in chart.locator(".annotation-text").all()]
        points = [
            each.bounding_box()
            for each in chart.locator(".scatterlayer .trace .point").all()
            if "rgb(0, 158, 115)" not in str(each.get_attribute("style"))  # the curve's own are small
        ]
        assert len(labels) == 4
        assert len(points) >= 6
        for at, label in enumerate(labels):
            assert label is not None
            assert label["x"] >= 0
            assert label["x"] + label["width"] <= width
            for other in (*labels[at + 1 :], *points):
                assert other is not None
                assert not meet(label, other)


def meet(one: Any, other: Any) -> bool:
    """Whether two boxes share more than a pixel's breadth either way."""
    across = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
    down = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
    return bool(across > 1 and down > 1)


def test_rows_of_intervals_are_as_high_as_they_should(browser: Browser, report: Path) -> None:
    for size in ({"width": 390, "height": 844}, {"width": 1100, "height": 900}):
        with opened(browser, report, viewport=size) as seen:
            rows = seen.page.locator("#chart-cost .subplot.x2y2 .point").count()
            box = seen.page.locator(
                "#chart-cost .bglayer rect, #chart-cost .draglayer .x2y2 .nsewdrag"
            ).last.bounding_box()
            assert box is not None
            assert box["height"] / rows == pytest.approx(44, abs=3)


def test_a_dark_scheme_darkens_page_and_charts_and_can_change(browser: Browser, report: Path) -> None:
    with opened(browser, report, color_scheme="light") as seen:
        light, ink = background(seen.page), chart_ink(seen.page)
        seen.page.emulate_media(color_scheme="dark")
        until(seen.page, f"document.querySelector('.js-plotly-plot')._fullLayout.font.color !== '{ink}'")
        assert light == "rgb(255, 255, 255)"
        assert background(seen.page) == "rgb(20, 23, 26)"
        assert chart_ink(seen.page) == "#e6e8eb"


def test_paper_is_white_has_every_table_and_charts_that_fit(browser: Browser, report: Path) -> None:
    with opened(browser, report, color_scheme="dark") as seen:
        seen.page.emulate_media(media="print", color_scheme="dark")
        until(seen.page, "Array.from(document.querySelectorAll('details')).every(each => each.open)")
        assert background(seen.page) == "rgb(255, 255, 255)"
        until(seen.page, f"{_INK} === '#1b1f24'")
        until(
            seen.page,
            "Array.from(document.querySelectorAll('.js-plotly-plot .main-svg')).every("
            "each => each.clientWidth <= 660)",
        )
        assert seen.page.locator("nav").is_hidden()
        pdf = seen.page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        seen.page.emulate_media(media="screen", color_scheme="dark")
        until(seen.page, "!document.querySelector('details').open")
        until(seen.page, f"{_INK} === '#e6e8eb'")


def test_without_scripts_the_tables_are_there(browser: Browser, report: Path) -> None:
    with opened(browser, report, java_script_enabled=False) as seen:
        assert seen.page.locator("noscript p, main > p").first.is_visible()
        assert seen.page.locator("table").first.is_visible()
        assert seen.page.locator("details").count() >= 5


def test_a_hostile_plan_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    write_report(hostile_plan(), tmp_path / "r.html", name=ATTACK, frontier_seconds=2.0)
    with opened(browser, tmp_path / "r.html", **PHONE) as seen:
        assert seen.charts() == 6
        assert seen.page.evaluate("window.pwned") is None
        assert seen.page.locator("main img, header img, footer img").count() == 0
        assert seen.page.locator("svg a").count() == 0  # plotly makes links of tags in its texts
        assert ATTACK in seen.page.locator("h1").inner_text()
        assert not wider_than_the_window(seen.page)


def test_what_slipped_through_would_not_run(browser: Browser, report: Path, tmp_path: Path) -> None:
    """The page's own policy stops a script or a request that is not ours, were there one."""
    source = report.read_text(encoding="utf-8")
    bad = '<script>window.pwned=1</script><img src="https://evil.example/x.png" onerror="window.pwned=2">'
    (tmp_path / "r.html").write_text(source.replace("<main>", f"<main>{bad}"), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    stopped: list[str] = []
    came: list[str] = []
    page.on("requestfailed", lambda request: stopped.append(f"{request.url} {request.failure}"))
    page.on("response", lambda response: came.append(response.url))
    page.goto((tmp_path / "r.html").as_uri())
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert page.evaluate("window.pwned") is None
    assert stopped == ["https://evil.example/x.png csp"]
    assert not [url for url in came if url.startswith("http")]
    context.close()
