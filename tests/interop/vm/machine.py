"""Another machine than this one, emulated: cgroup v2, systemd, several CPUs, NUMA nodes with memory each.

    hardware = Hardware(cpus=8, numa=2, memory=4096, kernel="hugepages=64")
    with Machine(hardware) as vm:
        vm.run("systemctl set-property --runtime system.slice AllowedCPUs=0-1")
        assert vm.run("cat /sys/fs/cgroup/system.slice/cpuset.cpus.effective").stdout == "0-1\\n"
        vm.python("-m", "dranode.driver.cli", "topology")
        vm.test("tests/interop/test_numa.py", INTEROP="v2.3.4")

It is Debian's kernel and systemd on an emulated processor, which needs neither KVM nor the right to use it, only the
packages qemu-system-x86, mmdebstrap and e2fsprogs, root, and Debian's archive for the first time. The checkout, its
environment for the machine's Python and the tier's cache, in which `tests.interop.containerd.build` leaves the
runtimes, are seen under the paths that they have here. So a test for such a machine is an ordinary one that skips where
the machine is another (`test_numa.py`), and `Machine.test` passes it there; what a test needs of Go is built before,
since the machine has neither Go nor a network.

A machine starts in half a minute on two idle cores and in two when eight others use them; one for a module is enough
(`test_vm.py`). Its processors are 10 to 20 times slower than the real ones: no test in it goes by the clock. What the
checkout changes while it runs may be seen late: `echo 3 > /proc/sys/vm/drop_caches` in it helps.

Attributes:
    INTEROP_VM_ACCELERATOR: an environment variable, qemu's `-accel`; `kvm` where it works.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.interop.cache import CACHE
from tests.interop.vm.environment import ROOT, environment
from tests.interop.vm.system import SUITE, System, system, why_no_system

_QEMU = "qemu-system-x86_64"
# An ordinary machine takes a minute to start beside seven others, and a minute of its work may take twenty.
_PATIENCE = 3600.0
_MEBIBYTE = 1 << 20
# The kernel measures timers and locks by a clock that goes on while the emulator waits for a processor, and panics at
# boot ("IO-APIC + timer doesn't work") or calls its own threads stuck. Cgroups are changed once RCU has gone round.
_KERNEL = (
    "console=ttyS0 panic=-1 mitigations=off audit=0 init_on_alloc=0 no_timer_check tsc=reliable nowatchdog "
    "rcupdate.rcu_cpu_stall_suppress=1 rcupdate.rcu_expedited=1"
)
# Threads of Go's runtime that wait for work spin, which takes most of an emulator's time. What services and tests start
# inherits it: runtimes, kubelet, runc.
_GO = "GOMAXPROCS=1 GODEBUG=asyncpreemptoff=1"
NRI_PATIENCE = "60s"
_9P = "trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro"


def why_no_machine() -> str:
    """Why no machine can be had here; empty if one can."""
    for program, package in ((_QEMU, "qemu-system-x86"), ("setpriv", "util-linux")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian's package {package})"
    return why_no_system()


class CommandError(AssertionError):
    """A command in the machine ended with another status than 0."""


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Hardware:
    """What a machine has.

    Attributes:
        cpus: threads of all sockets.
        numa: NUMA nodes, each of which is a socket of its own with an equal part of CPUs and memory.
        threads: of a core.
        memory: of all nodes, in MiB.
        kernel: further words of the kernel's command line, such as `hugepagesz=1G hugepages=1`.
        qemu: further arguments of qemu, such as devices.
        suite: of Debian, whose kernel it runs: SUITE, or BACKPORTS for a newer one.
        reboots: whether it starts again when it reboots, which its kernel does too when it panics, or ends.
    """

    cpus: int = 8
    numa: int = 2
    threads: int = 2
    memory: int = 2048
    kernel: str = ""
    qemu: tuple[str, ...] = ()
    suite: str = SUITE
    reboots: bool = False

    def __post_init__(self) -> None:
        assert self.cpus % (self.numa * self.threads) == 0, f"{self} has cores that are not whole"

    def arguments(self) -> list[str]:
        """qemu's words for it."""
        cores = self.cpus // self.numa // self.threads
        each = self.cpus // self.numa
        words = ["-smp", f"{self.cpus},sockets={self.numa},cores={cores},threads={self.threads}"]
        words += ["-m", f"{self.memory}M"]
        for node in range(self.numa):
            cpus = f"{node * each}-{node * each + each - 1}"
            words += ["-object", f"memory-backend-ram,id=m{node},size={self.memory // self.numa}M"]
            words += ["-numa", f"node,nodeid={node},cpus={cpus},memdev=m{node}"]
        return [*words, *self.qemu]


