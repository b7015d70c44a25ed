"""The page of a real job, while its workers are killed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Route, expect

from elasticdl.tokens import viewer_token
from tests.browser.conftest import STEADY, Shown, Window, shown
from tests.browser.relay import Relay
from tests.conftest import Job
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
SEEN_WITHIN_S = 2.0
FLAWS = (
    "() => axe.run({ resultTypes: ['violations'] }).then((found) => found.violations.map((one) =>"
    " [one.id, one.nodes[0].html]))"
)


@pytest.fixture(scope="module")
def running(
    start_jobs: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shown]:
    with shown(start_jobs, tmp_path_factory.mktemp("shown")) as found:
        yield found


# What the page is told, by when the master read it; what `/api/v1/status` says, asked at every
# frame; and processes' first causes.
LISTENER = """() => {
  let now = {};
  Object.assign(window, { told: {}, asked: [], ends: {} });
  const source = new EventSource("/api/v1/stream");
  source.addEventListener("status", (event) => {
    now = { ...now, ...JSON.parse(event.data) };
    told[now.now] = now;
    fetch("/api/v1/status").then((answer) => answer.json()).then((found) => asked.push(found));
  });
  source.addEventListener("processes", (event) => {
    for (const row of JSON.parse(event.data).rows) if (row.cause) ends[row.name] ??= now.now;
  });
}"""


def figures(status: dict[str, Any]) -> dict[str, object]:
    """Those that stand on the page, as it writes them."""
    records = status["records"]
    return {
        "records": f"{records['trained']:,} of {records['expected']:,} records",
        "version": f"{status['version']:,}",
        "epoch": f"{status['epoch'] + 1:,} of {status['epochs']:,}",
    }


def on_page(window: Window) -> dict[str, object]:
    """The same of one moment: the page is painted as a whole."""
    words, facts = window.page.evaluate(
        "() => [document.querySelector('#share-words').innerText,"
        " Object.fromEntries([...document.querySelectorAll('#facts > div')].map((one) =>"
        " [one.children[0].innerText, one.children[1].innerText]))]"
    )
    return {"records": words, "version": facts["Version"], "epoch": facts["Epoch"]}


def test_the_way_in_is_clear_and_no_error_is_told_on_it(
    running: Shown, open_window: Callable[..., Window], axe: str
) -> None:
    for scheme in ("light", "dark"):
        window = open_window(color_scheme=scheme)
        page = window.page
        page.add_init_script(axe)
        page.goto(running.address)
        expect(page.locator("h1")).to_have_text("This job's page needs a token")
        assert page.evaluate(FLAWS) == []
        # Into the open window: the fragment is all that changes.
        page.goto(running.entrance)
        page.locator(".connection.live").wait_for()
        assert "token" not in page.url


def test_numbers_on_the_page_are_those_of_the_status(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    window = open_window()
    window.page.add_init_script(STEADY)
    running.enter(window)
    steady = window.page.evaluate("() => steady")
    assert steady["figures"] > 5, "the first paint has the whole head"
    moved = steady["shift"] - steady["byEvents"]
    assert moved < 0.01, f"what moves when the page goes live: {steady['moved']}"
    window.page.evaluate(LISTENER)
    seen: list[dict[str, object]] = []

    def as_told() -> bool:
        found = on_page(window)
        told = window.page.evaluate("() => Object.values(told)")
        if found in [figures(one) for one in told] and found not in seen:
            seen.append(found)
        return len(seen) >= 2

    def as_asked() -> bool:
        """A frame and an answer that the master made of one reading say the same."""
        both = window.page.evaluate(
            "() => asked.filter((one) => told[one.now]).map((one) => [one, told[one.now]])"
        )
        assert all(answer[key] == frame[key] for answer, frame in both for key in frame)
        return bool(both)

    until("the page shows what it was told, and goes on with it", as_told, 60.0)
    until("the status was asked for when the page was told", as_asked, 60.0)
    assert window.foreign(running.address) == []
    assert window.problems == []


def test_a_part_of_a_plot_that_is_selected_stays_when_new_values_come(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    window = open_window()
    running.enter(window)
    page = window.page
    plot = page.locator("#plot-rate .u-over")
    at = page.locator("#plot-rate .u-legend .u-series").first.locator(".u-value")

    def shown_at() -> int:
        """Seconds, as the legend has them of the last value, or of that under the pointer."""

        def seconds() -> int:
            parts = re.findall(r"\d+", at.inner_text())
            return sum(int(part) * 60**power for power, part in enumerate(reversed(parts)))

        return until("the legend has a time", seconds, 60.0)

    plot.scroll_into_view_if_needed()
    until("the plot has some values", lambda: shown_at() > 5, 60.0)
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.1 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], middle, steps=5)
    page.mouse.up()
    page.mouse.move(box["x"] + box["width"] - 2, middle)
    at_the_edge = shown_at()
    page.mouse.move(0, 0)
    later = shown_at() + 3
    until("new values came", lambda: shown_at() > later, 60.0)
    page.mouse.move(box["x"] + box["width"] - 2, middle)
    assert shown_at() == at_the_edge
    page.mouse.dblclick(box["x"] + box["width"] - 2, middle)
    page.mouse.move(box["x"] + box["width"] - 4, middle)
    # Two points of the plot may be seconds apart.
    assert shown_at() > at_the_edge, "a double click shows all of it again"
    assert window.problems == []


def test_a_killed_worker_is_on_the_timeline_with_its_cause_within_two_seconds(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    window = open_window()
    running.enter(window, "timeline")
    lost = window.page.locator("#bars tr", has=window.page.locator(".tag.lost"))
    bars = window.page.locator("#bars tr")
    window.page.evaluate(LISTENER)
    window.page.wait_for_function("() => Object.keys(told).length > 0")
    before, bars_before = lost.count(), bars.count()
    running.job.kill_one("worker", random.Random(1))
    until("the end is shown", lambda: lost.count() > before, 60.0)
    expect(lost.last).to_contain_text("killed by signal 9 (SIGKILL)")
    expect(lost.last).to_contain_text("infrastructure")
    name = lost.last.locator("th").inner_text()
    # From when the master saw the end to the frame that tells of it; how long either waits for a
    # core is the machine's.
    (end,) = [
        event
        for event in running.job.events()
        if event["process"] == name and event["cause"] and event["details"].get("step") == "ended"
    ]
    # The page and the listener hear of it one after the other.
    window.page.wait_for_function("(name) => name in ends", arg=name)
    assert window.page.evaluate("(name) => ends[name]", name) - end["at"] < SEEN_WITHIN_S
    # It may be ready before anybody has seen it starting.
    until("another one is shown in its place", lambda: bars.count() > bars_before, 60.0)


def test_the_page_comes_back_by_itself_after_a_break_and_says_that_there_is_one(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    relay = Relay(urlsplit(running.address).port or 0)
    try:
        window = open_window()
        window.breaks = True
        address = f"http://127.0.0.1:{relay.port}/"
        Shown(running.job, address, running.token).enter(window)
        relay.cut()
        expect(window.page.locator("#connection")).to_contain_text("connection lost")
        stood = window.page.locator("#share-words").inner_text()
        running.job.wait_until(
            "more was trained", lambda status: f"{status['records']['trained']:,}" not in stood
        )
        relay.mend()
        expect(window.page.locator("#connection")).to_have_text("live", timeout=15_000)
        expect(window.page.locator("#share-words")).not_to_have_text(stood)
        assert window.foreign(address) == []
    finally:
        relay.close()


def test_a_page_whose_token_counts_no_more_asks_for_another(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    relay = Relay(urlsplit(running.address).port or 0)
    try:
        window = open_window()
        window.breaks = True
        Shown(running.job, f"http://127.0.0.1:{relay.port}/", running.token).enter(window)
        relay.cut()
        expect(window.page.locator("#connection")).to_contain_text("connection lost")
        window.page.context.clear_cookies()
        relay.mend()
        expect(window.page.locator("h1")).to_have_text("This job's page needs a token")
    finally:
        relay.close()


def test_a_viewers_page_shows_the_job_and_has_no_actions(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    window = open_window()
    page = window.page
    Shown(running.job, running.address, viewer_token(running.token)).enter(window, "processes")
    page.locator("#processes [data-process=worker-0], #processes tbody tr").first.wait_for()
    page.locator("#processes tbody tr").first.click()
    expect(page.locator("#theme")).to_be_visible()
    assert page.locator("#actions, dialog, [data-replace]").count() == 0


def test_who_signs_out_is_out_in_every_window_and_no_cookie_opens_the_page(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    window = open_window()
    window.breaks = True  # The second window's requests are refused.
    running.enter(window)
    other = window.page.context.new_page()
    other.goto(running.address)
    other.locator(".connection.live").wait_for()
    (cookie,) = window.page.context.cookies()
    window.page.click("#sign-out")
    for page in (window.page, other):
        expect(page.locator("h1")).to_have_text("This job's page needs a token")
    # As somebody who kept a copy.
    window.page.context.add_cookies(
        [{"name": cookie["name"], "value": cookie["value"], "url": running.address}]
    )
    window.page.goto(running.address)
    expect(window.page.locator("h1")).to_have_text("This job's page needs a token")


def test_a_log_that_was_meant_for_a_terminal_is_read_in_pieces(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    window = open_window()
    running.enter(window)
    whole = (
        "\x1b[1;31mred\x1b[0m \U0001f469\u200d\U0001f4bb\r\n 1/9\r 2/9 \x08\x08\r 3/9"
        " done\n\x1b]0;title\x07" + "x" * 70_000 + "\nlast"
    )
    # Cut in the middle of a sequence, of a line, and of what writes over itself.
    cuts = [0, 3, whole.index("2/9"), whole.index("x") + 66_000, len(whole)]
    ends = [len(whole[:cut].encode()) for cut in cuts]

    def answer(route: Route) -> None:
        start = int(parse_qs(urlsplit(route.request.url).query)["start"][0])
        at = ends.index(max(start, 0))
        to = min(at + 1, len(cuts) - 1)
        text = whole[cuts[at] : cuts[to]]
        route.fulfill(
            json={
                "process": "worker-9",
                "start": ends[at],
                "end": ends[to],
                "size": ends[-1] if at else ends[1],
                "text": text,
            }
        )

    window.page.route(
        "**/api/v1/logs",
        lambda route: route.fulfill(
            json={"logs": [{"process": "worker-9", "bytes": 9, "live": True}]}
        ),
    )
    window.page.route("**/api/v1/logs/worker-9?*", answer)
    window.page.goto(f"{running.address}?log=worker-9#logs")
    shown = window.page.locator("#log-text")
    expect(shown).to_contain_text("last")
    assert (
        shown.text_content() == f"red \U0001f469\u200d\U0001f4bb\n 3/9 done\n{'x' * 70_000}\nlast"
    )
    assert "all of" in window.page.locator("#log-place").inner_text()


def test_a_worker_is_replaced_and_a_checkpoint_is_taken_by_pressing_a_button(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    window = open_window()
    page = window.page
    running.enter(window, "processes")
    before, marks = window.numbers().get("Checkpoint", ""), page.locator(".axis line.saved").count()
    page.click("#ask-checkpoint")
    page.click("#dialog-checkpoint [type=submit]")
    expect(page.locator("#said")).to_contain_text("checkpoint requested")
    until(
        "the checkpoint is in the head",
        lambda: window.numbers().get("Checkpoint", "") != before,
        60.0,
    )
    ready = (
        page.locator("#process-rows tr", has=page.locator(".tag.live"))
        .filter(has_text="worker-")
        .locator("th")
    )
    name = ready.first.inner_text()
    page.get_by_role("link", name=name, exact=True).click()
    page.click(f"[data-replace={name}]")
    expect(page.locator("#replace-title")).to_have_text(f"Replace {name}?")
    page.click("#dialog-replace [type=submit]")
    expect(page.locator("#said")).to_contain_text(f"replacing {name}")
    expect(page.locator(f"#process-rows tr[data-id='{name}']")).to_contain_text(
        "replaced on request"
    )
    expect(page.locator("#process .tag")).to_contain_text("ended on request")
    expect(page.locator("[data-replace]")).to_have_count(0)
    page.goto(f"{running.address}#timeline")
    expect(page.locator("#bars tr", has_text="replaced on request")).to_have_count(1)
    assert page.locator(".axis line.saved").count() > marks


def test_the_live_page_is_used_with_the_keyboard_alone(
    running: Shown, open_window: Callable[..., Window], axe: str
) -> None:
    window = open_window(reduced_motion="reduce")
    page = window.page
    page.add_init_script(axe)
    running.enter(window)
    overview = page.get_by_role("link", name="Overview")
    overview.focus()
    for key, tab in (
        ("ArrowRight", "timeline"),
        ("End", "events"),
        ("ArrowRight", "overview"),
        ("ArrowLeft", "events"),
        ("Home", "overview"),
    ):
        page.keyboard.press(key)
        expect(page.locator(f"#{tab}")).to_be_visible()
        expect(page.locator("nav a:focus")).to_have_attribute("href", f"#{tab}")
    page.locator("#ask-scale").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#dialog-scale [name=min]")).to_be_focused()
    page.keyboard.type("9")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(page.locator("#dialog-scale")).not_to_be_visible()
    expect(page.locator("#ask-scale")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#dialog-scale [name=min]")).to_have_value("2")
    page.fill("#dialog-scale [name=min]", "3")
    page.keyboard.press("Enter")
    expect(page.locator("#dialog-scale .problem")).to_contain_text("smaller number")
    assert page.evaluate(FLAWS) == []
    page.keyboard.press("Escape")
    moving = (
        "() => [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter((rule) =>"
        " parseFloat(rule.style?.transitionDuration) > 0 ||"
        " parseFloat(rule.style?.animationDuration) > 0).length"
    )
    assert not page.evaluate(moving), "what moves is for those who did not ask for less motion"


def test_what_is_looked_at_survives_a_reload_and_a_phone_shows_all_of_it(
    running: Shown, open_window: Callable[..., Window]
) -> None:
    # Other windows ask for less motion, which saves time. This page moves as for most people.
    window = open_window(
        viewport={"width": 390, "height": 844}, has_touch=True, reduced_motion="no-preference"
    )
    page = window.page
    running.enter(window, "processes")
    page.fill("#find", "worker")
    page.select_option("#state-filter", "live")
    page.get_by_role("link", name=re.compile("^worker-")).first.click()
    page.reload()
    page.locator(".connection.live").wait_for()
    expect(page.locator("#find")).to_have_value("worker")
    expect(page.locator("#state-filter")).to_have_value("live")
    expect(page.locator("#process h3")).to_contain_text("worker-")
    for tab in ("overview", "timeline", "processes", "shards", "logs", "events"):
        page.goto(f"{page.url.partition('#')[0]}#{tab}")
        expect(page.locator(f"#{tab}")).to_be_visible()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, tab
    for verb in ("scale", "checkpoint", "stop"):
        page.click(f"#ask-{verb}")
        expect(page.locator(f"#dialog-{verb}")).to_be_in_viewport(ratio=1)
        page.keyboard.press("Escape")


def test_everybody_can_read_and_use_the_page_in_both_schemes(
    running: Shown, violations: Callable[..., list[str]]
) -> None:
    assert violations(running.address, f"#token={running.token}", ("processes", "logs")) == []


def test_a_job_is_scaled_and_stopped_from_its_page_and_its_report_says_the_same(
    running: Shown, open_window: Callable[..., Window], violations: Callable[..., list[str]]
) -> None:
    window = open_window()
    page = window.page
    running.enter(window, "processes")
    page.click("#ask-scale")
    page.fill("#dialog-scale [name=min]", "1")
    page.fill("#dialog-scale [name=max]", "1")
    page.click("#dialog-scale [type=submit]")
    expect(page.locator("#said")).to_contain_text("1 worker")
    expect(page.locator("#process-rows tr", has_text="scaled down")).to_have_count(1)
    page.click("#ask-stop")
    page.keyboard.press("Escape")
    expect(page.locator("#dialog-stop")).not_to_be_visible()
    page.click("#ask-stop")
    expect(page.locator("#resume-command-lead")).to_contain_text("resume with:")
    command = page.locator("#resume-command").inner_text().strip()
    page.fill("#dialog-stop [name=reason]", "seen <b>enough</b>")
    page.click("#dialog-stop [type=submit]")
    expect(page.locator("#connection")).to_have_text("the job has ended", timeout=60_000)
    code, output = running.job.finish()
    assert code == 130, output
    assert f"resume with: {command}" in output and "--resume" in command
    expect(page.locator("#state")).to_have_text("stopped")
    expect(page.locator("#notices")).to_contain_text("seen <b>enough</b>")
    expect(page.locator("#notices .command")).to_have_text(command)
    page.goto(f"{running.address}#logs")
    expect(page.locator("#log-place")).to_contain_text("The job has ended. Its logs are in logs/")
    expect(page.locator("#log-search")).to_be_hidden()
    page.goto(f"{running.address}#shards")
    total = running.job.receipt()["total"]
    told = [f"{total[key]:,}" for key in ("expected", "trained", "repeated", "bad", "lost", "left")]
    expect(page.locator("#receipt .total td")).to_have_text(told)

    report = (running.job.directory / "report.html").as_uri()
    window = open_window()
    window.page.goto(f"{report}#shards")
    expect(window.page.locator("#receipt .total td")).to_have_text(told)
    ended = json.loads((running.job.directory / "status.json").read_text())
    expect(window.page.locator("#share-words")).to_contain_text(
        f"{ended['status']['records']['trained']:,} of"
    )
    window.page.goto(f"{report}?shown=ended#timeline")
    expect(window.page.locator("#bars tr", has_text="scaled down")).to_have_count(1)
    window.page.goto(f"{report}#overview")
    expect(window.page.locator("#plot-rate canvas")).to_be_visible()
    assert window.foreign(report) == []
    assert window.problems == []
    assert (
        violations(report, tabs=("overview", "timeline", "processes", "shards", "logs", "events"))
        == []
    )
