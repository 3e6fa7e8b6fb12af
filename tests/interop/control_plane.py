"""A real control plane without nodes: etcd, kube-apiserver and kube-scheduler, started in a folder of their own.

They are taken from PATH if their versions fit. Otherwise they are built from their Go modules as one program, which
takes long the first time and needs only Go and its module proxy, neither root nor containers.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.interop.api import Api

CACHE = Path(__file__).parents[2] / ".cache" / "interop"
PROGRAM = Path(__file__).with_name("control_plane.go")
# The patch releases that are built; docs/compatibility.md says which were run.
VERSIONS = {"1.34": "1.34.10", "1.35": "1.35.8", "1.36": "1.36.4", "1.37": "1.37.1"}
_NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
TOKEN = "interop"  # noqa: S105 - it guards a server that listens on this machine for the length of a test
_PATIENCE = 120.0
_CONNECTING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 20000

# API versions that the server does not serve by default, by the gate of their objects.
_SERVED = {
    ("1.36", "DRADeviceTaintRules"): "resource.k8s.io/v1beta2=true",
    ("1.36", "GenericWorkload"): "scheduling.k8s.io/v1alpha2=true",
    ("1.37", "GenericWorkload"): "scheduling.k8s.io/v1beta1=true",
}

_SCHEDULER_CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: {folder}/kubeconfig
  qps: 5000
  burst: 5000
"""
_KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "https://{host}:{port}", insecure-skip-tls-verify: true}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""


@dataclass(frozen=True)
class Programs:
    """The commands that start etcd and the programs of Kubernetes."""

    etcd: tuple[str, ...]
    apiserver: tuple[str, ...]
    controllers: tuple[str, ...]
    scheduler: tuple[str, ...]
    kubelet: tuple[str, ...]


def why_no_control_plane() -> str:
    """Return why no control plane can run here; empty if it can."""
    if all(shutil.which(name) for name in _NAMES) or shutil.which("go"):
        return ""
    return f"neither {', '.join(_NAMES)} nor go, to build them, are on PATH"


def programs(release: str) -> Programs:
    """Return the programs on PATH if they are of the release, otherwise built ones."""
    found = [shutil.which(name) for name in _NAMES]
    if all(found):
        paths = [(str(path),) for path in found]
        version = subprocess.run([*paths[-1], "--version"], capture_output=True, text=True, check=True).stdout
        if f"v{release}." in version:
            return Programs(*paths)
    built = str(_built(release))
    return Programs(*((built, name) for name in _NAMES))


