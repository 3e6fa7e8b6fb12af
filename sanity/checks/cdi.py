"""CDI: what a container runtime finds for the ids of an answer, and what is left afterwards."""

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from dranode.cdi.names import split_kind, written_kind_problem
from dranode.cdi.spec import ContainerEdits
from dranode.cdi.version import VERSIONS, minimum_version
from dranode.sanity.bench import Bench, SpecFile
from dranode.sanity.breach import Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import BenchClaim
from dranode.sanity.kubelet import ClaimAnswer

_SPEC: Final = "CDI, SPEC.md"
_LOADER: Final = "tags.cncf.io/container-device-interface, pkg/cdi"
# Of the runtimes that pass CDI ids to containers for kubelet, none knows less.
_OLD: Final = "0.5.0"
_HELPER: Final = "kubeletplugin/draplugin.go, PrepareResourceClaims"


def _with_ids(bench: Bench, claim: BenchClaim | None = None) -> tuple[BenchClaim, ClaimAnswer]:
    """A prepared claim with CDI ids."""
    claim = claim or bench.claim()
    (answer,) = bench.prepared(claim)
    answer.need_cdi()
    return claim, answer


def _specs_of(bench: Bench, answer: ClaimAnswer) -> list[SpecFile]:
    """The spec files that define the ids of an answer."""
    return [file for file in bench.specs.files() if set(file.names()) & set(answer.cdi)]


@must("cdi-resolves", f"{_HELPER}: specs can be written on the fly; {_LOADER}: unresolvable devices fail the container")
def ids_resolve(bench: Bench) -> None:
    """Every CDI id of an answer is defined by a spec in the runtime's folder once Prepare is answered.

    Reads the folder by the rules of the reference loader.
    """
    _, answer = _with_ids(bench)
    bench.specs.edits(answer.cdi)


@must("cdi-loads", f"{_LOADER}: a spec that breaks a rule is not loaded, and its devices do not resolve")
def specs_load(bench: Bench) -> None:
    """The reference loader accepts every spec in the folder.

    Reads all files while a claim is prepared.
    """
    _with_ids(bench)
    broken = [f"{file.path.name}: {file.verdict.problems[0]}" for file in bench.specs.files() if not file.verdict.ok]
    expect(not broken, "; ".join(broken), "fix what `dranode cdi validate` reports")


@should("cdi-older-runtimes", f"{_LOADER}, v0.8.1 to v1.1.1: what they refuse, and what crashes them")
def specs_load_everywhere(bench: Bench) -> None:
    """The CDI loaders of all current runtimes accept the specs.

    Uses the verdicts of the released libraries.
    """
    _with_ids(bench)
    warnings = [f"{file.path.name}: {warning}" for file in bench.specs.files() for warning in file.verdict.warnings]
    expect(not warnings, "; ".join(warnings), "avoid what that library refuses, or say which runtimes you need")


@should("cdi-version", f"{_SPEC}, released versions: a runtime refuses a version that it does not know")
def versions_are_low(bench: Bench) -> None:
    """A spec declares the lowest version that covers what it uses, or one that all runtimes know (up to 0.5.0).

    Looks at each spec of the claim.
    """
    _, answer = _with_ids(bench)
    for file in _specs_of(bench, answer):
        if file.spec is not None:
            lowest = max(minimum_version(file.spec), _OLD, key=VERSIONS.index)
            declared = file.spec.cdi_version
            seen = f"{file.path.name} declares {declared}, although {lowest} covers what it uses"
            expect(VERSIONS.index(declared.removeprefix("v")) <= VERSIONS.index(lowest), seen, f"declare {lowest}")


@should("cdi-kind", f"{_SPEC}, kind")
def kinds_are_valid(bench: Bench) -> None:
    """Vendor and class follow the specification: a DNS subdomain, and at most 63 characters.

    This is stricter than the loader's own check.
    """
    _, answer = _with_ids(bench)
    for name in answer.cdi:
        problem = written_kind_problem(name.partition("=")[0])
        expect(problem is None, f'CDI id "{name}": {problem}', "use a domain of your own as the vendor")


