"""A real irqbalance (Debian's package irqbalance), started as on a node, and the CPUs that it reports as banned."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from dranode.api.cpuset import CPUSet
from dranode.cpu.isolation.peers import IRQBalance
from dranode.cpu.isolation.settings import Setting
from tests.fakes.waiting import eventually

FOLDER = Path("/run/irqbalance")
_ROUND = "-" * 30


def program() -> str | None:
    """Return where irqbalance is installed; None if it is not."""
    return shutil.which("irqbalance") or shutil.which("irqbalance", path="/usr/sbin")


class Balancer:
    """A running irqbalance that places interrupts every second."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        """Start it; its output goes to `log`."""
        found = program()
        assert found is not None
        self._log = log
        command = [found, "--debug", "--interval=1"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=dict(environment))
        self.socket = FOLDER / f"irqbalance{self.process.pid}.sock"
        eventually(lambda: self.socket.exists() or self.ended())

    def ended(self) -> bool:
        """Whether it has ended; it ends at once on a machine where it has nothing to do."""
        return self.process.poll() is not None

    def rounds(self) -> int:
        """How often it has placed interrupts."""
        return sum(line.startswith(_ROUND) for line in self._log.read_text(errors="replace").splitlines())

    def banned(self) -> CPUSet:
        """The CPUs that it reports as banned."""
        (mine,) = eventually(self._asked)
        return mine.cpus

    def _asked(self) -> list[Setting]:
        """Send it a command; returns an empty string if it does not answer in time, as on a busy machine."""
        return [
            each
            for each in IRQBalance(str(FOLDER)).ask(CPUSet(), {}).settings
            if each.path.endswith(f"/{self.socket.name}")
        ]

    def end(self) -> None:
        """End it without a warning."""
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)


@contextlib.contextmanager
def irqbalance(log: Path, **environment: str) -> Iterator[Balancer | None]:
    """Run irqbalance with these variables; None if it is not installed or ends at once."""
    if program() is None:
        yield None
        return
    # Its unit makes this folder (RuntimeDirectory=irqbalance). Without it, the socket is not in the file system.
    made = not FOLDER.exists()
    FOLDER.mkdir(exist_ok=True)
    balancer = Balancer(log, environment)
    try:
        yield None if balancer.ended() else balancer
    finally:
        balancer.end()
        if made:
            FOLDER.rmdir()