def _built(release: str) -> Path:
    """Build all programs as one, once, with the library versions in Kubernetes' own go.mod."""
    version = VERSIONS[release]
    program = CACHE / f"kubernetes-{version}"
    if program.exists():
        return program
    folder = CACHE / f"kubernetes-{version}-source"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAM, folder / "main.go")
    answer = subprocess.run(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"], capture_output=True, text=True, check=True
    )
    source = Path(json.loads(answer.stdout)["Dir"])
    (folder / "go.mod").write_text(_module(source / "go.mod", version))
    shutil.copy(source / "go.sum", folder / "go.sum")
    major, minor, _ = version.split(".")
    names = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    stamps = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in names.items())
    subprocess.run(
        ["go", "build", "-mod=mod", "-ldflags", f"-s -w {stamps}", "-o", str(program), "."],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    return program


def _module(kubernetes: Path, version: str) -> str:
    """Return a go.mod that requires Kubernetes, and the published modules of its staging folder."""
    words = [line.split() for line in kubernetes.read_text().splitlines()]
    etcd = next(line[1] for line in words if line[:1] == ["go.etcd.io/etcd/server/v3"])
    minor = version.partition(".")[2]
    beside = [line[0] for line in words if len(line) > 2 and line[2].startswith("./staging/")]
    replaced = "\n".join(f"\t{name} => {name} v0.{minor}" for name in beside)
    required = f"\tk8s.io/kubernetes v{version}\n\tgo.etcd.io/etcd/server/v3 {etcd}"
    head = "module dranode.example/control-plane\n\ngo 1.26.0"
    return f"{head}\n\nrequire (\n{required}\n)\n\nreplace (\n{replaced}\n)\n"


@contextlib.contextmanager
def control_plane(release: str, folder: Path, gates: str = "", *, schedules: bool = True) -> Iterator[Api]:
    """Run a control plane with these feature gates; without its scheduler unless `schedules`."""
    commands = programs(release)
    ports = free_ports(3)
    _write(folder, ports)
    running: list[subprocess.Popen[bytes]] = []
    api = Api(ports[2], TOKEN)
    try:
        running.append(start(folder, "etcd", _etcd(commands, folder, ports)))
        served = [
            f"--runtime-config={text}" for (minor, gate), text in _SERVED.items() if minor == release and gate in gates
        ]
        running.append(start(folder, "kube-apiserver", [*_apiserver(commands, folder, ports, gates), *served]))
        _wait(api, running, folder)
        with scheduler(release, folder, gates) if schedules else contextlib.nullcontext():
            yield api
    finally:
        api.close()
        _stop(running)


@contextlib.contextmanager
def scheduler(release: str, folder: Path, gates: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run the scheduler of the control plane in a folder."""
    process = start(folder, "kube-scheduler", _scheduler(programs(release), folder, free_ports(1)[0], gates))
    try:
        yield process
    finally:
        _stop([process])


def _stop(running: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(running):
        process.send_signal(signal.SIGTERM)
    for process in reversed(running):
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kubeconfig(port: int, token: str, host: str = "127.0.0.1") -> str:
    """Return a kubeconfig for a server on this machine, by its address `host`."""
    return _KUBECONFIG.format(host=host, port=port, token=token)


def _write(folder: Path, ports: list[int]) -> None:
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    (folder / "kubeconfig").write_text(kubeconfig(ports[2], TOKEN))
    (folder / "scheduler.yaml").write_text(_SCHEDULER_CONFIG.format(folder=folder))
    subprocess.run(["openssl", "genrsa", "-out", str(folder / "accounts.key"), "2048"], check=True, capture_output=True)


def _etcd(commands: Programs, folder: Path, ports: list[int]) -> list[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in ports[:2])
    return [
        *commands.etcd,
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(commands: Programs, folder: Path, ports: list[int], gates: str) -> list[str]:
    return [
        *commands.apiserver,
        f"--etcd-servers=http://127.0.0.1:{ports[0]}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports[2]}",
        f"--cert-dir={folder}/certs",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://interop.example",
        f"--service-account-key-file={folder}/accounts.key",
        f"--service-account-signing-key-file={folder}/accounts.key",
        "--service-cluster-ip-range=10.0.0.0/24",
        # Without controllers and kubelets, service accounts are not created and no node is reported as ready.
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        "--max-requests-inflight=0",
        "--enable-priority-and-fairness=false",
        *([f"--feature-gates={gates}"] if gates else []),
    ]


def _scheduler(commands: Programs, folder: Path, port: int, gates: str) -> list[str]:
    return [
        *commands.scheduler,
        f"--config={folder}/scheduler.yaml",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}/scheduler-certs",
        *([f"--feature-gates={gates}"] if gates else []),
    ]


def start(folder: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a program; its output goes to a log in the folder."""
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)


def _wait(api: Api, running: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until the server is ready; if a program has ended, the error has the end of its log."""
    until = time.monotonic() + _PATIENCE
    while not api.ready():
        ended = next((process for process in running if process.poll() is not None), None)
        if ended is not None or time.monotonic() > until:
            ends = [f"{log.name}: {log.read_text(errors='replace')[-600:]}" for log in sorted(folder.glob("*.log"))]
            raise RuntimeError("the control plane does not come up: " + " | ".join(ends))
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens at the moment.

    They are outside the ephemeral range, from which the kernel could use one before the program listens on it.
    """
    lowest = int(_CONNECTING.read_text().split()[0])
    ports: list[int] = []
    for port in random.sample(range(_LOWEST_PORT, lowest), lowest - _LOWEST_PORT):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"there are no {count} ports between {_LOWEST_PORT} and {lowest} that are free")
