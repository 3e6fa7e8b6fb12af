import errno
import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from dranode.api.errors import MachineError
from dranode.sim.machines import archive, forms
from dranode.sim.machines.forms import open_machine
from dranode.sim.machines.tree import TreeFiles

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


@pytest.mark.parametrize(("ending", "mode"), [("tar", "w:"), ("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2")])
def test_every_compression_is_read(tmp_path: Path, ending: str, mode: str) -> None:
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


def test_a_link_out_of_the_archive_leads_nowhere(tmp_path: Path) -> None:
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


def test_a_member_outside_of_the_archive_is_refused(tmp_path: Path) -> None:
    place = pack(tmp_path / "m.tar.bz2", [member(f"m/{ONLINE}", b"0"), member("m/../../etc/passwd", b"x")])
    with pytest.raises(MachineError, match=r'has the member "m/../../etc/passwd", which leads out of the archive'):
        open_machine(place)


def test_a_device_node_has_its_numbers(tmp_path: Path) -> None:
    node, content = member("m/dev/dri/card0", kind=tarfile.CHRTYPE)
    node.devmajor, node.devminor = 226, 1
    root = open_machine(pack(tmp_path / "m.tar.bz2", [member(f"m/{ONLINE}", b"0"), (node, content)]))
    assert root.device_number("dev/dri/card0") == ("c", 226, 1)
    with pytest.raises(OSError, match="not a device node"):
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


def test_an_unreadable_index_is_not_taken_for_a_missing_one() -> None:
    class Guarded(TreeFiles):
        def read(self, path: str) -> bytes:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    with pytest.raises(MachineError, match=r"node7: machine.json cannot be read: Permission denied"):
        forms._index(Guarded({}), "node7")


def test_a_later_member_of_the_same_name_wins(tmp_path: Path) -> None:
    members = [member(f"m/{ONLINE}", b"0"), member(f"./m/{ONLINE}", b"0-7")]
    assert open_machine(pack(tmp_path / "m.tar", members, "w:")).read_bytes(ONLINE) == b"0-7"


def test_no_sys_in_the_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="has no sys/ folder"):
        open_machine(pack(tmp_path / "m.tar.bz2", [member("proc/sys/kernel/x", b"")]))


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_truncated_or_foreign_file_is_refused_in_one_line(tmp_path: Path, keep: int) -> None:
    whole = Path(pack(tmp_path / "m.tar.bz2", [member(f"m/{ONLINE}", bytes(range(256)) * 40)]))
    whole.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(MachineError, match="or is damaged or cut short") as refusal:
        open_machine(str(whole))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("place", ["between members", "within a header", "in a header"])
def test_a_truncated_archive_is_not_taken_for_a_smaller_machine(tmp_path: Path, place: str) -> None:
    path = pack(tmp_path / "m.tar", [member("m/sys/bus/a", b"1"), member("m/sys/bus/b", b"2")], "w:")
    raw = bytearray(Path(path).read_bytes())
    second = raw.index(b"m/sys/bus/b")
    if place == "in a header":
        raw[second] ^= 1
    else:
        del raw[second + (100 if place == "within a header" else 0) :]
    Path(path).write_bytes(raw)
    with pytest.raises(MachineError, match="is damaged or cut short"):
        open_machine(path)


def test_an_archive_above_the_limits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_MAX_BYTES", 1 << 20)
    place = pack(tmp_path / "m.tar.bz2", [member(f"m/{ONLINE}", b"0"), member("m/sys/bomb", bytes(2 << 20))])
    with pytest.raises(MachineError, match="holds more than 1 MiB"):
        open_machine(place)


def test_a_name_that_is_both_file_and_folder_is_refused(tmp_path: Path) -> None:
    members = [member("m/sys/class", b"x"), member("m/sys/class/drm/version", b"y")]
    with pytest.raises(MachineError, match="holds m/sys/class both as a file and as a folder"):
        open_machine(pack(tmp_path / "m.tar.bz2", members))


def packed(path: Path, raw: bytes) -> str:
    path.write_bytes(gzip.compress(raw))
    return str(path)


