"""`make bench-peer`: compares this driver with dra-driver-cpu, doing what every pod causes.

python -m tests.bench.peer                     both, in turn, if dra-driver-cpu can be built by its package's name
python -m tests.bench.peer --peer PROGRAM      both, the other as a program that was built before
python -m tests.bench.peer --only start        one part: start, calls, records, pods, nri, rest, floor

Both run as their DaemonSets run them: connected by TLS to an API server in another process, pinning for a container
runtime in a third, with metrics on; each call comes from this process over kubelet's socket. It needs root, since each
driver gets a mount namespace. A figure is the median of rounds; a ratio is the median of the rounds' own ratios, with
its quartiles. CPU is that of all threads of the driver, which a busy machine alters less than it does the clock.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from dranode.sim.machines.synthetic import parse_description, synthetic_tree
from dranode.sim.machines.tree import LazyFolder, Link, TreeEntry
from tests.bench.peer.drivers import Command, Driver, dranode, peer, serving
from tests.bench.peer.image_form import image_form
from tests.bench.peer.parts import commit, echo, files, get
from tests.bench.peer.surroundings import Api, Runtime, api_server, claim, runtime
from tests.bench.peer.usage import Usage, resident
from tests.interop.cache import CACHE
from tests.interop.go_program import CPU_DRIVER, CPU_DRIVER_VERSION, NoProgramError, go_program

_MACHINE = "sockets=2,cores=16,threads=2"
_LARGE = "sockets=8,cores=80,threads=2"
_LARGE_CPUS = 1280
_CONTAINERS = 500
# The claims of a round: few enough that a pod's claims all fit on the machine.
_CLAIMS = 8
# Parts that measure only this driver.
_ALONE = ("floor",)
# Rounds of created containers. After a minute this driver reconnects, since a runtime without unsolicited updates has
# not received all masks for that long, and the benchmark's runtime accepts one connection.
_CREATING = 15
# dra-driver-cpu sends 5 API requests a second after a burst of 10: a round waits until the burst is available again.
_REFILL = 1.7

T = TypeVar("T")

# The figures of each measurement by driver, one for each round.
Figures = dict[str, dict[str, list[float]]]


def _write(tree: Mapping[str, TreeEntry], folder: Path) -> Path:
    folder.mkdir()
    for name, entry in tree.items():
        match entry:
            case bytes():
                (folder / name).write_bytes(entry)
            case Link(target):
                (folder / name).symlink_to(target)
            case LazyFolder(make):
                _write(make(), folder / name)
            case dict():
                _write(entry, folder / name)
            case _:
                raise TypeError(f"{name} is {entry}")
    return folder


def _machine(folder: Path, description: str) -> Path:
    return _write(synthetic_tree(parse_description(description)), folder)


def _claims(count: int) -> list[dict[str, object]]:
    return [claim(number, f"cpudevnuma{number % 2:03d}", 2, "") for number in range(count)]


class Bench:
    """The drivers of one run."""

    def __init__(self, drivers: Mapping[str, Command], rounds: int, folder: Path) -> None:
        self.drivers, self.rounds, self.folder = drivers, rounds, folder
        self.figures: Figures = {}

    def note(self, what: str, name: str, value: float) -> None:
        """Add a figure of a driver."""
        self.figures.setdefault(what, {}).setdefault(name, []).append(value)

    # --- parts ---

    def start(self) -> None:
        """From exec to GetInfo's answer and to the first Prepare's, connected; then the memory."""
        machine = _machine(self.folder / "machine", _MACHINE)
        with api_server(_claims(1)) as api:
            # The first start of each compiles modules and fills the page cache.
            for number in range(max(3, self.rounds // 2) + 1):
                for name, command in in_turn(self.drivers, number):
                    folder = self.folder / f"start-{name}-{number}"
                    with self._serving(command, folder, machine, api, first=(0,)) as (driver, _):
                        started = driver.started
                        if not number:
                            continue
                        self.note("exec to GetInfo, ms", name, started.info)
                        self.note("exec to GetInfo, CPU ms", name, started.info_cpu)
                        self.note("exec to first Prepare, ms", name, started.prepared)
                        self.note("exec to first Prepare, CPU ms", name, started.prepared_cpu)
                        time.sleep(1)
                        self.note("resident, MiB", name, resident(driver.pid))

    def rest(self) -> None:
        """Wake-ups and CPU at rest, connected and synchronized."""
        machine = _machine(self.folder / "machine", _MACHINE)
        with api_server(_claims(1)) as api, contextlib.ExitStack() as stack:
            drivers = self._all(stack, "rest", machine, api, containers=_CONTAINERS)
            time.sleep(15)
            before = {name: driver.usage() for name, (driver, _) in drivers.items()}
            seconds = 30
            time.sleep(seconds)
            for name, (driver, _) in drivers.items():
                used = driver.usage().since(before[name])
                self.note("at rest, wake-ups a second", name, used.switches / seconds)
                self.note("at rest, % of a CPU", name, used.cpu / seconds / 1e4)

    def calls(self) -> None:
        """Prepare and Unprepare of one claim, with no containers and with 500."""
        machine = _machine(self.folder / "machine", _MACHINE)
        with api_server(_claims(_CLAIMS)) as api:
            for containers in (0, _CONTAINERS):
                with contextlib.ExitStack() as stack:
                    drivers = self._all(stack, f"calls-{containers}", machine, api, containers=containers)
                    self._rounds(_alone(drivers), f"{containers} containers", range(_CLAIMS))

    def records(self) -> None:
        """The same with claims on record, whose containers are among 500 shared ones."""
        machine = _machine(self.folder / "large", _LARGE)
        cpus = [str(number + 2) for number in range(_LARGE_CPUS - 2)]
        claims = [claim(number, "cpudevmachine", 1, cpu) for number, cpu in enumerate(cpus)]
        with api_server(claims) as api:
            for count in (0, 100, 1000):
                held = dict(enumerate(cpus[:count]))
                with contextlib.ExitStack() as stack:
                    drivers = self._all(
                        stack, f"records-{count}", machine, api, containers=_CONTAINERS, held=held, group_by="machine"
                    )
                    self._rounds(_alone(drivers), f"{count} on record", range(1000, 1000 + _CLAIMS))

    def pods(self) -> None:
        """A pod of eight claims, with an API server that answers at once, after 2 ms and after 10 ms."""
        machine = _machine(self.folder / "machine", _MACHINE)
        with api_server(_claims(_CLAIMS)) as api, contextlib.ExitStack() as stack:
            drivers = self._all(stack, "pods", machine, api, containers=_CONTAINERS)
            for delay in (0.0, 0.002, 0.01):
                api.answer_after(delay)
                for number in range(self.rounds):
                    time.sleep(_REFILL)
                    for name, (driver, _runtime) in in_turn(drivers, number):
                        took = driver.prepare(range(_CLAIMS))
                        self.note(f"pod of 8 claims, API server {delay * 1000:.0f} ms: ms", name, took)
                        driver.unprepare(range(_CLAIMS))
            api.answer_after(0.0)

    def nri(self) -> None:
        """CreateContainer of a claim's container among 500 shared ones."""
        machine = _machine(self.folder / "large", _LARGE)
        claims = [claim(number, "cpudevmachine", 1, str(number + 2)) for number in range(_CLAIMS)]
        with api_server(claims) as api, contextlib.ExitStack() as stack:
            drivers = self._all(stack, "nri", machine, api, containers=_CONTAINERS, group_by="machine")
            for turn in range(min(self.rounds, _CREATING)):
                time.sleep(_REFILL)
                for name, (driver, peers) in in_turn(drivers, turn):
                    for number in range(_CLAIMS):
                        driver.prepare((number,))
                        time.sleep(0.05)
                        before = driver.usage()
                        took = peers.create(number, str(number + 2))
                        used = driver.usage().since(before)
                        self.note("CreateContainer of a claim, ms", name, took)
                        self.note("CreateContainer, StopContainer, CPU us", name, used.cpu)
                        driver.unprepare((number,))

    def floor(self) -> None:
        """What every Prepare needs at least, in microseconds: its parts, measured in turn with the whole."""
        machine = _machine(self.folder / "machine", _MACHINE)
        kubeconfig = self.folder / "kubeconfig"
        with api_server(_claims(1)) as api, contextlib.ExitStack() as stack:
            api.kubeconfig(kubeconfig)
            ((driver, _),) = self._all(stack, "floor", machine, api, containers=0).values()
            (self.folder / "parts").mkdir()
            calls = {
                "Prepare, whole": lambda _: driver.prepare((0,)) and None,
                "a gRPC exchange with an empty handler": stack.enter_context(echo(self.folder / "parts")),
                "a GET of the claim": get(kubeconfig),
                "a durable commit": stack.enter_context(commit(self.folder / "parts")),
                "a small file and its rename, twice": files(self.folder / "parts"),
            }
            for number in range(self.rounds * 10):
                for what, call in calls.items():
                    began = time.perf_counter()
                    call(number)
                    self.note(f"{what}: us", "dranode", (time.perf_counter() - began) * 1e6)
                driver.unprepare((0,))

    # --- what they share ---

    def _rounds(self, drivers: Mapping[str, Sequence[Driver]], case: str, numbers: Sequence[int]) -> None:
        every: dict[tuple[str, str], list[float]] = {}
        for number in range(self.rounds + 2):
            time.sleep(_REFILL)
            used: dict[tuple[str, str], list[Usage]] = {}
            took: dict[tuple[str, str], list[float]] = {}
            for place in range(max(map(len, drivers.values()))):
                for name, each in in_turn(drivers, number + place):
                    driver = each[place]
                    for call, ask in (("Prepare", driver.prepare), ("Unprepare", driver.unprepare)):
                        before = driver.usage()
                        took.setdefault((call, name), []).extend(ask((claim,)) for claim in numbers)
                        # The driver's work after its answer is part of a call's cost.
                        time.sleep(0.05)
                        used.setdefault((call, name), []).append(driver.usage().since(before))
            if number < 2:
                continue  # the first ones warm up
            for (call, name), taken in took.items():
                every.setdefault((call, name), []).extend(taken)
                uses = used[call, name]
                self.note(f"{call}, {case}: p50, ms", name, statistics.median(taken))
                self.note(f"{call}, {case}: CPU a call, us", name, sum(each.cpu for each in uses) / len(taken))
                switches = sum(each.switches for each in uses)
                self.note(f"{call}, {case}: switches a call", name, switches / len(taken))
        # The p99 is over all rounds, since one round has too few calls.
        for (call, name), taken in every.items():
            self.note(f"{call}, {case}: p99, ms", name, statistics.quantiles(taken, n=100, method="inclusive")[-1])

    def _all(
        self,
        stack: contextlib.ExitStack,
        case: str,
        machine: Path,
        api: Api,
        *,
        containers: int,
        held: Mapping[int, str] | None = None,
        group_by: str = "numanode",
    ) -> dict[str, tuple[Driver, Runtime]]:
        return {
            name: stack.enter_context(
                self._serving(
                    command,
                    self.folder / f"{case}-{name}",
                    machine,
                    api,
                    containers=containers,
                    held=held or {},
                    group_by=group_by,
                )
            )
            for name, command in self.drivers.items()
        }

    @contextlib.contextmanager
    def _serving(
        self,
        command: Command,
        folder: Path,
        machine: Path,
        api: Api,
        *,
        first: Sequence[int] = (),
        containers: int = 0,
        held: Mapping[int, str] | None = None,
        group_by: str = "numanode",
    ) -> Iterator[tuple[Driver, Runtime]]:
        (folder / "nri").mkdir(parents=True, exist_ok=True)
        held = held or {}
        with contextlib.ExitStack() as stack:
            peers = stack.enter_context(runtime(folder / "nri" / "nri.sock", containers, dict(held)))
            driver = stack.enter_context(serving(command, folder, machine, api, group_by=group_by, first=first))
            peers.until_synchronized()
            for begin in range(0, len(held), 50):
                driver.prepare(tuple(held)[begin : begin + 50])
            time.sleep(0.5)
            yield driver, peers


