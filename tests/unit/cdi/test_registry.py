"""The devices of CDI directories: precedence, conflicts, unreadable files, a watch (rules of pkg/cdi/cache.go)."""

import json
import threading
from pathlib import Path

import pytest

from dranode.cdi import CDIError, annotated_devices, annotation, read_registry, watch_registry

A, B = "example.com/lamp=a", "example.com/lamp=b"


def write(path: Path, *names: str, kind: str = "example.com/lamp") -> Path:
    path.parent.mkdir(exist_ok=True)
    devices = [{"name": name, "containerEdits": {"env": [f"FROM={path.stem}"]}} for name in names]
    path.write_text(json.dumps({"cdiVersion": "0.3.0", "kind": kind, "devices": devices}))
    return path


@pytest.fixture
def static(tmp_path: Path) -> Path:
    return tmp_path / "etc"


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_device_of_a_later_directory_overrides_an_earlier_one(static: Path, dynamic: Path) -> None:
    first, second = write(static / "one.json", "a", "b"), write(dynamic / "two.json", "a")
    registry = read_registry([static, dynamic])
    assert {name: found.path for name, found in registry.devices.items()} == {A: second, B: first}
    assert registry.problems == {}


def test_a_device_of_two_specs_in_one_directory_is_not_available(static: Path, dynamic: Path) -> None:
    first, second = write(static / "one.json", "a", "b"), write(static / "two.yaml", "a")
    registry = read_registry([static, dynamic])
    assert list(registry.devices) == [B]
    assert {path for path, (sentence,) in registry.problems.items() if A in sentence} == {first, second}


def test_a_conflict_in_an_earlier_directory_also_removes_a_later_device(static: Path, dynamic: Path) -> None:
    """As in the Go library, conflicting devices are removed at the end, in whichever directory they are."""
    for path in (static / "one.json", static / "two.json", dynamic / "three.json"):
        write(path, "a")
    assert read_registry([static, dynamic]).devices == {}


def test_files_that_cannot_be_loaded_are_named_and_the_others_are_read(static: Path) -> None:
    write(static / "good.json", "a")
    (static / "broken.json").write_text("{")
    write(static / "wrong.yaml", "a b")
    (static / "gone.json").symlink_to(static / "nowhere")
    write(static / "other.txt", "b")
    registry = read_registry([static, static / "missing"])
    assert list(registry.devices) == [A]
    assert sorted(path.name for path in registry.problems) == ["broken.json", "gone.json", "wrong.yaml"]


def test_a_watch_yields_each_change_until_it_is_stopped(static: Path) -> None:
    stop, seen = threading.Event(), []
    for registry in watch_registry(stop, [static], seconds=0.01):
        seen.append(sorted(registry.devices))
        if len(seen) == 1:
            write(static / "one.json", "a")
        elif len(seen) == 2:
            (static / "one.json").unlink()
        else:
            stop.set()
    assert seen == [[], [A], []]


def test_an_annotation_requests_devices_and_is_read_back() -> None:
    asked = annotation("vendor.class", "0000:1b/0".replace(":", "-"), [A, B])
    assert asked == {"cdi.k8s.io/vendor.class_0000-1b_0": f"{A},{B}"}
    assert annotated_devices({**asked, "example.com/other": "not a device"}) == (A, B)


@pytest.mark.parametrize(
    ("plugin", "device_id", "devices"),
    [
        ("", "0", [A]),
        ("p", "", [A]),
        ("p" * 62, "0", [A]),
        ("-p", "0", [A]),
        ("p", "0_", [A]),
        ("p", "0:1", [A]),
        ("p", "0", ["no device"]),
    ],
)
def test_an_annotation_that_no_runtime_would_accept_is_refused(plugin: str, device_id: str, devices: list[str]) -> None:
    with pytest.raises(CDIError):
        annotation(plugin, device_id, devices)


def test_an_annotation_with_something_else_than_devices_is_refused() -> None:
    with pytest.raises(CDIError, match="lamp0"):
        annotated_devices({"cdi.k8s.io/p_0": f"{A},lamp0"})
