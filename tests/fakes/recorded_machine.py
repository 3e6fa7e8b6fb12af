"""A machine of 8 CPUs as kernel files, and the CPU driver's records on it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dranode.api.errors import DranodeError
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared
from dranode.driver.node.node import NodeClaims
from dranode.sim.machines.forms import open_machine
from dranode.tools.cli.claims import command
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import claim_of_requests, cpu_claim, group_claim

GROUP = "cpudevnuma000"
PODS = "kubepods.slice/kubepods-burstable.slice"


@dataclass
class RecordedMachine:
    """A machine of 8 CPUs as kernel files, and the driver's records on it."""

    folder: Path
    claims: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write("sys/devices/system/cpu/online", "0-7\n")
        self.process(2, "kthreadd", "0-7", parent="0")
        self.data = self.folder / "kubelet" / "plugins" / "dra.cpu"
        self.data.mkdir(parents=True)

    def write(self, path: str, text: str) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def prepare(self, name: str, *counts: int, grouped: bool = False) -> None:
        """Record a claim `uid-<name>` of the pod `pod-<name>` (UID `pod-uid-<name>`), or of the PodGroup `crew`."""
        node = NodeClaims(CPUPlugin(open_machine("sockets=1,cores=8"), CPUOptions()), self.data, self.folder / "cdi")
        node.open()
        if len(counts) > 1:
            claim = claim_of_requests(name, f"uid-{name}", GROUP, *counts)
        else:
            claim = (group_claim if grouped else cpu_claim)(name, f"uid-{name}", GROUP, *counts)
        assert isinstance(node.prepare({reference(claim): claim})[f"uid-{name}"], Prepared)
        node.close()

    def process(self, pid: int, name: str, cpus: str, cgroup: str = "system.slice/x.service", **more: str) -> None:
        parent, state = more.pop("parent", "1"), more.pop("state", "S (sleeping)")
        text = f"Name:\t{name}\nState:\t{state}\nPPid:\t{parent}\nCpus_allowed_list:\t{cpus}\n"
        self.write(f"proc/{pid}/status", text)
        self.write(f"proc/{pid}/cgroup", f"0::/{cgroup}\n")
        if "env" in more:
            self.write(f"proc/{pid}/environ", more["env"].replace(" ", "\0") + "\0")

    def container(self, pid: int, name: str, cpus: str, env: str, effective: str | None = None) -> str:
        """Add a container of a pod; its process may run on `cpus`, its cgroup on `effective`."""
        uid = f"pod_uid_{name}"
        cgroup = f"{PODS}/kubepods-burstable-pod{uid}.slice/cri-containerd-{pid}.scope"
        self.process(pid, name, cpus, cgroup, env=env)
        self.write(f"sys/fs/cgroup/{cgroup}/cpuset.cpus.effective", f"{effective or cpus}\n")
        return cgroup

    def run(self, *arguments: str) -> tuple[list[dict[str, Any]], str | None]:
        """Return the rows, and the command's final message if its status is 1."""
        done = CliRunner().invoke(command, [*self.options(), "-o", "json", *arguments])
        failed = str(done.exception) if isinstance(done.exception, DranodeError) else None
        assert failed is not None or done.exit_code == 0, done.output
        return json.loads(done.stdout), failed

    def table(self, *arguments: str) -> str:
        return CliRunner().invoke(command, [*self.options(), *arguments]).output

    def options(self) -> list[str]:
        return ["--kubelet-root", str(self.folder / "kubelet"), "--machine", str(self.folder)]
