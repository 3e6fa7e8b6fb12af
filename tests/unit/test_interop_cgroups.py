"""What a node of the interop tests makes of cgroups, and leaves."""

from __future__ import annotations

from pathlib import Path

from tests.interop.cgroup_folders import cgroups_of, remove_cgroups

POD = "burstable/pod1"


def hierarchies(mounted: Path, *folders: str) -> None:
    for folder in folders:
        (mounted / folder).mkdir(parents=True)


def left(mounted: Path) -> set[str]:
    return {str(path.relative_to(mounted)) for path in mounted.rglob("*") if path.is_dir()}


def test_empty_cgroups_that_a_node_made_go_and_those_that_were_there_stay(tmp_path: Path) -> None:
    theirs = ("cpuset/kubepods/besteffort", "memory/system.slice")
    hierarchies(tmp_path, *theirs)
    before = cgroups_of("kubepods", tmp_path)
    hierarchies(tmp_path, f"cpuset/kubepods/{POD}", "cpuset/kubepods/besteffort/pod2", f"memory/kubepods/{POD}")
    remove_cgroups("kubepods", before, tmp_path)
    assert left(tmp_path) == {"cpuset", "cpuset/kubepods", *theirs, "memory"}


def test_a_cgroup_that_is_in_use_stays_with_those_above_it(tmp_path: Path) -> None:
    hierarchies(tmp_path, f"cpuset/kubepods/{POD}/busy", f"cpuset/kubepods/{POD}/idle")
    # A folder with a file is to the file system what a cgroup with a process is to the kernel.
    (tmp_path / "cpuset/kubepods" / POD / "busy" / "process").touch()
    remove_cgroups("kubepods", frozenset(), tmp_path)
    parents = {"cpuset", "cpuset/kubepods", "cpuset/kubepods/burstable", f"cpuset/kubepods/{POD}"}
    assert left(tmp_path) == {*parents, f"cpuset/kubepods/{POD}/busy"}


def test_of_cgroup_v2_only_those_at_the_top_are_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    hierarchies(tmp_path, f"kubepods/{POD}", f"kind.slice/kubepods/{POD}")
    remove_cgroups("kubepods", frozenset(), tmp_path)
    assert left(tmp_path) == {
        "kind.slice",
        *(f"kind.slice/{path}" for path in ("kubepods", "kubepods/burstable", f"kubepods/{POD}")),
    }


def test_a_node_that_made_none_has_nothing_to_remove(tmp_path: Path) -> None:
    assert cgroups_of("kubepods", tmp_path) == frozenset()
    remove_cgroups("kubepods", frozenset(), tmp_path)
