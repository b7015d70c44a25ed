"""Measure a browser's cost of a large job's page: `python -m bench.paint ADDRESS [ROUNDS]`.

The address has the token behind the `#`. Prints JSON.

Times of a main thread that is busy with nothing else say what a person waits for; on a machine that
is busy, its CPU time does.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first is Chromium without its windows. It takes half as much CPU time for the tests."""
VIEWS = ("overview", "timeline", "processes", "shards", "logs", "events")
WAITED_FOR = ("first paint ms", "usable ms", "CPU until then ms")
WATCHED_S = 10.0
LIMIT_MS = 120_000
_NOTES = """
window.noted = { live: 0, busy: 0 };
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) {
    noted.busy = Math.max(noted.busy, one.startTime + one.duration);
  }
}).observe({ type: "longtask", buffered: true });
new MutationObserver(() => {
  if (!noted.live && document.querySelector(".connection.live")) noted.live = performance.now();
}).observe(document, {
  subtree: true, childList: true, attributes: true, attributeFilter: ["class"],
});
"""
_FOUND = """() => ({
  painted: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null,
  usable: Math.max(noted.live, Math.min(noted.busy, noted.live + 5000)),
  elements: document.querySelectorAll("*").length,
})"""


def spent(costs: CDPSession) -> dict[str, float]:
    """Return the CPU seconds of the window's main thread so far, and its heap size."""
    return {one["name"]: one["value"] for one in costs.send("Performance.getMetrics")["metrics"]}


def look(page: Page, address: str, watched_s: float = WATCHED_S) -> dict[str, float]:
    """Open a view as if for the first time; then watch it if requested."""
    page.add_init_script(_NOTES)
    costs = page.context.new_cdp_session(page)
    costs.send("Performance.enable", {"timeDomain": "threadTicks"})
    costs.send("Network.enable")
    costs.send("Network.setCacheDisabled", {"cacheDisabled": True})
    page.goto(address)
    page.locator(".connection.live").wait_for()
    page.wait_for_timeout(1000)
    opened, found = spent(costs), page.evaluate(_FOUND)
    figures = {
        "first paint ms": round(found["painted"]),
        "usable ms": round(found["usable"]),
        "CPU until then ms": round(1000 * opened["TaskDuration"]),
        "of it script ms": round(1000 * opened["ScriptDuration"]),
        "elements": found["elements"],
    }
    if not watched_s:
        return figures
    page.wait_for_timeout(1000 * watched_s)
    watched = spent(costs)
    return {
        **figures,
        "CPU while it is watched %": round(
            100 * (watched["TaskDuration"] - opened["TaskDuration"]) / watched_s, 1
        ),
        "script's memory MiB": round(watched["JSHeapUsedSize"] / 2**20, 1),
    }


def views(
    browser: Browser, entrance: str, watched_s: float = WATCHED_S, names: Sequence[str] = VIEWS
) -> dict[str, Any]:
    """Open each view of the page in a window of its own."""
    address = entrance.partition("#")[0]
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(LIMIT_MS)
    way_in = context.new_page()
    way_in.goto(entrance)
    way_in.locator(".connection.live").wait_for()
    way_in.close()
    found = {}
    for view in names:
        page = context.new_page()
        found[view] = look(page, f"{address}#{view}", watched_s)
        page.close()
    context.close()
    return found


def medians(browser: Browser, entrance: str, rounds: int) -> dict[str, Any]:
    """Of so many rounds through all views, after one that is not counted: median, lowest and
    highest of what a person waits for.
    """
    views(browser, entrance, 0.0, VIEWS[:1])
    found = [views(browser, entrance, 0.0) for _ in range(rounds)]
    return {
        view: {what: _summary([one[view][what] for one in found]) for what in WAITED_FOR}
        for view in VIEWS
    }


def _summary(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}–{max(values):.0f})"


def chromium() -> str | None:
    """Return Chromium's path; None if it is not installed (`scripts/test-programs` installs it)."""
    return os.environ.get("ELASTICDL_CHROMIUM") or next(
        filter(None, map(shutil.which, CHROMIUMS)), None
    )


def main(entrance: str, rounds: int = 0) -> None:
    """Run the benchmark. With `rounds`, measure only the waiting times, that often."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"] if os.getuid() == 0 else []
        )
        print(
            json.dumps(medians(browser, entrance, rounds) if rounds else views(browser, entrance)),
            flush=True,
        )
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
