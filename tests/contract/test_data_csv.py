"""CSV as RFC 4180 and Python's own csv module have it, and what is wrong with a file said with its
line.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from elasticdl.data import open_reader
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId
from tests.present import array

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("own_cache")]

fields = st.one_of(
    st.text(st.sampled_from('a",;\t\r\n é')),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
)


def rows_of(
    path: Path, params: Any, begin: int = 0, end: int | None = None, max_bad_records: Any = 0
) -> Any:
    reader = open_reader(str(path), params, max_bad_records=max_bad_records)
    (source,) = reader.sources()
    blocks = list(
        reader.read(Shard(ShardId(1), source.name, begin, source.records if end is None else end))
    )
    return [
        [field.decode() for field in row] for block in blocks for row in array(block.records)
    ], blocks


@st.composite
def tables(draw: Any) -> Any:
    width = draw(st.integers(1, 4))
    return draw(st.lists(st.lists(fields, min_size=width, max_size=width), min_size=1, max_size=12))


@settings(max_examples=400, deadline=None)
@given(
    table=tables(),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    delimiter=st.sampled_from([",", "\t", ";"]),
    last_newline=st.booleans(),
    bom=st.booleans(),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
@example([["a\r", '"'], ["", "\n"]], csv.QUOTE_MINIMAL, "\r\n", ",", False, True, [1])
def test_every_cut_of_a_file_gives_what_python_s_csv_module_reads(
    table: Any, quoting: Any, newline: Any, delimiter: Any, last_newline: Any, bom: Any, cuts: Any
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=quoting, lineterminator=newline, delimiter=delimiter).writerows(table)
    text = out.getvalue()
    if not last_newline and not text.endswith(newline * 2):
        text = text.removesuffix(newline)
    expected = [
        row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row
    ]
    assume(expected)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
        params = {"header": False, "delimiter": delimiter}
        assume(
            all(len(row) == len(expected[0]) for row in expected)
        )  # the writer leaves some newlines unquoted
        limits = [0, *sorted(min(cut, len(expected)) for cut in cuts), len(expected)]
        found = [rows_of(path, params, begin, end)[0] for begin, end in pairwise(limits)]
    assert [row for part in found for row in part] == expected


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from('ab",\r\n'), min_size=1, max_size=40), st.integers(1, 5), st.data())
def test_any_text_at_all_is_read_the_same_however_it_is_cut(
    text: str, columns: Any, data: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(text.encode())
        params: dict[str, Any] = {"header": False, "column_names": ",".join("abcde"[:columns])}
        try:
            reader = open_reader(str(path), params, max_bad_records=100)
            (source,) = reader.sources()
        except UserError:
            # an open quote, no record, or another number of columns: there is nothing to read
            return
        whole, blocks = rows_of(path, params, max_bad_records=100)
        assert sum(block.count for block in blocks) == source.records
        assert len(whole) + sum(block.bad for block in blocks) == source.records
        cut = data.draw(st.integers(0, source.records))
        assert (
            rows_of(path, params, 0, cut, 100)[0] + rows_of(path, params, cut, None, 100)[0]
            == whole
        )


def test_the_index_and_the_parser_agree_over_many_strides_and_blocks(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    rows = [
        [f"{i}", "x" * (i % 50), 'say "hi",\nthen go' if i % 3 == 0 else "plain"]
        for i in range(30_000)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["i", "x", "text"], *rows])
    assert rows_of(path, {}, 12_345, 29_999)[0] == rows[12_345:29_999]


def test_rows_longer_than_the_scanner_s_buffer_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    rows = [[str(i), ("line\n" if i % 2 else "word ") * 700_000] for i in range(4)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["i", "text"], *rows])
    assert rows_of(path, {})[0] == rows


def test_a_file_of_one_row_without_newline_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2")
    assert rows_of(path, {})[0] == [["1", "2"]]


def test_header_names_come_without_the_byte_order_mark_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b'\xef\xbb\xbf"the, first",second\r\n1,2\r\n')
    assert open_reader(str(path), {}).metadata.column_names == ("the, first", "second")


def test_names_can_be_given_with_and_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n")
    assert open_reader(str(path), {"column_names": "x, y"}).metadata.column_names == ("x", "y")
    assert rows_of(path, {"column_names": "x,y"})[0] == [["1", "2"]]
    assert rows_of(path, {"column_names": "x,y", "header": False})[0] == [["a", "b"], ["1", "2"]]
    assert open_reader(str(path), {"header": False}).metadata.column_names == (
        "column_0",
        "column_1",
    )


@pytest.mark.parametrize(
    ("text", "words", "hint", "limit"),
    [
        ("a,b\n", " has no records", "", 0),
        (
            "5.1,3.5,setosa\n4.9,3.0,setosa\n",
            ":1: the header looks like data: 5.1, 3.5, setosa",
            "header=false",
            0,
        ),
        (
            'a,b\n1,2\n3,"4\n5,6\n7,8\n',
            ":3: a quote in this row is never closed (offset 8)",
            "quoting=false",
            99,
        ),
    ],
)
def test_a_missing_or_lonely_header_and_an_open_quote_are_reported_with_their_line(
    tmp_path: Path, text: str, words: str, hint: str, limit: int
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(f"data.csv{words}")) as caught:
        open_reader(str(path), {}, max_bad_records=limit).sources()
    assert hint in caught.value.hint


def test_the_first_bad_row_is_reported_with_its_line_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('a,b\n1,"two\nlines"\n\n3\n4,5,6\n7,8\n')
    with pytest.raises(UserError) as caught:
        open_reader(str(path), {}).sources()
    assert (
        caught.value.message
        == f"{path}:5: expected 2 fields, got 1: '3'\n2 bad records in the data, at most 0 allowed"
    )
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(UserError, match=r"\n1 bad record in the data, at most 0 allowed$"):
        open_reader(str(path), {}).sources()


def test_bad_rows_within_the_limit_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('a,b\n1,2\n3\n"x"y,5\n7,8\n')
    rows, blocks = rows_of(path, {}, max_bad_records=2)
    assert rows == [["1", "2"], ["7", "8"]]
    assert [(block.count, block.bad) for block in blocks] == [(4, 2)]
    assert blocks[0].bad_examples == (
        f"{path}:3: expected 2 fields, got 1: '3'",
        f"{path}:4: text between a closing quote and the end of its field: '\"x\"y,5'",
    )


def test_lines_are_right_far_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + '"1\n\n",2\n\n' * 5000 + "bad\n")
    _, blocks = rows_of(path, {}, 4990, max_bad_records=1)
    assert blocks[-1].bad_examples[0].startswith(f"{path}:20002: ")


def test_without_quoting_a_quote_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('a,b\n1,2\n3,"4\n5,6\n7,8\n')
    assert rows_of(path, {"quoting": False})[0] == [["1", "2"], ["3", '"4'], ["5", "6"], ["7", "8"]]


@pytest.mark.parametrize(
    ("texts", "header", "words"),
    [
        (("a,b\n1,2\n", "b,a\n1,2\n"), True, r" than .*1\.csv: b, a, expected a, b"),
        (("1,2\n", "1,2,3\n"), False, ""),
    ],
    ids=["a header", "headless"],
)
def test_files_with_other_columns_are_refused(
    tmp_path: Path, texts: tuple[str, str], header: bool, words: str
) -> None:
    for number, text in enumerate(texts, 1):
        (tmp_path / f"{number}.csv").write_text(text)
    with pytest.raises(UserError, match=rf"2\.csv has other columns{words}"):
        open_reader(str(tmp_path), {"header": header}).sources()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,a\n1,2\n", "column 'a' more than once"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"a,\xff\n1,2\n", "not UTF-8"),
        (b"\xef\xbb\xbf", "first row is missing"),
        (b"\n\n\n", "first row is missing"),
    ],
)
def test_headers_that_cannot_be_used_are_refused(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        open_reader(str(path), {}).sources()


def test_a_row_that_does_not_end_is_told_from_an_open_quote(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,b\n1,2\n" + b"x" * (65 << 20) + b"\n")
    with pytest.raises(UserError, match=r"data\.csv:3: a row is longer than 64 MiB \(offset 8\)"):
        open_reader(str(path), {}).sources()
    path.write_bytes(b'a,b\n1,2\n"' + b"x" * (65 << 20) + b"\n")
    with pytest.raises(UserError, match=r"data\.csv:3: a quote in this row is never closed"):
        open_reader(str(path), {}).sources()


def test_a_compressed_file_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    for params in ({}, {"format": "csv"}, {"header": False}):
        with pytest.raises(UserError, match="compressed with gzip"):
            open_reader(str(path), params).sources()


def test_bytes_that_are_no_text_reach_feed_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,b\n\xff\x00,2\n")
    reader = open_reader(str(path), {})
    (block,) = reader.read(Shard(ShardId(1), reader.sources()[0].name, 0, 1))
    assert array(block.records).tolist() == [[b"\xff\x00", b"2"]]
