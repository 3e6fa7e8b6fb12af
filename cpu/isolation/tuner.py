"""Keeps host work off the CPUs of claims that want them quiet: reads settings, notes them, writes them.

`settings` decides; this module carries it out and reports what the kernel refuses. `tune` writes the kernel's files,
under the lock on decisions; `notify` talks to irqbalance and systemd (`peers`).
"""

import errno
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimError, DocumentError, MachineError
from dranode.cpu.isolation.cpu_counters import Begun, CPUCounters, cpu_counters
from dranode.cpu.isolation.partitions import Partition, exclusive_settings, find_partitions, make_partition
from dranode.cpu.isolation.peers import Peers, is_peers
from dranode.cpu.isolation.setting_files import cpus_of_nodes, every_cpu, is_gone, read_settings, reread, unmovable
from dranode.cpu.isolation.settings import (
    NO_CONTAINERS,
    UNITS,
    Kind,
    Machine,
    Setting,
    Tuning,
    TuningNotes,
    Write,
    kernels_words,
    no_right,
    noted_after,
    refused_settings,
    returned,
    tuning,
    unread_settings,
    unrestorable,
)
from dranode.cpu.options import Isolation
from dranode.cpu.sysfs import read_online
from dranode.cpu.treatment import isolated_cpus
from dranode.driver.claims.hooks import Disturbance, LockedTuning, Notes
from dranode.driver.claims.record import ClaimState, Record
from dranode.driver.machine.root import BOOT_ID, Root, boot_id

log = logging.getLogger(__name__)

# Nothing can be written, so a claim would get none of the isolation that it asks for.
_NO_RIGHT: Final = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))
# The kernel places the interrupt itself (managed or per-CPU interrupts): EIO, and EPERM on recent kernels.
_NEVER: Final = frozenset((errno.EIO, errno.EPERM))


