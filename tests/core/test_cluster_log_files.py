"""Log files are listed, and read by offset, whatever name is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.cluster.logs.log_files import NoSuchLog, log_sizes, read_log

pytestmark = pytest.mark.core


def test_logs_are_listed_and_read_by_offset(tmp_path: Path) -> None:
    text = "αβ first\nsecond\n".encode()
    (tmp_path / "worker-0.log").write_bytes(text)
    assert log_sizes(tmp_path) == {"worker-0": len(text)}
    last = read_log(tmp_path, "worker-0", -7, 4)
    assert (last.start, last.data, last.size_bytes) == (len(text) - 7, b"seco", len(text))
    for start, expected in ((len(text), len(text)), (10**15, len(text)), (-(10**15), 0), (0, 0)):
        part = read_log(tmp_path, "worker-0", start, 5)
        assert part.start == expected and part.data == text[expected : expected + 5]


def test_incarnations_share_a_log(tmp_path: Path) -> None:
    (tmp_path / "ps-0.log").write_bytes(b"both")
    assert read_log(tmp_path, "ps-0.1", 0, 10).data == b"both"


@pytest.mark.parametrize(
    "name",
    [
        "worker-1",
        "",
        ".",
        "..",
        "../worker-0",
        "/etc/passwd",
        "worker-0/../worker-0",
        "worker-0.log",
        "worker-0\0",
        "*",
    ],
)
def test_a_name_is_looked_up_and_never_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "worker-0.log").write_bytes(b"x\n")
    with pytest.raises(NoSuchLog):
        read_log(tmp_path, name, 0, 10)


def test_a_missing_directory_has_no_logs(tmp_path: Path) -> None:
    assert log_sizes(tmp_path / "logs") == {}
