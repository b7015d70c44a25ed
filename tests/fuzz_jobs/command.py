"""From a draft to files and a command line."""

from __future__ import annotations

import shutil
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fuzz_jobs import records
from tests.fuzz_jobs.flags import STYLES, Draft, Placeholder, Value

ZOO = Path(__file__).parent / "zoo"


@dataclass(frozen=True)
class Prepared:
    """What a draft became. `arguments` are those of `elasticdl train`.

    `patience`: on a busy machine it may stand still, and last, so many times as long. `options`
    are those of this program that the seed alone does not say.
    """

    draft: Draft
    folder: Path
    arguments: list[str]
    patience: float = 1.0
    options: str = ""

    def elsewhere(self, folder: Path) -> Prepared:
        """The same flags with the module and the data of this one, for another job below
        `folder`.
        """
        moved = {
            str(self.job): str(folder / "job"),
            str(self.folder / "export"): str(folder / "export"),
        }
        more = [] if "job_dir" not in self.draft.in_file else ["--job-dir", str(folder / "job")]
        if "output" in self.draft.in_file:
            more += ["--output", str(folder / "export")]
        arguments = [*(moved.get(argument, argument) for argument in self.arguments), *more]
        return replace(self, folder=folder, arguments=arguments)

    @property
    def job(self) -> Path:
        return self.folder / "job"

    @property
    def output(self) -> Path | None:
        """Where it exports to; None: nowhere."""
        return self.folder / "export" if "output" in self.draft.flags else None


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "elasticdl.cli.main", *arguments]


def prepared(draft: Draft, folder: Path) -> Prepared:
    """Write its module, its data and its YAML below an empty folder."""
    _write_zoo(draft, folder / "zoo")
    training = _write_data(draft, folder / "training", draft.files)
    if draft.bad:
        _spoil(draft, folder / "training")
    places = {
        Placeholder.ZOO: folder / "zoo",
        Placeholder.TRAINING: training,
        Placeholder.VALIDATION: (
            _write_data(draft, folder / "validation", (draft.validation,))
            if draft.validation
            else ""
        ),
        Placeholder.OUTPUT: folder / "export",
        Placeholder.TENSORBOARD: folder / "tensorboard",
        Placeholder.JOB: folder / "job",
        Placeholder.FREE_PORT: _free_port() if Placeholder.FREE_PORT in draft.flags.values() else 0,
    }
    values = {
        name: str(places[value]) if isinstance(value, Placeholder) else value
        for name, value in draft.flags.items()
    }
    arguments = _given(draft, values)
    if draft.in_file:
        arguments = ["-f", str(_write_yaml(draft, values, folder / "job.yaml")), *arguments]
    return Prepared(draft, folder, arguments)


def _given(draft: Draft, values: dict[str, Value]) -> list[str]:
    found = []
    for name, value in values.items():
        if name not in draft.in_file:
            flag = name.replace("_", draft.spelling[name])
            text = [] if isinstance(value, bool) else [str(value)]
            found += [f"--no-{flag}" if value is False else f"--{flag}", *text]
    return found


def _write_yaml(draft: Draft, values: dict[str, Value], path: Path) -> Path:
    from elasticdl.yaml_documents import as_yaml

    path.write_text(
        as_yaml({name.replace("_", draft.spelling[name]): values[name] for name in draft.in_file})
    )
    return path


def _write_zoo(draft: Draft, zoo: Path) -> None:
    shutil.copytree(ZOO, zoo, ignore=shutil.ignore_patterns("__pycache__"))
    names = [
        "Subclassed",
        "custom_model",
        "eval_metrics_fn",
        "feed_batch" if draft.by_batches else "feed",
    ]
    names += (
        ["callbacks"] if draft.callbacks or draft.pause_s or draft.choose.random() < 0.3 else []
    )
    lines = [f"from counting import {', '.join(names)}"]
    lines.append(f"from {'ring_counting' if draft.on_ring else 'counting'} import loss, optimizer")
    if draft.style == "lines":
        lines += ["", "def custom_data_reader(data_origin, records_per_task=None, ignored=0):"]
        lines += ["    from counting import LinesReader", "    return LinesReader(data_origin)"]
    (zoo / "parts").mkdir()
    (zoo / "parts/model.py").write_text("\n".join(lines) + "\n")


def _write_data(draft: Draft, folder: Path, files: tuple[int, ...]) -> str:
    """What the flag says: a file, a folder, or a glob."""
    folder.mkdir()
    suffix, begin = STYLES[draft.style][0], 0
    for number, count in enumerate(files):
        ids = range(begin, begin + count)
        records.write(folder / f"part-{number}{suffix}", draft.style, ids, group=draft.group)
        begin += count
    if draft.style == "lines":
        return str(folder)
    if draft.as_glob:
        return str(folder / f"part-*{suffix}")
    return (
        str(folder)
        if len(files) > 1 or draft.choose.random() < 0.5
        else str(folder / f"part-0{suffix}")
    )


def _spoil(draft: Draft, folder: Path) -> None:
    for number in range(len(draft.files)):
        path = folder / f"part-{number}.csv"
        bad = [(line, records.BAD_ROW) for file, line in draft.bad_rows if file == number]
        bad += [
            (line, f"row,{records.BAD_CELL}") for file, line in draft.bad_cells if file == number
        ]
        for line, text in sorted(bad, reverse=True):
            records.spoil(path, text, [line])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
