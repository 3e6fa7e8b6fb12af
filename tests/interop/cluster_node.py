"""The node of a cluster: its network, its runtime and its kubelet.

`LocalNode` is this machine; `tests.interop.vm.node` has an emulated one.
"""

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
# The fixed folders that kubelet, runtime and driver use, and the cluster's own folders that are mounted there.
PLACES = {"kubelet": "/var/lib/kubelet", "cdi": "/run/cdi", "nri": "/run/nri", "log": "/var/log/pods"}
_V1 = Path("/sys/fs/cgroup/cpuset")
_HIERARCHY = _V1 if _V1.exists() else Path("/sys/fs/cgroup")
_KUBEPODS = "kubepods"
_PLUGINS = "github.com/containernetworking/plugins/plugins"
_PLUGINS_VERSION = "v1.9.1"
_PLUGIN_PACKAGES = ("main/bridge", "main/loopback", "ipam/host-local")


def mark(container: str) -> str:
    """Return the word that marks a container's shell, so that it is not mistaken for its sandbox's."""
    return f"marked-{container};"


@dataclass(frozen=True)
class Network:
    """A bridge that connects this machine, the node and its pods.

    Attributes:
        bridge: its name.
        prefix: of all addresses. This machine, with the API server, has .1; pods start at .16.
    """

    bridge: str
    prefix: str

    @property
    def gateway(self) -> str:
        return f"{self.prefix}.1"

    def up(self) -> None:
        """Create the bridge before the first pod does, because the API server needs its address."""
        ip("link", "add", self.bridge, "type", "bridge", check=False)
        ip("address", "replace", f"{self.gateway}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def down(self) -> None:
        """Remove the bridge."""
        ip("link", "delete", self.bridge, check=False)

    def configuration(self) -> dict[str, Any]:
        """Return the CNI configuration, with the existing bridge for pods."""
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
    """The node of a cluster.

    Attributes:
        network: of node and pods.
        address: the node's.
        place: the folder of the cluster's files on the node.
        kubelet: the node's part of kubelet's configuration.
    """

    network: Network
    address: str
    place: Path
    kubelet: Mapping[str, Any]

    def up(self, folder: Path) -> None:
        """Create the network; `folder` is the cluster's folder on this machine."""

    def start(self, images: Sequence[Path]) -> None:
        """Start the runtime with these images. The cluster's files exist by now."""

    def start_kubelet(self, command: Sequence[str]) -> None:
        """Start kubelet."""

    def restart_kubelet(self) -> None:
        """Kill kubelet and start it again; its state and pods stay."""

    def online(self) -> CPUSet:
        """The node's CPUs."""

    def ended(self) -> bool:
        """Whether a program that should run has ended."""

    def log(self) -> str:
        """Return the end of the runtime's and kubelet's logs that are not in the cluster's folder."""

    def allowed(self, pod_uid: str, container: str) -> str:
        """Return the CPUs on which the kernel lets a container's shell run; empty if there is no shell yet."""

    def output(self, command: str) -> str:
        """Run a shell command on the node; returns what it prints."""

    def close(self) -> None:
        """Stop everything and remove what it left behind."""


class LocalNode:
    """This machine as a node, in its own mount namespace, where the folders of kubelet, CDI and NRI are the test's."""

    network = Network("dranode-test0", "10.89.7")
    address = network.gateway
    kubelet: Mapping[str, Any] = MappingProxyType({"cgroupDriver": "cgroupfs", "failCgroupV1": False})

    def __init__(self, containerd: Path, folder: Path) -> None:
        """Use the runtime's programs, and a folder for everything else; its path is short because sockets are in it."""
        self.place = folder
        self.runtime = Containerd(containerd, folder)
        self._namespace: subprocess.Popen[bytes] | None = None
        self._kubelet: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        self._cgroups = cgroups_of(_KUBEPODS)

    def up(self, folder: Path) -> None:
        """Create the network."""
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
        """Kill kubelet and start it again."""
        self.kill_kubelet()
        self.start_kubelet_again()

    def kill_kubelet(self) -> None:
        """Kill kubelet."""
        if self._kubelet is not None:
            self._kubelet.kill()
            self._kubelet.wait()
            self._kubelet = None

    def start_kubelet_again(self) -> None:
        """Start kubelet again with its earlier state."""
        self._kubelet = start(self.place, "kubelet", [*self._enter(), *self._command])

    def boot(self) -> None:
        """Simulate a power cut: end all processes and mounts, empty /run, and start runtime and kubelet again."""
        self.kill_kubelet()
        self.runtime.kill()
        self._end_namespace()
        for name in ("state", "cdi", "nri"):
            shutil.rmtree(self.place / name)
            (self.place / name).mkdir()
        self._start_runtime()
        self.start_kubelet_again()

    def _end_namespace(self) -> None:
        """Kill every process in the node's mount namespace, and those of kubelet's pods."""
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
        """Return nothing: the logs are in the cluster's folder."""
        return ""

    def allowed(self, pod_uid: str, container: str) -> str:
        """Return the CPUs on which a container's shell may run; empty if there is no shell yet."""
        for procs in paths_below(_HIERARCHY, f"**/pod{pod_uid}/*/cgroup.procs"):
            for pid in text_of(procs).split():
                if mark(container) in text_of(Path(f"/proc/{pid}/cmdline")) and (cpus := _allowed(pid)):
                    return cpus
        return ""

    @staticmethod
    def output(command: str) -> str:
        """Run a shell command; returns what it prints."""
        return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        """Stop everything."""
        self.kill_kubelet()
        self.runtime.close()
        if self._namespace is not None and self._namespace.poll() is None:
            self._namespace.kill()
            self._namespace.wait()
        # kubelet creates them at each start and does not remove them.
        remove_cgroups(_KUBEPODS, self._cgroups)
        self.network.down()


def _allowed(pid: str) -> str:
    fields = dict(line.split(":", 1) for line in text_of(Path(f"/proc/{pid}/status")).splitlines())
    return fields.get("Cpus_allowed_list", "").strip()


def ip(*words: str, check: bool = True) -> None:
    """Run `ip` with these words."""
    subprocess.run(["ip", *words], check=check, capture_output=True)


def network_plugins() -> Path:
    """Return the folder with the standard CNI plug-ins, which are built once."""
    folder = CACHE / "cni" / _PLUGINS_VERSION
    packages = [f"{_PLUGINS}/{name}" for name in _PLUGIN_PACKAGES]
    if all((folder / "bin" / Path(name).name).exists() for name in _PLUGIN_PACKAGES):
        return folder / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "go.mod").exists():
        subprocess.run(["go", "mod", "init", "dranode.test/cni"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["go", "get", *(f"{each}@{_PLUGINS_VERSION}" for each in packages)], cwd=folder, check=True)
    # Static, so that they also run on another system.
    static = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", "bin/", *packages], cwd=folder, check=True, env=static)
    return folder / "bin"
