"""Entry points, beside those that the standard library finds."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path

import pytest

from dranode.driver.entry_points import EntryPoint, entry_points, parse_entry_points

GROUPS = ("console_scripts", "dranode.plugins", "dranode.options", "dranode.commands", "pytest11")


def of_the_library() -> set[EntryPoint]:
    points = importlib.metadata.entry_points()
    return {EntryPoint(group, point.name, point.value) for group in GROUPS for point in points.select(group=group)}


def install(folder: Path, package: str, text: str, kind: str = "dist-info") -> None:
    info = folder / f"{package}.{kind}"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.partition('-')[0]}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(text)


def test_what_is_installed_here_is_what_the_library_finds() -> None:
    assert len(entry_points(GROUPS)) > 10
    assert set(entry_points(GROUPS)) == of_the_library()


def test_of_two_versions_the_one_that_python_would_import_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "first", "Wall_Lights-2", "[pytest11]\nnew = wall:new\n")
    install(tmp_path / "second", "wall.lights-1", "[pytest11]\nold = wall:old\n")
    install(tmp_path / "second", "floor-1", "[pytest11]\nfloor = floor:f [extra]\n", "egg-info")
    (tmp_path / "second" / "single-1.egg-info").write_text("Name: single\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    points = entry_points(GROUPS)
    assert {point.name for point in points} & {"new", "old", "floor"} == {"new", "floor"}
    assert set(points) == of_the_library()


def test_packages_in_an_archive_are_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as archive:
        archive.writestr("wall-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: wall\nVersion: 1\n")
        archive.writestr("wall-1.dist-info/entry_points.txt", "[pytest11]\nwall = wall:w\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages.zip"), *sys.path])
    assert EntryPoint("pytest11", "wall", "wall:w") in entry_points(GROUPS)
    assert set(entry_points(GROUPS)) == of_the_library()


def test_lines_are_names_and_values_under_their_group() -> None:
    text = "x = no:group\n\n# a = comment:c\n[a.b]\n one=m:f\n ; = odd\nno value\n[c]\ntwo = m.n : g.h [x, y]\n"
    assert [*parse_entry_points(text)] == [
        EntryPoint("", "x", "no:group"),
        EntryPoint("a.b", "one", "m:f"),
        EntryPoint("a.b", ";", "odd"),
        EntryPoint("c", "two", "m.n : g.h [x, y]"),
    ]


@pytest.mark.parametrize(
    ("value", "loaded"),
    [("pathlib:Path", Path), ("pathlib:Path.home", Path.home), ("sys", sys), ("sys : path [x]", sys.path)],
)
def test_a_value_is_a_module_or_what_it_holds(value: str, loaded: object) -> None:
    assert EntryPoint("g", "n", value).load() == loaded
