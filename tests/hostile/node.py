"""A node: its machine's files, kubelet, a container runtime, claims in a folder, and the driver as real processes."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dranode.api.cpuset import CPUSet
from dranode.api.documents import API_VERSION
from dranode.proto import dra_v1_pb2 as api
from dranode.proto import nri_v1alpha1_pb2 as nri
from dranode.proto import podresources_v1_pb2 as podresources
from dranode.show.ledger_reading import read_ledger
from tests.fakes.machine import CPU, write_machine
from tests.fakes.nri import container as container_message
from tests.fakes.nri import pod as pod_message
from tests.fakes.waiting import PATIENCE
from tests.hostile.book import Book, BookedClaim, Stage
from tests.hostile.instance import DRIVER, Instance, fork, start, trace
from tests.hostile.kubelet import PodResourcesServer
from tests.hostile.launch import CLOCK
from tests.hostile.runtime import RunningContainer, Runtime, Violation

KIND: Final = "dra.k8s.io/cpu"
MACHINE: Final = "sockets=1,numa=2,cores=4,threads=2"
CPUS: Final = CPUSet(range(16))
# A starting driver answers this for a while; kubelet treats it like no answer.
STARTING: Final = "has not read its hardware and ledger yet"
# One start in this many is by exec and loads its modules itself, like a program in production.
EXEC_OF: Final = 20


@dataclass
class Node:
    """The node.

    Attributes:
        folder: the folder with everything.
        online: the online CPUs.
        starts: how many instances were started.
        refusals: the number of refusals by kind, for the report at the end of a run.
    """

    folder: Path
    instances: dict[str, Instance] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    online: CPUSet = CPUS
    starts: int = 0
    _numbers: int = 0

    def __post_init__(self) -> None:
        self.registry.mkdir(parents=True)
        self.cdi.mkdir()
        write_machine(self.folder / "machine", MACHINE)
        boot = self.folder / "machine" / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("5f0ba5a2-2e44-4c0f-8b25-2d0f8c6e1a11\n")
        (self.folder / "clock").write_bytes(CLOCK.pack(0))
        (self.folder / "store" / "resourceclaims").mkdir(parents=True)
        self.book = Book(self.data, self.cdi)
        self.pods = PodResourcesServer(self.folder / "kubelet" / "pod-resources" / "kubelet.sock")
        self.runtime = Runtime(self.folder / "nri.sock", self.book.change)
        self.runtime.open()

    @property
    def registry(self) -> Path:
        return self.folder / "kubelet" / "plugins_registry"

    @property
    def data(self) -> Path:
        return self.folder / "kubelet" / "plugins" / DRIVER

    @property
    def cdi(self) -> Path:
        return self.folder / "cdi"

    @property
    def ledger(self) -> Path:
        return self.data / "ledger.db"

    @property
    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-6000:]
        return ""

    def shorten_log(self) -> None:
        """Truncate the drivers' log from time to time; they append to it, wherever its end is."""
        os.truncate(self.folder / "log", 0)

    def close(self) -> None:
        for name in tuple(self.instances):
            self.kill(name)
        self.runtime.close()
        self.pods.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the driver ---

    def start(self, name: str, tracer: Sequence[str] = ()) -> None:
        """Start an instance: some by exec, most forked. With `tracer`, an strace command, it is forked and traced."""
        self.starts += 1
        if tracer:
            self.instances[name] = trace(self.folder, name, tracer)
        else:
            self.instances[name] = (start if self.starts % EXEC_OF == 0 else fork)(self.folder, name)

    def kill(self, name: str) -> None:
        """Kill an instance with SIGKILL."""
        instance = self.instances.pop(name)
        instance.process.kill()
        instance.wait()
        instance.connection.close()

    def terminate(self, name: str) -> None:
        """Stop an instance with SIGTERM.

        Raises:
            Violation: it exits with an error, or not at all.
        """
        instance = self.instances.pop(name)
        instance.process.terminate()
        ends = time.monotonic() + PATIENCE
        while instance.process.poll() is None:
            self.runtime.attend(0.02)
            if time.monotonic() > ends:
                raise Violation(f"instance {name} does not end within {PATIENCE:.0f} s")
        instance.connection.close()
        if instance.process.returncode not in (0, -signal.SIGTERM):
            raise Violation(f"instance {name} ended with status {instance.process.returncode}")

    def check(self) -> None:
        """Check that every instance that was not stopped still runs.

        Raises:
            Violation: one has exited by itself.
        """
        for name, instance in self.instances.items():
            if (status := instance.process.poll()) is not None:
                raise Violation(f"instance {name} has ended with status {status}")

    def cpu_seconds(self) -> float:
        """The CPU time of the running instances."""
        ticks = 0
        for instance in self.instances.values():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{instance.process.pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def call(self, name: str, method: str, claims: Sequence[BookedClaim], seconds: float = PATIENCE) -> Any:
        """Make a call as kubelet; None without an answer."""
        asked = [api.Claim(namespace="default", name=claim.name, uid=claim.uid) for claim in claims]
        return self.instances[name].connection.call(method, asked, seconds)

    # --- claims ---

    def allocate(self, name: str, numa: int, count: int) -> BookedClaim:
        """Create a claim for a new pod."""
        self._numbers += 1
        uid = f"uid-{name}-{self._numbers}"
        claim = BookedClaim(name, uid, f"pod-{uid}", numa, count)
        self.allocate_again(claim)
        return claim

    def allocate_again(self, claim: BookedClaim) -> None:
        """Add a claim to the API server, with its pod."""
        name, uid = claim.name, claim.uid
        result = {
            "request": "r", "driver": DRIVER, "pool": "node", "device": f"cpudevnuma{claim.numa:03d}",
            "consumedCapacity": {"dra.cpu/cpu": str(claim.count)},
            "shareID": f"00000000-0000-4000-8000-{int(uid.rpartition('-')[2]):012d}",
        }  # fmt: skip
        document = {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": name, "uid": uid},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{uid}", "uid": claim.pod}],
            },
        }
        # JSON is YAML, and is written faster than by a store's `put`.
        path = self.folder / "store" / "resourceclaims" / f"default.{name}.yaml"
        path.with_name("new").write_text(json.dumps(document))
        path.with_name("new").replace(path)
        self.book.claims[uid] = claim
        device = podresources.ClaimResource(
            driver_name=DRIVER, pool_name="node", device_name=str(result["device"]),
            cdi_devices=[podresources.CDIDevice(name=f"{KIND}=claim-{uid}")],
        )  # fmt: skip
        given = podresources.DynamicResource(claim_name=name, claim_namespace="default", claim_resources=[device])
        main = podresources.ContainerResources(name="main", dynamic_resources=[given])
        self.pods.pods[claim.pod] = podresources.PodResources(namespace="default", name=f"pod-{uid}", containers=[main])

    def prepare(self, name: str, claims: Sequence[BookedClaim], seconds: float = PATIENCE) -> list[str]:
        """Prepare claims in one call; return the reasons for refusals.

        Raises:
            Violation: an answer is wrong.
        """
        answer = self.call(name, "NodePrepareResources", claims, seconds)
        if answer is None:
            return []
        if set(answer.claims) != {claim.uid for claim in claims}:
            raise Violation(f"kubelet asked about {[claim.uid for claim in claims]} and was answered {answer}")
        refused = []
        for claim in claims:
            entry = answer.claims[claim.uid]
            if entry.error:
                refused.append(entry.error)
            else:
                self.book.prepared(claim, entry.devices, name)
        return refused

    def unprepare(self, name: str, claim: BookedClaim, seconds: float = PATIENCE) -> str:
        """Unprepare a claim whose containers have gone; return the reason for a refusal, or an empty string."""
        for container in [each for each in self.runtime.containers.values() if claim.uid in each.claims]:
            self.runtime.stop(container)
        self.pods.pods.pop(claim.pod, None)
        claim.stage = Stage.ENDING
        answer = self.call(name, "NodeUnprepareResources", [claim], seconds)
        if answer is None:
            return "no answer"
        if error := answer.claims[claim.uid].error:
            return "no answer" if STARTING in error else str(error)
        self.book.unprepared(claim)
        if all(other.name != claim.name for other in self.book.claims.values()):
            (self.folder / "store" / "resourceclaims" / f"default.{claim.name}.yaml").unlink(missing_ok=True)
        return ""

    def loss(self) -> str:
        """Why the ledger may lack claims; empty if it is complete."""
        return read_ledger(self.ledger).loss

    def forget_lost(self) -> None:
        """Run `forget-lost`, as people do, for claims that nothing knows of any more.

        Raises:
            Violation: the command fails.
        """
        program = str(Path(sys.executable).with_name("dranode"))
        command = [program, "forget-lost", "--drivers", DRIVER, "--kubelet-root", "kubelet", "--cdi-dir", "cdi"]
        done = subprocess.run(command, cwd=self.folder, check=False, capture_output=True, text=True)
        if done.returncode:
            raise Violation(f"what was lost cannot be forgotten: {done.stderr}")

    # --- containers ---

    def run(self, claim: BookedClaim | None, name: str = "main") -> str:
        """Run a container with or without a claim; return the reason for a refusal, or an empty string.

        kubelet runs one container of each name in a pod, so an earlier one is stopped first.

        Raises:
            Violation: it runs on wrong CPUs, or another container runs on its own CPUs.
        """
        self._numbers += 1
        uid = claim.pod if claim else f"pod-shared-{self._numbers}"
        try:
            env = self.book.env(claim.uid) if claim else []
        except (OSError, ValueError, LookupError):
            return "the runtime finds no CDI spec"
        devices = [f"{KIND}=claim-{claim.uid}"] if claim else []
        name = name if claim else "other"
        message = container_message(f"c{self._numbers}", uid, env, name=name, cdi=devices, state=nri.CONTAINER_CREATED)
        of = pod_message(uid, name=f"pod-{claim.uid}" if claim else uid)
        container = RunningContainer(message, of, frozenset([claim.uid] if claim else []))
        self.runtime.attend()
        for other in tuple(self.runtime.containers.values()):
            if (other.pod.uid, other.message.name) == (of.uid, name):
                self.runtime.stop(other)
        # After a restart of the runtime, the standby may connect before the active instance, and nobody pins until
        # then.
        asked = len(self.runtime.plugins)
        reason = self.runtime.create(container)
        if not reason and 0 < asked == len(self.runtime.plugins) == len(self.instances):
            alone = next(iter(self.instances)) if len(self.instances) == 1 else None
            self.book.created(container, tuple(self.runtime.containers.values()), alone=alone)
        return reason

    # --- the machine ---

    def set_online(self, cpus: CPUSet) -> None:
        """Set which CPUs are online, as far as a file can."""
        self.online = cpus
        self.book.offline |= CPUS - cpus
        path = self.folder / "machine" / CPU / "online"
        # Replace the file atomically, since the kernel never returns half a list.
        path.with_name("online.new").write_text(f"{cpus}\n")
        path.with_name("online.new").replace(path)

    def set_clock(self, seconds: int) -> None:
        """Set the wall clock ahead by `seconds`."""
        # The drivers have the file mapped, so it is written in place.
        with (self.folder / "clock").open("r+b", buffering=0) as clock:
            clock.write(CLOCK.pack(seconds))

    def refused(self, what: str, reason: str) -> None:
        """Count a refusal."""
        words = " ".join(word for word in reason.split() if not any(sign.isdigit() for sign in word))
        key = f"{what}: {words[:110]}"
        self.refusals[key] = self.refusals.get(key, 0) + 1
