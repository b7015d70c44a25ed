"""`elasticdl checkpoints`: what it lists, and what it finds damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticdl.checkpoint import directories
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.cli.main import run
from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec, ParametersSpec
from elasticdl.errors import ExitCode

pytestmark = pytest.mark.core
LEDGER = json.dumps({"format": 1, "counts": [{"epoch": 0, "trained": 1000}, {"trained": 234}]})


def made(
    location: Path,
    version: int,
    *,
    servers: int = 2,
    ledger: str = LEDGER,
    base: Path | None = None,
) -> Path:
    """`base`: it is a delta of that one."""
    making = directories.begin(location)
    links = directories.link_base(making, base, directories.read_manifest(base)) if base else ()
    files = []
    for index in range(max(1, servers)):
        path = making / f"server-{index}.bin"
        path.write_bytes(b"row" * 10 * version)
        files.append(
            PartFile(name=path.name, bytes=30 * version, checksum=directories.checksum(path))
        )
    spec = ParametersSpec(optimizer=OptimizerSpec(kind=OptimizerKind.SGD)) if servers else None
    return directories.complete(
        making,
        Manifest(
            version=version,
            servers=servers,
            parameters=spec,
            files=tuple(files),
            links=links,
            rows=version,
            ledger=ledger,
            wall_s=1e9,
        ),
    )


def test_a_delta_is_listed_with_its_base_and_verified_with_all_that_it_needs(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = made(checkpoints, 7)
    delta = made(checkpoints, 8, base=full)
    newest, oldest = listed(capsys, "a")
    assert (newest["base"], newest["deltas"], newest["bytes"]) == (7, 1, 480)
    assert (oldest["base"], oldest["deltas"], oldest["bytes"]) == (None, 0, 420)
    assert run(["checkpoints", "list", "a"]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert "KIND" in heading and "delta 1 of 7" in first and "full" in second
    assert run(["checkpoints", "verify", "a", "8"]) == 0
    assert "4 files" in capsys.readouterr().out
    # The bytes are those of both checkpoints.
    (full / "server-0.bin").write_bytes(b"x" * 210)
    assert run(["checkpoints", "verify", "a"]) == 1
    errors = capsys.readouterr().err
    assert str(delta / "link-0-server-0.bin") in errors and str(full / "server-0.bin") in errors


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Those of the local job `a`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    job = tmp_path / "jobs/a"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    return job / "checkpoints"


def listed(capsys: pytest.CaptureFixture[str], target: object) -> list[dict[str, Any]]:
    assert run(["checkpoints", "list", str(target), "-o", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_the_checkpoints_of_a_job_are_listed_newest_first(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(checkpoints, 3)
    made(checkpoints, 20, servers=0)
    made(checkpoints, 7, ledger="")
    found = listed(capsys, "a")
    assert [(one["version"], one["bytes"], one["servers"], one["trained"]) for one in found] == [
        (20, 600, 0, 1234),
        (7, 420, 2, None),
        (3, 180, 2, 1234),
    ]
    assert found[0]["strategy"] == "AllreduceStrategy" and found[0]["made_at"] == 1e9
    assert found == listed(capsys, "jobs/a") == listed(capsys, checkpoints)
    assert found[2:] == listed(capsys, checkpoints / "version-3")
    assert run(["checkpoints", "list", "a"]) == 0
    first, newest, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("VERSION") and "ring" in newest and "1,234" in newest


def test_a_damaged_one_is_listed_with_its_problem(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made(checkpoints, 3) / "manifest.json").unlink()
    (made(checkpoints, 7) / "manifest.json").write_text("{")
    (seven, three) = listed(capsys, "a")
    assert (seven["version"], seven["bytes"]) == (7, None) and "manifest" in seven["problem"]
    assert three["problem"] and three["path"].endswith("version-3")
    assert run(["checkpoints", "list", "a"]) == 0


def test_a_job_in_place_of_a_command_is_told_the_whole_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["checkpoints", "a"]) == 2
    assert "`elasticdl checkpoints list a`" in capsys.readouterr().err


def test_a_job_without_checkpoints_has_an_empty_list(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys, "a") == []
    assert run(["checkpoints", "list", "a"]) == 0
    assert str(checkpoints) in capsys.readouterr().err
    assert run(["checkpoints", "verify", "a"]) == ExitCode.USAGE
    assert run(["checkpoints", "list", "b"]) == ExitCode.NO_SUCH_JOB


def test_verification_reads_every_byte_and_names_each_damaged_file(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in (3, 7):
        made(checkpoints, version)
    assert run(["checkpoints", "verify", "a"]) == 0
    assert capsys.readouterr().out.count("intact") == 2
    changed = checkpoints / "version-7/server-0.bin"
    changed.write_bytes(b"r0w" + changed.read_bytes()[3:])
    gone = checkpoints / "version-7/server-1.bin"
    gone.unlink()
    assert run(["checkpoints", "verify", "a", "3"]) == 0
    capsys.readouterr()
    for more in ([], ["7"]):
        assert run(["checkpoints", "verify", "a", *more, "-o", "json"]) == ExitCode.JOB_FAILED
        told = capsys.readouterr()
        assert str(changed) in told.err and str(gone) in told.err
        newest = json.loads(told.out)[0]
        assert newest["version"] == 7 and len(newest["problems"]) == 2
    assert run(["checkpoints", "verify", "a", "8"]) == ExitCode.USAGE
    assert "version 8" in capsys.readouterr().err


def test_only_a_checkpoint_without_a_manifest_is_damage(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made(checkpoints, 7) / "manifest.json").unlink()
    assert run(["checkpoints", "verify", "a"]) == ExitCode.JOB_FAILED
    assert "version-7 has no manifest" in capsys.readouterr().err