@should("cdi-vendor", f"{_SPEC}, kind: the vendor is the organization's domain")
def vendors_are_owned(bench: Bench) -> None:
    """The vendor in the ids is the driver's own: not k8s.io, cdi.k8s.io or a name without a domain.

    Otherwise two drivers could use the same vendor and class.
    """
    _, answer = _with_ids(bench)
    for name in answer.cdi:
        vendor = split_kind(name.partition("=")[0])[0]
        expect(
            "." in vendor and vendor not in ("k8s.io", "cdi.k8s.io"),
            f'the vendor of CDI id "{name}" is {vendor or "missing"}',
            "use a domain",
        )


@must("cdi-unique", f"{_LOADER}: a device that two specs of one folder define does not resolve")
def devices_are_defined_once(bench: Bench) -> None:
    """A CDI device is defined once.

    Reads all files while two claims are prepared.
    """
    claims = [bench.claim(bench.devices(2)[index : index + 1]) for index in range(2)] if bench.api else [bench.claim()]
    for claim in claims:
        _with_ids(bench, claim)
    seen: dict[str, str] = {}
    for file in bench.specs.files():
        for name in file.names():
            expect(
                name not in seen,
                f"{name} is in {seen.get(name)} and {file.path.name}",
                "put the claim UID into the device's name",
            )
            seen[name] = file.path.name


@must(
    "cdi-names-not-reused",
    f"{_HELPER}: the unique name in a CDI device ID should not be reused; the claim UID can be a part of it",
)
def names_are_not_reused(bench: Bench) -> None:
    """A CDI id never changes its meaning: runtimes cache specs.

    Two claims get the same device, one after the other.
    """
    (device,) = bench.devices()
    contents: dict[str, str] = {}
    for _ in range(2):
        claim, answer = _with_ids(bench, bench.claim([device]))
        for name in answer.cdi:
            edits = shown(bench.specs.edits([name]))
            seen = f"{name} had the edits {contents.get(name)}, and has {edits} now"
            expect(contents.setdefault(name, edits) == edits, seen, "make the claim's UID a part of the name")
        bench.unprepared(claim)


@must(
    "cdi-nothing-left",
    "kubeletplugin/draplugin.go, UnprepareResourceClaims must undo whatever PrepareResourceClaims did",
)
def nothing_is_left(bench: Bench) -> None:
    """Unprepare leaves no CDI device of the claim behind.

    Compares the folder before and after, and searches it for the claim's UID.
    """
    claim = bench.claim()
    before = set(bench.specs.listing())
    _, answer = _with_ids(bench, claim)
    bench.unprepared(claim)
    after = bench.specs.listing()
    left = {name for name, content in after.items() if name not in before or claim.uid.encode() in content}
    own = {name for name in answer.cdi if claim.uid in name}
    left |= {file.path.name for file in bench.specs.files() if own & set(file.names())}
    expect(not left, f"{', '.join(sorted(left))} is left in {bench.specs.folder}", "remove the claim's specs")


@must(
    "cdi-repeated",
    "kubelet, pkg/kubelet/cm/dra: every claim is prepared again after a restart, beside running containers",
)
def repeats_leave_specs(bench: Bench) -> None:
    """A repeated Prepare does not change the specs.

    Compares names and content of all files.
    """
    claim, _ = _with_ids(bench)
    before = bench.specs.listing()
    for _ in range(3):
        bench.prepared(claim)
    after = bench.specs.listing()
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    expect(not changed, f"{listed(changed)} changed", "write the specs from the record only")


