"""The page of jobs that stand still: what each part says, with a thousand workers, without script,
without uPlot, with script in its data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, Page, Route, expect

from elasticdl.formatting import finite
from elasticdl.job_status import (
    CheckpointStatus,
    ClusterShare,
    Goodput,
    NotBegun,
    ProcessStatus,
    ReceiptEpoch,
    ReceiptTotal,
    RecordCounts,
    StepsStatus,
    TimeSpent,
)
from elasticdl.page import assets, render_page, render_report, static
from tests import statuses
from tests.browser.conftest import STEADY, Window
from tests.snapshots import ATTACK, LOSS, bar, process, snapshot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
PAINTED_CPU_S = 1.0
"""Of the window's main thread, however busy the machine is: parsing, layout, script, paint."""
ORIGIN = "http://job.test/"
CUT = """() => [...document.querySelectorAll(".scroll, #facts dd, #receipt td")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth)
  .map((one) => one.outerHTML.slice(0, 200))"""
"""What has more than it shows, sideways."""
TERMINAL = "\x1b[1;31mred\x1b[0m\r\n 1/9\r 2/9 \x08\x08\r 3/9\r\n\x1b]0;title\x07\x1b[2Kend\r"
RESUME = "elasticdl train -f '/jobs/a b/job.yaml' --resume"
GOODPUT = Goodput(
    200.0,
    0.6125,
    (
        TimeSpent("compute", "step", 122.5, "worker-0", 80.0),
        TimeSpent("pull", "servers_away", 50.0, "worker-1", 50.0),
        TimeSpent("pull", "servers", 20.0, "worker-0", 15.0),
        TimeSpent("lost", "out_of_memory", 7.5, None, None),
    ),
)
FAILED = {
    "exit_code": 1,
    "message": "a shard failed:\nattempt 1",
    "hint": f"see to it; then resume with: {RESUME}",
}


def workers(number: int) -> list[ProcessStatus]:
    rows = [
        process(f"worker-{index}", shard=f"training shard {index}", records=index)
        for index in range(number)
    ]
    killed = "killed by signal 9 (SIGKILL)"
    return [
        *rows,
        process(f"worker-{number}", "ended", cause="infrastructure", message=killed),
    ]


def curve(name: str, label: str, **changes: Any) -> dict[str, Any]:
    return {**LOSS, "name": name, "label": label, **changes}


