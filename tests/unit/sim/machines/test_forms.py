import shutil
from pathlib import Path

import pytest

from dranode.api.errors import DranodeError, MachineError, UsageError
from dranode.driver.machine.folder import HostRoot
from dranode.sim.machines.forms import open_machine

ONLINE = "sys/devices/system/cpu/online"


def lay(folder: Path, content: str = "0-3\n") -> Path:
    file = folder / ONLINE
    file.parent.mkdir(parents=True)
    file.write_text(content)
    return folder


def test_host_is_the_host() -> None:
    assert isinstance(open_machine("host"), HostRoot)


@pytest.mark.parametrize("depth", ["", "a", "a/b/c"])
def test_sys_may_be_at_any_depth_of_a_folder(tmp_path: Path, depth: str) -> None:
    lay(tmp_path / depth)
    assert open_machine(str(tmp_path)).read_bytes(ONLINE) == b"0-3\n"


def test_proc_sys_is_not_mistaken_for_sys(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    lay(tmp_path / "deep/down/here")
    assert open_machine(str(tmp_path)).read_bytes(ONLINE) == b"0-3\n"


def test_several_machines_in_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    lay(tmp_path / "one")
    lay(tmp_path / "two")
    with pytest.raises(MachineError, match="holds 2 machines, including one and two; choose one"):
        open_machine(str(tmp_path))


def test_a_folder_without_sys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="has no sys/ folder"):
        open_machine(str(tmp_path))


def test_a_link_out_of_the_folder_leads_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    root_folder = lay(tmp_path / "machine")
    (root_folder / "sys/up").symlink_to("../../secret")
    (root_folder / "sys/absolute").symlink_to(secret)
    root = open_machine(str(root_folder))
    for path in ("sys/up", "sys/absolute", "../secret", "sys/../../secret"):
        assert not root.exists(path)
        with pytest.raises(FileNotFoundError):
            root.read_bytes(path)
    assert root.readlink("sys/up") == "../../secret"


def test_an_absolute_link_starts_at_the_machines_own_root(tmp_path: Path) -> None:
    folder = lay(tmp_path / "machine")
    (folder / "sys/here").symlink_to("/sys/devices")
    root = open_machine(str(folder))
    assert root.resolve("sys/here/system/cpu") == "sys/devices/system/cpu"
    assert root.listdir("sys/here/system") == ["cpu"]


def test_a_folder_is_read_again_each_time(tmp_path: Path) -> None:
    root = open_machine(str(lay(tmp_path)))
    shutil.rmtree(tmp_path / "sys/devices/system/cpu")
    assert not root.exists(ONLINE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'there is no machine ""'),
        ("nowhere", 'there is no machine "nowhere"; pass host, a folder or .tar archive'),
        ("sockets=2,numa", 'has the unknown key "numa"|numa=.*must be a whole number'),
        ("socket=2", 'the unknown key "socket"; the keys are sockets, numa, l3, cores, threads'),
        ("hugepages-1Gi=8Gi", 'hugepages-1Gi=8Gi in the description "hugepages-1Gi=8Gi" must be a whole number'),
        ("sockets=0", 'sockets=0 in the description "sockets=0" must be a whole number from 1 to 65536'),
        ("cores=-4", "cores=-4 .* must be a whole number"),
        ("cores=4.5", "cores=4.5 .* must be a whole number"),
        ("cores=٤", "must be a whole number"),
        ("cores=2,cores=4", 'sets "cores" twice'),
        ("sockets=300,cores=300", "makes 90000 CPUs; the limit is 65536"),
        (f"cores={'9' * 5000}", "must be a whole number"),
    ],
)
def test_what_does_not_name_a_machine_is_a_usage_error(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_machine(text)


def test_a_file_of_another_kind_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"neither a folder nor named .tar\*, .yaml or .yml"):
        open_machine(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize("text", ["nowhere", "cores=0", ""])
def test_every_refusal_is_one_line(text: str) -> None:
    with pytest.raises(DranodeError) as refusal:
        open_machine(text)
    assert "\n" not in str(refusal.value)