@should(
    "cdi-repaired",
    "/var/run is empty after a reboot; kubelet prepares every claim again and expects its ids to resolve",
)
def specs_come_back(bench: Bench) -> None:
    """A repeated Prepare restores a spec that was removed.

    Removes the claim's spec files in between.
    """
    claim, answer = _with_ids(bench)
    before = bench.specs.edits(answer.cdi)
    for file in _specs_of(bench, answer):
        if claim.uid in "".join(file.names()) or claim.uid in file.path.name:
            file.path.unlink()
    (again,) = bench.prepared(claim)
    after = bench.specs.edits(again.cdi)
    expect(after == before, f"the edits are {after}, but were {before}", "write the specs on every Prepare")


@should(
    "cdi-own-files",
    f"{_LOADER}: specs are written to a temporary name and renamed; everything called .json or .yaml is loaded",
)
def only_specs_are_there(bench: Bench) -> None:
    """The folder holds only complete specs: no temporary files, and no files with another ending.

    Looks after two claims have come and gone, and while one is prepared.
    """
    before = set(bench.specs.listing())
    _with_ids(bench)
    others = [name for name in bench.specs.listing() if name not in before and not name.endswith((".json", ".yaml"))]
    expect(not others, f"{listed(others)} is in {bench.specs.folder}", "keep other files in the driver's own folder")


@must(
    "cdi-device-nodes",
    f"{_LOADER}: missing fields are taken from the host's node; a node that is not there fails the container",
)
def device_nodes_are_known(bench: Bench) -> None:
    """A device node that an edit names exists, or is described with type, major and minor.

    Looks at the device nodes in the claim's edits.
    """
    for edits in _all_edits(bench):
        for node in edits.device_nodes:
            described = node.type and (node.type == "p" or (node.major is not None and node.minor is not None))
            path = Path(node.host_path or node.path)
            expect(
                described or _is_device(path),
                f"the device node {path} does not exist, and the edit does not describe it",
                "name a node of the host, or give type, major and minor",
            )


@must("cdi-mounts", "OCI runtime specification, mounts: a source that is missing fails the container")
def mounts_exist(bench: Bench) -> None:
    """The source of a bind mount that an edit names exists.

    Looks at the mounts in the claim's edits, since the suite sees the host's files.
    """
    for edits in _all_edits(bench):
        for mount in edits.mounts:
            bound = mount.type in ("", "bind", "none")
            expect(
                not bound or Path(mount.host_path).exists(),
                f"the mount's source {mount.host_path} does not exist",
                "create the file before you answer Prepare",
            )


@must(
    "cdi-hooks",
    "OCI runtime specification, POSIX-platform hooks: path must be absolute; a hook that fails ends the container",
)
def hooks_exist(bench: Bench) -> None:
    """The program of a hook that an edit names exists and is executable.

    Looks at the hooks in the claim's edits.
    """
    for edits in _all_edits(bench):
        for hook in edits.hooks:
            path = Path(hook.path)
            runs = path.is_absolute() and path.is_file() and path.stat().st_mode & 0o111
            expect(
                runs, f"the hook {hook.path} is not an executable file", "install the program before you answer Prepare"
            )


@should("cdi-env", f"{_LOADER}: runtimes append; which of two values a program sees differs from one to the next")
def variables_stand_once(bench: Bench) -> None:
    """The edits of a claim set an environment variable only once.

    Collects all edits that one container gets.
    """
    values: dict[str, str] = {}
    for edits in _all_edits(bench):
        for entry in edits.env:
            name, _, value = entry.partition("=")
            seen = f"{name} is {values.get(name)} and {value}"
            expect(
                values.setdefault(name, value) == value, seen, "put the claim or the device into the variable's name"
            )