def in_turn(each: Mapping[str, T], number: int) -> Iterator[tuple[str, T]]:
    """Yield the items, beginning with another one in every round, since the first item finds all caches cold."""
    names = tuple(each)
    first = number % len(names)
    for name in (*names[first:], *names[:first]):
        yield name, each[name]


def _alone(drivers: Mapping[str, tuple[Driver, Runtime]]) -> dict[str, tuple[Driver]]:
    return {name: (driver,) for name, (driver, _) in drivers.items()}


def _spread(values: Sequence[float]) -> str:
    if len(values) < 3:
        return ""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.2f} to {high:.2f}"


def draw(figures: Figures, names: Sequence[str]) -> None:
    """Print the figures, and the ratio to the peer if there is one."""
    table = Table(box=None, pad_edge=False)
    table.add_column("what")
    for name in (*names, "ratio", "quartiles"):
        table.add_column(name, justify="right")
    for what, taken in figures.items():
        medians = [f"{statistics.median(taken[name]):.4g}" for name in names]
        mine, *others = (taken[name] for name in names)
        ratios = [one / other for one, other in zip(mine, *others, strict=True) if other] if others else []
        ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
        table.add_row(what, *medians, ratio, _spread(ratios))
    Console(width=140).print(table)


def _built() -> Path | None:
    """Build dra-driver-cpu if need be and return the program; None with a message on stderr if that fails."""
    try:
        return go_program(CPU_DRIVER, CPU_DRIVER_VERSION, CACHE / "dra-driver-cpu")
    except NoProgramError as error:
        print(f"this driver is measured alone: {error}", file=sys.stderr)
        return None


