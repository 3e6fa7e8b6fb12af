"""A cluster of one node, whole: control plane with controllers, kubelet, containerd, a network, and our image in it.

The node lives in a mount namespace of its own, in which kubelet's folders, CDI's and NRI's are those of the test; the
driver runs as the DaemonSet of deploy/ makes it, from the image, with its account's rights and the policies in force.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from dranode.driver.process.locks import FileLock
from tests.interop.api import Api, Document, RefusedError
from tests.interop.containerd import CACHE, Containerd
from tests.interop.control_plane import TOKEN, free_ports, kubeconfig, programs, start
from tests.interop.image import IMAGE, write_image

ROOT = Path(__file__).parents[2]
NODE = "interop"
DRIVER_IMAGE = "dranode.test/dranode:0.1.0"
_GATEWAY = "10.89.7.1"
_BRIDGE = "dranode-test0"
_LOCK = Path("/tmp/dranode-interop-cluster.lock")
_KUBELET_TOKEN = "interop-node"  # noqa: S105 - as TOKEN
_PATIENCE = 600.0
# By this a pod's own shell is told from its sandbox.
_MARK = "marked"
_V1 = Path("/sys/fs/cgroup/cpuset")
_HIERARCHY = _V1 if _V1.exists() else Path("/sys/fs/cgroup")
_PLUGINS = "github.com/containernetworking/plugins/plugins"
_PLUGINS_VERSION = "v1.9.1"
_PLUGIN_PACKAGES = ("main/bridge", "main/loopback", "ipam/host-local")
# Before 1.36 the grouped modes need it.
GATES = {"1.34": "DRAConsumableCapacity=true", "1.35": "DRAConsumableCapacity=true"}

_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "interop",
    "plugins": [
        {
            "type": "bridge",
            "bridge": _BRIDGE,
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.89.7.0/24", "gateway": _GATEWAY}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


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
    subprocess.run(["go", "build", "-o", "bin/", *packages], cwd=folder, check=True)
    return folder / "bin"


class Cluster:
    """One running cluster; `close` ends everything and removes what it left on the machine."""

    def __init__(self, release: str, containerd: Path, folder: Path, busybox: Path) -> None:
        """Start it and wait until its node is Ready.

        Args:
            release: of Kubernetes, such as `1.37`.
            containerd: the folder with the runtime's programs.
            folder: short, since sockets lie in it.
            busybox: a static one, for pods.
        """
        self.release = release
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._programs = programs(release)
        self._ports = free_ports(6)
        self.api = Api(self._ports[2], TOKEN)
        self.runtime = Containerd(containerd, folder)
        self._namespace: subprocess.Popen[bytes] | None = None
        # A kubelet ends pods that it does not know, those of another kubelet on the machine too.
        self._alone = FileLock(_LOCK)
        self._alone.acquire()
        try:
            self._write()
            _link_up()
            self._start_control_plane()
            self._start_node(busybox)
            self.wait(self._ready, "the node is Ready")
        except BaseException:
            self.close()
            raise

    # --- setting up ---

    def _write(self) -> None:
        folder = self.folder
        (folder / "tokens.csv").write_text(
            f'{TOKEN},admin,admin,system:masters\n{_KUBELET_TOKEN},system:node:{NODE},kubelet,"system:nodes"\n'
        )
        for name, token in (("kubeconfig", TOKEN), ("kubelet.kubeconfig", _KUBELET_TOKEN)):
            (folder / name).write_text(kubeconfig(self._ports[2], token))
        (folder / "scheduler.yaml").write_text(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
            f"leaderElection: {{leaderElect: false}}\nclientConnection: {{kubeconfig: {folder}/kubeconfig}}\n"
        )
        _openssl("genrsa", "-out", str(folder / "accounts.key"), "2048")
        _openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes",
            "-addext", f"subjectAltName=IP:{_GATEWAY},IP:127.0.0.1",
            "-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt"),
        )  # fmt: skip
        for name in ("kubelet", "log"):
            (folder / name).mkdir(exist_ok=True)
        for plugin in network_plugins().iterdir():
            shutil.copy(plugin, folder / "cni" / plugin.name)
        (folder / "cni" / "10-interop.conflist").write_text(json.dumps(_NETWORK))
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{folder}/c.sock",
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "1Mi"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "featureGates": dict.fromkeys(self._gates(), True),
            "healthzPort": 0,
            "localStorageCapacityIsolation": False,
            "port": self._ports[5],
            "resolvConf": "",
        }
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(configuration))

    def _gates(self) -> list[str]:
        return [each.partition("=")[0] for each in GATES.get(self.release, "").split(",") if each]

    def _start_control_plane(self) -> None:
        folder, ports, commands = self.folder, self._ports, self._programs
        gates = [f"--feature-gates={GATES[self.release]}"] if self.release in GATES else []
        client = f"http://127.0.0.1:{ports[0]}"
        peer = f"http://127.0.0.1:{ports[1]}"
        self._start(
            "etcd",
            *commands.etcd,
            *(f"--data-dir={folder}/etcd", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=default={peer}",
        )
        self._start(
            "kube-apiserver",
            *commands.apiserver,
            *(f"--etcd-servers={client}", "--bind-address=0.0.0.0", f"--advertise-address={_GATEWAY}"),
            *(f"--secure-port={ports[2]}", f"--token-auth-file={folder}/tokens.csv"),
            *(f"--tls-cert-file={folder}/server.crt", f"--tls-private-key-file={folder}/server.key"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://interop.example",
            f"--service-account-key-file={folder}/accounts.key",
            f"--service-account-signing-key-file={folder}/accounts.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            *gates,
        )
        self.wait(self.api.ready, "the API server is ready")
        self._start(
            "kube-controller-manager",
            *commands.controllers,
            *(f"--kubeconfig={folder}/kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1"),
            *(f"--secure-port={ports[3]}", f"--cert-dir={folder}/controllers-certs"),
            *(f"--root-ca-file={folder}/server.crt", f"--service-account-private-key-file={folder}/accounts.key"),
            *gates,
        )
        self._start(
            "kube-scheduler",
            *commands.scheduler,
            *(f"--config={folder}/scheduler.yaml", "--bind-address=127.0.0.1"),
            *(f"--secure-port={ports[4]}", f"--cert-dir={folder}/scheduler-certs"),
            *gates,
        )

    def _start_node(self, busybox: Path) -> None:
        folder = self.folder
        places = {"kubelet": "/var/lib/kubelet", "cdi": "/run/cdi", "nri": "/run/nri", "log": "/var/log/pods"}
        mounts = [f"mkdir -p {place} && mount --bind {folder / name} {place}" for name, place in places.items()]
        private = ("mount --make-rprivate /", "mount --make-rshared /")
        script = "\n".join(("set -e", *private, *mounts, "exec sleep infinity"))
        self._namespace = subprocess.Popen(["unshare", "--mount", "sh", "-c", script])
        self.wait(self._mounted, "the node's folders")
        self.runtime.start(self._enter())
        archive = folder / "busybox.tar"
        write_image(archive, busybox)
        for image in (archive, folder / "driver.tar"):
            self.runtime.load(image)
        self.start_kubelet()

    def _mounted(self) -> bool:
        assert self._namespace is not None
        mounts = Path(f"/proc/{self._namespace.pid}/mountinfo").read_text()
        return " /var/log/pods " in mounts

    def _enter(self) -> tuple[str, ...]:
        assert self._namespace is not None
        return ("nsenter", f"--mount=/proc/{self._namespace.pid}/ns/mnt", "--")

    def start_kubelet(self) -> None:
        """Start kubelet; its state and its pods are those that it left."""
        folder = self.folder
        self.kubelet = self._start(
            "kubelet",
            *self._enter(),
            *self._programs.kubelet,
            *(f"--config={folder}/kubelet.yaml", f"--kubeconfig={folder}/kubelet.kubeconfig"),
            *(f"--hostname-override={NODE}", f"--node-ip={_GATEWAY}", f"--cert-dir={folder}/kubelet-certs"),
        )

    def restart_kubelet(self) -> None:
        """Kill kubelet and start it anew."""
        self.kubelet.kill()
        self.kubelet.wait()
        self._running.remove(self.kubelet)
        self.start_kubelet()

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        process = start(self.folder, name, list(command))
        self._running.append(process)
        return process

    # --- using it ---

    def wait(self, true: Callable[[], object], what: str) -> None:
        """Wait until something is true.

        Raises:
            RuntimeError: it did not become true, or a program ended; with the ends of the logs
        """
        until = time.monotonic() + _PATIENCE
        while not true():
            ended = [process for process in self._running if process.poll() is not None]
            if ended or time.monotonic() > until:
                raise RuntimeError(f"waited for: {what}\n{self.logs()}")
            time.sleep(0.3)

    def logs(self) -> str:
        """The end of every log."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(self.folder.glob("*.log"))
        )

    def _ready(self) -> bool:
        with contextlib.suppress(RefusedError):
            conditions = self.api.send("GET", f"/api/v1/nodes/{NODE}").get("status", {}).get("conditions", [])
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return False

    def kubectl(self, *words: str, text: str = "") -> str:
        """Run kubectl as the administrator."""
        command = ["kubectl", f"--kubeconfig={self.folder}/kubeconfig", *words]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, input=text)
        if answer.returncode:
            raise RefusedError(f"{' '.join(words)}: {answer.stderr}")
        return answer.stdout

    def install(self) -> None:
        """Apply deploy/ with the image of the test and the server's address, which no proxy translates here."""
        overlay = self.folder / "overlay"
        overlay.mkdir()
        shutil.copytree(ROOT / "deploy", self.folder / "deploy", ignore=shutil.ignore_patterns("chart"))
        path = "/spec/template/spec/containers/0/env/-"
        patch = [
            {"op": "add", "path": path, "value": {"name": name, "value": value}}
            for name, value in self.server().items()
        ]
        name, _, tag = DRIVER_IMAGE.rpartition(":")
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["../deploy"],
            "images": [{"name": "dranode", "newName": name, "newTag": tag}],
            "patches": [{"target": {"kind": "DaemonSet", "name": "dranode"}, "patch": yaml.safe_dump(patch)}],
        }
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        self.kubectl("apply", "-k", str(overlay))
        self.wait(self.driver_is_ready, "the driver's pod is Ready")

    def server(self) -> dict[str, str]:
        """Where pods find the API server, as variables of their environment."""
        return {"KUBERNETES_SERVICE_HOST": _GATEWAY, "KUBERNETES_SERVICE_PORT": str(self._ports[2])}

    def driver_is_ready(self) -> bool:
        """Whether the DaemonSet has rolled out."""
        daemonset = self.api.send("GET", "/apis/apps/v1/namespaces/dranode/daemonsets/dranode")
        status = daemonset.get("status", {})
        seen = status.get("observedGeneration") == daemonset["metadata"]["generation"]
        return seen and status.get("numberReady") == status.get("updatedNumberScheduled") == 1 and self._serves()

    def _serves(self) -> bool:
        """Whether kubelet answers on its port, through which commands run in pods."""
        with contextlib.suppress(OSError), socket.create_connection((_GATEWAY, self._ports[5]), 1):
            return True
        return False

    def dranode(self, *words: str) -> str:
        """Run a command in the driver's pod, the newer one if there are two."""
        living = [pod for pod in self.pods("dranode").values() if "deletionTimestamp" not in pod["metadata"]]
        name = max(living, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))["metadata"]["name"]
        return self.kubectl("exec", "-n", "dranode", name, "--", "dranode", *words)

    def pods(self, namespace: str = "default") -> dict[str, Document]:
        """The pods of a namespace by name."""
        items = self.api.send("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {each["metadata"]["name"]: each for each in items}

    def phase(self, name: str) -> str:
        """A pod's phase; empty if there is none of that name."""
        return str(self.pods().get(name, {}).get("status", {}).get("phase", ""))

    def events(self, name: str) -> list[str]:
        """What was said of a pod."""
        items = self.api.send("GET", "/api/v1/namespaces/default/events")["items"]
        return [f"{each['reason']}: {each.get('message')}" for each in items if each["involvedObject"]["name"] == name]

    def run(self, name: str, cpus: int = 0) -> None:
        """Create a pod, with a claim of so many CPUs, and wait until it runs."""
        for document in manifests(name, cpus):
            self.kubectl("apply", "-f", "-", text=yaml.safe_dump(document))
        self.wait(lambda: self.phase(name) == "Running", f"pod {name} runs; {self.events(name)}")

    def delete(self, name: str) -> None:
        """Delete a pod and its claim, and wait until both are gone."""
        self.kubectl("delete", "pod", name, "--wait=false")
        self.wait(lambda: name not in self.pods(), f"pod {name} is gone")

    def allowed(self, name: str) -> str:
        """The CPUs on which the pod's process may run, as the kernel says."""
        uid = self.pods()[name]["metadata"]["uid"]
        found: list[str] = []

        def look() -> bool:
            pids = (
                pid for procs in _HIERARCHY.glob(f"**/pod{uid}/*/cgroup.procs") for pid in procs.read_text().split()
            )
            with contextlib.suppress(OSError):
                found.extend(_allowed(pid) for pid in pids if _MARK in Path(f"/proc/{pid}/cmdline").read_text())
            return bool(found)

        # A pod runs, for kubelet, a moment before its container is the program that it was made for.
        self.wait(look, f"pod {name} has a process")
        return found[0]

    # --- taking it down ---

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(Exception):
            self.kubectl("delete", "pods", "--all", "--all-namespaces", "--grace-period=0", "--force", "--wait=false")
            time.sleep(2)
        self.api.close()
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._running):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.runtime.close()
        if self._namespace is not None and self._namespace.poll() is None:
            self._namespace.kill()
            self._namespace.wait()
        subprocess.run(["ip", "link", "delete", _BRIDGE], check=False, capture_output=True)
        self._alone.release()


def _allowed(pid: str) -> str:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return fields["Cpus_allowed_list"].strip()


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def _link_up() -> None:
    """Make the bridge before the first pod does, so that the API server's address is there."""
    subprocess.run(["ip", "link", "add", _BRIDGE, "type", "bridge"], check=False, capture_output=True)
    subprocess.run(["ip", "address", "replace", f"{_GATEWAY}/24", "dev", _BRIDGE], check=True)
    subprocess.run(["ip", "link", "set", _BRIDGE, "up"], check=True)


def manifests(name: str, cpus: int) -> Iterator[Document]:
    """A pod that sleeps, and its claim if it has one."""
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["/busybox", "sh", "-c", f"trap exit TERM; : {_MARK}; while :; do /busybox sleep 1; done"],
            }
        ],
    }
    if cpus:
        request = {
            "name": "cpus",
            "exactly": {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": str(cpus)}}},
        }
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
        spec["resourceClaims"] = [{"name": "cpus", "resourceClaimName": name}]
        spec["containers"][0]["resources"] = {"claims": [{"name": "cpus"}]}
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
