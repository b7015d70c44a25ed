"""The files of a journal: names, lines with checksums, and reading.

| file | content |
|---|---|
| `run-0001-000003.jsonl` | segment 3 of run 1: a header, then one event a line |
| `run-0001-000003-65536.image` | the core's state after the first 65,536 bytes of segment 3 |
| `run-0001.start` | the event JobStarted, which images refer to |
| `run-0001.gap` | events of the run are missing: it cannot be continued |
| `run-0001.term-7` | empty: the master of term 7 continues, and earlier ones may not act any more |

A run is one launch of the job, whatever number of masters it has. A line is `<crc32 of the rest, 8
hex digits> <JSON>`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

from elasticdl.errors import Corrupted
from elasticdl.master import core
from elasticdl.master.core.codec import event_of, event_plain
from elasticdl.master.core.events import Event

FORMAT = 1
"""Of segments. Another format is refused, not guessed."""
# `json.dumps` makes an encoder for each call that names separators.
_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode
_SEGMENT = re.compile(r"run-(\d{4,})-(\d{6,})\.jsonl")
_TERM = re.compile(r"run-(\d{4,})\.term-(\d+)")
_IMAGE = re.compile(r"run-(\d{4,})-(\d{6,})-(\d+)\.image")
_MARK = re.compile(r"run-\d{4,}\.(start|gap)")


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """The first `bytes` of a segment."""

    segment: int
    bytes: int


@final
@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a segment. `run` names the launch, `term` the master that wrote it.

    `after` is what this segment continues. What else there is between the two does not count: a
    master that was replaced may have written it. None: it continues all of the segment before.
    """

    run: str
    term: int
    after: Extent | None = None

    def line(self) -> bytes:
        after = {} if self.after is None else {"after": [self.after.segment, self.after.bytes]}
        return line({"format": FORMAT, "run": self.run, "term": self.term, **after})


def line(plain: object) -> bytes:
    """Encode one line."""
    text = _TO_JSON(plain).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def event_line(event: Event) -> bytes:
    """Encode an event."""
    return line(event_plain(event))


def parsed(text: bytes, where: str) -> Any:  # noqa: ANN401 - any JSON
    """Decode a line. Raises Corrupted."""
    checksum, _, plain = text.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(plain):
        raise Corrupted(
            f"{where}: the line is damaged: checksum {checksum[:8]!r}, expected"
            f" {zlib.crc32(plain):08x}"
        )
    # Of bytes it would look for the encoding first.
    return json.loads(plain.decode())


@final
@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of events."""

    run: int
    number: int
    path: Path


@final
@dataclass(frozen=True, slots=True, order=True)
class Image:
    """A state after the first `offset` bytes of a segment."""

    run: int
    segment: int
    offset: int
    path: Path


def segments(directory: Path) -> list[Segment]:
    """Return every segment, in order."""
    return sorted(
        Segment(int(name[1]), int(name[2]), path) for path, name in _named(directory, _SEGMENT)
    )


def images(directory: Path) -> list[Image]:
    """Return every image, in order."""
    return sorted(
        Image(int(name[1]), int(name[2]), int(name[3]), path)
        for path, name in _named(directory, _IMAGE)
    )


def _named(directory: Path, pattern: re.Pattern[str]) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in directory.iterdir() if directory.is_dir() else ():
        if name := pattern.fullmatch(path.name):
            yield path, name


def segment_path(directory: Path, run: int, segment: int) -> Path:
    """Return the path of a segment."""
    return directory / f"run-{run:04d}-{segment:06d}.jsonl"


def image_path(directory: Path, run: int, segment: int, offset: int) -> Path:
    """Return the path of an image."""
    return directory / f"run-{run:04d}-{segment:06d}-{offset}.image"


def start_path(directory: Path, run: int) -> Path:
    """Return the path of a run's JobStarted."""
    return directory / f"run-{run:04d}.start"