@pytest.fixture
def report(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Address of a report, opened from disk."""

    def write(found: dict[str, Any]) -> str:
        path = tmp_path / "report.html"
        path.write_text(render_report(found), encoding="utf-8")
        return path.as_uri()

    return write


def serve(page: Page, found: dict[str, Any]) -> None:
    """Serve the live page of a job at ORIGIN; its stream has nothing to tell."""

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(ORIGIN)
        if not path:
            route.fulfill(body=render_page(found), content_type="text/html")
        elif path.startswith("static/"):
            body, kind = static(path.removeprefix("static/"))
            route.fulfill(body=body, content_type=kind)
        else:
            route.fulfill(body=": nothing\n\n", content_type="text/event-stream")

    page.route(f"{ORIGIN}**", answer)


def test_each_part_says_what_the_snapshot_has(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    epochs = [statuses.epoch(number, 10, 10 if number < 249 else 4) for number in range(50, 250)]
    receipt = replace(
        statuses.receipt(*epochs),
        epochs_left_out=50,
        not_begun=NotBegun(9, 90),
        total=ReceiptTotal(2590, 2494, 0, 0, 0, 96),
        why_left="stopped: enough",
        goodput=GOODPUT,
    )
    records = RecordCounts(6000, 1234, 7, 0, 0, 4766, resumed=1000, undone=0)
    series = [
        curve("loss", "", values=[0.5, 0.4, 0.25]),
        curve("metric", "accuracy", at_s=[61.0], records=[1200], values=[0.994]),
        curve("metric", "recall", values=[None, None, None]),
    ]
    found = snapshot(
        receipt=receipt,
        records=records,
        series=series,
        cluster_share=ClusterShare(3, 7, 2, 20, 2, 3),
        steps=StepsStatus(True, "few steps"),
    )
    found["status"]["shards"] = {"training": {"todo": 0, "leased": 1, "done": 0, "parked": 0}}
    found["logs"] = [{"process": "worker-1", "text": TERMINAL}, {"process": "ps-0", "text": "calm"}]
    window = open_window()
    page = window.page
    page.add_init_script(STEADY)
    address = report(found)
    page.goto(address)
    assert page.evaluate("() => steady.figures") > 5, "the first paint has the whole head"
    for said in ("running", "training, epoch 1 of 2", "20 % 1,234 of 6,000 records"):
        expect(page.locator("header")).to_contain_text(said)
    numbers = window.numbers()
    assert numbers["Records repeated"] == "7"
    assert numbers["Goodput"] == "61 % of the workers' time"
    assert numbers["Steps"] == "synchronous few steps"
    on_nodes = page.locator("#facts > div", has_text="Workers on nodes").locator("dd")
    expect(on_nodes).to_have_text("7 2 guaranteed, weight 3, rung 3")
    expect(page.locator("#recent td")).to_have_text(["0:01", "worker-0 is started"])
    expect(page.locator("#plot-loss canvas")).to_be_visible()
    assert page.evaluate("() => steady.shift") == 0
    expect(page.locator("#plot-metric-accuracy .canvas")).to_have_text(
        "● accuracy one value: 0.994 at 1,200 records"
    )
    expect(page.locator("#plot-metric-recall .canvas")).to_have_text("no values")
    page.select_option("#axis", "time")
    expect(page.locator("#plot-metric-accuracy .canvas")).to_contain_text("0.994 at 1:01")

    page.goto(f"{address}#timeline")
    expect(page.locator("#bars tr")).to_have_count(3)
    expect(page.locator("#bars tr", has_text="worker-1").locator("td").last).to_have_text(
        "▲ out of memory at 1.0 of 1.0 GiB"
    )
    expect(page.locator(".crowd")).to_contain_text("1 ready now, 2 at most, 2 in all")
    expect(page.locator(".axis line.saved title")).to_have_text(
        "0:09 checkpoint of version 5 saved"
    )
    expect(page.locator("#generations")).to_contain_text("1 worker is ready")
    expect(page.locator("#goodput-words")).to_contain_text("Goodput 61.3 %")
    expect(page.locator("#goodput-classes tr")).to_have_text(
        [
            "Compute61.3 %2:03step 61.3 % (worker-0: 1:20)",
            "Pull35.0 %1:10servers away 25.0 % (worker-1: 50 s), servers 10.0 % (worker-0: 15 s)",
            "Lost3.8 %8 sout of memory 3.8 %",
        ]
    )

    page.goto(f"{address}#processes")
    cells = page.locator("#process-rows tr", has_text="worker-0").locator("th, td")
    expect(cells).to_have_text(
        ["worker-0", "● ready", "node-1", "", "10", "10.3", "0.50", "3 MiB", "58 s"]
    )

    page.goto(f"{address}#shards")
    rows = page.locator("#receipt-rows th").all_inner_texts()
    assert rows[:3] == ["all", "251–259", "250"] and rows[-1] == "51" and len(rows) == 202
    for said in (
        "Left: stopped: enough",
        "1,000 were trained by earlier runs",
        "50 earlier epochs not shown",
    ):
        expect(page.locator("#receipt-notes")).to_contain_text(said)
    counted = page.locator("#shard-counts")
    expect(counted).to_contain_text("1 shard; one is done when all of its records are")
    expect(counted.locator("li")).to_have_text(["done 0", "leased 1", "todo 0", "parked 0"])
    expect(page.locator("#problems")).to_contain_text("worker-0 is started")

    page.goto(f"{address}#logs")
    assert page.locator("#log-text").text_content() == "red\n 3/9\nend"
    expect(page.locator("#logs")).to_contain_text("The ends of 2 logs")
    assert window.foreign(address) == []


def test_a_failure_is_reported_with_its_command_and_a_job_that_just_began_says_so(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    page = open_window().page
    page.goto(report({**snapshot(), "outcome": FAILED}))
    expect(page.locator("#state")).to_have_text("failed, exit code 1")
    notice = page.locator("#notices .notice.error")
    expect(notice.locator("strong")).to_have_text("a shard failed:")
    expect(notice.locator("details pre")).to_have_text("attempt 1")
    expect(notice.locator(".hint")).to_have_text("What to do: see to it; then resume with: ")
    expect(notice.locator(".command span")).to_have_text(RESUME.split(" "))
    page.goto(report({**snapshot(), "outcome": {**FAILED, "hint": "a bug"}}))
    expect(notice.locator(".hint")).to_have_text("What to do: a bug")
    expect(notice.locator(".command")).to_have_count(0)

    begun = snapshot((), phase="starting", shards=3, series=(), receipt=None, bad_examples=())
    begun["status"] |= {"shards": {}, "loss": None, "metrics": {}, "eta_s": None}
    begun["status"]["records"]["expected"] = 0
    begun |= {
        "events": [],
        "timeline": {"now_s": 0.0, "bars": [], "generations": [], "marks": []},
    }
    address = report(begun)
    page.goto(address)
    expect(page.locator("#share-words")).to_have_text("the data is not counted yet")
    expect(page.locator("#facts")).to_contain_text("Checking for")
    for tab, said in (
        ("timeline", "no process has been started yet"),
        ("processes", "no process has been started yet"),
        ("shards", "no shards yet"),
        ("logs", "Logs are in logs/ of the job's directory"),
        ("events", "nothing has happened yet"),
    ):
        page.goto(f"{address}#{tab}")
        expect(page.locator(f"#{tab}")).to_contain_text(said)


def test_a_browser_without_script_shows_a_summary_and_nothing_else(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    window = open_window(java_script_enabled=False)
    window.page.goto(report({**snapshot(), "outcome": FAILED}))
    assert window.page.locator("body").inner_text().split("\n\n") == [
        "ElasticDL",
        "digits",
        "running: 1,234 of 6,000 records, 20 %",
        "a shard failed:\nattempt 1",
        f"What to do: {FAILED['hint']}",
        "Curves and tables need JavaScript. elasticdl status digits shows the job in a terminal.",
    ]


@pytest.mark.parametrize(
    ("told", "phase", "lead"),
    [
        (f"resume with: {RESUME}", "working", "A last checkpoint is taken: resume with:"),
        (
            f"no checkpoint was made: begin afresh with: {RESUME}",
            "working",
            "no checkpoint was made: begin afresh with:",
        ),
        (f"resume with: {RESUME}", "starting", None),
    ],
)
def test_who_stops_a_job_reads_the_whole_command_that_resumes_it(
    open_window: Callable[..., Window], told: str, phase: str, lead: str | None
) -> None:
    window = open_window()
    window.breaks = True
    page = window.page
    found = snapshot(phase=phase)
    found["job"]["resume_command"] = told
    serve(page, {**found, "stream_id": "1.1"})
    page.goto(ORIGIN)
    page.click("#ask-stop")
    if lead is None:
        expect(page.locator("#resume-command")).to_be_hidden()
        return
    expect(page.locator("#resume-command-lead")).to_have_text(lead)
    assert page.locator("#resume-command").inner_text().strip() == RESUME


def test_a_thousand_workers_are_painted_at_once_and_can_be_found(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    window = open_window()
    page = window.page
    costs = page.context.new_cdp_session(page)
    costs.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(f"{report(snapshot(workers(1000), shards=100_000))}#processes")
    expect(page.locator("#process-rows tr")).to_have_count(100)
    spent = {
        metric["name"]: metric["value"]
        for metric in costs.send("Performance.getMetrics")["metrics"]
    }
    assert spent["TaskDuration"] < PAINTED_CPU_S
    expect(page.locator("#eta")).to_have_text("3:52 left at this rate")
    expect(page.locator("#processes-pager")).to_contain_text("1 to 100 of 1,001")
    page.get_by_role("button", name="Further rows").click()
    expect(page.locator("#process-rows tr").first).to_contain_text("worker-100")
    assert "processes-page=2" in page.url
    page.fill("#find", "worker-77")
    expect(page.locator("#process-rows tr")).to_have_count(11)
    page.select_option("#state-filter", "trouble")
    expect(page.locator("#process-rows tr")).to_have_text(["none of the 1,001 processes matches"])
    page.fill("#find", "")
    expect(page.locator("#process-rows tr")).to_contain_text(
        ["infrastructure killed by signal 9 (SIGKILL)"]
    )
    page.reload()
    expect(page.locator("#process-rows tr")).to_have_count(1)
    assert window.problems == []


def test_a_live_worker_has_a_line_of_its_own_colour_in_each_plot_whoever_ended(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    ended = [process(f"worker-{index}", "ended", cause="drained") for index in range(9)]
    rows = [*ended, process("worker-9"), process("worker-12")]
    names = [row.name for row in rows]
    series = [curve("records_per_s", "", values=[1.0, 2.0, 3.0])]
    series += [curve("records_per_s", name, values=[1.0, 1.0, 1.0]) for name in names]
    series += [curve("staleness", name, values=[0.5, 1.0, 0.5]) for name in names[-2:]]
    window = open_window()
    page = window.page
    page.goto(report(snapshot(rows, series=series)))
    rate, staleness = (
        {
            row.locator(".u-label").inner_text(): row.locator(".u-marker").evaluate(
                "(one) => getComputedStyle(one).borderColor"
            )
            for row in page.locator(f"#plot-{key} .u-legend .u-series").all()[1:]
        }
        for key in ("rate", "staleness")
    )
    assert list(rate) == ["total", "worker-9", "worker-12"]
    assert list(staleness) == ["worker-9", "worker-12"]
    assert rate["worker-9"] == staleness["worker-9"] != rate["total"]
    assert rate["worker-12"] == staleness["worker-12"] != rate["worker-9"]
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


def test_a_click_on_the_current_tab_shows_the_head(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    page = open_window(viewport={"width": 800, "height": 300}).page
    page.goto(report(snapshot(workers(20))))
    for _ in range(2):
        page.get_by_role("link", name="Processes").click()
        expect(page.locator("#processes")).to_be_visible()
        assert page.evaluate("() => scrollY") == 0


def test_a_phone_shows_it_without_scrolling_sideways(
    report: Callable[..., str], open_window: Callable[..., Window]
) -> None:
    rows = workers(20)
    rows[3] = replace(rows[3], records=9_876_543)
    many = (98_765_432_100, 9_876_543, 1_234_567, 7_654_321, 7_777_777, 98_765_432)
    values = {
        "at_s": [1e5, 2e5],
        "records": [1_234_567, 98_765_432_100],
        "values": [1_234_567.8, 7_654_321.0],
    }
    found = snapshot(
        rows,
        records=RecordCounts(*many, resumed=0, undone=0),
        receipt=replace(statuses.receipt(ReceiptEpoch(0, *many)), total=ReceiptTotal(*many)),
        version=1_234_567,
        metrics={"perplexity": 1_234_567.8},
        loss=7_654_321.0,
        checkpoints=(CheckpointStatus(1_234_567, "", 1, 360_000.0),),
        series=[curve("loss", "", **values), curve("metric", "perplexity", **values)],
    )
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
    rows = [
        process("worker-0", message=ATTACK, where=ATTACK, shard=ATTACK),
        process(ATTACK, "ended", cause=ATTACK),
    ]
    found = snapshot(
        rows,
        name=ATTACK,
        text=ATTACK,
        metrics={ATTACK: 1.0},
        waiting=(ATTACK,),
        series=[LOSS, curve("metric", ATTACK)],
    )
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
        assert "\u202e" not in window.page.locator("body").inner_text() + window.page.title()
    assert window.page.locator("img").count() == 0
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
    found = snapshot(
        rows,
        name=long,
        text=f"{odd} {long}",
        records=RecordCounts(10**12, 999_999_999_999, 10**12, -1, 10**15, 0, resumed=0, undone=0),
        metrics={odd: -1e300, long: 1e-300, "auc": float("nan")},
        loss=None,
        version=10**15,
    )
    found["status"]["eta_s"] = 1e12
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
    found["series"] = finite(
        [
            {"name": name, "label": label, "values": values[kind], **at}
            for name, label, kind in names
        ]
    )
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
        address = report(snapshot())
    finally:
        monkeypatch.undo()
        for made in (assets.text, assets.address):
            made.cache_clear()
    window = open_window()
    window.page.goto(address)
    expect(window.page.locator("#no-plots")).to_contain_text("uPlot")
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