class Tuner(msgspec.Struct):
    """The settings of one machine.

    Attributes:
        root: the node's files, not those of the pod.
        reserved: the CPUs that no claim gets.
        peers: irqbalance and systemd of the node.
        remaining: one sentence for each reason why host work still runs on quiet CPUs, as last checked.
        must_notify: whether irqbalance and systemd know of other quiet CPUs than those of now.
    """

    root: Root
    reserved: CPUSet = msgspec.field(default_factory=CPUSet)
    peers: Peers = msgspec.field(default_factory=Peers)
    remaining: tuple[str, ...] = ()
    must_notify: bool = False
    _notified: CPUSet = msgspec.field(default_factory=CPUSet)
    _peers_have: bool = False
    _partitioned: frozenset[str] = frozenset()

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        """Set every setting in the kernel's files to what these claims need; see `Tunes.tune`.

        Raises:
            ClaimError: no setting can be written, or no CPU is left for interrupts.
        """
        noted = self._noted(notes)
        machine = self._machine(claims)
        if not machine.quiet and not noted.settings:
            notes.write(replace(noted, begun={}).document())
            self.must_notify = False
            self._report(unrestorable(noted), machine)
            return
        if machine.quiet and not machine.housekeeping:
            # CPUs of prepared claims went offline. This must not prevent other claims from being unprepared.
            stays = f"claims want all online CPUs ({machine.online}) quiet, so nothing is moved"
            self._report((stays,), machine)
            return
        # Read the settings as they are now. Those of irqbalance and systemd on record are left to `notify`.
        partitions, not_found = self._partitions(claims)
        granting = tuple(partition for partition in partitions if not partition.others)
        # If the containers are not known, the CPUs that were granted to their partitions stay.
        exclusive = exclusive_settings(self.root, granting, () if not_found else noted.settings)
        settings = (*self._settings(noted.settings), *exclusive)
        peer_paths = frozenset(filter(is_peers, noted.settings))
        paths = peer_paths | {setting.path for setting in settings}
        unread = peer_paths | self._unread((noted.settings.keys() | (noted.interrupts or {}).keys()) - paths)
        self._peers_have = bool(peer_paths)
        self.must_notify = self.peers.there and machine.quiet != self._notified
        # Note both values before the write, and what the kernel made of it afterwards.
        tuned = tuning(settings, noted, machine, unread)
        notes.write(tuned.notes.document())
        if back := returned(tuned, noted, machine):
            log.warning("cpus=%s: %s", machine.quiet, back)
        failures = self._write(tuned)
        final = self._with_begun(self._noted_after(tuned, failures), claims)
        notes.write(final.document())
        # Report what stays on quiet CPUs all the same.
        by_systemd = bool(self.peers.by_systemd) or any(path.startswith(UNITS) for path in peer_paths)
        kept = unmovable(self.root, paths, by_systemd=by_systemd) if machine.quiet else ()
        staying = (*not_found, *self.peers.sentences, *kept)
        remaining = (*refused_settings(tuned, final, failures), *self._make_partitions(partitions), *staying)
        not_read = unread_settings(final.settings, paths, staying)
        self._report((*unrestorable(noted), *remaining, *not_read), machine)

    def notify(self, locked: LockedTuning) -> bool:
        """Tell irqbalance and systemd about the claims, holding the lock only to decide; see `Tunes.notify`."""
        if not (self.must_notify or self._notified or self._peers_have):
            return False
        with locked() as (claims, notes):
            noted, machine = self._noted(notes), self._machine(claims)
        by_systemd = self.peers.by_systemd
        asked = self.peers.ask(machine, noted)
        with locked() as (claims, notes):
            noted, machine = self._noted(notes), self._machine(claims)
            if machine.quiet and not machine.housekeeping:
                return False
            tuned = self.peers.decide(asked, machine, noted)
            notes.write(tuned.notes.document())
            self._notified, self.must_notify = machine.quiet, False
        outcome = self.peers.carry_out(tuned)
        with locked() as (claims, notes):
            noted = self.peers.noted_after(tuned, outcome, self._noted(notes))
            notes.write(noted.document())
        self.peers.report(asked, tuned, outcome, noted)
        return by_systemd != self.peers.by_systemd or bool(set(self.peers.sentences) - set(self.remaining))

    def _noted(self, notes: Notes) -> TuningNotes:
        """Return the notes of this boot. Without a boot id, notes must not be taken for those of an earlier boot."""
        document, boot = notes.read(), boot_id(self.root)
        if isinstance(document, Mapping) and document.get("boot") and not boot:
            raise ClaimError(f"/{BOOT_ID} cannot be read, so it is not known whether settings must be restored")
        try:
            read = TuningNotes.read(document, boot)
            return replace(read, lost=read.lost or notes.lost)
        except DocumentError as error:
            raise ClaimError(
                f"the original settings are on record in a form that this version cannot read ({error}); "
                "go back to the version that wrote it, or reboot the node, which resets them"
            ) from error

    def _with_begun(self, notes: TuningNotes, claims: Collection[Record]) -> TuningNotes:
        """Return the notes with the counters of every claim's CPUs at the time when it first had them to itself."""
        begun = {claim.uid: notes.begun[claim.uid] for claim in claims if claim.uid in notes.begun}
        fresh = [claim for claim in claims if claim.uid not in begun]
        now = read_cpu_counters(self.root) if fresh else CPUCounters()
        begun |= {claim.uid: now.begin(isolated_cpus(claim, Isolation.QUIET)) for claim in fresh}
        return replace(notes, begun=begun)

    def _noted_after(self, tuned: Tuning, failures: Mapping[str, OSError]) -> TuningNotes:
        settings = {write.setting.path: write.setting for write in tuned.writes}
        after = {path: now for path in settings if (now := reread(self.root, settings[path])) is not None}
        own = {path: kernels_words(error) for path, error in failures.items() if _is_kernels_own(settings[path], error)}
        return noted_after(tuned, after, own, self._unread(settings.keys() - after.keys()), failures)

    def _unread(self, paths: Iterable[str]) -> frozenset[str]:
        """Return the paths, among those that were not read, of settings that exist."""
        return frozenset(path for path in paths if not is_gone(self.root, path))

    def _partitions(self, claims: Iterable[Record]) -> tuple[tuple[Partition, ...], tuple[str, ...]]:
        """Return the containers that should become partitions, or a sentence if they are not known."""
        try:
            return tuple(find_partitions(self.root, claims)), ()
        except MachineError as error:
            return (), (f"{NO_CONTAINERS}: {error}",)

    def _make_partitions(self, partitions: Iterable[Partition]) -> Iterator[str]:
        """Make these containers partitions; yields a sentence for each that is not one."""
        made: set[str] = set()
        for partition in partitions:
            failure = f"the container in /{partition.folder} is not a partition"
            if partition.others:
                yield f"{failure}: it also runs on CPUs {partition.others}, which no claim wants in one"
                continue
            reason = make_partition(self.root, partition)
            if reason is not None:
                yield f"{failure}: the kernel says {reason}"
                continue
            made.add(partition.folder)
            if partition.folder not in self._partitioned:
                log.info("cpus=%s: the container in /%s is a partition", partition.cpus, partition.folder)
        self._partitioned = frozenset(made)

    def _machine(self, claims: Collection[Record]) -> Machine:
        quiet = CPUSet.union(isolated_cpus(claim, Isolation.QUIET) for claim in claims)
        online = read_online(self.root)
        if quiet and not online:
            raise ClaimError("the kernel does not report which CPUs are online, so interrupts cannot be moved")
        if quiet and online <= quiet and any(claim.state is ClaimState.STARTED for claim in claims):
            raise ClaimError(
                f"claims want all online CPUs ({online}) quiet, but interrupts need one; "
                "ask for fewer CPUs, or leave out isolation"
            )
        return Machine(online, self.reserved, quiet, cpus_of_nodes(self.root))

    def _settings(self, noted: Iterable[str]) -> tuple[Setting, ...]:
        try:
            settings = read_settings(self.root)
        except MachineError as error:
            raise ClaimError(f"{error}; isolation: quiet needs the node's own /proc (docs/isolation.md)") from error
        if self.peers.by_systemd is not False or any(path.startswith(UNITS) for path in noted):
            # If systemd answers, or has not been asked yet, it owns the slices' cgroups: it would overwrite what is
            # written there. They get back their original values, and systemd is asked instead (`notify`).
            settings = tuple(
                replace(setting, kept=True) if setting.kind is Kind.SLICE else setting for setting in settings
            )
        return settings

    def _write(self, tuned: Tuning) -> dict[str, OSError]:
        """Make the changes, and return what the kernel refused, by path; settings that are gone are skipped.

        Raises:
            ClaimError: this process may not write a setting; the others are written all the same.
        """
        failures: dict[str, OSError] = {}
        denied: ClaimError | None = None
        for write in tuned.writes:
            try:
                self._write_one(write)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno in _NO_RIGHT and not _is_kernels_own(write.setting, error):
                    denied = denied or ClaimError(no_right(write, error))
                failures[write.setting.path] = error
        if denied is not None:
            raise denied
        return failures

    def _write_one(self, write: Write) -> None:
        try:
            self.root.write(write.setting.path, write.setting.text(write.cpus))
        except OSError as error:
            every = every_cpu(self.root)
            if write.setting.kind is not Kind.SLICE or write.cpus or error.errno != errno.ENOSPC or not every:
                raise
            # A cgroup with processes cannot return to an empty set (ENOSPC); the set of all CPUs means the same.
            self.root.write(write.setting.path, write.setting.text(every))

    def _report(self, remaining: tuple[str, ...], machine: Machine) -> None:
        for sentence in remaining:
            if sentence not in self.remaining:
                log.warning("cpus=%s: %s", machine.quiet or "none", sentence)
        self.remaining = remaining


