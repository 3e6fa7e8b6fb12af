"""Crashes of the whole machine, which lose any part of what was written and not flushed.

The writes of a driver's life are recorded with strace, with their bytes. For a moment between two writes, its folder is
made as a disk may have it: everything that was flushed, plus any subset of a file's other writes and any prefix of a
folder's other changes (a name is safe once its folder was flushed). Then the machine boots: the CDI folder, which is in
memory, is empty, and the driver must know what had been reported to kubelet by that moment.
"""

import argparse
import copy
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.crash.node_points import TRACED, node
from tests.crash.points import missing
from tests.crash.runs import Violation
from tests.hostile.book import BookedClaim, Stage
from tests.hostile.node import Node
from tests.hostile.runtime import Violation as StepViolation
from tests.hostile.settling import settle
from tests.hostile.steps import Steps

_CALLS: Final = "openat,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat"
_LINE: Final = re.compile(r"^\d+\s+(\d+\.\d+) (\w+)\((.*)\)\s+= (-?\d+)(?:<(.*)>)?")
_RESUMED: Final = re.compile(r"^\d+\s+\d+\.\d+ <\.\.\. \w+ resumed>\s*(.*)$")
_PATH: Final = re.compile(r"^\d+<([^>]*)>")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True)
class DiskOperation:
    """A call that changes or flushes a file; `data` are the bytes written, `other` is the name after a rename."""

    at: float
    call: str
    path: str
    data: bytes = b""
    offset: int = -1
    other: str = ""


@dataclass
class DiskFile:
    """A file as the disk certainly has it, and the writes that are only in memory."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[DiskOperation] = field(default_factory=list)

    def content(self, chosen: Callable[[DiskOperation], bool]) -> bytearray:
        content = bytearray(self.durable)
        for operation in filter(chosen, self.pending):
            if operation.call == "ftruncate":
                content = content[: operation.offset].ljust(operation.offset, b"\0")
                continue
            offset = len(content) if operation.offset < 0 else operation.offset
            content = content.ljust(offset, b"\0")
            content[offset : offset + len(operation.data)] = operation.data
        return content


@dataclass
class RecordedLife:
    """What the driver wrote, and what kubelet knew at which time (seconds since the epoch)."""

    operations: list[DiskOperation]
    known: list[tuple[float, dict[str, BookedClaim]]]

    def known_at(self, moment: float) -> dict[str, BookedClaim]:
        """The claims that kubelet knew at a time."""
        before = [claims for at, claims in self.known if at <= moment]
        return copy.deepcopy(before[-1]) if before else {}


def record() -> RecordedLife:
    """Record a life of the driver: claims come and go one after another, then SIGKILL."""
    with node() as where:
        known: list[tuple[float, dict[str, BookedClaim]]] = []

        def note() -> None:
            known.append((time.time(), copy.deepcopy(where.book.claims)))

        options = ("-f", "-y", "-ttt", "-s", "1000000", "-xx", "-qq", "-o", "trace", "-e", f"trace={_CALLS}")
        where.start(TRACED, ("strace", *options))
        claims = [where.allocate(f"c{number}", number % 2, 1) for number in range(6)]
        note()
        for number, claim in enumerate(claims):
            where.prepare(TRACED, [claim])
            note()
            if number % 2:
                where.book.claims[claims[number - 1].uid].stage = Stage.ENDING
                note()
                where.unprepare(TRACED, claims[number - 1])
                note()
        where.instances[TRACED].process.kill()
        where.instances[TRACED].wait()
        trace = (where.folder / "trace").read_text(errors="replace")
        return RecordedLife(list(_operations(trace, str(where.data))), known)


def _operations(trace: str, folder: str) -> Iterator[DiskOperation]:
    """The operations below a folder, with relative paths; without the journal's index, which is always rebuilt."""
    for line in _joined(trace):
        if (match := _LINE.match(line)) is None or int(match[4]) < 0:
            continue
        at, call, arguments = float(match[1]), match[2], match[3]
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
        opened = _PATH.match(arguments)
        path = _unquoted(opened[1]) if opened else texts[0].decode(errors="replace") if texts else ""
        if not (path == folder or path.startswith(f"{folder}/")) or path.endswith("-shm"):
            continue
        name = path[len(folder) + 1 :]
        if call == "openat":
            if "O_CREAT" in arguments:
                yield DiskOperation(at, "create", name)
        elif call in ("write", "pwrite64"):
            offset = int(arguments.rpartition(", ")[2]) if call == "pwrite64" else -1
            yield DiskOperation(at, "write", name, texts[0][: int(match[4])], offset)
        elif call == "ftruncate":
            yield DiskOperation(at, call, name, offset=int(arguments.rpartition(", ")[2]))
        elif call.startswith("rename"):
            yield DiskOperation(at, "rename", name, other=texts[-1].decode()[len(folder) + 1 :])
        else:
            yield DiskOperation(at, "sync" if "sync" in call else "unlink", name)


