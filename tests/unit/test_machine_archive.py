from __future__ import annotations

import errno
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from dranode.driver.core.errors import MachineError
from dranode.driver.machine import archive, forms
from dranode.driver.machine.forms import open_machine
from dranode.driver.machine.tree import TreeFiles

ONLINE = "sys/devices/system/cpu/online"


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    return info, content


def pack(path: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]], mode: str = "w:bz2") -> str:
    with tarfile.open(path, mode) as made:  # type: ignore[call-overload] # the mode is a parameter here
        for info, content in members:
            made.addfile(info, io.BytesIO(content))
    return str(path)


@pytest.mark.parametrize(
    ("ending", "mode"), [("tar", "w:"), ("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")]
)
def test_every_packing_is_read(tmp_path: Path, ending: str, mode: str) -> None:
    place = pack(tmp_path / f"m.{ending}", [member(f"deep/down/{ONLINE}", b"0-1\n")], mode)
    assert open_machine(place).read_bytes(ONLINE) == b"0-1\n"


def test_links_and_hard_links_are_followed_inside(tmp_path: Path) -> None:
    members = [
        member(f"m/{ONLINE}", b"0-1\n"),
        member("m/sys/again", kind=tarfile.LNKTYPE, target=f"m/{ONLINE}"),
        member("m/sys/relative", kind=tarfile.SYMTYPE, target="devices/system/cpu/"),
        member("m/sys/absolute", kind=tarfile.SYMTYPE, target="/sys/devices"),
    ]
    root = open_machine(pack(tmp_path / "m.tar.bz2", members))
    assert root.read_bytes("sys/again") == b"0-1\n"
    assert root.read_bytes("sys/relative/online") == b"0-1\n"
    assert root.resolve("sys/absolute/system") == "sys/devices/system"


def test_a_link_that_climbs_out_leads_nowhere(tmp_path: Path) -> None:
    members = [member(f"m/{ONLINE}", b"0"), member("m/sys/up", kind=tarfile.SYMTYPE, target="../../../etc/passwd")]
    root = open_machine(pack(tmp_path / "m.tar.bz2", members))
    assert not root.exists("sys/up")
    with pytest.raises(FileNotFoundError):
        root.resolve("sys/up")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    members = [
        member(f"m/{ONLINE}", b"0"),
        member("m/sys/a", kind=tarfile.SYMTYPE, target="b"),
        member("m/sys/b", kind=tarfile.SYMTYPE, target="a"),
    ]
    root = open_machine(pack(tmp_path / "m.tar.bz2", members))
    with pytest.raises(OSError, match="symbolic links"):
        root.read_bytes("sys/a")


def test_a_member_that_climbs_out_is_refused(tmp_path: Path) -> None:
    place = pack(tmp_path / "m.tar.bz2", [member(f"m/{ONLINE}", b"0"), member("m/../../etc/passwd", b"x")])
    with pytest.raises(MachineError, match=r'has the member "m/../../etc/passwd", which leads out of the archive'):
        open_machine(place)


def test_a_device_node_has_its_numbers(tmp_path: Path) -> None:
    node, content = member("m/dev/dri/card0", kind=tarfile.CHRTYPE)
    node.devmajor, node.devminor = 226, 1
    root = open_machine(pack(tmp_path / "m.tar.bz2", [member(f"m/{ONLINE}", b"0"), (node, content)]))
    assert root.device_number("dev/dri/card0") == ("c", 226, 1)
    with pytest.raises(OSError, match="no device node"):
        root.device_number(ONLINE)


def test_the_index_of_a_capture_gives_device_nodes(tmp_path: Path) -> None:
    members = [member(f"m/{ONLINE}", b"0"), member("m/machine.json", b'{"devices": {"/dev/kfd": "c 508:0"}}')]
    root = open_machine(pack(tmp_path / "m.tar.bz2", members))
    assert root.device_number("dev/kfd") == ("c", 508, 0)
    assert root.listdir("dev") == ["kfd"]
    assert root.read_bytes(ONLINE) == b"0"


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    members = [member(f"m/{ONLINE}", b"0"), member("m/machine.json", b'{"devices": {"/dev/kfd": "508"}}')]
    with pytest.raises(MachineError, match=r"machine.json is damaged: .*type and numbers"):
        open_machine(pack(tmp_path / "m.tar.bz2", members))


def test_an_index_that_may_not_be_read_is_not_one_that_is_not_there() -> None:
    class Guarded(TreeFiles):
        def read(self, path: str) -> bytes:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    with pytest.raises(MachineError, match=r"node7: machine.json cannot be read: Permission denied"):
        forms._index(Guarded({}), "node7")


def test_a_later_member_of_the_same_name_wins(tmp_path: Path) -> None:
    members = [member(f"m/{ONLINE}", b"0"), member(f"./m/{ONLINE}", b"0-7")]
    assert open_machine(pack(tmp_path / "m.tar", members, "w:")).read_bytes(ONLINE) == b"0-7"


def test_no_sys_in_the_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="holds no sys/ folder"):
        open_machine(pack(tmp_path / "m.tar.bz2", [member("proc/sys/kernel/x", b"")]))


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_cut_or_foreign_file_is_refused_in_one_line(tmp_path: Path, keep: int) -> None:
    whole = Path(pack(tmp_path / "m.tar.bz2", [member(f"m/{ONLINE}", bytes(range(256)) * 40)]))
    whole.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(MachineError, match="is no tar archive, or is damaged or cut short") as refusal:
        open_machine(str(whole))
    assert "\n" not in str(refusal.value)


def test_an_archive_beyond_the_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_MAX_BYTES", 1 << 20)
    place = pack(tmp_path / "m.tar.bz2", [member(f"m/{ONLINE}", b"0"), member("m/sys/bomb", bytes(2 << 20))])
    with pytest.raises(MachineError, match="holds more than 1 MiB"):
        open_machine(place)


def test_a_name_that_is_file_and_folder_is_refused(tmp_path: Path) -> None:
    members = [member("m/sys/class", b"x"), member("m/sys/class/drm/version", b"y")]
    with pytest.raises(MachineError, match="holds m/sys/class both as a file and as a folder"):
        open_machine(pack(tmp_path / "m.tar.bz2", members))
