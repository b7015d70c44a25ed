"""The documents that Python makes: escaped, without script or style inside, and the same however
large the job.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from elasticdl.master.core.processes.causes import Cause
from elasticdl.master.core.processes.table import Life
from elasticdl.page import NoSuchFile, assets, render_page, render_report, render_sign_in, static
from elasticdl.page.markup import Html, el, visible
from tests.snapshots import ATTACK, process, snapshot

pytestmark = pytest.mark.core
STATIC = Path(assets.__file__).parent / "static"
OUTCOME = {"exit_code": 1, "message": "a shard failed:\nattempt 1", "hint": "see to <it>"}


class Reader(HTMLParser):
    """What a browser without script makes of it: elements, and the text of those it shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def data_of(page: str) -> Any:
    return json.loads(
        page.partition('id="snapshot"')[2].partition(">")[2].partition("</script>")[0]
    )


@pytest.mark.parametrize("render", [render_page, render_report])
def test_text_of_users_stays_text_and_their_snapshot_is_embedded_whole(render: Any) -> None:
    attacked = snapshot([process("worker-0", message=ATTACK)], name=ATTACK, text=f"<!--{ATTACK}")
    attacked["outcome"] = {"exit_code": 1, "message": ATTACK, "hint": ATTACK}
    attacked["logs"] = [{"process": "worker-0", "text": ATTACK}]
    ended = {**snapshot(), "outcome": OUTCOME}
    page = render(attacked)
    plain, found = Reader(render(ended)), Reader(page)
    assert found.elements == plain.elements, "texts make no elements and no attributes"
    assert found.text.count("gpj.exe") == 5, "title, name, message, hint and command"
    assert "\u202e" not in found.text
    assert data_of(page) == attacked


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ["digits", "running: 1,234 of 6,000 records, 20 %", "training, epoch 1 of 2"]),
        ({"outcome": OUTCOME}, ["running: 1,234", "a shard failed:\nattempt 1", "see to <it>"]),
        ({"outcome": {**OUTCOME, "hint": ""}}, ["a shard failed"]),
    ],
)
def test_a_browser_without_script_shows_how_the_job_stands(
    change: dict[str, Any], told: list[str]
) -> None:
    for render in (render_page, render_report):
        text = Reader(render({**snapshot(), **change})).text
        for expected in (*told, "elasticdl status digits"):
            assert expected in text
        assert ("What to do" in text) == ("see to <it>" in told)
        assert ("Reload" in text) == (render is render_page and not change)


def test_the_document_has_no_script_and_no_style_of_its_own() -> None:
    for page in (render_page(snapshot()), render_sign_in(ATTACK)):
        found = Reader(page)
        assert not found.of("style") and not found.of("img")
        assert not [
            name
            for _, attributes in found.elements
            for name in attributes
            if name == "style" or name.startswith("on")
        ]
        scripts = [one for one in found.of("script") if one.get("type") != "application/json"]
        assert scripts
        assert all(str(script.get("src")).startswith("/static/") for script in scripts)


def test_what_would_hold_script_or_style_is_refused_where_it_is_made() -> None:
    for name in ("onclick", "style"):
        with pytest.raises(ValueError, match=name):
            el("p", "x", **{name: "y"})
    assert (
        el("p", "<b>", [Html("<i></i>"), None, 3], title='"', hidden=True, id=None).text
        == '<p title="&quot;" hidden>&lt;b&gt;<i></i>3</p>'
    )


def test_a_report_asks_nobody_and_lets_no_other_script_run() -> None:
    found = Reader(render_report(snapshot()))
    assert not [
        attributes
        for _, attributes in found.elements
        if "src" in attributes or str(attributes.get("href", "")).startswith(("http", "/"))
    ]
    (policy,) = [
        str(one["content"])
        for one in found.of("meta")
        if one.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_what_stands_around_the_snapshot_does_not_grow_with_the_job() -> None:
    sizes = []
    for workers in (1, 1000):
        found = snapshot([process(f"worker-{index}") for index in range(workers)])
        sizes.append(len(render_page(found)) - len(json.dumps(found, separators=(",", ":"))))
    assert sizes[0] == sizes[1] < 3000


def test_files_are_looked_up_by_names_with_their_hash() -> None:
    addresses = re.findall(r'"/static/([^"]+)"', render_page(snapshot()))
    assert len(set(addresses)) == 5
    for address in addresses:
        body, kind = static(address)
        assert kind.partition(";")[0] in ("text/javascript", "text/css", "image/svg+xml")
        assert body or address.startswith("plot-")
    for wrong in ("page.js", "../words.py", "page-0123456789abcdef.js", "", "%2e%2e/words.py"):
        with pytest.raises(NoSuchFile):
            static(wrong)


def test_every_module_of_the_page_is_served_and_none_could_end_its_element() -> None:
    own = {"early.js", "sign-in.js"}
    assert {f"{name}.js" for name in assets.MODULES} | own == {
        path.name for path in STATIC.glob("*.js")
    }
    assert {f"{name}.css" for name in assets.STYLES} == {path.name for path in STATIC.glob("*.css")}
    for name in ("page.js", "early.js", "plot.js"):
        assert "</script" not in assets.text(name).lower()
        assert "<!--" not in assets.text(name)
    assert "import " not in re.sub(r"//.*", "", assets.text("page.js"))


def test_scripts_make_no_markup_out_of_text_and_no_code_either() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    for path in STATIC.glob("*.js"):
        assert not re.search(forbidden, path.read_text(encoding="utf-8")), path.name


def test_the_script_knows_each_cause_and_each_state() -> None:
    script = (STATIC / "format.js").read_text(encoding="utf-8")
    for name, known in (("CAUSES", set(Cause)), ("STATES", set(Life) - {Life.ENDED})):
        table = script.partition(f"const {name} = {{")[2].partition("};")[0]
        assert set(re.findall(r"^  (\w+): \[", table, re.MULTILINE)) == {str(one) for one in known}


def test_joiners_stay_and_what_turns_the_order_of_letters_does_not() -> None:
    told = (
        "\U0001f469\u200d\U0001f4bb \u0646\u200c\u062e \U0001fae8 a\u202eb\u2066c\u200bd\ud800\x1b"
    )
    assert (
        visible(told) == "\U0001f469\u200d\U0001f4bb \u0646\u200c\u062e \U0001fae8"
        " a\ufffdb\ufffdc\ufffdd\ufffd\ufffd"
    )
