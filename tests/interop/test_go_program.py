"""Building programs of other projects by their packages' names, with a stand-in for Go."""

from pathlib import Path

import pytest

from tests.interop.go_program import NoProgramError, go_program

_GO = """#!/bin/sh
echo "$@" >> {log}
[ "$2" = example.org/tools/cmd/lamp@v1 ] || {{ echo "no such module" >&2; exit 1; }}
touch "$GOBIN/lamp"
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "go").write_text(_GO.format(log=tmp_path / "log"))
    (programs / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/bin:/usr/bin")
    return tmp_path / "log"


def test_a_program_is_built_by_its_packages_name_and_once(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "built"
    for _ in range(2):
        assert go_program("example.org/tools/cmd/lamp", "v1", folder) == folder / "lamp"
    assert log.read_text().splitlines() == ["install example.org/tools/cmd/lamp@v1"]


def test_a_program_that_cannot_be_built_is_reported(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoProgramError, match=r"^example.org/tools/cmd/lamp cannot be had: no such module$"):
        go_program("example.org/tools/cmd/lamp", "v2", tmp_path)
    assert log.exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoProgramError, match="Go is not installed"):
        go_program("example.org/tools/cmd/lamp", "v1", tmp_path)
