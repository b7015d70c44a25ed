"""The page of jobs that stand still: what it says without script, with a thousand workers, without
uPlot, with script in its data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, expect

from elasticdl.page import assets, render_report
from tests.browser.conftest import Window
from tests.core.test_page_rendering import ATTACK, ROWS, bar, process, snapshot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
PAINTED_CPU_S = 1.0
"""Of the window's main thread, however busy the machine is: parsing, layout, script, paint."""
WORDS = (
    "header",
    "#bars",
    ".crowd",
    "figcaption",
    "#process-rows",
    "#shard-counts",
    "#receipt",
    "#event-rows",
    "#problems",
)


CUT = """() => [...document.querySelectorAll(".scroll, #facts dd, #receipt td")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth)
  .map((one) => one.outerHTML.slice(0, 200))"""
"""What has more than it shows, sideways."""


FAILED = {
    "exit_code": 1,
    "message": "a shard failed:\nattempt 1",
    "hint": "see to it; then go on with: elasticdl train -f 'a b' --resume",
}


def workers(number: int) -> list[dict[str, Any]]:
    rows = [
        process(f"worker-{index}", shard=f"training shard {index}", records=index)
        for index in range(number)
    ]
    return [
        *rows,
        process(
            f"worker-{number}",
            "ended",
            cause="infrastructure",
            message="killed by signal 9 (SIGKILL)",
        ),
    ]


def just_begun() -> dict[str, Any]:
    """Nothing is known of the job but its name."""
    found = snapshot([])
    found["status"] |= {
        "phase": "starting",
        "state": "starting",
        "shards": {},
        "metrics": {},
        "loss": None,
        "receipt": {},
    }
    found["status"] |= {"records": {"expected": 0, "trained": 0}, "eta_s": None, "bad_examples": []}
    found["timeline"] = {"now_s": 0.0, "bars": [], "generations": [], "marks": []}
    return {**found, "occurrences": [], "series": []}


def words_of(window: Window, place: str) -> str:
    """Seen words, without how far apart they stand."""
    return " ".join(
        window.page.locator(place).first.inner_text().replace("Colours: system", "").split()
    )


