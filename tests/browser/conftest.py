"""Chromium, windows that record what they ask for and complain about, and a running job whose page
they look at.
"""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from bench import paint
from tests.conftest import Job, write_iris

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
LIMIT_MS = 60_000
"""For what takes a moment; longer than one on a busy machine."""
START_S = 240.0
STEADY = """
window.steady = { figures: 0, shift: 0, byEvents: 0, moved: [] };
const isEvent = ({ node }) => (node?.parentElement ?? node)?.closest("#recent");
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) {
    steady.shift += one.value;
    if (one.sources.length && one.sources.every(isEvent)) steady.byEvents += one.value;
    else steady.moved.push([one.value, ...one.sources.map(({ node }) => node?.textContent)]);
  }
}).observe({ type: "layout-shift", buffered: true });
addEventListener("DOMContentLoaded", () => {
  steady.figures = document.querySelectorAll("#facts > div").length;
});
"""
"""For `add_init_script`: figures of the head before anything is painted, how far what was painted
has moved since, as browsers measure it, and what moved. Each new event of the job moves the earlier
ones: `byEvents` is that part.
"""
# Its own are five seconds, which a page that is told once a second may need on a busy machine.
expect.set_options(timeout=LIMIT_MS)


# By module: Playwright has its event loop run in this thread as long as it is open, so that nobody
# else's `asyncio.run` works.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = paint.chromium()
    if path is None:
        assert not os.environ.get("CI"), (
            "in CI the browser tests must run, but there is no Chromium: see scripts/test-programs"
        )
        pytest.skip("there is no Chromium: see scripts/test-programs")
    as_root = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *as_root])
        yield browser
        browser.close()


@dataclass
class Window:
    """A window of its own profile."""

    page: Page
    asked: list[str] = field(default_factory=list)
    """Addresses of all requests."""
    problems: list[str] = field(default_factory=list)
    """Errors of scripts, and all that the browser's console calls an error.

    At the end of a test there is none.
    """
    breaks: bool = False
    """The connection is cut on purpose: the browser tells of that."""

    def foreign(self, origin: str) -> list[str]:
        return [address for address in self.asked if not address.startswith((origin, "data:"))]

    def numbers(self) -> dict[str, str]:
        """The figures of the head by their label."""
        rows = self.page.locator("#facts > div").all_inner_texts()
        return {label: value for label, _, value in (row.partition("\n") for row in rows)}


@pytest.fixture
def open_window(chromium: Browser) -> Iterator[Callable[..., Window]]:
    """Keyword arguments are those of a browser context."""
    contexts: list[BrowserContext] = []
    windows: list[Window] = []

    def make(**options: Any) -> Window:
        # What moves between two updates is painted sixty times a second, on a core of the tests.
        still = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
        context = chromium.new_context(**{**still, **options})
        contexts.append(context)
        context.set_default_timeout(LIMIT_MS)
        window = Window(context.new_page())
        window.page.on("request", lambda request: window.asked.append(request.url))
        window.page.on("pageerror", lambda error: window.problems.append(str(error)))

        def problem(message: ConsoleMessage) -> None:
            if message.type == "error":
                window.problems.append(message.text)

        window.page.on("console", problem)
        windows.append(window)
        return window

    yield make
    for context in contexts:
        context.close()
    assert [problem for window in windows if not window.breaks for problem in window.problems] == []


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's source."""
    install = runpy.run_path(str(ROOT / "elasticdl/page/npm/install.py"))["installed"]
    return (install(Path(__file__).parent / "npm") / "axe-core/axe.min.js").read_text(
        encoding="utf-8"
    )


@pytest.fixture
def violations(axe: str, open_window: Callable[..., Window]) -> Callable[..., list[str]]:
    """What axe finds at an address, in both colour schemes and each tab."""

    def look(address: str, sign_in: str = "", tabs: tuple[str, ...] = ("overview",)) -> list[str]:
        found = []
        for scheme in ("light", "dark"):
            window = open_window(color_scheme=scheme)
            window.page.add_init_script(axe)
            window.page.goto(f"{address}{sign_in}")
            if sign_in:
                window.page.locator(".connection.live").wait_for()
            for tab in tabs:
                window.page.goto(f"{address}#{tab}")
                window.page.locator(f"#{tab}").wait_for()
                for violation in window.page.evaluate(
                    "() => axe.run({ resultTypes: ['violations'] })"
                )["violations"]:
                    where = "; ".join(node["html"][:160] for node in violation["nodes"][:3])
                    found.append(f"{scheme} #{tab} {violation['id']}: {violation['help']}: {where}")
        return found

    return look


@dataclass
class Shown:
    """A running job and its page."""

    job: Job
    address: str
    token: str

    @property
    def entrance(self) -> str:
        """As `train` prints it."""
        return f"{self.address}#token={self.token}"

    def enter(self, window: Window, tab: str = "overview") -> None:
        """Sign in and wait until the page is live."""
        window.page.goto(self.entrance)
        window.page.locator(".connection.live").wait_for()
        window.page.goto(f"{self.address}#{tab}")


PACED = """
import time


class Paced(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.25)


def callbacks():
    return [Paced()]
"""


@contextmanager
def shown(start: Callable[..., Job], folder: Path) -> Iterator[Shown]:
    """A job on iris that lasts for longer than any test, once it trains, and leaves the cores to
    the browser.
    """
    module = (ROOT / "model_zoo/iris.py").read_text() + PACED
    (folder / "iris.py").write_text(module)
    job = start(
        model_zoo=folder,
        model_def="iris",
        training_data=write_iris(folder / "iris.csv", 20),
        num_workers="2",
        num_ps_pods=1,
        minibatch_size=16,
        num_epochs=2000,
    )
    job.wait_until("training began", lambda status: status["records"]["trained"] > 0, START_S)
    where = json.loads((job.directory / "master.json").read_text())
    yield Shown(job, where["page"].partition("#")[0], where["token"])
