import errno
import json
from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import MachineError
from dranode.driver.machine.folder import HostRoot
from dranode.gpu.config import GPUMode
from dranode.gpu.plugin import GPUPlugin
from dranode.gpu.user_space import user_space
from dranode.sim.machines.tree import Link
from tests.fakes.gpu import Machine
from tests.fakes.gpu_machines import hgx

ADDRESS = "0000:1b:00.0"
UUID = "GPU-00000000-0000-4000-8000-0123456789ab"
DEBIAN = "usr/lib/x86_64-linux-gnu"
VERSION = "550.54.15"
FOLDERS = (
    f"{DEBIAN}/nvidia/legacy-390xx",
    "home/kubernetes/bin/nvidia/lib64",
    "opt/drv/lib",
    "opt/nvidia/current/usr/lib64",
    "opt/nvidia/lib64",
    "run/opengl-driver/lib",
    "usr/lib/nvidia/tesla",
    "usr/local/glibc/usr/lib",
    "usr/local/lib",
    "usr/local/nvidia/lib64",
    "var/lib/nvidia/lib64",
)
GLX = f"libglxserver_nvidia.so.{VERSION}"
GKE, NIXOS = "home/kubernetes/bin/nvidia", "run/opengl-driver"


def with_libraries(folder: str = DEBIAN, version: str = VERSION) -> Machine:
    machine = hgx()
    machine.put("lib64/ld-linux-x86-64.so.2", b"")
    for stem in ("libcuda", "libnvidia-ml", "libnvidia-glcore", "libnvidia-unknown"):
        machine.put(f"{folder}/{stem}.so.{version}", b"")
        machine.put(f"{folder}/{stem}.so.1", Link(f"{stem}.so.{version}"))
    machine.put(f"{folder}/libcuda.so.535.1.1", b"")
    for name in ("libnvidia-nvvm70.so.4", "libnvidia-egl-gbm.so.1.1.2", "libc.so.6", "gbm/dri_gbm.so"):
        machine.put(f"{folder}/{name}", b"")
    machine.put(f"{folder}/libcuda.so", Link("libcuda.so.1"))
    machine.put(f"{folder}/gbm/nvidia-drm_gbm.so", Link(f"../libnvidia-ml.so.{version}"))
    vulkan = "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json"
    for path in ("etc/OpenCL/vendors/nvidia.icd", vulkan, "usr/share/nvidia/nvoptix.bin"):
        machine.put(path, b"")
    for tool in ("nvidia-smi", "nvidia-cuda-mps-server"):
        machine.put(f"usr/bin/{tool}", b"")
    return machine


def mounted(machine: Machine, mode: GPUMode = GPUMode.COMPUTE) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in user_space(machine.root(), ADDRESS, mode).mounts}


def vendor_spec(**changes: Any) -> bytes:
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [
                {"path": "/dev/nvidiactl"},
                {"path": "/dev/nvidia-uvm", "hostPath": "/run/nvidia/driver/dev/nvidia-uvm"},
                {"path": "/dev/nvidia-missing"},
            ],
            "mounts": [{"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi", "options": ["ro"]}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-smi", "args": ["update-ldcache"]}],
        },
        "devices": [
            {"name": UUID, "containerEdits": {"env": ["MINE=yes"]}},
            {"name": "GPU-other", "containerEdits": {"env": ["MINE=no"]}},
        ],
        **changes,
    }
    return json.dumps(spec).encode()


