"""What programs read of us is valid, whatever is in it and wherever it goes."""

from __future__ import annotations

import io
import json
import math
import sys
from typing import Any

import pytest
import yaml

from elasticdl.cli.views.documents import Format, as_json, render

pytestmark = pytest.mark.core
ODD: dict[str, Any] = {
    "name": "модель 模型 🙂",
    "path": "caf\udce9.csv",
    "half\ud83d": "\ude00",
    "loss": math.nan,
    "most": [math.inf, -math.inf, 1.5],
    "control": "\x00\x1b[31m\u2028\x85\n\t",
    "none": None,
    "deep": ({"flag": True},),
}


def output_of(monkeypatch: pytest.MonkeyPatch, encoding: str, form: Format) -> bytes:
    target = io.BytesIO()
    monkeypatch.setattr(
        sys, "stdout", io.TextIOWrapper(target, encoding=encoding, errors="strict", newline="")
    )
    sys.stdout.write(render(ODD, form))
    sys.stdout.flush()
    return target.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("form", [Format.JSON, Format.YAML])
def test_data_is_valid_in_every_locale(
    encoding: str, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = output_of(monkeypatch, encoding, form).decode("utf-8")
    found = (
        json.loads(text, parse_constant=pytest.fail)
        if form is Format.JSON
        else yaml.safe_load(text)
    )
    assert found["name"] == ODD["name"] and found["control"] == ODD["control"]
    assert found["path"] == "caf\N{REPLACEMENT CHARACTER}.csv"
    assert found["half\N{REPLACEMENT CHARACTER}"] == "\N{REPLACEMENT CHARACTER}"
    assert (found["loss"], found["most"], found["deep"]) == (
        None,
        [None, None, 1.5],
        [{"flag": True}],
    )
    assert not any(0xD800 <= ord(char) < 0xE000 for char in text)


def test_a_line_of_a_watch_is_one_line() -> None:
    assert as_json(ODD).count("\n") == 1 and as_json({"a": 1}) == '{"a": 1}\n'