def header(kind: bytes, size: int, name: str = "m/sys/a") -> bytes:
    """A header as tar writes it, with any size: in base 256 if octal digits do not suffice."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, 0
    raw = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    raw[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % (1 << 88)).to_bytes(11, "big")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
@pytest.mark.parametrize("size", [16 << 20, 3 << 30, -512, -(1 << 40)])
def test_a_header_with_an_absurd_size_is_refused(tmp_path: Path, kind: bytes, size: int) -> None:
    raw = header(kind, size) + b"1" * min(max(size, 1024), 16 << 20)
    tracemalloc.start()
    with pytest.raises(MachineError, match="or is damaged"):
        archive.read_archive(Path(packed(tmp_path / "m.tar.gz", raw)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z"])
@pytest.mark.parametrize("size", [-512, -1024, -(1 << 40)])
def test_a_member_of_negative_size_is_refused(tmp_path: Path, kind: bytes, size: int) -> None:
    raw = header(tarfile.REGTYPE, 0) + header(kind, size, "m/sys/b") + bytes(10240)
    with pytest.raises(MachineError):
        archive.read_archive(Path(packed(tmp_path / "m.tar.gz", raw)))


@pytest.mark.parametrize("rest", [b"\0" + b"x" * 511, header(tarfile.REGTYPE, 0, "m/sys/b")[:300]])
def test_a_damaged_or_cut_header_is_not_the_end_of_the_archive(tmp_path: Path, rest: bytes) -> None:
    raw = header(tarfile.REGTYPE, 0) + rest
    with pytest.raises(MachineError, match="is damaged or cut short"):
        archive.read_archive(Path(packed(tmp_path / "m.tar.gz", raw)))


def test_an_endless_chain_of_headers_is_refused(tmp_path: Path) -> None:
    pax = header(tarfile.XHDTYPE, 512) + b"11 path=ab\n".ljust(512, b"\0")
    with pytest.raises(MachineError, match="is not a tar archive"):
        archive.read_archive(Path(packed(tmp_path / "m.tar.gz", pax * 100_000)))


def test_a_sparse_map_without_an_end_is_refused(tmp_path: Path) -> None:
    records = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
    pax = header(tarfile.XHDTYPE, len(records)) + records.ljust(512, b"\0")
    raw = pax + header(tarfile.REGTYPE, 1 << 20) + b"9999999999\n" + b"0\n" * (50 << 19)
    tracemalloc.start()
    with pytest.raises(MachineError):
        archive.read_archive(Path(packed(tmp_path / "m.tar.gz", raw)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_folders_count_as_files_and_the_length_of_a_path_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MAX_MEMBERS", 100)
    deep = [member(f"m/{number}/" + "a/" * 40 + "b") for number in range(3)]
    with pytest.raises(MachineError, match="100 files"):
        archive.read_archive(Path(pack(tmp_path / "deep.tar.bz2", deep)))
    assert archive.read_archive(Path(pack(tmp_path / "less.tar.bz2", deep[:2])))
    with pytest.raises(MachineError, match="a path of 5004 characters"):
        archive.read_archive(Path(pack(tmp_path / "long.tar.bz2", [member("m/" + "a/" * 2500 + "bc")])))


def test_names_as_long_as_linux_allows_are_read(tmp_path: Path) -> None:
    name = f"m/{'a' * 200}/{'b' * 200}/{'c' * 200}"
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo(name)
        raw = info.tobuf(kind) + bytes(1024)
        tree = archive.read_archive(Path(packed(tmp_path / f"{kind}.tar.gz", raw)))
        assert TreeFiles(tree).find(name) == b""


def test_xz_is_refused_because_a_stream_decides_how_much_memory_it_needs(tmp_path: Path) -> None:
    place = pack(tmp_path / "m.tar.xz", [member(f"m/{ONLINE}", b"0-1\n")], "w:xz")
    with pytest.raises(MachineError, match=r"is not a tar archive \(plain, gzip or bzip2\)"):
        open_machine(place)


@pytest.mark.parametrize("cut", [40, 200])
def test_a_truncated_stream_is_reported(tmp_path: Path, cut: int) -> None:
    place = Path(pack(tmp_path / "m.tar.gz", [member(f"m/{ONLINE}", bytes(range(256)) * 64)], "w:gz"))
    place.write_bytes(place.read_bytes()[:cut])
    with pytest.raises(MachineError, match="is damaged or cut short"):
        open_machine(str(place))
