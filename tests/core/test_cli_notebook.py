"""The live view in a notebook."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from elasticdl.cli.views.live_view import LineView, NoView, view_of_script
from elasticdl.cli.views.notebook import Html, NotebookView, picture, shower
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import NO_RECORDS, JobStatus
from elasticdl.master.core.state import JobState
from tests.statuses import process

pytestmark = pytest.mark.core


class Screen:
    """Keeps all that was shown, as a notebook keeps the last of it."""

    def __init__(self) -> None:
        self.shown: list[Html] = []

    def show(self, what: object) -> Screen:
        self.update(what)
        return self

    def update(self, obj: object) -> None:
        assert isinstance(obj, Html)
        self.shown.append(obj)

    @property
    def html(self) -> str:
        return self.shown[-1]._repr_html_()


class WellFormed(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        assert not self.tags

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def status(**changes: Any) -> JobStatus:
    flags = {"model_zoo": "zoo", "model_def": "iris", "training_data": "a.csv"}
    known: dict[str, Any] = {
        "records": replace(NO_RECORDS, expected=200, trained=50, left=150),
        "records_per_s": 10.0,
        "processes": (process("worker-0", shard="training shard 3"),),
        "loss": 0.5,
    }
    fresh = JobState(JobSpec.from_flags(Action.TRAIN, flags)).status()
    return replace(fresh, **{**known, **changes})


def test_the_picture_has_progress_measures_processes_and_waits() -> None:
    html = picture("job iris", status(waiting=("ps-0 is starting",)), ["starting ps-0"])
    words = " ".join(WellFormed(html._repr_html_()).words)
    for part in (
        "job iris",
        "25 %",
        "50 of 200 records",
        "10 records/s",
        "ETA 15 s",
        "loss 0.5",
        "worker-0",
        "training shard 3",
    ):
        assert part in words
    assert "waiting: ps-0 is starting" in words and "starting ps-0" in words
    assert "job iris" in repr(html) and "25 %" in repr(html), "where there is no HTML"


def test_whatever_a_job_says_is_text() -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    html = picture(evil, status(message=evil, waiting=(evil,)), [evil])._repr_html_()
    assert "<script" not in html and "\x1b" not in html and html.count("&lt;script&gt;") == 4


def test_the_view_is_painted_over_at_most_once_a_second_but_for_news_and_the_end() -> None:
    screen = Screen()
    view = NotebookView(screen.show, "job iris", every_s=3600.0)
    view.show(status(), [])
    before = len(screen.shown)
    view.show(status(), [])
    assert len(screen.shown) == before
    view.show(None, [{"text": "worker-0 ended", "cause": "preempted"}])
    assert (
        len(screen.shown) == before + 1
        and "worker-0 ended [preempted]" in screen.html
        and "25 %" in screen.html
    )
    view.show(status(phase="ended", message="done"), [])
    assert "done" in screen.html


def test_no_token_is_saved_with_a_notebook() -> None:
    screen = Screen()
    NotebookView(screen.show, "job iris").say("status page: http://127.0.0.1:4711/#token=secret")
    assert (
        "secret" not in screen.html
        and "http://127.0.0.1:4711/" in screen.html
        and "elasticdl dashboard" in screen.html
    )


def test_outside_of_a_notebook_there_are_lines() -> None:
    assert shower() is None
    assert isinstance(view_of_script("job iris", show=True), LineView)
    assert isinstance(view_of_script("job iris", show=False), NoView)