def main() -> None:
    """Run the requested parts."""
    parts = ("start", "calls", "records", "pods", "nri", "rest", "floor")
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peer")
    parser.add_argument("--peer", type=Path, help="the program dracpu of dra-driver-cpu; built by its name without it")
    parser.add_argument(
        "--python", type=Path, help="whose dranode is measured; without it one that is installed as the image has it"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--folder", type=Path, default=Path("/tmp"), help="where kubelet's folders are made, on a disk as a node has it"
    )
    parser.add_argument("--only", action="append", choices=parts)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dra-image-") as image:
        python = image_form(Path(image)) if asked.python is None else asked.python.absolute()
        drivers: dict[str, Command] = {"dranode": dranode(python)}
        if program := asked.peer or _built():
            drivers["dra-driver-cpu"] = peer(program.absolute())
        for part in asked.only or parts:
            _measure(part, drivers, asked.rounds, asked.folder)


def _measure(part: str, drivers: Mapping[str, Command], rounds: int, folder: Path) -> None:
    """Run a part and print its figures."""
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="dra-") as name,
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dra-") as memory,
    ):
        (Path(name) / "memory").symlink_to(memory)
        these = {"dranode": drivers["dranode"]} if part in _ALONE else drivers
        bench = Bench(these, rounds, Path(name))
        run: Callable[[], None] = getattr(bench, part)
        run()
        draw(bench.figures, tuple(these))


if __name__ == "__main__":
    main()
