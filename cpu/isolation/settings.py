"""The settings of a machine that decide on which CPUs host work runs, and their values while claims have quiet CPUs.

A setting has an original value, from before the first claim changed it. Its value is always computed from that: the
original without the CPUs of all claims, or the original if there are no claims. So claims may come and go in any order.
The value that was read and the value to write are noted before the write: after a crash the setting has one of the two.
A third value was set by another program, and becomes the original; irqbalance does this all the time, and CRI-O edits
the CPUs for new interrupts, which get back those that claims took out. An interrupt that is registered while new ones
are kept off quiet CPUs starts on the CPUs for new interrupts; its original is where it would have started without
claims.

    kind            file (below /proc or /sys)                              if no CPU is left, it is
    interrupt       /proc/irq/N/smp_affinity_list                           the housekeeping CPUs
    new interrupts  /proc/irq/default_smp_affinity                          the housekeeping CPUs
    workqueue       /sys/devices/virtual/workqueue/cpumask                  the housekeeping CPUs
    queue           /sys/class/net/*/queues/*/{rps,xps}_cpus                empty, which switches steering off
    slice           /sys/fs/cgroup/{system.slice,...}/cpuset.cpus           the housekeeping CPUs; empty is all CPUs
    unit            AllowedCPUs of the same, where systemd answers          the housekeeping CPUs; empty is all CPUs
    exclusive       cpuset.cpus.exclusive of cgroups above partitions       the opposite: the original and theirs
    banned          irqbalance's socket                                     the opposite: the original and the quiet

Sources: Documentation/core-api/irq/irq-affinity.rst, core-api/workqueue.rst, networking/scaling.rst and
admin-guide/cgroup-v2.rst of the kernel.
"""

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
# These name the CPUs that are taken away from others, not those that are left.
_GRANTS: Final = frozenset((Kind.EXCLUSIVE, Kind.BANNED))
# These allow all CPUs if they name none.
_ALL_OR_SOME: Final = frozenset((Kind.SLICE, Kind.UNIT))
NEW_INTERRUPTS: Final = "proc/irq/default_smp_affinity"
"""The file with the CPUs on which new interrupts start."""
UNITS: Final = "run/systemd/"
"""The prefix of the path of a systemd unit in the notes."""
EXCLUSIVE: Final = "cpuset.cpus.exclusive"
"""The file in which a cgroup grants CPUs to partitions below it."""


class Setting(msgspec.Struct, frozen=True):
    """One setting as it is now.

    Attributes:
        path: its file, relative to the machine's root.
        kind: what it sets.
        cpus: the CPUs that it allows; for a slice an empty set means all.
        owner: the device of an interrupt or queue, because the path may be given to another device; else empty.
        needed: the CPUs that it must always allow.
        kept: whether it must have its original value.
    """

    path: str
    kind: Kind
    cpus: CPUSet
    owner: str = ""
    needed: CPUSet = msgspec.field(default_factory=CPUSet)
    kept: bool = False

    def text(self, cpus: CPUSet) -> str:
        """Return the text to write to the file to allow these CPUs."""
        return f"{mask_text(cpus) if self.kind in _MASKS else cpus}\n"


class Noted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The record of one setting.

    Attributes:
        original: its value before claims changed it, as a cpu-list.
        given: the values, as cpu-lists, that this driver may have written.
        owner: as in `Setting`.
        refused: the kernel's reason if it refused a change, which is then not tried again.
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
        boot: the boot id of the kernel that has these settings; a reboot restores all settings.
        settings: the settings that claims have changed, by path.
        begun: the counters of each claim's CPUs when it began, by the claim's UID.
        lost: why earlier notes, with the original values, may be lost; empty if they are not.
        interrupts: the owners of all interrupts at the last check, by path; None unless claims have changed where new
            interrupts start.
    """

    boot: str = ""
    lost: str = ""
    settings: Mapping[str, Noted] = {}
    interrupts: Mapping[str, str] | None = None
    begun: Mapping[str, Begun] = {}

    @classmethod
    def read(cls, document: Any, boot: str) -> Self:
        """Read plain JSON; notes of another boot, or of another driver, count as empty.

        Raises:
            DocumentError: the notes are of this boot and cannot be understood.
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
    """A change of one setting."""

    setting: Setting
    cpus: CPUSet


