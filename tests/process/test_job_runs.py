"""Whole jobs, started from the command line, to which nothing happens: trained and predicted
with.
"""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from model_zoo import make_data
from tests.conftest import Job, write_iris

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


FILES, EACH = 100, 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 records."""
    return write_iris(tmp_path_factory.mktemp("data") / "iris.csv", 8)


@pytest.fixture(scope="module")
def files(data: Path) -> Path:
    """The same records in a hundred files. What one of many costs: `test_data_many_files.py`."""
    header, *rows = data.read_text().splitlines()
    folder = data.parent / "files"
    folder.mkdir()
    for number in range(FILES):
        part = rows[number::FILES]
        assert len(part) == EACH
        (folder / f"part-{number:05d}.csv").write_text("\n".join([header, *part, ""]))
    return folder


@pytest.fixture(scope="module")
def trained(start_jobs: Callable[..., Job], data: Path, files: Path) -> Job:
    """By the issue's own command, which leaves checkpoints, too; with TLS as on a cluster."""
    job = start_jobs(
        model_def="iris",
        training_data=files,
        validation_data=data,
        num_epochs=2,
        minibatch_size=32,
        num_workers="1:3",
        num_ps_pods=2,
        output=data.parent / "export",
        checkpoint_steps=20,
        tls="on",
    )
    code, output = job.finish()
    assert code == 0, output
    return job


def test_the_issues_own_command_on_a_hundred_files_ends_with_a_clean_receipt_and_an_export(
    trained: Job, data: Path
) -> None:
    total = trained.receipt()["total"]
    assert (total["expected"], total["trained"], total["lost"], total["repeated"]) == (
        2400,
        2400,
        0,
        0,
    )
    assert [epoch["trained"] for epoch in trained.receipt()["epochs"]] == [1200] * 2
    assert (data.parent / "export" / "saved_model.pb").exists()
    assert trained.final("accuracy") > 0.9


def test_the_receipt_accounts_for_all_time_of_all_workers(trained: Job) -> None:
    account, ran_s, unready_s = trained.receipt()["goodput"], 0.0, 0.0
    began_s: dict[str, float] = {}
    for event in trained.events():
        details = event.get("details", {})
        if event["kind"] != "process" or not event["process"].startswith("worker-"):
            continue
        if details.get("step") == "ready":
            launched_s = event["at_s"] - details["after_s"]
            began_s[event["process"]] = launched_s + details["pending_s"]
        elif details.get("step") == "ended" and event["process"] in began_s:
            ran_s += event["at_s"] - began_s[event["process"]]
        elif details.get("step") == "ended":  # the job was over before it was ready
            unready_s += event["at_s"]
    spent = {f"{one['kind']}.{one['cause']}": one["seconds"] for one in account["spent"]}
    print(account["share"], spent)
    assert sum(spent.values()) == pytest.approx(account["seconds"], rel=0.005)
    assert 0.995 * ran_s <= account["seconds"] <= 1.005 * ran_s + unready_s
    assert {"start.launch", "start.build", "start.compile", "compute.step"} <= spent.keys()
    assert 0.0 < account["share"] < 1.0


def test_only_the_owner_may_look_into_the_directory_of_a_job(trained: Job) -> None:
    there = [trained.directory, *trained.directory.rglob("*")]
    names = {path.relative_to(trained.directory).as_posix() for path in there}
    assert {"report.html", "events.jsonl", "series.json", "preflight.json", "checkpoints"} <= names
    open_to_others = {
        str(path): oct(stat.S_IMODE(path.stat().st_mode))
        for path in there
        if path.stat().st_mode & 0o077
    }
    assert not open_to_others


def test_its_checkpoint_predicts_on_more_servers_with_a_reader_and_a_processor_of_the_module(
    trained: Job, start_job: Callable[..., Job], tmp_path: Path
) -> None:
    """The network of `iris_sqlite` is that of `iris`."""
    make_data.MAKERS["iris"](tmp_path, 0)
    database = tmp_path / "iris.sqlite"
    job = start_job(
        "predict",
        model_def="iris_sqlite",
        prediction_data=database,
        data_reader_params="table=test",
        num_workers=1,
        num_ps_pods=3,
        checkpoint_dir_for_init=trained.directory / "checkpoints",
        envs=f"PREDICTIONS_DIR={tmp_path / 'out'}",
    )
    code, output = job.finish()
    assert code == 0, output + job.tails()
    rows = [
        line.partition(",")[0]
        for path in (tmp_path / "out").glob("worker-*.csv")
        for line in path.read_text().splitlines()
    ]
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT species FROM test ORDER BY rowid").fetchall()
    species = [str(int(one)) for (one,) in found]
    assert len(rows) == len(species) == 30
    assert sum(map(str.__eq__, rows, species)) >= 26, (rows, species)
