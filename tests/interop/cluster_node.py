"""The node of a cluster: its network, its runtime and its kubelet.

`LocalNode` is this machine; `tests.interop.vm.node` has an emulated one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from dranode.api.cpuset import CPUSet
from tests.interop.cache import CACHE
from tests.interop.cgroup_folders import cgroups_of, remove_cgroups
from tests.interop.containerd import Containerd
from tests.interop.control_plane import start
from tests.interop.cri import wait_until
from tests.interop.node import ONLINE
from tests.interop.vanishing import paths_below, text_of

MAIN = "main"
"""The container of a pod that has one."""
# Where kubelet, runtimes and the driver look, and which folder of the cluster's stands there.
PLACES = {"kubelet": "/var/lib/kubelet", "cdi": "/run/cdi", "nri": "/run/nri", "log": "/var/log/pods"}
_V1 = Path("/sys/fs/cgroup/cpuset")
_HIERARCHY = _V1 if _V1.exists() else Path("/sys/fs/cgroup")
_KUBEPODS = "kubepods"
_PLUGINS = "github.com/containernetworking/plugins/plugins"
_PLUGINS_VERSION = "v1.9.1"
_PLUGIN_PACKAGES = ("main/bridge", "main/loopback", "ipam/host-local")


def mark(container: str) -> str:
    """What a container's own shell is told from others by, such as that of its sandbox."""
    return f"marked-{container};"


