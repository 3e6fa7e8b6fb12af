"""Checks that a driver leaves alone what lies beside its own files, and that others leave its files alone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect
from dranode.sanity.check import must, should

# Nobody's, as example.org is.
_OTHER: Final = "neighbour.example.org"
_SPEC: Final = {
    "cdiVersion": "0.5.0",
    "kind": f"{_OTHER}/thing",
    "devices": [{"name": "one", "containerEdits": {"env": ["NEIGHBOUR=1"]}}],
}


@must(
    "cdi-foreign",
    "CDI, SPEC.md: all vendors share the folders of specs; containers with their devices restart at any time",
)
def specs_of_others_stay(bench: Bench) -> None:
    """Specs of other vendors are left alone: while claims come and go, and when the driver starts.

    Another vendor's spec during Prepare, Unprepare, a kill and a start.
    """
    path = bench.specs.folder / f"{_OTHER}-thing.json"
    content = json.dumps(_SPEC)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    try:
        claim = bench.claim()
        bench.prepared(claim)
        bench.unprepared(claim)
        _expect_kept(path, content, "while a claim came and went")
        if bench.process is not None:
            bench.restart()
            bench.eventually(lambda: not path.exists(), bench.quiet)
            _expect_kept(path, content, "when the driver started")
    finally:
        path.unlink(missing_ok=True)


def _expect_kept(path: Path, content: str, when: str) -> None:
    remedy = "touch only specs of the driver's own vendor and class"
    expect(path.exists(), f"the spec {path.name} of another vendor was removed {when}", remedy)
    expect(path.read_text() == content, f"the spec {path.name} of another vendor was changed {when}", remedy)


@must(
    "registration-foreign",
    "kubelet, pkg/kubelet/pluginmanager: all plugins share the folder, and one whose socket goes is deregistered",
)
def sockets_of_others_stay(bench: Bench) -> None:
    """Sockets of other plugins in the registration folder are left alone when the driver starts.

    Another plugin's socket during a kill and a start.
    """
    bench.started()
    folder = bench.places.registration
    if folder is None or not folder.is_dir():
        raise Unable("the folder of registration sockets is unknown; give the driver's command after --")
    with _socket_of_another(folder) as path:
        bench.restart()
        bench.eventually(lambda: not path.exists(), bench.quiet)
        expect(
            path.exists(),
            f"the socket {path.name} of another plugin was removed when the driver started",
            "remove only the driver's own sockets",
        )


@contextlib.contextmanager
def _socket_of_another(folder: Path) -> Iterator[Path]:
    path = folder / f"{_OTHER}-reg.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


@should(
    "restart-state-not-writable",
    "KEP-4381: drivers need a checkpoint of what was prepared; the driver, which runs as root, acts on what it says",
)
def state_is_protected(bench: Bench) -> None:
    """Only the owner can write to the driver's records of claims: the driver trusts them after a restart.

    The modes of the files below the folder for plugins' data, while a claim is prepared.
    """
    data = bench.places.data
    if data is None:
        raise Unable("the driver's folder is unknown; give its command after --")
    bench.prepared(bench.claim())
    for at, _, names in os.walk(data):
        for name in names:
            path = Path(at, name)
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                mode = stat.S_IMODE(status.st_mode)
                protected = not stat.S_ISREG(status.st_mode) or not mode & 0o022 or _is_closed(path.parent, data)
                expect(
                    protected,
                    f"{path.relative_to(data)} has the mode {mode:04o}",
                    "write it with the mode 0600, or in a folder that only the owner can enter",
                )


def _is_closed(folder: Path, top: Path) -> bool:
    """Return whether only the owner can enter a folder, or one above it that lies below the top."""
    while folder != top:
        if not folder.stat().st_mode & 0o011:
            return True
        folder = folder.parent
    return False
