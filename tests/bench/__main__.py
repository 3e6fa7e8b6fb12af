"""`make bench`: `dranode fit` and `allocate` on dumps of large clusters, in processes of their own: CPU and memory.

The floor is the cost of reading the file as JSON without doing anything with it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.bench.compiled import environment
from tests.bench.dumps import DumpSize

_MIB: Final = 1024  # ru_maxrss is in KiB
_MAX_SECONDS: Final = 60
_MAX_MIB: Final = 2048
_LARGE: Final = DumpSize(nodes=5_000, waiting=40_000)
_LOADED: Final = DumpSize(nodes=1_000, waiting=1, held=980)
_ROOT: Final = Path(__file__).parents[2]
_PROGRAM: Final = str(Path(sys.executable).with_name("dranode"))
# Run it in its own process: a child of a large process would count that process's memory as its own.
_WRITE: Final = """
import pathlib, sys
from tests.bench.dumps import DumpSize, write_json
write_json(DumpSize(*map(int, sys.argv[2:])), pathlib.Path(sys.argv[1]))
"""
_READ: Final = "import json, pathlib, sys; json.loads(pathlib.Path(sys.argv[1]).read_bytes())"
# The rest of the answer once the documents are read.
_ANSWER: Final = """
import sys, time, gc
gc.set_threshold(1_000_000)
from dranode.driver.machine.yaml_files import load_documents
from dranode.sim.allocator.features import Features
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.questions import ClusterQuestions
dump = read_dump(load_documents([sys.argv[1]]))
began = time.process_time()
questions = ClusterQuestions.of(dump, Features(), lambda: "share")
(answer,) = questions.answers(questions.selected(()))
assert answer.choice.node
print(time.process_time() - began)
"""


@dataclass(frozen=True)
class Row:
    """A figure and a floor that was measured in the same run.

    Attributes:
        name: what was measured.
        value: the figure, in `unit`.
        unit: `s`, `ms`, `us`, `MiB` or the like.
        floor: the figure's lower bound, in the same unit; None if there is none.
        floor_name: what the floor is.
        target: the target in words.
        ok: whether the target is met; None if there is no target.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str = ""
    target: str = ""
    ok: bool | None = None


def bench() -> Iterator[Row]:
    """All pods of a large cluster, and one pod beside a full cluster."""
    with tempfile.TemporaryDirectory(prefix="dranode-bench-") as name:
        folder = Path(name)
        large = folder / "large.json"
        _write(_LARGE, large)
        floor, _ = _used([sys.executable, "-c", _READ, str(large)], folder)
        what = f"{_LARGE.waiting:,} pods with claims on {_LARGE.nodes:,} nodes of 8 devices"
        for command in ("fit", "allocate"):
            seconds, memory = _used([_PROGRAM, command, str(large)], folder)
            fast, small = seconds <= _MAX_SECONDS, memory <= _MAX_MIB
            yield Row(f"{command}: {what}", seconds, "s", floor, "json.loads", f"{_MAX_SECONDS} s of CPU", fast)
            yield Row(f"{command}: memory at most", memory, "MiB", target=f"{_MAX_MIB} MiB", ok=small)
        loaded = folder / "loaded.json"
        _write(_LOADED, loaded)
        floor, _ = _used([sys.executable, "-c", _READ, str(loaded)], folder)
        whole, _ = _used([_PROGRAM, "fit", str(loaded)], folder)
        yield Row(f"fit: one pod, {_LOADED.nodes:,} nodes, 7,840 pods bound", whole, "s", floor, "json.loads")
        _used([sys.executable, "-c", _ANSWER, str(loaded)], folder)
        answer = float((folder / "out").read_text())
        yield Row("the same once it is read", answer, "s", target="under 1 s", ok=answer < 1)


def _write(size: DumpSize, path: Path) -> None:
    words = [str(path), *map(str, (size.nodes, size.waiting, size.held))]
    subprocess.run([sys.executable, "-c", _WRITE, *words], cwd=_ROOT, check=True)


def _used(command: list[str], folder: Path) -> tuple[float, float]:
    """Return a process's CPU seconds and peak memory in MiB; its output goes into the file `out`."""
    with (folder / "out").open("wb") as out:
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        process = os.posix_spawn(command[0], command, environment(), file_actions=actions)
        _, status, usage = os.wait4(process, 0)
    # Some pods fit nowhere, which is exit status 1.
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / _MIB


def main() -> None:
    """Print figures as they come, and one table at the end."""
    table = Table(box=None, pad_edge=False)
    for column in ("what", "figure", "floor", "ratio", "target", ""):
        table.add_column(column, justify="right" if column in ("figure", "ratio") else "left")
    for row in bench():
        print(f"  {row.name}: {row.value:.4g} {row.unit}", file=sys.stderr)
        floor = f"{row.floor:.4g} {row.unit} ({row.floor_name})" if row.floor else ""
        ratio = f"{row.value / row.floor:.2f}" if row.floor else ""
        verdict = {True: "ok", False: "MISSED", None: ""}[row.ok]
        table.add_row(row.name, f"{row.value:.4g} {row.unit}", floor, ratio, row.target, verdict)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