@should(
    "cdi-paths",
    "OCI runtime specification, mounts: they are made in their order, so that a later one hides an earlier one",
)
def paths_are_given_once(bench: Bench) -> None:
    """The edits of a claim put only one file at a path in the container.

    Collects the mounts and device nodes of all edits that one container gets.
    """
    sources: dict[str, str] = {}
    for edits in _all_edits(bench):
        given = [(mount.container_path, mount.host_path) for mount in edits.mounts]
        given += [(node.path, node.host_path or node.path) for node in edits.device_nodes]
        for path, source in given:
            seen = f"{path} is {sources.get(path)} and {source}"
            expect(sources.setdefault(path, source) == source, seen, "put the claim or the device into the path")


def _all_edits(bench: Bench) -> Iterator[ContainerEdits]:
    """The edits of a claim to as many as two devices."""
    devices: Any = None
    if bench.api is not None:
        try:
            devices = bench.devices(2)
        except Unable:
            devices = bench.devices()
    _, answer = _with_ids(bench, bench.claim(devices))
    yield from chain.from_iterable(bench.specs.resolve(name) for name in answer.cdi)


def _is_device(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISFIFO(mode)


_WATCHED: Final = "tags.cncf.io/container-device-interface, pkg/cdi: runtimes read the folder at every change of it"
_ROUNDS: Final = 5


@should("cdi-written-whole", _WATCHED)
def specs_are_written_whole(bench: Bench) -> None:
    """A spec gets its name only when it is complete, by a rename or a link: a runtime may read it at any moment.

    Watches the folder (inotify) while claims are prepared, prepared again and unprepared.
    """
    folder = bench.specs.folder
    folder.mkdir(parents=True, exist_ok=True)
    with folder_writes(folder) as writes:
        for _ in range(_ROUNDS):
            claim = bench.claim()
            (answer,) = bench.prepared(claim)
            answer.need_cdi()
            bench.prepared(claim)
            bench.unprepared(claim)
        names = [name for name in writes.names() if name.endswith((".json", ".yaml"))]
    expect(
        not names,
        f"{', '.join(names[:3])} was written in place, so that a runtime can read half of it",
        "write a temporary file, then rename it",
    )


@should(
    "cdi-not-writable",
    "CDI, SPEC.md: edits have mounts, hooks and device nodes of every container that names the device",
)
def specs_are_protected(bench: Bench) -> None:
    """Only the owner can write to a spec: its edits mount and run things as root.

    Looks at the modes of the files that define the claim's ids.
    """
    (answer,) = bench.prepared(bench.claim())
    answer.need_cdi()
    for file in bench.specs.files():
        if set(file.names()) & set(answer.cdi):
            mode = stat.S_IMODE(file.path.stat().st_mode)
            expect(not mode & 0o022, f"{file.path.name} has the mode {mode:04o}", "write it with the mode 0644 or 0600")


_MODIFY: Final = 0x2
_EVENT: Final = struct.Struct("iIII")


class FolderWrites:
    """The names of files in one folder that were written to under that very name."""

    def __init__(self, handle: int) -> None:
        """Take an inotify descriptor."""
        self._handle = handle

    def names(self) -> list[str]:
        """Those since the last look."""
        found: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                found |= dict.fromkeys(_named(os.read(self._handle, 1 << 16)))
        return list(found)


@contextlib.contextmanager
def folder_writes(folder: Path) -> Iterator[FolderWrites]:
    """Watch a folder.

    Raises:
        Unable: the system has no inotify, or no watch left.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "inotify_init1"):
        raise Unable("this system does not report writes (inotify)")
    handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if handle < 0:
        raise Unable("the kernel has no inotify instance left")
    try:
        if libc.inotify_add_watch(handle, os.fsencode(folder), _MODIFY) < 0:
            raise Unable(f"writes in {folder} cannot be watched")
        yield FolderWrites(handle)
    finally:
        os.close(handle)


def _named(data: bytes) -> Iterator[str]:
    at = 0
    while at < len(data):
        length = _EVENT.unpack_from(data, at)[3]
        at += _EVENT.size
        yield os.fsdecode(data[at : at + length].rstrip(b"\0"))
        at += length
