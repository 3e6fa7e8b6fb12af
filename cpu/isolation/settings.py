"""The settings of a machine that say which CPUs host work runs on, and what they are while claims have quiet CPUs.

A setting has an original value, as it was before the first claim changed it, and from that follows what it is: the
original without the CPUs of all claims, and without claims the original. So claims come and go in any order. What was
found and what is to be written are noted before anything is written: after a crash the setting has one of these values.
A third value is somebody else's, who thereby says what the original is from now on; irqbalance does nothing else.
An interrupt that comes while new ones are kept off quiet CPUs begins where those do; its original is where they would.

    kind            file (below /proc or /sys)                              without a CPU left it is
    interrupt       /proc/irq/N/smp_affinity_list                           the housekeeping CPUs
    new interrupts  /proc/irq/default_smp_affinity                          the housekeeping CPUs
    workqueue       /sys/devices/virtual/workqueue/cpumask                  the housekeeping CPUs
    queue           /sys/class/net/*/queues/*/{rps,xps}_cpus                empty, which switches steering off
    slice           /sys/fs/cgroup/{system.slice,...}/cpuset.cpus           the housekeeping CPUs; empty is all CPUs
    unit            AllowedCPUs of the same, where systemd answers          the housekeeping CPUs; empty is all CPUs
    exclusive       cpuset.cpus.exclusive of cgroups above partitions       the other way: the original and theirs
    banned          irqbalance's socket                                     the other way: the original and quiet ones

Sources: Documentation/core-api/irq/irq-affinity.rst, core-api/workqueue.rst, networking/scaling.rst and
admin-guide/cgroup-v2.rst of the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, Self

import msgspec

from dranode.api.cpuset import CPUSet, mask_text
from dranode.api.documents import decode, encode
from dranode.api.errors import DocumentError
from dranode.cpu.isolation.cpu_counters import Begun


class Kind(StrEnum):
    """The kind of a setting."""

    INTERRUPT = "interrupt"
    NEW_INTERRUPTS = "new interrupts"
    WORKQUEUE = "workqueue"
    QUEUE = "queue"
    SLICE = "slice"
    UNIT = "unit"
    EXCLUSIVE = "exclusive"
    BANNED = "banned"


# The kernel writes these as masks, the others as lists.
_MASKS: Final = frozenset((Kind.NEW_INTERRUPTS, Kind.WORKQUEUE, Kind.QUEUE))
# These name CPUs that are taken from others, not those that are left.
_GRANTS: Final = frozenset((Kind.EXCLUSIVE, Kind.BANNED))
# These allow all CPUs while they name none.
_ALL_OR_SOME: Final = frozenset((Kind.SLICE, Kind.UNIT))
NEW_INTERRUPTS: Final = "proc/irq/default_smp_affinity"
"""The file that says on which CPUs interrupts begin that come later."""
UNITS: Final = "run/systemd/"
"""What the path of a unit of systemd begins with in the notes."""
EXCLUSIVE: Final = "cpuset.cpus.exclusive"
"""The file in which a cgroup grants CPUs to partitions below it."""


class Setting(msgspec.Struct, frozen=True):
    """One setting as it is now.

    Attributes:
        path: its file, relative to the machine's root.
        kind: what it is of.
        cpus: the CPUs that it allows; none is all of them for a slice.
        owner: whose it is, where the path may become another's: the device of an interrupt; else empty.
        needed: the CPUs that it has to allow, whatever else.
        kept: whether it has to be as it was before claims changed it.
    """

    path: str
    kind: Kind
    cpus: CPUSet
    owner: str = ""
    needed: CPUSet = msgspec.field(default_factory=CPUSet)
    kept: bool = False

    def text(self, cpus: CPUSet) -> str:
        """Return what is written to the file to allow these CPUs."""
        return f"{mask_text(cpus) if self.kind in _MASKS else cpus}\n"


class Noted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The record of one setting.

    Attributes:
        original: what it was before claims changed it, as a cpu-list.
        given: the values, as cpu-lists, that this driver may have left it with.
        owner: as in `Setting`.
        refused: why it cannot be changed, where the kernel has refused; it is not tried again meanwhile.
        assumed: whether the original was never seen, but is what new interrupts would have got without claims.
    """

    original: str
    given: tuple[str, ...] = ()
    owner: str = ""
    refused: str = ""
    assumed: bool = False


