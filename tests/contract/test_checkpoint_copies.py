"""Copies of checkpoints in an object store: whole or none, whatever ends a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.checkpoint import copies, directories
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.checkpoint.strategy import as_trained
from elasticdl.errors import Corrupted, UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action, Strategy
from elasticdl.master.executor.checkpoint_archive import CheckpointArchive
from elasticdl.storage.attempts import RUNNING, STARTING, Limits
from tests.contract.ps_stage import rich_spec
from tests.object_store import ObjectStore

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("empty")]
ADDRESS = "s3://bucket/job/checkpoints"


def checkpoint(checkpoints: Path, version: int) -> tuple[Path, Manifest]:
    making = directories.begin(checkpoints)
    (making / "part.bin").write_bytes(bytes([version]) * 5000)
    part = PartFile(name="part.bin", bytes=5000, checksum=directories.checksum(making / "part.bin"))
    manifest = Manifest(version=version, servers=1, parameters=None, files=(part,), ledger="{}")
    return directories.complete(making, manifest), manifest


def delta(checkpoints: Path, version: int, base: Path, of: Manifest) -> tuple[Path, Manifest]:
    """A checkpoint that needs the files of another one."""
    making = directories.begin(checkpoints)
    links = directories.link_base(making, base, of)
    (making / "part.bin").write_bytes(bytes([version]) * 50)
    part = PartFile(name="part.bin", bytes=50, checksum=directories.checksum(making / "part.bin"))
    manifest = of.model_copy(update={"version": version, "files": (part,), "links": links})
    return directories.complete(making, manifest), manifest


def copied(tmp_path: Path, *versions: int) -> None:
    for version in versions:
        copies.upload(*checkpoint(tmp_path / "there", version), ADDRESS)


def fetched(tmp_path: Path, than: int = -1) -> tuple[list[str], tuple[str, ...]]:
    here = tmp_path / "here"
    passed_over = copies.fetch_newer(ADDRESS, here, than)
    names = sorted(path.name for path in here.iterdir()) if here.exists() else []
    return names, passed_over


def test_the_newest_copy_comes_back_bit_for_bit(tmp_path: Path) -> None:
    copied(tmp_path, 9, 10)
    assert fetched(tmp_path) == (["version-10"], ())
    assert directories.verify(tmp_path / "here/version-10").version == 10


def test_a_copy_that_is_not_newer_is_left_alone(tmp_path: Path) -> None:
    copied(tmp_path, 10)
    assert fetched(tmp_path, than=10) == ([], ())


def test_a_copy_without_one_of_its_files_is_passed_over(
    server: ObjectStore, tmp_path: Path
) -> None:
    copied(tmp_path, 9, 10)
    del server.buckets["bucket"]["job/checkpoints/version-10/part.bin"]
    names, (why,) = fetched(tmp_path)
    assert names == ["version-9"] and "part.bin" in why


def test_a_copy_that_was_never_complete_is_none(server: ObjectStore, tmp_path: Path) -> None:
    server.put("job/checkpoints/version-11/part.bin", b"of a job that failed")
    copies.refuse_foreign(ADDRESS)
    for named in (ADDRESS, f"{ADDRESS}/version-11"):
        with pytest.raises(UserError, match=f"no checkpoint in {named}"):
            copies.fetch(named, tmp_path / "initial")
    assert fetched(tmp_path) == ([], ())
    copied(tmp_path, 9, 10)
    assert fetched(tmp_path) == (["version-10"], ())
    assert copies.fetch(ADDRESS, tmp_path / "initial") == ()


def test_a_copy_with_other_bytes_is_passed_over(server: ObjectStore, tmp_path: Path) -> None:
    copied(tmp_path, 9, 10)
    server.put("job/checkpoints/version-10/part.bin", b"x" * 5000)
    names, (why,) = fetched(tmp_path)
    assert names == ["version-9"] and "checksum" in why


def test_the_newest_is_found_though_the_listing_lacks_it(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(tmp_path, 9, 10)
    monkeypatch.setattr("elasticdl.storage.folders.names_in", lambda address, limits: ["version-9"])
    assert fetched(tmp_path) == (["version-10"], ())


def test_a_master_waits_for_the_listing_longer_than_a_person_who_begins_a_job(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(tmp_path, 3)
    waited: list[Limits] = []

    def listed(address: str, limits: Limits) -> list[str]:
        waited.append(limits)
        return ["version-3"]

    monkeypatch.setattr("elasticdl.storage.folders.names_in", listed)
    copies.fetch_newer(ADDRESS, tmp_path / "resumed", -1)
    copies.fetch(ADDRESS, tmp_path / "initial")
    copies.peek(ADDRESS)
    assert waited == [RUNNING, RUNNING, STARTING]


def test_the_manifest_is_gone_while_a_version_is_copied_again(
    server: ObjectStore, tmp_path: Path
) -> None:
    directory, manifest = checkpoint(tmp_path / "there", 10)
    copies.upload(directory, manifest, ADDRESS)
    (directory / "part.bin").unlink()
    with pytest.raises(OSError, match=r"part\.bin"):
        copies.upload(directory, manifest, ADDRESS)
    assert not server.keys("job/checkpoints/version-10/manifest.json")


def test_only_the_newest_copies_are_kept(server: ObjectStore, tmp_path: Path) -> None:
    copied(tmp_path, 1, 2, 10, 11)
    copies.prune(ADDRESS, 2, newest=11)
    assert copies.versions(ADDRESS) == [11, 10]
    assert not server.keys("job/checkpoints/version-2/")


def test_a_copy_without_a_manifest_is_not_kept(server: ObjectStore, tmp_path: Path) -> None:
    copied(tmp_path, 2, 3, 4)
    del server.buckets["bucket"]["job/checkpoints/version-3/manifest.json"]
    copies.prune(ADDRESS, 2, newest=4)
    assert copies.versions(ADDRESS) == [4, 2]


def test_nothing_is_removed_while_the_manifest_of_a_kept_delta_cannot_be_read(
    server: ObjectStore, tmp_path: Path
) -> None:
    made = chain(tmp_path / "there")
    for one in made:
        copies.upload(*one, ADDRESS)
    copied(tmp_path, 4)
    key = "job/checkpoints/version-3/manifest.json"
    whole = server.get(key)
    server.put(key, b'{"format": 2}')
    copies.prune(ADDRESS, 2, newest=4)
    assert copies.versions(ADDRESS) == [4, 3, 2, 1]
    server.put(key, whole)
    copies.prune(ADDRESS, 2, newest=4)
    assert not server.keys("job/checkpoints/version-1/manifest.json")
    copies.verify(ADDRESS, made[-1][1])
    server.put(key, b'{"format": 2}')
    copied(tmp_path, 5)
    copies.prune(ADDRESS, 2, newest=5)
    assert copies.versions(ADDRESS) == [5, 4]


def chain(there: Path) -> list[tuple[Path, Manifest]]:
    """A full checkpoint and two deltas."""
    directory, manifest = checkpoint(there, 1)
    # A ring's checkpoint is never a base.
    manifest = manifest.model_copy(update={"parameters": rich_spec()})
    first = (directory, manifest)
    second = delta(there, 2, *first)
    return [first, second, delta(there, 3, *second)]


def test_a_delta_is_copied_without_the_files_that_are_there_already(
    server: ObjectStore, tmp_path: Path
) -> None:
    for one in chain(tmp_path / "there"):
        copies.upload(*one, ADDRESS)
    keys = server.keys("job/checkpoints/version-3/")
    assert sorted(key.rpartition("/")[2] for key in keys) == ["manifest.json", "part.bin"]
    assert fetched(tmp_path) == (["version-3"], ())
    assert len(directories.verify(tmp_path / "here/version-3").links) == 2


def test_a_delta_brings_the_files_whose_own_copy_failed(tmp_path: Path) -> None:
    _, _, newest = chain(tmp_path / "there")
    copies.upload(*newest, ADDRESS)
    assert fetched(tmp_path) == (["version-3"], ())
    assert directories.verify(tmp_path / "here/version-3").version == 3


def test_copies_that_a_kept_delta_needs_are_kept(server: ObjectStore, tmp_path: Path) -> None:
    for one in chain(tmp_path / "there"):
        copies.upload(*one, ADDRESS)
    copies.prune(ADDRESS, 1, newest=3)
    assert not server.keys("job/checkpoints/version-1/manifest.json")
    assert fetched(tmp_path) == (["version-3"], ())
    copies.upload(*checkpoint(tmp_path / "there", 4), ADDRESS)
    copies.prune(ADDRESS, 1, newest=4)
    assert copies.versions(ADDRESS) == [4]


def test_a_new_job_does_not_mix_its_checkpoints_with_another_s(tmp_path: Path) -> None:
    copies.refuse_foreign(ADDRESS)
    copied(tmp_path, 1)
    with pytest.raises(UserError, match="contains checkpoints of another job"):
        copies.refuse_foreign(ADDRESS)


@pytest.mark.parametrize("named", [ADDRESS, f"{ADDRESS}/", f"{ADDRESS}/version-10"])
def test_a_job_begins_with_the_newest_copy_or_with_the_named_one(
    named: str, tmp_path: Path
) -> None:
    first, manifest = checkpoint(tmp_path / "there", 9)
    copies.upload(first, manifest, ADDRESS)
    copies.upload(*delta(tmp_path / "there", 10, first, manifest), ADDRESS)
    assert copies.peek(named).version == 10
    assert copies.fetch(named, tmp_path / "here") == ()
    assert directories.require(tmp_path / "here").manifest.version == 10


def test_a_job_does_not_begin_with_a_copy_that_is_not_there(
    server: ObjectStore, tmp_path: Path
) -> None:
    for look in (copies.peek, lambda address: copies.fetch(address, tmp_path / "here")):
        with pytest.raises(UserError, match=f"no checkpoint in {ADDRESS}"):
            look(ADDRESS)
    copied(tmp_path, 9)
    server.put("job/checkpoints/version-9/part.bin", b"damaged")
    with pytest.raises(Corrupted, match=r"no usable checkpoint in .*part\.bin"):
        copies.fetch(ADDRESS, tmp_path / "here")
    copied(tmp_path, 8)
    (why,) = copies.fetch(ADDRESS, tmp_path / "here")
    assert "version-9" in why or "part.bin" in why
    assert directories.require(tmp_path / "here").manifest.version == 8


def test_a_checkpoint_in_a_store_says_how_it_is_evaluated_and_is_fetched_for_it(
    server: ObjectStore, tmp_path: Path
) -> None:
    flags = {"model_zoo": "z", "model_def": "m", "validation_data": "v", "num_ps_pods": 0}
    flags |= {"distribution_strategy": "AllreduceStrategy", "checkpoint_dir_for_init": ADDRESS}
    spec = JobSpec.from_flags(Action.EVALUATE, flags)
    assert as_trained(spec) == spec
    copied(tmp_path, 9)
    trained = as_trained(spec)
    assert trained.training.distribution_strategy is Strategy.PARAMETER_SERVER
    start = CheckpointArchive(trained, tmp_path / "job/checkpoints").beginning()
    assert start.restore_from == str(tmp_path / "job/initial-checkpoint/version-9")
    assert directories.verify(Path(start.restore_from)).version == 9