@pytest.fixture
def report(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Address of a report, opened from disk."""

    def write(found: dict[str, Any]) -> str:
        path = tmp_path / "report.html"
        path.write_text(render_report(found), encoding="utf-8")
        return path.as_uri()

    return write


def test_without_script_the_page_says_the_same(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    rows = [
        *ROWS,
        process("worker-2", "pending", message="quota cpu: 8 of 8 used"),
        process("worker-3", "ended", cause="preempted"),
    ]
    failed = {**snapshot(rows), "outcome": FAILED}
    tabs = ("overview", "timeline", "processes", "shards", "events")
    for found, looked_at in ((failed, tabs[:1]), (snapshot(rows), tabs), (just_begun(), tabs)):
        address, said = report(found), []
        for script in (False, True):
            window = open_window(java_script_enabled=script)
            window.page.goto(address)
            texts = {}
            for tab in looked_at:
                window.page.goto(f"{address}#{tab}")
                expect(window.page.locator(f"#{tab}")).to_be_visible()
                shown = [
                    one
                    for one in WORDS
                    if window.page.locator(f"#{tab} {one}, {one}:is(header)").count()
                ]
                texts[tab] = {one: words_of(window, one) for one in shown}
            said.append(texts)
        assert said[0] == said[1]
    assert "no process has been ordered yet" in said[1]["timeline"]["#bars"]
    assert "nothing has happened yet" in said[1]["events"]["#event-rows"]
    assert "Checking for" in said[1]["overview"]["header"]


def test_a_thousand_workers_are_painted_at_once_and_can_be_found(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    window = open_window()
    page = window.page
    costs = page.context.new_cdp_session(page)
    costs.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(f"{report(snapshot(workers(1000), shards=100_000))}#processes")
    expect(page.locator("#process-rows tr")).to_have_count(100)
    spent = {one["name"]: one["value"] for one in costs.send("Performance.getMetrics")["metrics"]}
    assert spent["TaskDuration"] < PAINTED_CPU_S
    expect(page.locator("#processes-pager")).to_contain_text("1 to 100 of 1,001")
    page.get_by_role("button", name="Further rows").click()
    expect(page.locator("#process-rows tr").first).to_contain_text("worker-100")
    assert "processes-page=2" in page.url
    page.fill("#find", "worker-77")
    expect(page.locator("#process-rows tr")).to_have_count(11)
    page.select_option("#state-filter", "trouble")
    expect(page.locator("#process-rows tr")).to_have_text(
        ["none of the 1,001 processes is like that"]
    )
    page.fill("#find", "")
    expect(page.locator("#process-rows tr")).to_contain_text(
        ["infrastructure killed by signal 9 (SIGKILL)"]
    )
    page.reload()
    expect(page.locator("#process-rows tr")).to_have_count(1)
    assert window.problems == []


def test_all_of_it_can_be_reached_with_the_keyboard_and_is_in_the_address(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    window = open_window()
    page = window.page
    page.goto(report(snapshot(workers(3))))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("link", name="Processes").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#processes")).to_be_visible()
    expect(page.get_by_role("link", name="Processes")).to_have_attribute("aria-current", "page")
    page.get_by_role("button", name="Trained", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Trained")
    expect(page.locator("#process-rows th").first).to_have_text("worker-3")
    page.get_by_role("link", name="worker-2").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#process h3")).to_have_text("worker-2")
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert "sort=-records" in page.url
    assert "process=worker-2" in page.url
    assert "theme=light" in page.url
    page.reload()
    expect(page.locator("#process h3")).to_have_text("worker-2")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_a_phone_shows_it_without_scrolling_sideways(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    rows = workers(20)
    rows[3]["records"] = 9_876_543
    found = snapshot(rows)
    many = {
        "expected": 98_765_432_100,
        "trained": 9_876_543,
        "repeated": 1_234_567,
        "bad": 7_654_321,
        "lost": 7_777_777,
        "left": 98_765_432,
    }
    checkpoint = {"version": 1_234_567, "at_s": 360_000.0, "path": "", "bytes": 1}
    found["status"] |= {
        "records": many,
        "receipt": {"epochs": [{"epoch": 0, **many}], "total": many},
        "version": 1_234_567,
    }
    found["status"] |= {
        "metrics": {"perplexity": 1_234_567.8},
        "loss": 7_654_321.0,
        "checkpoints": [checkpoint],
    }
    values = {
        "at_s": [1e5, 2e5],
        "records": [1_234_567, 98_765_432_100],
        "values": [1_234_567.8, 7_654_321.0],
        "unit": "",
    }
    found["series"] = [
        {"name": "loss", "label": "", **values},
        {"name": "metric", "label": "perplexity", **values},
    ]
    window = open_window(viewport={"width": 360, "height": 780}, has_touch=True)
    address = report(found)
    for tab in ("overview", "timeline", "processes", "shards", "events"):
        window.page.goto(f"{address}#{tab}")
        expect(window.page.locator(f"#{tab}")).to_be_visible()
        assert window.page.evaluate("() => document.documentElement.scrollWidth") <= 360, tab
        if tab == "overview":
            window.page.locator("#plot-loss summary").click()
        assert window.page.evaluate(CUT) == [], tab


def test_script_in_names_and_texts_is_shown_and_does_not_run(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    rows = [process("worker-0", message=ATTACK, where=ATTACK, shard=ATTACK)]
    found = snapshot(rows, name=ATTACK, text=ATTACK)
    found["timeline"]["bars"] = [bar(row) for row in rows]
    found["logs"] = [{"process": "worker-0", "text": ATTACK}]
    window = open_window()
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    window.page.on("dialog", dismiss)
    address = report(found)
    for tab in ("overview", "timeline", "processes", "shards", "logs", "events"):
        window.page.goto(f"{address}?process=worker-0#{tab}")
        expect(window.page.locator(f"#{tab}")).to_contain_text("alert(1)")
    assert dialogs == []
    assert window.problems == []
    assert window.foreign(address) == []


def test_odd_names_and_numbers_are_shown_as_well_as_they_can_be(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    """Names that turn the order of letters, that nobody sees, or that fill a screen; clocks that
    jump; numbers that are none.
    """
    odd, long = "a\u202eb\u200bc\u3000d", "x" * 400
    rows = [
        process("worker-0", where=long, shard=long, message=odd),
        process("worker-1", "ended", cause="made_up_" + long),
    ]
    found = snapshot(rows, name=long, text=f"{odd} {long}")
    counted = {
        "expected": 10**12,
        "trained": 999_999_999_999,
        "repeated": 10**12,
        "bad": -1,
        "lost": 10**15,
    }
    found["status"] |= {
        "records": counted,
        "metrics": {odd: -1e300, long: 1e-300},
        "loss": None,
        "eta_s": 1e12,
        "version": 10**15,
    }
    found["timeline"]["bars"] = [
        {**bar(rows[0]), "ordered_s": 90.0, "ready_s": 70.0},
        {**bar(rows[1]), "ordered_s": 50.0, "ready_s": 20.0, "ended_s": -5.0},
    ]
    values = {
        "inf": [1.0, float("inf"), -3.0, float("nan"), 2.0],
        "gap": [None, 1e300, None, -1e300, None],
        "flat": [0.0] * 5,
    }
    at = {"at_s": [0.0, 5.0, 3.0, -2.0, 1e9], "records": [0, 0, 10**12, 5, 10**13], "unit": ""}
    names = (
        ("loss", "", "inf"),
        ("metric", odd, "gap"),
        ("metric", long, "flat"),
        ("records_per_s", "", "gap"),
        ("pull_s", odd, "inf"),
    )
    found["series"] = [
        {"name": name, "label": label, "values": values[kind], **at} for name, label, kind in names
    ]
    for width in (1280, 390):
        window = open_window(viewport={"width": width, "height": 844})
        address = report(found)
        for tab in ("overview", "timeline", "processes", "shards", "events"):
            window.page.goto(f"{address}#{tab}")
            expect(window.page.locator(f"#{tab}")).to_be_visible()
            assert window.page.evaluate("() => document.documentElement.scrollWidth") <= width, tab
        window.page.goto(
            f"{address}?sort=__proto__&state-filter=__proto__&shown=constructor#processes"
        )
        expect(window.page.locator("#process-rows tr")).to_have_count(2)
        window.page.goto(f"{address}?axis=time#overview")
        expect(window.page.locator("#plots figure")).to_have_count(6)
        assert max(map(len, window.page.locator("#facts dd, .u-value").all_inner_texts())) < 28
        expect(window.page.locator("figure h3", has_text="b")).to_have_text(
            ["Validation a\ufffdb\ufffdc\u3000d"]
        )
        expect(window.page.locator("#share-words")).to_contain_text(
            "999,999,999,999 of 1,000,000,000,000"
        )
        assert (
            "NaN" not in window.page.locator("body").inner_text()
            and "Infinity" not in window.page.locator("body").inner_text()
        )


def test_an_installation_without_uplot_says_so_and_shows_the_rest(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    report: Callable[..., str],
    open_window: Callable[..., Window],
) -> None:
    monkeypatch.setattr(assets, "_VENDOR", tmp_path)
    for made in (assets.text, assets.address):
        made.cache_clear()
    try:
        address = report(snapshot(ROWS))
    finally:
        monkeypatch.undo()
        for made in (assets.text, assets.address):
            made.cache_clear()
    window = open_window()
    window.page.goto(address)
    expect(window.page.locator("#no-plots")).to_contain_text("uPlot")
    expect(window.page.locator("#plot-loss polyline")).to_be_visible()
    window.page.locator("#plot-loss summary").click()
    expect(window.page.locator("#plot-loss tbody tr").first).to_contain_text("0.25")
    assert window.problems == []


def test_on_paper_stand_all_parts_dark_on_light(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    window = open_window(color_scheme="dark")
    page = window.page
    logs = [{"process": "worker-3", "text": "its last words"}]
    page.goto(f"{report({**snapshot(workers(3)), 'logs': logs})}#overview")
    expect(page.locator("#plot-loss canvas")).to_be_visible()
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    for tab in ("overview", "timeline", "processes", "shards", "logs", "events"):
        expect(page.locator(f"#{tab} > h2")).to_be_visible()
    expect(page.locator("nav").first).to_be_hidden()
    expect(page.locator("#log-text")).to_contain_text("its last words")
    assert (
        page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert page.evaluate("() => getComputedStyle(document.body).color") == "rgb(27, 28, 30)"
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("() => document.documentElement.dataset.theme") is None
