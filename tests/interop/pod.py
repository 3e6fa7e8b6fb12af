"""The driver's pod: a process in its own namespaces that sees of the node only what the DaemonSet mounts.

It is the first process of its PID namespace, without capabilities, on a root file system that nobody can write. Two
things only are not as in life: the folders of kubelet and of the runtime are those of the test, under the same paths
inside and outside, and one more folder stands for the API server.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from tests.interop.cri import PATIENCE

PROJECT = Path(__file__).parents[2]
DAEMONSET = PROJECT / "deploy" / "daemonset.yaml"
TOOLS = ("unshare", "setpriv", "pivot_root")
_CGROUPS = "/sys/fs/cgroup"
# What the driver's image contains.
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(PROJECT))
_IMAGE = tuple(Path(path) for path in dict.fromkeys((*_SYSTEM, *sys.path)) if Path(path).is_dir())
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class DriverPod:
    """A running pod of the driver."""

    def __init__(self, folder: Path, command: Sequence[str | Path], stderr: IO[bytes]) -> None:
        """Start it in the test's folder."""
        cgroup = ["--cgroup"] if Path(_CGROUPS, "cgroup.controllers").exists() else []
        unshare = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", *cgroup, "--fork", "--kill-child"]
        script = "\n".join(
            ("set -e", *_mounts(folder), f"exec {_WITHOUT_CAPABILITIES} {shlex.join(map(str, command))}")
        )
        self._process = subprocess.Popen([*unshare, "sh", "-c", script], stderr=stderr)

    def _signal(self, number: int) -> None:
        # The process is a child of unshare, which does not forward signals.
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            os.kill(int(child), number)

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._process.poll()

    def end(self, number: int) -> int:
        """Send it a signal, and wait until it ends; returns its exit status."""
        if self.poll() is None:
            self._signal(number)
        return self._process.wait(PATIENCE)


_WITHOUT_CAPABILITIES = "setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all"


def _mounts(folder: Path) -> Iterator[str]:
    """Return the commands that make the pod's file system."""
    root = folder / "rootfs"
    yield f"mkdir -p {root} && mount -t tmpfs -o mode=755 rootfs {root}"
    # These come first, because the others may be below them, such as a checkout in /tmp.
    for empty in _empty_folders():
        yield f"mkdir -p {root}{empty} && mount -t tmpfs empty {root}{empty}"
    for place in _IMAGE:
        if place.is_symlink():
            yield f"ln -s {place.readlink()} {root}{place}"
        elif place.exists():
            yield from _bind(place, Path(f"{root}{place}"), read_only=True)
    yield f"mkdir {root}/proc {root}/sys {root}/dev"
    yield f"mount -t proc proc {root}/proc && mount -t sysfs -o ro sysfs {root}/sys"
    for device in _DEVICES:
        yield f"touch {root}{device} && mount --bind {device} {root}{device}"
    for source, read_only in ((folder / "store", False), *_volumes(folder)):
        yield from _bind(source, Path(f"{root}{source}"), read_only=read_only)
    yield f"cd {root} && mkdir .old && pivot_root . .old && umount -l /.old && rmdir /.old && mount -o remount,ro /"


def _bind(source: Path, target: Path, *, read_only: bool) -> Iterator[str]:
    # A folder of the image may be inside another one.
    yield f"mkdir -p {target} 2>/dev/null || test -d {target}"
    yield f"mount --rbind {source} {target}"
    if read_only:
        yield f"mount -o remount,bind,ro {target}"


def _volumes(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield what the manifest mounts, and whether it is read-only."""
    spec: Any = yaml.safe_load(DAEMONSET.read_text())["spec"]["template"]["spec"]
    host = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    for mount in _volume_mounts(spec):
        if mount["name"] in host:
            assert host[mount["name"]] == mount["mountPath"], "the driver tells others paths of the node"
            yield _place(folder, mount["mountPath"]), mount.get("readOnly", False)


def _empty_folders() -> Iterator[str]:
    """Yield where the manifest mounts an emptyDir."""
    spec: Any = yaml.safe_load(DAEMONSET.read_text())["spec"]["template"]["spec"]
    empty = {volume["name"] for volume in spec["volumes"] if "emptyDir" in volume}
    return (mount["mountPath"] for mount in _volume_mounts(spec) if mount["name"] in empty)


def _volume_mounts(spec: Any) -> list[Any]:
    (container,) = spec["containers"]
    return list(container["volumeMounts"])


def _place(folder: Path, path: str) -> Path:
    """Return what replaces a path of the node in a test."""
    for prefix, place in (("/var/lib/kubelet", "kubelet"), ("/var/run/cdi", "cdi"), ("/var/run/nri", "nri")):
        if path.startswith(prefix):
            return folder / place / path.removeprefix(prefix).lstrip("/")
    assert path == _CGROUPS, f"{DAEMONSET} mounts {path}, and nothing stands for it here"
    return Path(path)
