"""Files of a job are their owner's, and nobody else can redirect a write."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from elasticdl.jobdir.layout import write_atomically, write_json
from elasticdl.private_file import make_private, private, replace_atomically, temporary_name

pytestmark = pytest.mark.core


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory that everybody may write to."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o777)
    return path


def test_a_file_is_its_owners_whatever_it_was_before(directory: Path) -> None:
    path = directory / "a.json"
    path.write_text("old")
    path.chmod(0o666)
    write_json(path, {"a": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert [entry.name for entry in directory.iterdir()] == ["a.json"]


def test_names_of_temporary_files_cannot_be_guessed(directory: Path) -> None:
    names = {temporary_name(directory / "a") for _ in range(100)}
    assert len(names) == 100
    assert all(len(name.name) > 16 and name.parent == directory for name in names)


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "guessed")
    temporary_name(directory / "a").symlink_to(victim)
    with pytest.raises(FileExistsError):
        replace_atomically(directory / "a", b"new")
    assert victim.read_text() == "kept"


def test_a_link_in_the_place_of_the_file_is_replaced(directory: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (directory / "a").symlink_to(victim)
    write_atomically(directory / "a", "new")
    assert (victim.read_text(), (directory / "a").read_text()) == ("kept", "new")
    assert not (directory / "a").is_symlink()


def test_a_file_that_is_appended_to_follows_no_link(directory: Path, tmp_path: Path) -> None:
    (directory / "log").symlink_to(tmp_path / "victim")
    with (
        pytest.raises(OSError, match="symbolic link"),
        open(directory / "log", "a", opener=private),
    ):
        pass
    assert not (tmp_path / "victim").exists()


def test_a_failed_write_leaves_the_old_file_alone(directory: Path) -> None:
    path = directory / "a"
    path.write_text("old")
    with pytest.raises(TypeError):
        replace_atomically(path, "no bytes")  # type: ignore[arg-type]
    assert [(entry.name, entry.read_text()) for entry in directory.iterdir()] == [("a", "old")]


def test_a_directory_is_its_owners_and_one_that_exists_stays(directory: Path) -> None:
    make_private(directory / "new" / "deep")
    assert stat.S_IMODE((directory / "new" / "deep").stat().st_mode) == 0o700
    make_private(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o777