def _is_kernels_own(setting: Setting, error: OSError) -> bool:
    return setting.kind is Kind.INTERRUPT and error.errno in _NEVER


# What is reported to people: the disturbances of claims that want quiet CPUs, and notes that cannot be used.


def disturbances(root: Root, claims: Iterable[Record], notes: Any) -> Iterator[Disturbance]:
    """Yield what has happened on the CPUs of each claim that wants them quiet, as far as it is known."""
    try:
        begun = TuningNotes.read(notes, boot_id(root)).begun
    except DocumentError:
        return
    wanted = [(claim, cpus) for claim in claims if (cpus := _quiet_cpus(claim))]
    now = read_cpu_counters(root) if wanted else CPUCounters()
    for claim, cpus in wanted:
        yield now.since(begun.get(claim.uid, Begun()), claim.ref, cpus)


def _quiet_cpus(claim: Record) -> CPUSet:
    """Return the CPUs that a claim wants quiet; all that it holds if its record is not clear about it."""
    try:
        return isolated_cpus(claim, Isolation.QUIET)
    except DocumentError:
        return claim.held


def loss(root: Root, notes: Any) -> str:
    """Return why settings that claims have changed cannot be restored, according to the notes; empty if they can."""
    try:
        return "".join(unrestorable(TuningNotes.read(notes, boot_id(root))))
    except DocumentError as error:
        return f"the original settings are on record in a form that this version cannot read: {error}"


def read_cpu_counters(root: Root) -> CPUCounters:
    """Read the counters of all CPUs; counters that the kernel does not show are missing."""
    return cpu_counters(*(_text(root, f"proc/{name}") for name in ("interrupts", "schedstat", "stat")))


def _text(root: Root, path: str) -> str:
    try:
        return root.read_bytes(path).decode("utf-8", "replace")
    except OSError:
        return ""
