"""An emulated machine as the node of a cluster: kubelet and containerd under systemd and cgroup v2, two NUMA nodes.

The control plane runs on this machine, since an emulated processor is slow; a bridge of this machine and one in the
emulated machine are one network, on which node and pods are too.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dranode.api.cpuset import CPUSet
from tests.interop.cluster_node import PLACES, Network, ip, mark
from tests.interop.containerd import DROPPED_AFTER, Containerd
from tests.interop.vm.machine import NRI_PATIENCE, Hardware, Machine
from tests.interop.vm.system import BACKPORTS

_TAP = "dranode-tap1"
_RUNTIME = "node-runtime"
_KUBELET = "node-kubelet"


class EmulatedNode:
    """A node in a machine that is thrown away with it."""

    network = Network("dranode-test1", "10.89.8")
    address = f"{network.prefix}.2"
    place = Path("/var/lib/interop")
    kubelet: Mapping[str, Any] = MappingProxyType({"cgroupDriver": "systemd", "runtimeRequestTimeout": "10m"})

    def __init__(self, containerd: Path) -> None:
        """Take the folder with the runtime's programs."""
        self._programs = containerd
        self.machine: Machine | None = None

    def up(self, folder: Path) -> None:
        """Make the network and the machine, and bring the cluster's files there."""
        self.network.up()
        ip("link", "delete", _TAP, check=False)
        ip("tuntap", "add", _TAP, "mode", "tap")
        ip("link", "set", _TAP, "master", self.network.bridge, "up")
        card = ("-netdev", f"tap,id=net,ifname={_TAP},script=no,downscript=no", "-device", "virtio-net-pci,netdev=net")
        # The kernel in which a container may be a partition though kubelet's cgroups above it are none.
        hardware = Hardware(memory=4096, kernel="net.ifnames=0", qemu=card, suite=BACKPORTS)
        self.machine = Machine(hardware, shares=[folder])
        bridge = self.network.bridge
        self._do(
            "modprobe -a virtio_net bridge veth overlay",
            f"ip link add {bridge} type bridge && ip link set eth0 master {bridge} up && ip link set {bridge} up",
            f"ip address add {self.address}/24 dev {bridge}",
            f"mkdir -p {self.place} && cd {shlex.quote(str(folder))}",
            f"cp -r {' '.join(PLACES)} cni kubelet.yaml kubelet.kubeconfig {self.place}",
            *(f"mkdir -p {place} && mount --bind {self.place / name} {place}" for name, place in PLACES.items()),
        )

    def start(self, images: Sequence[Path]) -> None:
        """Start the runtime, with these images."""
        runtime = Containerd(self._programs, Path(_made(images[0].parent / "runtime")))
        text = (runtime.folder / "config.toml").read_text().replace(str(runtime.folder), str(self.place))
        # Copying images would take long here, and a node with systemd leaves the cgroups to it.
        text = text.replace('"native"', '"overlayfs"').replace("SystemdCgroup = false", "SystemdCgroup = true")
        text = text.replace(f'"{DROPPED_AFTER}"', f'"{NRI_PATIENCE}"')
        self._run(f"cat > {self.place}/config.toml", text)
        path = f"--setenv=PATH={self._programs}:/usr/sbin:/usr/bin:/sbin:/bin"
        options = f"--unit={_RUNTIME} --property=Delegate=yes --property=KillMode=process {path}"
        ctr = f"{self._programs}/ctr --address {self.place}/c.sock --namespace k8s.io"
        self._do(
            f"systemd-run --quiet {options} {self._programs}/containerd --config {self.place}/config.toml",
            f"until {ctr} version >/dev/null 2>&1; do systemctl is-active --quiet {_RUNTIME}; sleep 1; done",
            *(f"{ctr} images import --local --snapshotter overlayfs {shlex.quote(str(image))}" for image in images),
        )

    def start_kubelet(self, command: Sequence[str]) -> None:
        """Start kubelet, as a service that systemd starts again when it ends."""
        options = f"--unit={_KUBELET} --property=KillMode=process --property=Restart=always --property=RestartSec=1"
        self._do(f"systemd-run --quiet {options} {shlex.join(command)}")

    def restart_kubelet(self) -> None:
        """Kill kubelet; systemd starts it again."""
        self._do(f"systemctl kill --signal=KILL {_KUBELET}")

    def online(self) -> CPUSet:
        """The machine's CPUs."""
        return CPUSet.parse(self.output("cat /sys/devices/system/cpu/online").strip())

    def ended(self) -> bool:
        """Whether the machine has ended."""
        return self.machine is None or self.machine.ended()

    def allowed(self, pod_uid: str, container: str) -> str:
        """The CPUs on which the shell of a pod's container may run; empty if there is none yet."""
        # systemd's names of cgroups have no hyphens.
        script = f"""
for process in $(grep -lsF {shlex.quote(mark(container))} /proc/[0-9]*/cmdline); do
    process=${{process%/cmdline}}
    if grep -qsF pod{pod_uid.replace("-", "_")} "$process/cgroup"; then
        sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$process/status"
    fi
done
"""
        return self.output(script).partition("\n")[0]

    def log(self) -> str:
        """The end of what runtime and kubelet say."""
        return self.output(f"journalctl --no-pager -n 40 -u {_RUNTIME} -u {_KUBELET}")

    def output(self, command: str) -> str:
        """What a command prints in the machine."""
        return self._run(command)

    def close(self) -> None:
        """Switch the machine off, and remove the network."""
        if self.machine is not None:
            self.machine.close()
        ip("link", "delete", _TAP, check=False)
        self.network.down()

    def _do(self, *commands: str) -> None:
        """Run commands, each of which has to succeed."""
        self._run("\n".join(("set -e", *commands)))

    def _run(self, command: str, stdin: str = "") -> str:
        assert self.machine is not None
        return self.machine.run(command, stdin=stdin).stdout


def _made(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