@dataclass(frozen=True)
class Network:
    """A bridge on which this machine, the node and its pods are.

    Attributes:
        bridge: its name.
        prefix: of all addresses; 1 is this machine's, where the API server is, and 16 the first of a pod.
    """

    bridge: str
    prefix: str

    @property
    def gateway(self) -> str:
        return f"{self.prefix}.1"

    def up(self) -> None:
        """Make the bridge before the first pod does, so that the API server's address is there."""
        ip("link", "add", self.bridge, "type", "bridge", check=False)
        ip("address", "replace", f"{self.gateway}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def down(self) -> None:
        """Remove the bridge."""
        ip("link", "delete", self.bridge, check=False)

    def configuration(self) -> dict[str, Any]:
        """For the runtime: pods are on the bridge, which is there."""
        pods = {
            "subnet": f"{self.prefix}.0/24",
            "rangeStart": f"{self.prefix}.16",
            "rangeEnd": f"{self.prefix}.254",
            "gateway": self.gateway,
        }
        ipam = {"type": "host-local", "ranges": [[pods]], "routes": [{"dst": "0.0.0.0/0"}]}
        plugin = {"type": "bridge", "bridge": self.bridge, "ipam": ipam}
        return {"cniVersion": "1.0.0", "name": "interop", "plugins": [plugin]}


class ClusterNode(Protocol):
    """What a cluster asks of its node.

    Attributes:
        network: of node and pods.
        address: the node's.
        place: where the cluster's files are on the node.
        kubelet: parts of kubelet's configuration that are the node's own.
    """

    network: Network
    address: str
    place: Path
    kubelet: Mapping[str, Any]

    def up(self, folder: Path) -> None:
        """Make the network; `folder` is the cluster's, on this machine."""

    def start(self, images: Sequence[Path]) -> None:
        """Start the runtime, with these images; the cluster's files are written."""

    def start_kubelet(self, command: Sequence[str]) -> None:
        """Start kubelet."""

    def restart_kubelet(self) -> None:
        """Kill kubelet, and have it start again with the state and the pods that it left."""

    def online(self) -> CPUSet:
        """The node's CPUs."""

    def ended(self) -> bool:
        """Whether what should run has ended for good."""

    def log(self) -> str:
        """The end of what runtime and kubelet say, where no log of the cluster's folder has it."""

    def allowed(self, pod_uid: str, container: str) -> str:
        """The CPUs on which the shell of a pod's container may run, as the kernel says; empty if there is none yet."""

    def output(self, command: str) -> str:
        """What a command of the shell prints on the node."""

    def close(self) -> None:
        """End everything and remove what is left of it."""


class LocalNode:
    """This machine as a node. It lives in a mount namespace of its own, in which kubelet's folders, CDI's and NRI's are
    those of the test."""

    network = Network("dranode-test0", "10.89.7")
    address = network.gateway
    kubelet: Mapping[str, Any] = MappingProxyType({"cgroupDriver": "cgroupfs", "failCgroupV1": False})

    def __init__(self, containerd: Path, folder: Path) -> None:
        """Take the folder with the runtime's programs, and one for everything else; sockets lie in it: it is short."""
        self.place = folder
        self.runtime = Containerd(containerd, folder)
        self._namespace: subprocess.Popen[bytes] | None = None
        self._kubelet: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        self._cgroups = cgroups_of(_KUBEPODS)

    def up(self, folder: Path) -> None:
        """Make the network."""
        assert folder == self.place
        self.network.up()

    def start(self, images: Sequence[Path]) -> None:
        """Start the runtime, with these images."""
        self._start_runtime()
        for image in images:
            self.runtime.load(image)

    def _start_runtime(self) -> None:
        mounts = [f"mkdir -p {place} && mount --bind {self.place / name} {place}" for name, place in PLACES.items()]
        private = ("mount --make-rprivate /", "mount --make-rshared /")
        script = "\n".join(("set -e", *private, *mounts, "exec sleep infinity"))
        self._namespace = subprocess.Popen(["unshare", "--mount", "sh", "-c", script])
        wait_until(self._mounted, "the node's folders")
        self.runtime.start(self._enter())

    def _mounted(self) -> bool:
        assert self._namespace is not None
        mounts = Path(f"/proc/{self._namespace.pid}/mountinfo").read_text()
        return f" {PLACES['log']} " in mounts

    def _enter(self) -> tuple[str, ...]:
        assert self._namespace is not None
        return ("nsenter", f"--mount=/proc/{self._namespace.pid}/ns/mnt", "--")

    def start_kubelet(self, command: Sequence[str]) -> None:
        """Start kubelet."""
        self._command = [*command]
        self.start_kubelet_again()

    def restart_kubelet(self) -> None:
        """Kill kubelet and start it anew."""
        self.kill_kubelet()
        self.start_kubelet_again()

    def kill_kubelet(self) -> None:
        """Kill kubelet, which stays away."""
        if self._kubelet is not None:
            self._kubelet.kill()
            self._kubelet.wait()
            self._kubelet = None

    def start_kubelet_again(self) -> None:
        """Start kubelet with the state that it left."""
        self._kubelet = start(self.place, "kubelet", [*self._enter(), *self._command])

    def boot(self) -> None:
        """Have what a power cut leaves: no process, no mount, nothing in /run; and start runtime and kubelet again."""
        self.kill_kubelet()
        self.runtime.kill()
        self._end_namespace()
        for name in ("state", "cdi", "nri"):
            shutil.rmtree(self.place / name)
            (self.place / name).mkdir()
        self._start_runtime()
        self.start_kubelet_again()

    def _end_namespace(self) -> None:
        """End every process that sees the node's mounts, and those of the pods that kubelet knows."""
        if self._namespace is None:
            return
        mine = Path(f"/proc/{self._namespace.pid}/ns/mnt").readlink()
        pods = [f"/pod{folder.name}/" for folder in (self.place / "kubelet" / "pods").iterdir()]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                groups = (process / "cgroup").read_text()
                if (process / "ns" / "mnt").readlink() == mine or any(pod in groups for pod in pods):
                    os.kill(int(process.name), signal.SIGKILL)
        self._namespace.wait()

    @staticmethod
    def online() -> CPUSet:
        """This machine's CPUs."""
        return ONLINE

    def ended(self) -> bool:
        """Whether kubelet has ended by itself."""
        return self._kubelet is not None and self._kubelet.poll() is not None

    def log(self) -> str:
        """Nothing: the logs are in the cluster's folder."""
        return ""

    def allowed(self, pod_uid: str, container: str) -> str:
        """The CPUs on which the shell of a pod's container may run; empty if there is none yet."""
        for procs in paths_below(_HIERARCHY, f"**/pod{pod_uid}/*/cgroup.procs"):
            for pid in text_of(procs).split():
                if mark(container) in text_of(Path(f"/proc/{pid}/cmdline")) and (cpus := _allowed(pid)):
                    return cpus
        return ""

    @staticmethod
    def output(command: str) -> str:
        """What a command of the shell prints."""
        return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        """End everything."""
        self.kill_kubelet()
        self.runtime.close()
        if self._namespace is not None and self._namespace.poll() is None:
            self._namespace.kill()
            self._namespace.wait()
        # Kubelet makes them anew at its start, and leaves them.
        remove_cgroups(_KUBEPODS, self._cgroups)
        self.network.down()


def _allowed(pid: str) -> str:
    fields = dict(line.split(":", 1) for line in text_of(Path(f"/proc/{pid}/status")).splitlines())
    return fields.get("Cpus_allowed_list", "").strip()


def ip(*words: str, check: bool = True) -> None:
    """Change this machine's network."""
    subprocess.run(["ip", *words], check=check, capture_output=True)


def network_plugins() -> Path:
    """The folder with CNI's own plug-ins, built once from their module."""
    folder = CACHE / "cni" / _PLUGINS_VERSION
    packages = [f"{_PLUGINS}/{name}" for name in _PLUGIN_PACKAGES]
    if all((folder / "bin" / Path(name).name).exists() for name in _PLUGIN_PACKAGES):
        return folder / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "go.mod").exists():
        subprocess.run(["go", "mod", "init", "dranode.test/cni"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["go", "get", *(f"{each}@{_PLUGINS_VERSION}" for each in packages)], cwd=folder, check=True)
    # Without libraries of the system's, so that they run on another one as well.
    static = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", "bin/", *packages], cwd=folder, check=True, env=static)
    return folder / "bin"
