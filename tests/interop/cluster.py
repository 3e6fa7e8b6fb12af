"""A complete cluster of one node: control plane with controllers, kubelet, containerd, a network, and our image.

The control plane runs here; the node is this machine or an emulated one (`tests.interop.cluster_node`). The driver runs
as the DaemonSet of deploy/ makes it, from the image, with its account's rights and the policies in force.
"""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dranode.api.cpuset import CPUSet
from dranode.driver.process.locks import FileLock
from tests.interop.api import Api, Document, RefusedError
from tests.interop.cluster_node import MAIN, PLACES, ClusterNode, network_plugins
from tests.interop.cluster_pods import manifests
from tests.interop.control_plane import TOKEN, free_ports, kubeconfig, programs, start
from tests.interop.image import write_image

ROOT = Path(__file__).parents[2]
NODE = "interop"
STATIC_PODS = "static-pods"
DRIVER_IMAGE = "dranode.test/dranode:0.1.0"
_KUBELET_TOKEN = "interop-node"  # noqa: S105 - as TOKEN
_PATIENCE = 600.0
# Before 1.36 the grouped modes need this gate.
GATES = {"1.34": "DRAConsumableCapacity=true", "1.35": "DRAConsumableCapacity=true"}


class Cluster:
    """One running cluster; `close` ends everything and removes what it left on the machine."""

    def __init__(self, release: str, node: ClusterNode, folder: Path, busybox: Path, gates: str = "") -> None:
        """Start it and wait until its node is Ready.

        Args:
            release: of Kubernetes, such as `1.37`.
            node: its node.
            folder: with the driver's image, `driver.tar`; everything else is written there.
            busybox: a static one, for pods.
            gates: feature gates beside those that the grouped modes need, such as `DRAListTypeAttributes=true`.
        """
        self.release = release
        self.folder = folder
        self.node = node
        self._gates = ",".join(each for each in (GATES.get(release), gates) if each)
        self._running: list[subprocess.Popen[bytes]] = []
        self._programs = programs(release)
        self._ports = free_ports(6)
        self.api = Api(self._ports[2], TOKEN)
        # A kubelet ends all pods that it does not know, also those of another kubelet on the machine.
        self._alone = FileLock(Path(f"/tmp/{node.network.bridge}.lock"))
        self._alone.acquire()
        try:
            self._write(busybox)
            node.up(folder)
            self._start_control_plane()
            node.start([folder / "busybox.tar", folder / "driver.tar"])
            self._start_kubelet()
            self.wait(self._ready, "the node is Ready")
        except BaseException:
            self.close()
            raise

    # --- setting up ---

    def _write(self, busybox: Path) -> None:
        folder, gateway = self.folder, self.node.network.gateway
        (folder / "tokens.csv").write_text(
            f'{TOKEN},admin,admin,system:masters\n{_KUBELET_TOKEN},system:node:{NODE},kubelet,"system:nodes"\n'
        )
        (folder / "kubeconfig").write_text(kubeconfig(self._ports[2], TOKEN))
        (folder / "kubelet.kubeconfig").write_text(kubeconfig(self._ports[2], _KUBELET_TOKEN, gateway))
        (folder / "scheduler.yaml").write_text(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
            f"leaderElection: {{leaderElect: false}}\nclientConnection: {{kubeconfig: {folder}/kubeconfig}}\n"
        )
        _openssl("genrsa", "-out", str(folder / "accounts.key"), "2048")
        _openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes",
            "-addext", f"subjectAltName=IP:{gateway},IP:127.0.0.1",
            "-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt"),
        )  # fmt: skip
        for name in (*PLACES, "cni", STATIC_PODS):
            (folder / name).mkdir(exist_ok=True)
        for plugin in network_plugins().iterdir():
            shutil.copy(plugin, folder / "cni" / plugin.name)
        (folder / "cni" / "10-interop.conflist").write_text(json.dumps(self.node.network.configuration()))
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.node.place}/c.sock",
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "1Mi"},
            "failSwapOn": False,
            "featureGates": {name: value == "true" for name, value in self._gate_list()},
            "healthzPort": 0,
            "localStorageCapacityIsolation": False,
            "port": self._ports[5],
            "resolvConf": "",
            "staticPodPath": f"{self.node.place}/{STATIC_PODS}",
            **self.node.kubelet,
        }
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(configuration))
        write_image(folder / "busybox.tar", busybox)

    def _gate_list(self) -> list[tuple[str, str]]:
        words = (each.partition("=") for each in self._gates.split(",") if each)
        return [(name, value) for name, _, value in words]

    def _start_control_plane(self) -> None:
        folder, ports, commands = self.folder, self._ports, self._programs
        gates = [f"--feature-gates={self._gates}"] if self._gates else []
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
            *(f"--etcd-servers={client}", "--bind-address=0.0.0.0", f"--advertise-address={self.node.network.gateway}"),
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
            # A kubelet in an emulated machine is slow to report.
            f"--node-monitor-grace-period={int(_PATIENCE)}s",
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

    def _start_kubelet(self) -> None:
        place = self.node.place
        address = (f"--hostname-override={NODE}", f"--node-ip={self.node.address}")
        files = (f"--config={place}/kubelet.yaml", f"--kubeconfig={place}/kubelet.kubeconfig")
        self.node.start_kubelet([*self._programs.kubelet, *files, *address, f"--cert-dir={place}/kubelet-certs"])

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        process = start(self.folder, name, list(command))
        self._running.append(process)
        return process

    # --- using it ---

    def wait(self, true: Callable[[], object], what: str, seconds: float = _PATIENCE) -> None:
        """Wait until a condition is true.

        Raises:
            RuntimeError: it did not become true in time, or a program ended; the message has the ends of the logs
        """
        until = time.monotonic() + seconds
        while not true():
            ended = self.node.ended() or any(process.poll() is not None for process in self._running)
            if ended or time.monotonic() > until:
                raise RuntimeError(f"waited for: {what}\n{self.logs()}")
            time.sleep(0.3)

    def logs(self) -> str:
        """Return the Events of pods, and the end of every log."""
        logs = [(log.name, log.read_text(errors="replace")[-1500:]) for log in sorted(self.folder.glob("*.log"))]
        said = ""
        with contextlib.suppress(OSError, RefusedError, http.client.HTTPException):
            said = "\n".join(self.events())
        return "\n".join(
            f"--- {name}\n{text}" for name, text in (("events", said), *logs, ("the node", self.node.log()))
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
            raise RefusedError(f"{' '.join(words)}: {answer.stdout[-4000:]}{answer.stderr}")
        return answer.stdout

    def apply(self, *documents: Document) -> None:
        """Create or change objects."""
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(documents))

    def install(self, *components: str) -> None:
        """Apply deploy/ with the image of the test and the server's address, which no proxy translates here.

        `components` are folders of deploy/components.
        """
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
            "components": [f"../deploy/components/{each}" for each in components],
            "images": [{"name": "dranode", "newName": name, "newTag": tag}],
            "patches": [{"target": {"kind": "DaemonSet", "name": "dranode"}, "patch": yaml.safe_dump(patch)}],
        }
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        self.install_again()

    def install_again(self) -> None:
        """Apply the same manifests again, after a test has deleted part of them."""
        self.kubectl("apply", "-k", str(self.folder / "overlay"))
        self.wait(self.driver_is_ready, "the driver's pod is Ready")

    def server(self) -> dict[str, str]:
        """Return the environment variables with which pods find the API server."""
        return {"KUBERNETES_SERVICE_HOST": self.node.network.gateway, "KUBERNETES_SERVICE_PORT": str(self._ports[2])}

    def driver_is_ready(self) -> bool:
        """Whether the DaemonSet has rolled out."""
        daemonset = self.api.send("GET", "/apis/apps/v1/namespaces/dranode/daemonsets/dranode")
        status = daemonset.get("status", {})
        seen = status.get("observedGeneration") == daemonset["metadata"]["generation"]
        return seen and status.get("numberReady") == status.get("updatedNumberScheduled") == 1 and self.serves()

    def serves(self) -> bool:
        """Whether kubelet accepts connections on its port, which `kubectl exec` needs."""
        with contextlib.suppress(OSError), socket.create_connection((self.node.address, self._ports[5]), 1):
            return True
        return False

    def dranode(self, *words: str) -> str:
        """Run a `dranode` command in the driver's pod, the newest if there are several."""
        living = [pod for pod in self.pods("dranode").values() if "deletionTimestamp" not in pod["metadata"]]
        name = max(living, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))["metadata"]["name"]
        return self.kubectl("exec", "-n", "dranode", name, "--", "dranode", *words)

    def pods(self, namespace: str = "default") -> dict[str, Document]:
        """Return the pods of a namespace by name."""
        items = self.api.send("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {each["metadata"]["name"]: each for each in items}

    def claims(self) -> dict[str, Document]:
        """Return the claims of the default namespace by name."""
        items = self.api.send("GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims")["items"]
        return {each["metadata"]["name"]: each for each in items}

    def phase(self, name: str, namespace: str = "default") -> str:
        """Return a pod's phase; empty if there is no such pod."""
        return str(self.pods(namespace).get(name, {}).get("status", {}).get("phase", ""))

    def events(self, name: str = "") -> list[str]:
        """Return the Events of a pod, or of all objects."""
        items = self.api.send("GET", "/api/v1/namespaces/default/events")["items"]
        named = ((each["involvedObject"]["name"], each) for each in items)
        return [f"{about} {each['reason']}: {each.get('message')}" for about, each in named if name in ("", about)]

    def run(self, name: str, cpus: int = 0, **config: Any) -> None:
        """Create a pod with a claim for a number of CPUs and this CPUConfig, and wait until it runs."""
        self.apply(*manifests(name, cpus, config))
        self.runs(name)

    def runs(self, name: str) -> None:
        """Wait until a pod runs."""
        self.wait(lambda: self.phase(name) == "Running", f"pod {name} runs")

    def delete(self, name: str) -> None:
        """Delete a pod, and wait until it is gone."""
        self.kubectl("delete", "pod", name, "--wait=false")
        self.wait(lambda: name not in self.pods(), f"pod {name} is gone")

    def cpus(self, name: str, container: str = MAIN, namespace: str = "default") -> CPUSet:
        """Return the CPUs on which the kernel lets a pod's container run."""
        metadata = self.pods(namespace)[name]["metadata"]
        # kubelet knows a static pod by another UID than its mirror pod in the API server.
        uid = metadata.get("annotations", {}).get("kubernetes.io/config.hash", metadata["uid"])
        # A pod is Running a moment before its container executes its own program.
        self.wait(lambda: self.node.allowed(uid, container), f"container {container} of pod {name} has a process")
        return CPUSet.parse(self.node.allowed(uid, container))

    # --- taking it down ---

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(Exception):
            self.kubectl("delete", "pods", "--all", "--all-namespaces", "--grace-period=0", "--force", "--wait=false")
            time.sleep(2)
        self.api.close()
        self.node.close()
        # Nothing has to be kept, and an API server is slow to stop when asked.
        for process in reversed(self._running):
            process.kill()
            process.wait()
        self._alone.release()


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
