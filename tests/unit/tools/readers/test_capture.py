import errno
import json
import tarfile
from pathlib import Path

import pytest

from dranode.api.errors import MachineError, UsageError
from dranode.cpu.sysfs import read_topology
from dranode.sim.machines.confined import ConfinedRoot
from dranode.sim.machines.forms import open_machine
from dranode.tools.readers import capture
from dranode.tools.readers.capture import record, summarize, write_archive
from tests.fakes.machine import CPU, machine

GPU = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"


def gpu_machine() -> ConfinedRoot:
    return machine(
        {
            f"{CPU}/online": "0-1\n",
            f"{GPU}/vendor": "0x1002\n",
            f"{GPU}/class": "0x030000\n",
            f"{GPU}/numa_node": "0\n",
            f"{GPU}/drm/renderD128/dev": "226:128\n",
            f"{GPU}/config": "not recorded",
            "sys/devices/virtual/kfd/kfd/topology/nodes/1/gpu_id": "77\n",
            "sys/devices/virtual/kfd/kfd/dev": "508:0\n",
            "proc/driver/nvidia/version": "NVRM version: 1\n",
            "proc/cmdline": "password=secret",
        },
        {
            "sys/bus/pci/devices/0000:01:00.0": f"../../../../{GPU}",
            f"{GPU}/driver": "../../../../bus/pci/drivers/amdgpu",
            "sys/class/drm/renderD128": f"../../../{GPU}/drm/renderD128",
            "sys/class/kfd/kfd": "../../devices/virtual/kfd/kfd",
        },
        {"dev/kfd": ("c", 508, 0), "dev/dri/renderD128": ("c", 226, 128), "dev/sda": ("b", 8, 0)},
    )


def test_a_capture_reads_like_the_machine(tmp_path: Path) -> None:
    place = tmp_path / "node.tar.gz"
    write_archive(record(gpu_machine()), place)
    copy = open_machine(str(place))
    for path in ("sys/bus/pci/devices/0000:01:00.0/vendor", "sys/class/drm/renderD128/dev", "sys/class/kfd/kfd/dev"):
        assert copy.read_bytes(path) == gpu_machine().read_bytes(path)
    assert copy.readlink("sys/bus/pci/devices/0000:01:00.0/driver") == "../../../../bus/pci/drivers/amdgpu"
    assert copy.resolve("sys/bus/pci/devices/0000:01:00.0") == GPU
    assert copy.device_number("dev/dri/renderD128") == ("c", 226, 128)
    assert copy.read_bytes("sys/class/kfd/kfd/topology/nodes/1/gpu_id") == b"77\n"


def test_what_no_driver_reads_is_not_recorded(tmp_path: Path) -> None:
    place = tmp_path / "node.tar.gz"
    write_archive(record(gpu_machine()), place)
    copy = open_machine(str(place))
    for path in ("proc/cmdline", "dev/sda", f"{GPU}/config"):
        assert not copy.exists(path)


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".tar.bz2"])
def test_equal_machines_make_equal_archives_in_every_compression(tmp_path: Path, ending: str) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        write_archive(record(open_machine("cores=2,threads=2")), folder / f"m{ending}")
    assert (first / f"m{ending}").read_bytes() == (second / f"m{ending}").read_bytes()
    assert len(read_topology(open_machine(str(first / f"m{ending}"))).cpus) == 4


def test_a_compressed_archive_has_no_timestamp(tmp_path: Path) -> None:
    write_archive(record(machine({})), tmp_path / "m.tar.gz")
    assert (tmp_path / "m.tar.gz").read_bytes()[4:8] == bytes(4)  # RFC 1952: MTIME


def test_the_archive_can_be_unpacked_without_root(tmp_path: Path) -> None:
    place = tmp_path / "node.tar"
    write_archive(record(gpu_machine()), place)
    with tarfile.open(place) as made:
        assert {member.type for member in made} == {tarfile.REGTYPE, tarfile.SYMTYPE}
        assert not any(member.mtime or member.uid for member in made)
        # Python 3.11.4 and newer unpack with this filter; the archive has nothing that it would change.
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        made.extractall(tmp_path / "unpacked", **safely)  # type: ignore[arg-type] # noqa: S202 - our own archive
    assert open_machine(str(tmp_path / "unpacked")).device_number("dev/kfd") == ("c", 508, 0)
    index = json.loads((tmp_path / "unpacked/node/machine.json").read_text())
    assert index["devices"]["/dev/kfd"] == "c 508:0"


def test_an_unreadable_file_is_left_out_and_named() -> None:
    class Guarded(ConfinedRoot):
        def read_bytes(self, path: str) -> bytes:
            if path.endswith("/vendor"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().read_bytes(path)

    recording = record(Guarded(gpu_machine().files))
    assert recording.left_out == {f"{GPU}/vendor": "Permission denied"}
    assert f"{GPU}/class" in recording.files


def test_an_unreadable_folder_is_left_out_and_named() -> None:
    class Guarded(ConfinedRoot):
        def listdir(self, path: str) -> list[str]:
            if path == "dev/dri":
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().listdir(path)

    recording = record(Guarded(gpu_machine().files))
    assert recording.left_out == {"dev/dri": "Permission denied"}


def test_a_file_above_the_limit_is_left_out_and_named() -> None:
    recording = record(
        machine(
            {f"{CPU}/online": "0", f"{GPU}/resource": "x" * (2 << 20)}, {"sys/bus/pci/devices/a": f"../../../../{GPU}"}
        )
    )
    assert recording.left_out == {f"{GPU}/resource": "is larger than 1 MiB"}


def test_a_machine_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_MAX_TOTAL", 100)
    with pytest.raises(MachineError, match="check the machine's root"):
        record(open_machine("cores=16"))


@pytest.mark.parametrize("name", ["node.zip", "node", ".tar.gz"])
def test_an_unknown_file_name_extension_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"must end in one of .tar, "):
        write_archive(record(machine({})), tmp_path / name)


def test_a_missing_folder_is_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"gone/node.tar cannot be written: No such file"):
        write_archive(record(machine({})), tmp_path / "gone/node.tar")
    assert list(tmp_path.iterdir()) == []


def test_the_summary_has_what_the_kernel_reports_and_null_otherwise() -> None:
    summary = summarize(gpu_machine())
    assert summary["cpus"] == "0-1"
    assert summary["smt"] is None
    assert summary["pci"] == 1
    assert summary["accelerators"] == [
        {
            "address": "0000:01:00.0",
            "vendor": "0x1002",
            "device": None,
            "class": "0x030000",
            "numa_node": "0",
            "driver": "amdgpu",
        }
    ]
    assert summary["nodes"] == {"/dev/kfd": "c 508:0", "/dev/dri/renderD128": "c 226:128"}
