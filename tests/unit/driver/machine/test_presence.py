"""Missing files, and files in forbidden folders, with the same result on every Python."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dranode.driver.machine.presence import is_file, is_folder, is_there, status_of
from tests.fakes.doctor import forbid


def test_existing_files_and_folders_are_told_from_missing_ones(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "dangling").symlink_to("nowhere")
    there = {path: (is_there(path), is_file(path), is_folder(path)) for path in (file, folder, tmp_path / "link")}
    assert list(there.values()) == [(True, True, False), (True, False, True), (True, False, True)]
    for missing in (tmp_path / "none", tmp_path / "dangling", file / "below"):
        assert (status_of(missing), is_there(missing), is_file(missing), is_folder(missing)) == (None,) + (False,) * 3


@pytest.mark.parametrize("asked", [is_there, is_file, is_folder])
def test_a_file_in_a_forbidden_folder_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Callable[[Path], bool]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    forbid(monkeypatch, tmp_path / "folder")
    with pytest.raises(PermissionError):
        asked(tmp_path / "folder" / "file")
