"""The files of CDI specs: how they are written, and who may write them."""

from __future__ import annotations

import stat
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect
from dranode.sanity.check import should
from dranode.sanity.folder_writes import folder_writes

_LOADER: Final = "tags.cncf.io/container-device-interface, pkg/cdi: runtimes read the folder at every change of it"
_ROUNDS: Final = 5


@should(
    "cdi-written-whole",
    "A spec comes under its name whole, by a rename or a link: a runtime may read it at any moment.",
    _LOADER,
)
def specs_are_written_whole(bench: Bench) -> None:
    """The kernel's events while claims are prepared, asked for again and unprepared."""
    folder = bench.specs.folder
    folder.mkdir(parents=True, exist_ok=True)
    with folder_writes(folder) as writes:
        for _ in range(_ROUNDS):
            claim = bench.claim()
            (answer,) = bench.prepared(claim)
            if not answer.cdi:
                raise Unable("the driver answers no CDI ids")
            bench.prepared(claim)
            bench.unprepared(claim)
        names = [name for name in writes.names() if name.endswith((".json", ".yaml"))]
    expect(
        not names,
        f"{', '.join(names[:3])} was written under the name that runtimes read",
        "write a temporary file, then rename it",
    )


@should(
    "cdi-not-writable",
    "No one but the owner can write to a spec: its edits mount and run things as root.",
    "CDI, SPEC.md: edits have mounts, hooks and device nodes of every container that names the device",
)
def specs_are_protected(bench: Bench) -> None:
    """The modes of the files that define the claim's ids."""
    (answer,) = bench.prepared(bench.claim())
    if not answer.cdi:
        raise Unable("the driver answers no CDI ids")
    for file in bench.specs.files():
        if set(file.names()) & set(answer.cdi):
            mode = stat.S_IMODE(file.path.stat().st_mode)
            expect(not mode & 0o022, f"{file.path.name} has the mode {mode:04o}", "write it with the mode 0644 or 0600")
