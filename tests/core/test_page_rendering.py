"""The page as text: escaped, without script or style inside, complete, and small however large the
job.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from elasticdl.page import (
    NoSuchFile,
    assets,
    formatting,
    render_page,
    render_report,
    render_sign_in,
    static,
)
from elasticdl.page.markup import Html, el, visible
from elasticdl.page.sketch import lines

pytestmark = pytest.mark.core
ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'\u202egpj.exe"

MARK = {"at_s": 9.0, "kind": "checkpoint", "text": "checkpoint of version 5 saved"}


def process(name: str, state: str = "ready", **more: Any) -> dict[str, Any]:
    usual = {
        "since_s": 3.0,
        "started_s": 0.5,
        "where": "node-1",
        "cause": "",
        "message": "",
        "shard": "",
        "records": 10,
    }
    return {"name": name, "role": name.partition("-")[0], "state": state, **usual, **more}


def bar(row: dict[str, Any]) -> dict[str, Any]:
    ended = row["since_s"] if row["state"] == "ended" else None
    ready = 2.0 if row["state"] in ("ready", "ended") else None
    return {
        "process": row["name"],
        "role": row["role"],
        "ordered_s": row["started_s"],
        "ready_s": ready,
        "ended_s": ended,
        "state": row["state"],
        "cause": row["cause"],
        "text": row["message"],
        "where": row["where"],
    }


def snapshot(
    rows: list[dict[str, Any]],
    *,
    name: str = "digits",
    shards: int = 40,
    text: str = "worker-0 is started",
) -> dict[str, Any]:
    records = {"expected": 6000, "trained": 1234, "repeated": 7, "bad": 0, "lost": 0, "left": 4766}
    status = {
        "action": "train",
        "phase": "working",
        "state": "running",
        "message": "training, epoch 1 of 2",
        "at_s": 61.0,
        "uptime_s": 61.0,
        "eta_s": 240.0,
        "epoch": 0,
        "epochs": 2,
        "version": 77,
        "records": records,
        "records_per_s": 20.5,
        "shards": {"training": {"todo": shards - 3, "leased": 2, "done": 1, "parked": 0}},
        "scale": {"low": 1, "high": 3, "requested": 2, "observed": 2},
        "processes": rows,
        "gauges": {
            row["name"]: {"records_per_s": 10.3, "cpu_cores": 0.5, "rss_bytes": 3.0 * 2**20}
            for row in rows
        },
        "loss": 0.25,
        "metrics": {"accuracy": 0.5},
        "checkpoints": [],
        "updates_lost": 0,
        "waiting": [],
        "parked": [],
        "bad_examples": [text],
        "receipt": {"epochs": [{"epoch": 0, **records}], "total": records},
        "exit_code": None,
    }
    occurrence = {
        "seq": 0,
        "at": 0.0,
        "at_s": 1.0,
        "kind": "process",
        "text": text,
        "process": "",
        "cause": "",
        "level": "info",
        "details": {},
    }
    loss = {
        "name": "loss",
        "label": "",
        "unit": "",
        "at_s": [1.0, 2.0, 3.0],
        "records": [10, 20, 30],
        "values": [0.5, None, 0.25],
    }
    return {
        "job": {
            "name": name, "action": "train", "strategy": "ParameterServerStrategy",
            "started_at": 0.0, "version_of_elasticdl": "1", "namespace": "",
        },
        "status": status,
        "occurrences": [occurrence],
        "occurrences_dropped": 0,
        "timeline": {
            "now_s": 61.0, "bars": [bar(row) for row in rows], "marks": [MARK],
            "generations": [{"generation": 1, "at_s": 3.0, "members": ["worker-0"],
                             "reason": "1 worker is ready"}],
        },
        "series": [loss],
        "outcome": None,
    }  # fmt: skip


class Reader(HTMLParser):
    """What a browser would make of it: elements, and the text of those that are no script."""

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


ROWS = [
    process("ps-0"),
    process("worker-0"),
    process("worker-1", "ended", cause="out_of_memory", message="out of memory at 1.0 of 1.0 GiB"),
]


@pytest.mark.parametrize("render", [render_page, render_report])
def test_text_of_users_stays_text(render: Any) -> None:
    attacked = snapshot(
        [process("worker-0", message=ATTACK, where=ATTACK, shard=ATTACK, cause=ATTACK)],
        name=ATTACK,
        text=ATTACK,
    )
    attacked["status"]["metrics"] = {ATTACK: 1.0}
    attacked["status"]["waiting"] = [ATTACK]
    attacked["series"].append({**attacked["series"][0], "name": "metric", "label": ATTACK})
    plain, found = Reader(render(snapshot(ROWS))), Reader(render(attacked))
    assert "alert(1)" in found.text
    assert [attributes for tag, attributes in found.elements if tag == "script"] == [
        attributes for tag, attributes in plain.elements if tag == "script"
    ]
    assert "img" not in [tag for tag, _ in found.elements]
    assert not [
        name for _, attributes in found.elements for name in attributes if name.startswith("on")
    ]
    assert "\u202e" not in found.text


def test_the_page_has_no_script_and_no_style_of_its_own() -> None:
    for page in (render_page(snapshot(ROWS)), render_sign_in(ATTACK)):
        found = Reader(page)
        assert not [tag for tag, _ in found.elements if tag == "style"]
        assert not [attributes for _, attributes in found.elements if "style" in attributes]
        sources = [
            attributes.get("src") or "" for tag, attributes in found.elements if tag == "script"
        ]
        assert sources
        assert all(source.startswith("/static/") for source in sources)


def test_what_would_hold_script_or_style_is_refused_where_it_is_made() -> None:
    for name in ("onclick", "style"):
        with pytest.raises(ValueError, match=name):
            el("p", "x", **{name: "y"})
    assert (
        el("p", "<b>", [Html("<i></i>"), None, 3], title='"', hidden=True, id=None).text
        == '<p title="&quot;" hidden>&lt;b&gt;<i></i>3</p>'
    )


def test_a_report_asks_nobody_and_lets_no_other_script_run() -> None:
    found = Reader(render_report(snapshot(ROWS)))
    assert not [
        attributes
        for _, attributes in found.elements
        if "src" in attributes or str(attributes.get("href", "")).startswith(("http", "/"))
    ]
    policy = next(
        attributes["content"]
        for tag, attributes in found.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_a_reports_data_are_those_of_the_snapshot() -> None:
    given = snapshot(ROWS, name=ATTACK)
    given["status"]["loss"] = float("nan")
    data = re.search(
        r'<script type="application/json" id="snapshot">(.*?)</script>',
        render_report(given),
        re.DOTALL,
    )
    assert data is not None
    found = json.loads(data[1])
    assert found["job"]["name"] == ATTACK
    assert found["status"]["loss"] is None


def test_first_paint_has_it_all_and_grows_neither_with_workers_nor_with_shards() -> None:
    small = render_page(snapshot(ROWS))
    shown = Reader(small)
    for expected in (
        "1,234 of 6,000 records",
        "20 %",
        "4:00 left",
        "out of memory",
        "worker-0 is started",
    ):
        assert expected in shown.text
    assert "polyline" in {tag for tag, _ in shown.elements}
    many = [process(f"worker-{index}", message="quota cpu: 8 of 8 used") for index in range(1000)]
    large = render_page(snapshot(many, shards=100_000))
    assert "100 of 1,000" in large
    assert len(large) < 250_000
    assert large.count("<tr") < 300


def test_files_are_looked_up_by_names_with_their_hash() -> None:
    addresses = re.findall(r'"/static/([^"]+)"', render_page(snapshot(ROWS)))
    assert len(set(addresses)) == 5
    for address in addresses:
        body, kind = static(address)
        assert kind.partition(";")[0] in ("text/javascript", "text/css", "image/svg+xml")
        assert body or address.startswith("plot-")
    for wrong in ("page.js", "../words.py", "page-0123456789abcdef.js", "", "%2e%2e/words.py"):
        with pytest.raises(NoSuchFile):
            static(wrong)


def test_every_module_of_the_page_is_served_and_none_could_end_its_element() -> None:
    folder = Path(assets.__file__).parent / "static"
    own = {"early.js", "sign-in.js"}
    assert {f"{name}.js" for name in assets.MODULES} | own == {
        path.name for path in folder.glob("*.js")
    }
    for name in ("page.js", "early.js", "plot.js"):
        assert "</script" not in assets.text(name).lower()
        assert "<!--" not in assets.text(name)
    assert "import " not in re.sub(r"//.*", "", assets.text("page.js"))


def test_a_report_has_the_ends_of_logs_escaped_and_the_live_page_has_not() -> None:
    found = {
        **snapshot(ROWS),
        "logs": [
            {"process": "worker-1", "text": f"{ATTACK} boom"},
            {"process": "master-0", "text": "calm"},
        ],
    }
    report = render_report(found)
    assert (
        report.count("boom") == 2
        and "<img src=x" not in report
        and "</script><script>alert" not in report
    )
    data = json.loads(report.partition('id="snapshot">')[2].partition("</script>")[0])
    assert [one["process"] for one in data["logs"]] == [
        "worker-1",
        "master-0",
    ] and "The ends of 2 logs" in report
    assert "boom" not in render_page(found)


def test_the_receipt_begins_with_the_newest_epoch_and_has_those_to_come_in_one_row() -> None:
    epochs = [
        {"epoch": epoch, "expected": 10, "trained": 10 if epoch < 249 else 4}
        for epoch in range(50, 250)
    ]
    receipt = {
        "epochs": epochs,
        "epochs_left_out": 50,
        "not_begun": {"epochs": 9, "records": 90},
        "total": {"expected": 2590, "trained": 2494, "left": 96},
        "why_left": "stopped: enough",
    }
    found = snapshot(ROWS)
    found["status"]["receipt"] = receipt
    found["status"]["records"] |= {"resumed": 1000, "undone": 0}
    page = render_page(found)
    rows = re.findall(
        r'<th scope="row">([^<]*)</th>',
        page.partition('id="receipt-rows"')[2].partition("</tbody>")[0],
    )
    assert rows[:3] == ["all", "251–259", "250"] and rows[-1] == "51" and len(rows) == 202
    assert (
        "Left: stopped: enough" in page
        and "1,000 of those trained" in page
        and "50 earlier epochs not shown" in page
    )


def test_a_cause_is_not_said_twice() -> None:
    tone = formatting.tone_of({"state": "ended", "cause": "out_of_memory"})
    assert formatting.told("out of memory at 1.0 of 1.0 GiB\nmore", tone) == " at 1.0 of 1.0 GiB"
    assert formatting.told("killed by signal 9", tone) == " killed by signal 9"
    assert formatting.told("", tone) == ""


def test_a_curve_of_one_value_is_a_dot_with_text_and_one_of_none_says_so() -> None:
    one = {
        "name": "metric",
        "label": "accuracy",
        "unit": "",
        "at_s": [61.0],
        "records": [1200],
        "values": [0.994],
    }
    assert words_of(lines([one], "records")) == "● accuracy one value: 0.994 at 1,200 records"
    assert words_of(lines([{**one, "label": ""}], "at_s")) == "● one value: 0.994 at 1:01"
    two = {**one, "label": "", "at_s": [1.0, 61.0], "records": [10, 1200], "values": [0.5, 0.9]}
    assert lines([two, {**one, "label": ""}], "records").text.count("<polyline") == 2
    assert 'class="dot c1"' in lines([two, {**one, "label": ""}], "records").text
    assert (
        words_of(lines([{**one, "values": [None]}], "records"))
        == words_of(lines([], "at_s"))
        == "no values"
    )


def words_of(found: Html) -> str:
    return re.sub("<[^>]*>", "", found.text)


def test_script_and_first_paint_know_the_same_causes_and_states() -> None:
    script = (Path(assets.__file__).parent / "static/words.js").read_text(encoding="utf-8")
    for name, known in (("CAUSES", formatting.CAUSES), ("STATES", formatting.STATES)):
        table = script.partition(f"const {name} = {{")[2].partition("};")[0]
        found = {
            key: (tone, mark, word)
            for key, tone, mark, word in re.findall(r'(\w+): \["(\w+)", "(.)", "([^"]+)"\]', table)
        }
        assert found == {key: (tone.name, tone.mark, tone.word) for key, tone in known.items()}


def test_what_a_log_has_for_a_terminal_is_left_out_of_a_report() -> None:
    log = "\x1b[1;31mred\x1b[0m\r\n 1/9\r 2/9 \x08\x08\r 3/9\r\n\x1b]0;title\x07\x1b[2Kend\r"
    assert formatting.readable(log) == "red\n 3/9\nend"
    assert formatting.readable("x" * 1_000_000 + "\ry") == "y"
    found = render_report({**snapshot(ROWS), "logs": [{"process": "worker-1", "text": log}]})
    assert "red\n 3/9\nend" in found and "\\u001b" not in found


def test_joiners_stay_and_what_turns_the_order_of_letters_does_not() -> None:
    told = (
        "\U0001f469\u200d\U0001f4bb \u0646\u200c\u062e \U0001fae8 a\u202eb\u2066c\u200bd\ud800\x1b"
    )
    assert (
        visible(told) == "\U0001f469\u200d\U0001f4bb \u0646\u200c\u062e \U0001fae8"
        " a\ufffdb\ufffdc\ufffdd\ufffd\ufffd"
    )


def test_who_stops_a_job_reads_the_whole_command_that_goes_on() -> None:
    found = snapshot(ROWS)
    found["job"]["resume_command"] = "go on with: elasticdl train -f '/jobs/a b/job.yaml' --resume"
    page = render_page(found)
    assert "A last checkpoint is taken: go on with:" in page
    assert "elasticdl train -f '/jobs/a b/job.yaml' --resume " in Reader(page).text
    found["job"]["resume_command"] = (
        "no checkpoint was made: begin afresh with: elasticdl evaluate -f x"
    )
    assert "checkpoint is taken: " not in render_page(
        found
    ) and "begin afresh with:" in render_page(found)
    shown = '<div hidden><p id="resume-command-lead">'
    assert shown not in render_page(found)
    found["status"]["phase"] = "starting"
    assert shown in render_page(found), "no process has begun: there is nothing to go on with"


def test_shards_are_told_in_the_order_in_which_they_are_drawn_and_what_done_means() -> None:
    found = snapshot(ROWS, shards=4)
    found["status"]["shards"] = {"training": {"todo": 0, "leased": 1, "done": 0, "parked": 0}}
    text = Reader(render_page(found)).text
    assert "1 shard; one is done when all of its records are" in text
    assert re.search(r"done\W*0\W*leased\W*1\W*todo\W*0\W*parked\W*0", text)


def test_a_command_of_what_to_do_stands_by_itself() -> None:
    found = {
        **snapshot(ROWS),
        "outcome": {
            "exit_code": 1,
            "message": "gone",
            "hint": "see to it; then go on with: elasticdl train --resume",
        },
    }
    assert "What to do: see to it; then go on with: </p>" in render_report(found)
    assert (
        '<pre class="command"><span>elasticdl</span> <span>train</span> <span>--resume</span>'
        " </pre>" in render_report(found)
    )
    found["outcome"]["hint"] = "a bug"
    assert "What to do: a bug</p>" in render_report(
        found
    ) and 'class="command"' not in render_report(found)
