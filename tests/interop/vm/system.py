"""The machine's system: Debian with systemd, its kernel, and what nodes have; made once by mmdebstrap."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.interop.cache import CACHE

SUITE = "bookworm"
BACKPORTS = f"{SUITE}-backports"
"""Of the same Debian, with the kernel of the next one."""
_HERE = Path(__file__).parent
_PACKAGES = (
    "busybox-static",
    "ca-certificates",
    "cpio",
    "dbus",
    "iproute2",
    "iptables",
    "kmod",
    "numactl",
    "openssl",
    "procps",
    "python3",
    "runc",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
)
_LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/lib/modules/*/kernel/drivers/*",
    "/lib/modules/*/kernel/sound/*",
)
# Of the kernel's drivers: what an emulated machine has.
_DRIVERS = ("base", "block", "char", "dma", "net", "nvme", "pci", "vfio", "virt", "virtio")
_DISK = "8G"


@dataclass(frozen=True)
class System:
    """Files that qemu starts: nobody writes to them."""

    kernel: Path
    initrd: Path
    disk: Path


def why_no_system() -> str:
    """Why the system cannot be made here; empty if it can."""
    missing = [name for name in ("mmdebstrap", "mke2fs") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} (Debian's packages mmdebstrap and e2fsprogs)"
    return "" if os.geteuid() == 0 else "a root file system is made by root alone"


def system(kernel: str = SUITE) -> System:
    """The system with the kernel of a suite, made if it is not there yet: about 90 s, 250 MB of packages."""
    folder = CACHE / f"vm-{_digest()}{kernel.removeprefix(SUITE)}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="vm-making-") as name:
            made = Path(name, "made")
            made.mkdir()
            _make(made, Path(name, "root"), kernel)
            made.rename(folder)
    return System(folder / "vmlinuz", folder / "initrd", folder / "disk")


def _digest() -> str:
    """Another recipe is another system."""
    recipe = (_HERE / name for name in ("system.py", "customize.sh", "agent.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in recipe)).hexdigest()[:12]


def _make(made: Path, root: Path, kernel: str) -> None:
    kept = [f"/lib/modules/*/kernel/drivers/{name}/*" for name in _DRIVERS]
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    options += [f"--dpkgopt=path-include={pattern}" for pattern in kept]
    options += [f"--include={','.join((*_PACKAGES, f'linux-image-amd64/{kernel}'))}"]
    options += [f"--customize-hook={_HERE / 'customize.sh'}"]
    if kernel != SUITE:
        # From where the other packages come.
        lists = '"$1/etc/apt/sources.list'
        options += [f'--setup-hook=sed -n "s/ {SUITE} main/ {kernel} main/p" {lists}" >{lists}.d/kernel.list"']
    # Debian's own initramfs takes longer to make and to start.
    environment = {**os.environ, "INITRD": "No"}
    _run("mmdebstrap", "--quiet", "--variant=minbase", *options, SUITE, str(root), environment=environment)
    for name in ("vmlinuz", "initrd"):
        (root / "boot" / name).rename(made / name)
    # A journal is of no use on a disk whose changes are thrown away.
    _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(root), str(made / "disk"), _DISK)


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