class Machine:
    """One running machine, whose disk is thrown away with it. It sees this checkout, the tier's cache and `shares`,
    each under the path that it has here, and can write to none of them."""

    def __init__(self, hardware: Hardware | None = None, *, shares: Sequence[Path] = ()) -> None:
        """Start it and wait until it is up.

        Raises:
            RuntimeError: it does not start; with the end of its console.
        """
        self.environment = environment()
        self._folder = Path(tempfile.mkdtemp(prefix="vm-", dir="/tmp"))
        self._shares = _outermost((ROOT, CACHE.resolve(), *shares))
        self._line = socket.socket(socket.AF_UNIX)
        hardware = hardware or Hardware()
        self._process = self._start(hardware, system(hardware.suite))
        try:
            self._connect()
            self._set_up()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what tests do with it ---

    def run(self, command: str, *, stdin: str = "", check: bool = True) -> Done:
        """Run a command by bash, as root, in the cgroup of the agent's service, and wait until it ends.

        What it starts in the background lives on: `daemon > /run/daemon.log 2>&1 &`, or `systemd-run daemon`.

        Raises:
            CommandError: it ended with a status other than 0, and `check` is set.
        """
        self._line.sendall(json.dumps({"command": command, "input": stdin}).encode() + b"\n")
        answer = Done(**self._answer())
        if check and answer.status:
            said = f"{answer.stdout[-10_000:]}\n{answer.stderr[-10_000:]}"
            raise CommandError(f"{command} ended with {answer.status}:\n{said}")
        return answer

    def python(self, *words: str, check: bool = True, **variables: str) -> Done:
        """Run the Python of this checkout's environment, in the checkout: `vm.python("-m", "pytest", ...)`."""
        assigned = [
            *_GO.split(),
            f"INTEROP_NRI_PATIENCE={NRI_PATIENCE}",
            f"INTEROP_PATIENCE={_PATIENCE / 2:.0f}",
            *(f"{name}={value}" for name, value in variables.items()),
        ]
        command = shlex.join(["env", *assigned, f"{self.environment}/bin/python", *words])
        return self.run(f"cd {shlex.quote(str(ROOT))} && {command}", check=check)

    def test(self, *words: str, **variables: str) -> None:
        """Pass tests in the machine; `words` are pytest's.

        Raises:
            CommandError: one failed or was skipped, or there were none.
        """
        options = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist")
        done = self.python(*options, *words, check=False, **variables)
        if done.status or "SKIPPED" in done.stdout:
            raise CommandError(f"pytest {shlex.join(words)} ended with {done.status}:\n{done.stdout}\n{done.stderr}")

    def reboot(self) -> None:
        """Start it again, with the disk as it is; its hardware has to allow that (`reboots`)."""
        self.run("sync; systemctl --no-block reboot")
        self._answer()
        self._set_up()

    def console(self) -> str:
        """What the kernel and systemd have written."""
        path = self._folder / "console"
        return path.read_text(errors="replace") if path.exists() else ""

    def ended(self) -> bool:
        """Whether it has switched itself off."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Switch it off."""
        self._line.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- how it comes up ---

    def _start(self, hardware: Hardware, files: System) -> subprocess.Popen[bytes]:
        words = [_QEMU, "-accel", os.environ.get("INTEROP_VM_ACCELERATOR", _accelerator(hardware))]
        # An emulated processor of AMD's has no threads.
        words += ["-cpu", "max,vendor=GenuineIntel", "-machine", "q35", *hardware.arguments()]
        words += ["-nodefaults", "-display", "none", "-serial", f"file:{self._folder}/console"]
        words += [] if hardware.reboots else ["-no-reboot"]
        words += ["-kernel", str(files.kernel), "-initrd", str(files.initrd)]
        words += ["-append", f"{_KERNEL} {hardware.kernel}"]
        words += ["-drive", f"file={files.disk},format=raw,if=virtio,snapshot=on"]
        words += ["-chardev", f"socket,id=agent,path={self._folder}/agent,server=on,wait=off"]
        words += ["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=dranode"]
        for number, path in enumerate(self._shares):
            options = f"mount_tag=share{number},security_model=none,readonly=on,multidevs=remap"
            words += ["-virtfs", f"local,path={path},{options}"]
        with Path(self._folder, "qemu").open("wb") as log:
            return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *words], stdout=log, stderr=log)

    def _set_up(self) -> None:
        self.run("\n".join(("set -e", *self._mounts(), f"systemctl set-environment {_GO}")))

    def _connect(self) -> None:
        while True:
            try:
                self._line.connect(str(self._folder / "agent"))
            except OSError:
                if self._process.poll() is not None:
                    raise RuntimeError(f"qemu: {(self._folder / 'qemu').read_text()}") from None
                time.sleep(0.05)
            else:
                break
        self._answer()

    def _answer(self) -> dict[str, Any]:
        self._line.settimeout(_PATIENCE)
        data = b""
        while not data.endswith(b"\n"):
            try:
                chunk = self._line.recv(_MEBIBYTE)
            except TimeoutError:
                chunk = b""
            if not chunk:
                raise RuntimeError(f"the machine does not answer: {self.console()[-3000:]}")
            data += chunk
        return dict(json.loads(data))

    def _mounts(self) -> list[str]:
        places = [shlex.quote(str(path)) for path in self._shares]
        commands = (
            f"mkdir -p {place} && mount -t 9p -o {_9P} share{number} {place}" for number, place in enumerate(places)
        )
        return list(commands)


def _accelerator(hardware: Hardware) -> str:
    """Emulated everywhere alike: where it may be had, KVM is not always one that starts Debian's kernel.

    A processor that waits for another one spins. With fewer real ones, or busy ones, that other one does not run
    meanwhile, and minutes pass; so they take turns in one thread, in which one that waits gives way at once.
    """
    enough = len(os.sched_getaffinity(0)) >= hardware.cpus
    return "tcg,thread=multi" if enough else "tcg,thread=single"


def _outermost(paths: Sequence[Path]) -> list[Path]:
    """Those that do not lie in another one."""
    return [path for path in dict.fromkeys(paths) if not any(other in path.parents for other in paths)]