class TuningNotes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The record of a machine's settings.

    Attributes:
        boot: the boot id of the kernel that has these settings; of an earlier boot nothing is left to be restored.
        settings: the settings that claims have changed, by path.
        begun: the counters of each claim's CPUs when it began, by the claim's UID.
        lost: why what was on record before may be lost, and with it how settings were; empty if it is not.
        interrupts: those that there were at the last look, with their owners, by path; None unless claims have changed
            what new ones get.
    """

    boot: str = ""
    lost: str = ""
    settings: Mapping[str, Noted] = {}
    interrupts: Mapping[str, str] | None = None
    begun: Mapping[str, Begun] = {}

    @classmethod
    def read(cls, document: Any, boot: str) -> Self:
        """Read plain JSON; what is of another boot, or no notes of this driver, is empty.

        Raises:
            DocumentError: they are of this boot and cannot be understood.
        """
        if not isinstance(document, Mapping) or document.get("boot", "") != boot:
            return cls(boot=boot)
        notes = decode(cls, document)
        for path, noted in notes.settings.items():
            try:
                CPUSet.parse(noted.original)
            except ValueError as error:
                raise DocumentError(str(error), f"settings.{path}.original") from error
        return notes

    def document(self) -> Any:
        """Return plain JSON; None if there is nothing to restore."""
        return encode(self) if self.settings or self.begun or self.lost else None


class Write(msgspec.Struct, frozen=True):
    """One setting that is to be changed."""

    setting: Setting
    cpus: CPUSet


class Tuning(msgspec.Struct, frozen=True):
    """The writes to do.

    Attributes:
        notes: what is put on record first.
        writes: what is written then.
    """

    notes: TuningNotes
    writes: tuple[Write, ...] = ()


class Machine(msgspec.Struct, frozen=True):
    """The CPUs of a machine.

    Attributes:
        online: those that are online.
        reserved: those that no claim gets; interrupts that have to go elsewhere go there.
        quiet: those that claims want to be quiet.
        nodes: those of each NUMA node; an interrupt of a device that is near one begins on its CPUs.
    """

    online: CPUSet
    reserved: CPUSet = msgspec.field(default_factory=CPUSet)
    quiet: CPUSet = msgspec.field(default_factory=CPUSet)
    nodes: tuple[CPUSet, ...] = ()

    @property
    def housekeeping(self) -> CPUSet:
        """Return where host work goes that may not stay: the reserved CPUs, or all that no quiet claim has."""
        left = self.online - self.quiet
        return left & self.reserved or left


def tuning(settings: Iterable[Setting], notes: TuningNotes, machine: Machine, unread: Collection[str] = ()) -> Tuning:
    """Decide what to note and what to write, so that every setting is as the claims need it.

    Args:
        settings: all settings as they are now; one on record that is missing is gone, or unread.
        notes: what is on record of them.
        machine: the CPUs, with those that claims want to be quiet.
        unread: the paths of settings that are there and cannot be read now; what is on record of them stays.
    """
    noted = {path: known for path, known in notes.settings.items() if path in unread}
    writes: list[Write] = []
    interrupts = {path: owner for path, owner in (notes.interrupts or {}).items() if path in unread}
    for setting in settings:
        if setting.kind is Kind.INTERRUPT:
            interrupts[setting.path] = setting.owner
        known = _known(setting, notes.settings.get(setting.path)) or _begun(setting, notes, machine)
        original = CPUSet.parse(known.original)
        aim = original if setting.kept else goal(setting.kind, original, machine) | setting.needed
        if known.refused or not _is_due(setting, known, aim):
            if str(aim) != known.original:
                noted[setting.path] = known
            continue
        # irqbalance heeds it later.
        told = known.given if setting.kind is Kind.BANNED else ()
        given = tuple(dict.fromkeys((*told, str(setting.cpus), str(aim))))
        noted[setting.path] = msgspec.structs.replace(known, given=given)
        writes.append(Write(setting, aim))
    seen = interrupts if NEW_INTERRUPTS in noted else None
    return Tuning(msgspec.structs.replace(notes, settings=noted, interrupts=seen), tuple(writes))


def _is_due(setting: Setting, known: Noted, aim: CPUSet) -> bool:
    # irqbalance applies a change in its next round, so the last change counts and not what irqbalance answers now.
    unsent = setting.kind is Kind.BANNED and known.given not in ((), (str(aim),))
    return aim != setting.cpus or (unsent and str(aim) == known.original)


def _known(setting: Setting, noted: Noted | None) -> Noted | None:
    """Return what is on record of a setting; what it is now if somebody else has changed it; None if it is new."""
    now = str(setting.cpus)
    if noted is None or noted.owner != setting.owner:
        return None
    if setting.kind is Kind.BANNED or now in (noted.original, *noted.given):
        return noted
    return Noted(original=now, owner=setting.owner)


def _begun(setting: Setting, notes: TuningNotes, machine: Machine) -> Noted:
    """Return what a setting that is not on record was without claims: what it is, unless it has come since.

    An interrupt begins on the CPUs of `/proc/irq/default_smp_affinity`, or those of them near its device
    (irq_setup_affinity() in kernel/irq/manage.c); its driver may have said otherwise.
    """
    now, default = str(setting.cpus), notes.settings.get(NEW_INTERRUPTS)
    plain = Noted(original=now, owner=setting.owner)
    if setting.kind is not Kind.INTERRUPT or default is None or notes.interrupts is None:
        return plain
    if notes.interrupts.get(setting.path) == setting.owner:
        return plain
    original = CPUSet.parse(default.original)
    for given in map(CPUSet.parse, default.given):
        for place in (given | original, machine.online, *machine.nodes):
            if setting.cpus and setting.cpus == given & place and given != original:
                return Noted(original=str(original & place), given=(now,), owner=setting.owner, assumed=True)
    return plain


def goal(kind: Kind, original: CPUSet, machine: Machine) -> CPUSet:
    """Return the CPUs that a setting is to allow besides `Setting.needed`, by its original and those to be quiet."""
    if kind in _GRANTS:
        return original
    if kind in _ALL_OR_SOME and not original:
        return machine.online - machine.quiet if machine.quiet else original
    left = original - machine.quiet
    if left == original or kind is Kind.QUEUE or left & machine.online:
        return left
    return machine.housekeeping


def noted_after(
    tuned: Tuning,
    after: Mapping[str, Setting],
    refused: Mapping[str, str],
    unread: Collection[str] = (),
    failed: Collection[str] = (),
) -> TuningNotes:
    """Return what stays on record once everything was written.

    Args:
        tuned: what was decided.
        after: the settings that were written, as they are now, by path; one that is gone or unread is missing.
        refused: the paths of those that the kernel refused to change, with the reasons.
        unread: the paths of those that are there and could not be read again.
        failed: the paths of those that could not be written.
    """
    noted = dict(tuned.notes.settings)
    for write in tuned.writes:
        path = write.setting.path
        now, known = after.get(path), noted.pop(path)
        if write.setting.kind is Kind.BANNED:
            noted[path] = known if path in failed else msgspec.structs.replace(known, given=(str(write.cpus),))
        elif path in unread:
            noted[path] = known
        elif path in refused and known.assumed:
            continue  # the kernel places it itself, so what new interrupts get is nothing to it
        elif path in refused and str(write.setting.cpus) == known.original:
            # One that could be changed before will be again: it is tried with the next look.
            noted[path] = msgspec.structs.replace(known, given=(), refused=refused[path])
        elif now is not None and str(now.cpus) != known.original:
            # The kernel may have taken the value otherwise than it was written.
            given = known.given if str(now.cpus) in known.given else (*known.given, str(now.cpus))
            noted[path] = msgspec.structs.replace(known, given=given)
    return msgspec.structs.replace(tuned.notes, settings=noted)


# The sentences about what stays on quiet CPUs, what came back to them, and what cannot be restored.


NO_CONTAINERS: Final = "which containers are to be partitions is not known"


def unrestorable(notes: TuningNotes) -> tuple[str, ...]:
    """Return the sentence on settings that cannot be put back, if there are any."""
    sentence = (
        f"the settings from before claims changed them are lost ({notes.lost}), so they stay as they "
        "are now: reboot the node, which resets them"
    )
    return (sentence,) if notes.lost else ()


def no_right(write: Write, error: OSError) -> str:
    """Return the error for a setting that cannot be written at all, and what is needed to write it."""
    return (
        f"/{write.setting.path} cannot be written: {error.strerror}; isolation: quiet needs the node's own /proc and "
        "/sys writable, as deploy/components/isolation mounts them"
    )


def returned(tuned: Tuning, noted: TuningNotes, machine: Machine) -> str:
    """Return what another program has put on quiet CPUs since it was taken off them; empty if nothing."""
    known = noted.settings
    back = [
        _name(write.setting.path, write.setting.owner)
        for write in tuned.writes
        if (path := write.setting.path) in known
        and known[path].owner == write.setting.owner
        and known[path].original != tuned.notes.settings[path].original
        and write.setting.cpus & machine.quiet
    ]
    if not back:
        return ""
    cause = "an irqbalance whose socket is not in /run/irqbalance does that"
    return f"another program has put {back[0]} there again ({len(back)} in all); {cause}"


def refused_settings(tuned: Tuning, final: TuningNotes, failures: Mapping[str, OSError]) -> Iterator[str]:
    """Yield a sentence for each setting that the kernel refuses to change, now or earlier."""
    reasons = {path: noted.refused for path, noted in final.settings.items() if noted.refused}
    reasons |= {path: kernels_words(error) for path, error in failures.items()}
    for path in sorted(reasons):
        yield _unmoved(path, tuned.notes.settings[path].owner, reasons[path])


def unread_settings(noted: Mapping[str, Noted], seen: Collection[str], said: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each setting on record that was not read, so that it is neither moved nor put back.

    Args:
        noted: the settings on record, by path.
        seen: the paths of the settings that were read.
        said: the sentences on what stays that there are already.
    """
    said = tuple(said)
    unlooked = any(sentence.startswith(NO_CONTAINERS) for sentence in said)
    for path in sorted(noted.keys() - seen):
        if unlooked and path.endswith(f"/{EXCLUSIVE}"):
            continue
        what = path.removeprefix(UNITS) if path.startswith(UNITS) else f"/{path}"
        if not any(what in sentence for sentence in said):
            yield (
                f"{what} cannot be read now, or is known to another version alone: it stays as it is, and on record "
                f"with the CPUs that it had before ({noted[path].original or 'none named'})"
            )


def kernels_words(error: OSError) -> str:
    """Return what the kernel says; an error that says nothing is called by its name."""
    return (error.strerror or str(error)).strip() or type(error).__name__


def _unmoved(path: str, owner: str, reason: str) -> str:
    if path.startswith(UNITS):
        return f"{path.removeprefix(UNITS)} stays where it is: systemd says {reason}"
    return f"{_name(path, owner)} stays where it is: the kernel says {reason}"


def _name(path: str, owner: str) -> str:
    number = path.removeprefix("proc/irq/").removesuffix("/smp_affinity_list")
    return f"interrupt {number} ({owner or 'no device'})" if number.isdecimal() else f"/{path}"