class Tuning(msgspec.Struct, frozen=True):
    """The writes to do.

    Attributes:
        notes: the notes to record first.
        writes: the changes to make afterwards.
    """

    notes: TuningNotes
    writes: tuple[Write, ...] = ()


class Machine(msgspec.Struct, frozen=True):
    """The CPUs of a machine.

    Attributes:
        online: the online CPUs.
        reserved: the CPUs that no claim gets; interrupts that have to move go there.
        quiet: the CPUs that claims want quiet.
        nodes: the CPUs of each NUMA node; an interrupt of a device that is near a node starts on its CPUs.
    """

    online: CPUSet
    reserved: CPUSet = msgspec.field(default_factory=CPUSet)
    quiet: CPUSet = msgspec.field(default_factory=CPUSet)
    nodes: tuple[CPUSet, ...] = ()

    @property
    def housekeeping(self) -> CPUSet:
        """Return the CPUs for host work that has to move: the reserved CPUs, or all that no claim wants quiet."""
        left = self.online - self.quiet
        return left & self.reserved or left


def tuning(settings: Iterable[Setting], notes: TuningNotes, machine: Machine, unread: Collection[str] = ()) -> Tuning:
    """Decide what to note and what to write, so that every setting becomes what the claims need.

    Args:
        settings: all settings as they are now. A setting on record that is missing here is gone, or unread.
        notes: the record of the settings.
        machine: the CPUs, with those that claims want quiet.
        unread: the paths of settings that exist and cannot be read now; their record stays.
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
        # irqbalance applies a change later, so what it was sent before may still be in effect.
        sent = known.given if setting.kind is Kind.BANNED else ()
        given = tuple(dict.fromkeys((*sent, str(setting.cpus), str(aim))))
        noted[setting.path] = msgspec.structs.replace(known, given=given)
        writes.append(Write(setting, aim))
    seen = interrupts if NEW_INTERRUPTS in noted else None
    return Tuning(msgspec.structs.replace(notes, settings=noted, interrupts=seen), tuple(writes))


def _is_due(setting: Setting, known: Noted, aim: CPUSet) -> bool:
    # irqbalance applies a change in its next round, so the last change counts and not what irqbalance answers now.
    unsent = setting.kind is Kind.BANNED and known.given not in ((), (str(aim),))
    return aim != setting.cpus or (unsent and str(aim) == known.original)


def _known(setting: Setting, noted: Noted | None) -> Noted | None:
    """Return the record of a setting, with its present value as original if another program changed it; None if new."""
    now = str(setting.cpus)
    if noted is None or noted.owner != setting.owner:
        return None
    if setting.kind is Kind.BANNED or now in (noted.original, *noted.given):
        return noted
    if setting.path == NEW_INTERRUPTS and noted.given:
        # CRI-O takes the CPUs of single containers out of the present value, and puts them in again. CPUs that claims
        # took out before are not in what it wrote, which does not mean that it wants them out.
        taken = CPUSet.parse(noted.original) - CPUSet.parse(noted.given[-1])
        if taken and not taken & setting.cpus:
            return Noted(original=str(setting.cpus | taken), given=(now,), owner=setting.owner)
    return Noted(original=now, owner=setting.owner)


def _begun(setting: Setting, notes: TuningNotes, machine: Machine) -> Noted:
    """Return a record with the original of a setting that has none: its present value, unless it was created since.

    An interrupt starts on the CPUs of `/proc/irq/default_smp_affinity`, or those of them near its device
    (irq_setup_affinity() in kernel/irq/manage.c), unless its driver chose others.
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
    """Return the CPUs that a setting should allow in addition to `Setting.needed`."""
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
    """Return the notes after everything was written.

    Args:
        tuned: what was decided.
        after: the settings that were written, as they are now, by path; without those that are gone or unread.
        refused: the kernel's reason for each setting that it refused to change, by path.
        unread: the paths of settings that exist and could not be read again.
        failed: the paths of settings that could not be written.
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
            continue  # the kernel places it itself, so the CPUs for new interrupts do not apply to it
        elif path in refused and str(write.setting.cpus) == known.original:
            # This is the first change. A setting that could be changed before is tried again at the next check.
            noted[path] = msgspec.structs.replace(known, given=(), refused=refused[path])
        elif now is not None and str(now.cpus) != known.original:
            # The kernel may have stored another value than the one that was written.
            given = known.given if str(now.cpus) in known.given else (*known.given, str(now.cpus))
            noted[path] = msgspec.structs.replace(known, given=given)
    return msgspec.structs.replace(tuned.notes, settings=noted)


# The sentences about host work that stays on quiet CPUs or came back, and about settings that cannot be restored.


NO_CONTAINERS: Final = "it is not known which containers should become partitions"


def unrestorable(notes: TuningNotes) -> tuple[str, ...]:
    """Return a sentence if settings cannot be restored."""
    sentence = (
        f"the original settings are lost ({notes.lost}), so the settings stay as they are now: "
        "reboot the node, which resets them"
    )
    return (sentence,) if notes.lost else ()


def no_right(write: Write, error: OSError) -> str:
    """Return the error for a setting that this process may not write, and what it needs."""
    return (
        f"/{write.setting.path} cannot be written: {error.strerror}; isolation: quiet needs the node's own /proc and "
        "/sys writable, as deploy/components/isolation mounts them"
    )


def returned(tuned: Tuning, noted: TuningNotes, machine: Machine) -> str:
    """Return which interrupts or other work another program has put back on quiet CPUs; empty if none."""
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
    return f"another program has put {back[0]} there again ({len(back)} in total); {cause}"


def refused_settings(tuned: Tuning, final: TuningNotes, failures: Mapping[str, OSError]) -> Iterator[str]:
    """Yield a sentence for each setting that the kernel refuses to change, now or earlier."""
    reasons = {path: noted.refused for path, noted in final.settings.items() if noted.refused}
    reasons |= {path: kernels_words(error) for path, error in failures.items()}
    for path in sorted(reasons):
        yield _unmoved(path, tuned.notes.settings[path].owner, reasons[path])


def unread_settings(noted: Mapping[str, Noted], seen: Collection[str], sentences: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each setting on record that was not read, and is therefore neither changed nor restored.

    Args:
        noted: the settings on record, by path.
        seen: the paths of the settings that were read.
        sentences: the sentences about work that stays that exist already.
    """
    sentences = tuple(sentences)
    partitions_unknown = any(sentence.startswith(NO_CONTAINERS) for sentence in sentences)
    for path in sorted(noted.keys() - seen):
        if partitions_unknown and path.endswith(f"/{EXCLUSIVE}"):
            continue
        name = path.removeprefix(UNITS) if path.startswith(UNITS) else f"/{path}"
        if not any(name in sentence for sentence in sentences):
            yield (
                f"{name} cannot be read now, or only another version of the driver knows it: it stays unchanged, and "
                f"on record with its original CPUs ({noted[path].original or 'none named'})"
            )


def kernels_words(error: OSError) -> str:
    """Return the kernel's message, or the name of the error if it has none."""
    return (error.strerror or str(error)).strip() or type(error).__name__


def _unmoved(path: str, owner: str, reason: str) -> str:
    if path.startswith(UNITS):
        return f"{path.removeprefix(UNITS)} stays where it is: systemd says {reason}"
    if path.endswith(".sock"):
        return f"/{path} may put interrupts back on quiet CPUs: {reason}"
    return f"{_name(path, owner)} stays where it is: the kernel says {reason}"


def _name(path: str, owner: str) -> str:
    number = path.removeprefix("proc/irq/").removesuffix("/smp_affinity_list")
    return f"interrupt {number} ({owner or 'no device'})" if number.isdecimal() else f"/{path}"
