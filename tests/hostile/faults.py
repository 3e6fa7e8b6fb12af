"""Faults of a node's machine, its clock, and the driver's files."""

import contextlib
import shutil
import sqlite3

from dranode.api.cpuset import CPUSet
from tests.fakes.waiting import PATIENCE
from tests.hostile.node import CPUS
from tests.hostile.steps import Steps

# --- the machine ---


def take_cpus_offline(steps: Steps) -> None:
    if steps.may_fault("hardware"):
        steps.node.set_online(CPUS - CPUSet(steps.dice.sample(list(CPUS - CPUSet((0,))), 3)))
        steps.say(str(steps.node.online))


def bring_cpus_back(steps: Steps) -> None:
    steps.node.set_online(CPUS)


def set_clock(steps: Steps) -> None:
    seconds = steps.dice.choice((0, -86_400, 86_400, -400_000_000, 400_000_000, 3))
    steps.say(str(seconds))
    steps.node.set_clock(seconds)


# --- the files ---


def remove_spec(steps: Steps) -> None:
    _spoil_spec(steps, None)


def empty_spec(steps: Steps) -> None:
    _spoil_spec(steps, b"")


def alter_spec(steps: Steps) -> None:
    _spoil_spec(steps, b'{"cdiVersion":"0.8.0","kind":"dra.k8s.io/cpu","devices":[]}')


def _spoil_spec(steps: Steps, content: bytes | None) -> None:
    specs = sorted(steps.node.cdi.glob("*.json"))
    if specs and steps.may_fault("specs"):
        spec = steps.dice.choice(specs)
        steps.say(spec.name)
        if content is None:
            spec.unlink()
        else:
            spec.write_bytes(content)


def remove_ledger(steps: Steps) -> None:
    if steps.may_fault("ledger"):
        for suffix in steps.dice.choice((("",), ("", "-wal", "-shm"), ("-shm",))):
            steps.say(f"ledger.db{suffix}")
            steps.node.ledger.with_name(f"ledger.db{suffix}").unlink(missing_ok=True)


def spoil_copy(steps: Steps) -> None:
    if steps.may_fault("ledger"):
        copy = steps.node.ledger.with_name("ledger.db-copy")
        with contextlib.suppress(OSError):
            steps.dice.choice((copy.unlink, lambda: copy.write_bytes(b"no copy"), lambda: _flip(steps, copy.name)))()


def flip_ledger(steps: Steps) -> None:
    if steps.may_fault("ledger"):
        with contextlib.suppress(OSError):
            _flip(steps, "ledger.db")


def _flip(steps: Steps, name: str) -> None:
    path = steps.node.data / name
    data = bytearray(path.read_bytes())
    if data:
        at = steps.dice.randrange(len(data))
        bit = 1 << steps.dice.randrange(8)
        steps.say(f"{name} byte {at} ^ {bit}")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ bit]))


def keep_ledger(steps: Steps) -> None:
    if steps.node.ledger.exists() and not steps.newer:
        with contextlib.suppress(sqlite3.Error):
            source = sqlite3.connect(steps.node.ledger)
            older = sqlite3.connect(steps.node.folder / "older.db")
            source.backup(older)
            older.close()
            source.close()


def put_older_ledger_back(steps: Steps) -> None:
    older = steps.node.folder / "older.db"
    if older.exists() and steps.may_fault("ledger"):
        for suffix in ("-wal", "-shm"):
            steps.node.ledger.with_name(f"ledger.db{suffix}").unlink(missing_ok=True)
        shutil.copyfile(older, steps.node.ledger.with_name("older"))
        steps.node.ledger.with_name("older").replace(steps.node.ledger)


def write_by_newer_version(steps: Steps) -> None:
    if steps.node.ledger.exists() and steps.may_fault("schema"):
        steps.newer = set_schema(steps, "99")


def set_schema(steps: Steps, schema: str) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(steps.node.ledger, timeout=PATIENCE)) as ledger, ledger:
            return ledger.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (schema,)).rowcount == 1
    except sqlite3.Error:
        return False