def test_the_running_drivers_libraries_are_mounted_for_both_families_of_images() -> None:
    real = f"/{DEBIAN}/libcuda.so.550.54.15"
    mounts = mounted(with_libraries())
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        assert mounts[f"{folder}/libcuda.so"] == mounts[f"{folder}/libcuda.so.1"] == real
        assert mounts[f"{folder}/libcuda.so.550.54.15"] == real
    assert mounts["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"


def test_libraries_of_another_version_or_of_others_stay_on_the_host() -> None:
    names = {path.rpartition("/")[2].partition(".")[0] for path in mounted(with_libraries())}
    assert names == {"libcuda", "libnvidia-ml", "libnvidia-nvvm70", "nvidia-smi", "nvidia-cuda-mps-server", "nvidia"}
    assert "/usr/lib64/libcuda.so.535.1.1" not in mounted(with_libraries())


def test_a_folder_with_the_name_of_a_file_does_not_hide_it() -> None:
    machine, folders = with_libraries("usr/lib64"), (f"{DEBIAN}/libcuda.so.{VERSION}", "usr/local/bin/nvidia-smi")
    for folder in folders:
        machine.put(f"{folder}/empty", b"")
    mounts = mounted(machine)
    assert mounts[f"/usr/lib64/libcuda.so.{VERSION}"] == f"/usr/lib64/libcuda.so.{VERSION}"
    assert not {f"/{folder}" for folder in folders} & {*mounts.values()}


def test_graphics_mounts_all_libraries_of_the_driver_and_their_configuration() -> None:
    paths = mounted(with_libraries(), GPUMode.GRAPHICS)
    for name in ("libnvidia-glcore.so.1", "libnvidia-egl-gbm.so.1.1.2", "gbm/nvidia-drm_gbm.so"):
        assert f"/usr/lib64/{name}" in paths
    for path in ("vulkan/icd.d/nvidia_icd.x86_64.json", "nvidia/nvoptix.bin"):
        assert f"/usr/share/{path}" in paths
    assert not [path for path in paths if "libc." in path or "535" in path or "dri_gbm" in path]


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (f"{DEBIAN}/libnvidia-eglcore.so.{VERSION}", f"{DEBIAN}/libnvidia-eglcore.so.{VERSION}"),
        (f"{DEBIAN}/libEGL_nvidia.so.{VERSION}", "usr/lib64/libEGL_nvidia.so.0"),
        (f"{DEBIAN}/libnvidia-nvvm.so.{VERSION}", "usr/lib64/libnvidia-nvvm.so.4"),
        (f"{DEBIAN}/libnvidia-pkcs11-openssl3.so.{VERSION}", f"usr/lib64/libnvidia-pkcs11-openssl3.so.{VERSION}"),
        (f"{DEBIAN}/libGLX_nvidia.so.0", "usr/lib64/libGLX_nvidia.so.0"),
        (f"{DEBIAN}/libGLX_indirect.so.0", None),
        (f"{DEBIAN}/nvidia/xorg/nvidia_drv.so", "usr/lib/xorg/modules/drivers/nvidia_drv.so"),
        (f"usr/lib64/xorg/modules/extensions/{GLX}", f"usr/lib64/xorg/modules/extensions/{GLX}"),
        ("usr/share/X11/xorg.conf.d/10-nvidia.conf", "usr/share/X11/xorg.conf.d/10-nvidia.conf"),
        ("usr/share/vulkan/icd.d/intel_icd.x86_64.json", None),
        ("etc/vulkan/icd.d/nvidia_icd.json", "usr/share/vulkan/icd.d/nvidia_icd.json"),
        (f"{GKE}/vulkan/icd.d/nvidia_icd.json", "usr/share/vulkan/icd.d/nvidia_icd.json"),
        (f"{NIXOS}/share/glvnd/egl_vendor.d/10_nvidia.json", "usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
        ("opt/nvidia/current/usr/share/vulkan/icd.d/nvidia_icd.json", "usr/share/vulkan/icd.d/nvidia_icd.json"),
        ("usr/local/share/nvidia/nvoptix.bin", "usr/share/nvidia/nvoptix.bin"),
        (f"{GKE}/firmware/nvidia/{VERSION}/gsp_ga10x.bin", f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"),
        ("opt/bin/nvidia-debugdump", "usr/bin/nvidia-debugdump"),
        ("opt/nvidia/current/usr/bin/nvidia-smi", "usr/bin/nvidia-smi"),
        ("usr/local/bin/nvidia-smi", "usr/bin/nvidia-smi"),
        *((f"{folder}/libnvidia-ml.so.{VERSION}", "usr/lib64/libnvidia-ml.so.1") for folder in FOLDERS),
    ],
)
def test_libraries_are_found_in_the_folders_of_driver_containers_and_distributions(
    place: str, path: str | None
) -> None:
    machine = hgx()
    machine.put("etc/ld.so.conf.d/nvidia-tesla.conf", "# Bottlerocket\n\n/usr/lib/nvidia/tesla/\ninclude /x\n")
    machine.put("etc/ld.so.conf", "include ld.so.conf.d/*.conf\n/opt/drv/lib\n")
    machine.put(f"{DEBIAN}/nvidia/current/libcuda.so.{VERSION}", b"")
    before = mounted(machine, GPUMode.GRAPHICS)
    machine.put(place, b"")
    added = {target for target in mounted(machine, GPUMode.GRAPHICS) if target not in before}
    assert (f"/{path}" in added) if path is not None else not added


def test_a_damaged_list_of_folders_hides_no_library(tmp_path: Path) -> None:
    machine = with_libraries()
    machine.put("etc/ld.so.conf", f"/a\0b\n/{'c' * 5000}\n")
    assert user_space(HostRoot(str(machine.write(tmp_path))), ADDRESS, GPUMode.COMPUTE).mounts


def test_libraries_are_also_where_those_of_a_package_store_refer_to_them() -> None:
    machine = hgx()
    machine.put(f"nix/store/nvidia/lib/libcuda.so.{VERSION}", b"")
    machine.put(NIXOS, Link("/nix/store/nvidia"))
    assert mounted(machine)["/nix/store/nvidia/lib/libcuda.so.1"] == f"/nix/store/nvidia/lib/libcuda.so.{VERSION}"


def test_a_node_without_the_running_drivers_libraries_is_named() -> None:
    machine = with_libraries(version="560.1.1")
    (sentence,) = GPUPlugin(machine.root()).discover().warnings
    assert sentence.startswith(
        f"containers find no driver of GPU {ADDRESS} unless their image has libcuda.so.{VERSION}: "
    )
    machine.put("etc/cdi/nvidia.yaml", vendor_spec())
    assert not GPUPlugin(machine.root()).discover().warnings
    machine.failures[DEBIAN] = errno.EACCES
    machine.remove("etc/cdi/nvidia.yaml")
    assert "will be refused: /usr/lib/" in GPUPlugin(machine.root()).discover().warnings[0]


def test_programs_that_ask_the_linkers_cache_are_told_where_the_library_is() -> None:
    assert user_space(with_libraries().root(), ADDRESS, GPUMode.COMPUTE).env == ("TRITON_LIBCUDA_PATH=/usr/lib64",)


def test_vfio_mounts_nothing_and_other_mounts_are_read_only() -> None:
    assert not user_space(hgx().root(), ADDRESS, GPUMode.COMPUTE)
    assert not user_space(with_libraries().root(), ADDRESS, GPUMode.VFIO)
    options = {mount.options for mount in user_space(with_libraries().root(), ADDRESS, GPUMode.COMPUTE).mounts}
    assert options == {("ro", "nosuid", "nodev", "bind")}


def test_in_a_daemonset_the_mounts_have_the_runtimes_paths() -> None:
    machine = with_libraries(folder=f"host/{DEBIAN}")
    assert mounted(machine)["/usr/lib64/libcuda.so.1"] == f"/{DEBIAN}/libcuda.so.550.54.15"


@pytest.mark.parametrize("prefix", ["host/", "host/run/nvidia/driver/"])
def test_an_absolute_link_begins_at_the_root_of_the_node_or_of_the_drivers_container(prefix: str) -> None:
    machine = hgx()
    machine.put("host/usr/bin/sh", b"")
    machine.put(f"{prefix}opt/lib/libcuda.so.550.54.15", b"")
    machine.put(f"{prefix}opt/bin/nvidia-smi", b"")
    machine.put(f"{prefix}usr/lib64", Link("/opt/lib"))
    machine.put(f"{prefix}opt/lib/libcuda.so.1", Link("/etc/alternatives/libcuda"))
    machine.put(f"{prefix}etc/alternatives/libcuda", Link("../../usr/lib64/./libcuda.so.550.54.15"))
    machine.put(f"{prefix}usr/bin/nvidia-smi", Link("/opt/bin/nvidia-smi"))
    machine.put(f"{prefix}usr/bin/nvidia-cuda-mps-server", Link("/usr/bin/nvidia-cuda-mps-server"))
    shown = prefix.removeprefix("host")
    mounts = mounted(machine)
    assert mounts["/usr/lib64/libcuda.so.1"] == f"{shown}opt/lib/libcuda.so.550.54.15"
    assert mounts["/usr/bin/nvidia-smi"] == f"{shown}opt/bin/nvidia-smi"
    assert "/usr/bin/nvidia-cuda-mps-server" not in mounts


@pytest.mark.parametrize("path", [DEBIAN, "dev/nvidiactl"])
def test_unreadable_libraries_are_an_error(path: str) -> None:
    machine = with_libraries()
    if path != DEBIAN:
        machine.put("etc/cdi/nvidia.yaml", vendor_spec())
    machine.failures[path] = errno.EACCES
    with pytest.raises(MachineError, match=f"^/{path} cannot be read: Permission denied$"):
        user_space(machine.root(), ADDRESS, GPUMode.COMPUTE)


def test_nvidias_own_spec_takes_precedence_and_its_nodes_get_numbers() -> None:
    machine = with_libraries()
    machine.put("host/usr/local/bin/nvidia-smi", b"")
    machine.put("host/usr/bin/nvidia-smi", Link("/usr/local/bin/nvidia-smi"))
    machine.put("host/var/run", Link("/run"))
    machine.put("host/run/cdi", Link("/etc/static"))
    machine.put("host/etc/static/nvidia.yaml", Link("/nix/store/nvidia"))
    machine.put("host/nix/store/nvidia", vendor_spec())
    machine.node("host/run/nvidia/driver/dev/nvidia-uvm", 510, 0)
    edits = user_space(machine.root(), ADDRESS, GPUMode.COMPUTE)
    assert edits.env == ("NVIDIA_VISIBLE_DEVICES=void", "MINE=yes")
    numbers = [(node.path, node.major, node.minor) for node in edits.device_nodes]
    assert numbers == [("/dev/nvidiactl", 195, 255), ("/dev/nvidia-uvm", 510, 0)]
    assert [mount.host_path for mount in edits.mounts] == ["/usr/bin/nvidia-smi"]
    assert [hook.args for hook in edits.hooks] == [("update-ldcache",)]


@pytest.mark.parametrize("exists", [False, True])
def test_a_spec_with_files_of_another_driver_is_ignored(exists: bool) -> None:  # noqa: FBT001 - a parameter of the test
    machine = with_libraries()
    if exists:
        machine.put("usr/lib/libcuda.so.535.1.1", b"")
    stale = {"mounts": [{"hostPath": "/usr/lib/libcuda.so.535.1.1", "containerPath": "/usr/lib/libcuda.so.1"}]}
    machine.put("etc/cdi/nvidia.yaml", vendor_spec(containerEdits=stale))
    assert "/usr/lib64/libcuda.so.1" in mounted(machine)


def test_the_spec_that_runtimes_prefer_is_used() -> None:
    machine = with_libraries()
    for folder in ("etc/cdi", "var/run/cdi"):
        machine.put(f"{folder}/nvidia.yaml", vendor_spec(containerEdits={"env": [f"FROM={folder}"]}))
    assert "FROM=var/run/cdi" in user_space(machine.root(), ADDRESS, GPUMode.COMPUTE).env


def test_specs_of_others_and_broken_ones_are_ignored() -> None:
    machine = with_libraries()
    machine.put("etc/cdi/broken.yaml", b"{:")
    machine.put("etc/cdi/other.json", vendor_spec(kind="example.com/net"))
    machine.put("etc/cdi/twice.yaml", vendor_spec().replace(b"{", b'{"kind": "nvidia.com/gpu", ', 1))
    machine.put("etc/cdi/odd.json", vendor_spec(devices="none"))
    machine.put("etc/cdi/notes.txt", vendor_spec())
    machine.put("etc/cdi/day.yaml", b"kind: example.com/net\nannotations: {made: 2026-02-30}")
    machine.put("etc/cdi/hex.yaml", b"kind: example.com/net\nannotations: {mask: 0x_}")
    assert "/usr/lib64/libcuda.so.1" in mounted(machine)
