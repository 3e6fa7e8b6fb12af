"""What surrounds a node's claims during restarts: kubelet's pod-resources, an API server, CPUs that come and go."""

from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import msgspec

from dranode.api.documents import decode
from dranode.api.errors import ClaimGoneError, DranodeError
from dranode.api.resource import ResourceClaim, ResourceClaimConsumerReference
from dranode.driver.claims.held import ClaimRef
from dranode.driver.machine.root import Root
from dranode.proto import podresources_v1_pb2 as api
from dranode.sim.machines.forms import open_machine
from tests.fakes.cluster import MemoryCluster
from tests.fakes.grpc_server import service

KIND = "dra.k8s.io/cpu"
ONLINE = "sys/devices/system/cpu/online"


def reference_spec(uid: str, cpus: str) -> bytes:
    """A CDI spec as dra-driver-cpu writes it (reference sheet of commit de98098690f2, section 4)."""
    return (
        f'{{"cdiVersion":"0.8.0","kind":"dra.k8s.io/cpu","devices":[{{"name":"claim-{uid}","containerEdits":'
        f'{{"env":["DRA_CPUSET_{uid}={cpus}"]}}}}],"containerEdits":{{}}}}'
    ).encode()


def leave_spec(cdi: Path, uid: str, cpus: str) -> Path:
    """Leave a spec behind as dra-driver-cpu does."""
    cdi.mkdir(parents=True, exist_ok=True)
    path = cdi / f"dra.k8s.io-cpu_claim-{uid}.json"
    path.write_bytes(reference_spec(uid, cpus))
    return path


POD_GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "crew", "uid": "group-uid-crew"}


def group_claim(name: str, uid: str, device: str, count: int | None = None) -> ResourceClaim:
    """Like `cpu_claim`, but reserved for the PodGroup `crew` instead of a pod (KEP-5729)."""
    claim = cpu_claim(name, uid, device, count)
    group = decode(ResourceClaimConsumerReference, POD_GROUP)
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=(group,)))


def claim_of_requests(name: str, uid: str, device: str, *counts: int) -> ResourceClaim:
    """A claim with requests `r0`, `r1` ..., which were allocated these numbers of CPUs of one device."""
    return _claim(
        name,
        uid,
        [
            {"request": f"r{index}", "driver": "dra.cpu", "pool": "node", "device": device, "shareID": f"s{index}"}
            | {"consumedCapacity": {"dra.cpu/cpu": str(count)}}
            for index, count in enumerate(counts)
        ],
    )


def cpu_claim(name: str, uid: str, device: str, count: int | None = None, **result: Any) -> ResourceClaim:
    """A claim in namespace `default` with an allocated device of the CPU driver, for the pod `pod-<name>`."""
    amount = {} if count is None else {"consumedCapacity": {"dra.cpu/cpu": str(count)}}
    return _claim(
        name, uid, [{"request": "r", "driver": "dra.cpu", "pool": "node", "device": device, **amount, **result}]
    )


def _claim(name: str, uid: str, results: list[dict[str, Any]]) -> ResourceClaim:
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": name, "uid": uid},
            "status": {
                "allocation": {"devices": {"results": results, "config": []}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-uid-{name}"}],
            },
        },
    )


class ApiClaims(MemoryCluster):
    """An API server's claims, which also accepts slices; with `away` it does not answer.

    Attributes:
        by_name: the claims that exist, by namespace and name.
        asked: every claim that was requested, in order.
        capacities: the CPUs of the devices of every slice publication, by name.
    """

    def __init__(self, *claims: ResourceClaim) -> None:
        super().__init__()
        self.by_name = {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}
        self.asked: list[ClaimRef] = []
        self.capacities: list[dict[str, str]] = []
        self.away = False

    def get(self, refs: tuple[ClaimRef, ...]) -> dict[ClaimRef, ResourceClaim | DranodeError]:
        self.asked += refs
        return {ref: self._get(ref) for ref in refs}

    def _get(self, ref: ClaimRef) -> ResourceClaim | DranodeError:
        if self.away:
            return DranodeError(f"claim {ref} cannot be fetched: nobody answers")
        claim = self.by_name.get((ref.namespace, ref.name))
        return claim if claim is not None else ClaimGoneError(f"claim {ref} does not exist any more")

    def publish(self, driver: str, inventory: Any) -> None:
        super().publish(driver, inventory)
        self.capacities.append(
            {
                device.name: ", ".join(str(each.value) for each in device.capacity.values())
                for device in inventory.devices
            }
        )


class KubeletPods:
    """kubelet's pod-resources API on a real socket."""

    def __init__(self, socket: Path) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket = socket
        self._pods: dict[tuple[str, str], api.PodResources] = {}
        self._server = grpc.server(
            futures.ThreadPoolExecutor(2), handlers=[service(api.DESCRIPTOR, "PodResourcesLister", self._methods())]
        )
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def _methods(self) -> dict[str, Any]:
        def listed(request: Any, context: grpc.ServicerContext) -> Any:
            del request, context
            return api.ListPodResourcesResponse(pod_resources=tuple(self._pods.values()))

        return {"List": listed, "Get": listed}

    def run(
        self,
        pod: str,
        claim: str,
        uid: str,
        device: str = "cpudevnuma000",
        *,
        driver: str = "dra.cpu",
        kind: str = KIND,
    ) -> None:
        """Run a container `main` in `default/<pod>` with a claim."""
        self._pods[("default", pod)] = api.PodResources(
            namespace="default",
            name=pod,
            containers=[
                api.ContainerResources(name="main", dynamic_resources=[_given(claim, uid, device, driver, kind)])
            ],
        )

    def also(self, pod: str, claim: str, uid: str, device: str = "cpudevnuma000") -> None:
        """Give the container of a running pod another claim."""
        (main,) = self._pods[("default", pod)].containers
        main.dynamic_resources.append(_given(claim, uid, device, "dra.cpu", KIND))

    def end(self, pod: str) -> None:
        """Remove the pod."""
        del self._pods[("default", pod)]

    def close(self) -> None:
        self._server.stop(0).wait()


def _given(claim: str, uid: str, device: str, driver: str, kind: str) -> Any:
    resource = api.ClaimResource(
        driver_name=driver,
        pool_name="node",
        device_name=device,
        cdi_devices=[api.CDIDevice(name=f"{kind}=claim-{uid}")],
    )
    return api.DynamicResource(claim_name=claim, claim_namespace="default", claim_resources=[resource])


class HotplugRoot:
    """A made-up machine whose online CPUs change."""

    def __init__(self, description: str) -> None:
        self._root: Root = open_machine(description)
        self.online = ""

    def read_bytes(self, path: str) -> bytes:
        return self.online.encode() if path == ONLINE and self.online else self._root.read_bytes(path)

    def listdir(self, path: str) -> list[str]:
        return self._root.listdir(path)

    def readlink(self, path: str) -> str:
        return self._root.readlink(path)

    def resolve(self, path: str) -> str:
        return self._root.resolve(path)

    def exists(self, path: str) -> bool:
        return self._root.exists(path)

    def device_number(self, path: str) -> tuple[str, int, int]:
        return self._root.device_number(path)

    def write(self, path: str, content: str) -> None:
        self._root.write(path, content)