def gap_path(directory: Path, run: int) -> Path:
    """Return the path of the mark of a run that lacks events."""
    return directory / f"run-{run:04d}.gap"


def term_path(directory: Path, run: int, term: int) -> Path:
    """Return the path of the mark that a master continues a run."""
    return directory / f"run-{run:04d}.term-{term}"


def needed(directory: Path, run: int) -> list[Path]:
    """Return the files from which a next master of the run restores the state. Raises OSError."""
    newest = [image for image in images(directory) if image.run == run][-1:]
    first = newest[0].segment if newest else 0
    later = [
        segment.path
        for segment in segments(directory)
        if segment.run == run and segment.number >= first
    ]
    marks = [
        mark for mark in (start_path(directory, run), gap_path(directory, run)) if mark.exists()
    ]
    return [*marks, *(image.path for image in newest), *later]


def is_name(name: str) -> bool:
    """Whether a file that `needed` returns can have this name."""
    return any(pattern.fullmatch(name) for pattern in (_SEGMENT, _IMAGE, _MARK))


def terms(directory: Path, run: int) -> list[int]:
    """Return the terms of the masters that continue a run. Raises OSError."""
    named = _named(directory, _TERM)
    return sorted(int(name[2]) for _, name in named if int(name[1]) == run)


def header_of(path: Path) -> Header:
    """Read the header of a segment. Raises OSError, Corrupted."""
    with path.open("rb") as lines:
        return _header(lines.readline(), f"{path}:1")


def _header(text: bytes, where: str) -> Header:
    plain = parsed(text, where)
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise Corrupted(
            f"{where}: not a journal of format {FORMAT}",
            hint="check whether another version wrote this journal",
        )
    after = plain.get("after")
    extent = None if after is None else Extent(int(after[0]), int(after[1]))
    return Header(str(plain["run"]), int(plain["term"]), extent)


def events_of(
    path: Path, *, last: bool, offset: int = 0, end: int | None = None
) -> Iterator[Event]:
    """Yield the events of a segment, from a byte that begins a line up to `end`.

    A crash may leave a partial last line in the `last` segment. It was never acted upon, so it is
    ignored. Any other invalid line raises Corrupted with file and line.
    """
    with path.open("rb") as lines:
        lines.seek(offset)
        since = f" of those after byte {offset}" if offset else ""
        file = str(path)
        at = offset
        for number, text in enumerate(lines, 1):
            at += len(text)
            if end is not None and at > end:
                return
            where = f"{file}:{number}{since}"
            if not text.endswith(b"\n"):
                if last:
                    return
                raise Corrupted(f"{where}: the line is truncated, but later segments follow")
            if number == 1 and not offset:
                _header(text, where)
            else:
                yield event_in(text, where)


def events_named(path: Path, name: str) -> Iterator[Event]:
    """Yield the events of a segment with a word in their lines, except damaged ones."""
    with path.open("rb") as lines:
        for number, text in enumerate(lines, 1):
            # A run may have hundreds of megabytes: only these lines are decoded.
            if name.encode() in text:
                with suppress(Corrupted):
                    yield event_in(text, f"{path}:{number}")


def event_in(text: bytes, where: str) -> Event:
    """Decode a line with an event. Raises Corrupted."""
    try:
        return event_of(parsed(text, where))
    except ValueError as error:
        raise Corrupted(
            f"{where}: {error}", hint="check whether another version wrote this journal"
        ) from error


def whole_bytes(path: Path) -> int:
    """Return the size of a file without a partial last line. Raises OSError."""
    with path.open("rb") as file:
        return file.read().rfind(b"\n") + 1


def trim(path: Path, size: int) -> None:
    """Cut a file, so that further segments may follow. Raises OSError."""
    os.truncate(path, size)


@cache
def code_fingerprint() -> str:
    """Return what identifies the code that an image belongs to."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(core.__path__[0]).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