def _joined(trace: str) -> Iterator[str]:
    """The lines of a trace; strace splits a line when another thread interrupts it, and the parts are joined again."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        thread = line.partition(" ")[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>").rstrip()
        elif (rest := _RESUMED.match(line)) is not None:
            yield begun.pop(thread, "") + rest[1]
        else:
            yield line


def _unquoted(path: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), path)


@dataclass
class Disk:
    """A folder on a disk: names and files as they are in memory, and which of them are safe.

    Attributes:
        changes: the names after each change that is not safe yet.
    """

    files: dict[int, DiskFile] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    safe: dict[str, int] = field(default_factory=dict)
    changes: list[dict[str, int]] = field(default_factory=list)

    def apply(self, operation: DiskOperation) -> None:
        """Apply an operation in memory, and on the disk if it flushes."""
        file = self.files.get(self.names.get(operation.path, -1))
        if operation.call == "sync" and not operation.path:
            self.safe, self.changes = dict(self.names), []
        elif operation.call == "sync" and file is not None:
            file.durable, file.pending = file.content(lambda _: True), []
        elif operation.call in ("create", "rename", "unlink"):
            self._rename(operation)
            self.changes.append(dict(self.names))
        elif file is not None:
            file.pending.append(operation)

    def _rename(self, operation: DiskOperation) -> None:
        if operation.call == "create":
            if operation.path not in self.names:
                self.names[operation.path] = len(self.files)
                self.files[len(self.files)] = DiskFile()
        elif (number := self.names.pop(operation.path, None)) is not None and operation.other:
            self.names[operation.other] = number


def disk_after(operations: list[DiskOperation], dice: random.Random) -> dict[str, bytes]:
    """The folder's files after a machine crash right after these operations."""
    disk = Disk()
    for operation in operations:
        disk.apply(operation)
    there = dice.choice([disk.safe, *disk.changes])
    return {name: bytes(disk.files[number].content(lambda _: dice.random() < 0.5)) for name, number in there.items()}


def survive(life: RecordedLife, count: int, seed: int) -> None:
    """Crash the machine after `count` operations, boot it, and check that the driver knows what kubelet knows.

    Raises:
        Violation: it does not know.
    """
    operations = life.operations[:count]
    claims = life.known_at(operations[-1].at) if operations else {}
    with node() as where:
        where.data.mkdir(parents=True)
        for name, content in disk_after(operations, random.Random(seed)).items():
            (where.data / name).parent.mkdir(parents=True, exist_ok=True)
            (where.data / name).write_bytes(content)
        _boot(where, claims)
        try:
            settle(Steps(where, random.Random(seed), past=[""]))
        except StepViolation as violation:
            text = f"after {count} of {len(life.operations)} operations, seed {seed}: {violation}: {where.log}"
            raise Violation(text) from violation


def _boot(where: Node, claims: dict[str, BookedClaim]) -> None:
    """Boot: nothing in memory is left, and the API server still has the claims."""
    shutil.rmtree(where.cdi)
    where.cdi.mkdir()
    (where.folder / "machine/proc/sys/kernel/random/boot_id").write_text("00000000-0000-4000-8000-000000000002\n")
    for claim in claims.values():
        where.allocate_again(claim)


def main() -> int:
    """Crash the machine many times, at random moments with random losses; the exit status is 1 after a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.unsynced")
    parser.add_argument("--crashes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    if reason := missing():
        print(f"not run: {reason}")  # noqa: T201
        return 1
    life, dice, survived = record(), random.Random(options.seed), 0
    for number in range(options.crashes):
        try:
            survive(life, dice.randrange(1, len(life.operations) + 1), options.seed + number)
            survived += 1
        except Violation as violation:
            print(violation, flush=True)  # noqa: T201
    print(f"{options.crashes} crashes of the machine among {len(life.operations)} operations, {survived} survived")  # noqa: T201
    return int(survived < options.crashes)


if __name__ == "__main__":
    sys.exit(main())
