"""Keeps host work off the CPUs of claims that want them quiet: reads settings, notes them, writes them.

What is decided is in `dranode.cpu.settings`; this module carries it out, and says what the kernel does not do.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from dranode.cpu.policies import Isolation
from dranode.cpu.setting_files import read_settings, reread, unmovable
from dranode.cpu.settings import Kind, Machine, Setting, Tuning, TuningNotes, Write, noted_after, tuning
from dranode.cpu.sysfs import read_online
from dranode.cpu.treatment import isolated_cpus
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import ClaimError, MachineError
from dranode.driver.core.claims.hooks import Notes
from dranode.driver.core.claims.record import Record
from dranode.driver.machine.root import Root, read_text

log = logging.getLogger(__name__)

_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
# Nothing can be written at all, so that a claim would get nothing of what it asks for.
_NO_RIGHT: Final = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))
# The interrupt is the kernel's own to place (managed, or one of a CPU): EIO, and EPERM from recent kernels.
_NEVER: Final = frozenset((errno.EIO, errno.EPERM))


@dataclass
class Tuner:
    """The settings of one machine.

    Attributes:
        root: the machine's files: those of the node, not of a pod.
        reserved: the CPUs that no claim gets.
        unmoved: what still runs on quiet CPUs and why, a sentence each, by the last look.
    """

    root: Root
    reserved: CPUSet = field(default_factory=CPUSet)
    unmoved: tuple[str, ...] = ()

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        """Bring every setting into the state that these claims need; see `Tunes.tune`.

        Raises:
            ClaimError: no setting can be written, or no CPU is left for interrupts.
        """
        noted = TuningNotes.read(notes.read(), self._boot_id())
        machine = self._machine(claims)
        if not machine.quiet and not noted.settings:
            notes.write(None)
            return
        tuned = tuning(self._settings(), noted, machine)
        notes.write(tuned.notes.document())
        failures = self._write(tuned)
        after = {write.setting.path: reread(self.root, write.setting) for write in tuned.writes}
        there = {path: setting for path, setting in after.items() if setting is not None}
        refused = {path: error.strerror or str(error) for path, error in failures.items()}
        owned = {
            write.setting.path: refused[write.setting.path]
            for write in tuned.writes
            if write.setting.path in refused and _is_kernels_own(write.setting, failures[write.setting.path])
        }
        final = noted_after(tuned, there, owned)
        notes.write(final.document())
        before = {path: noted.refused for path, noted in final.settings.items() if noted.refused}
        self._report(tuned.notes, before | refused, machine)

    def _machine(self, claims: Collection[Record]) -> Machine:
        quiet = CPUSet.union(isolated_cpus(claim, Isolation.QUIET) for claim in claims)
        online = read_online(self.root)
        if quiet and not online:
            raise ClaimError("the kernel does not say which CPUs are online, so interrupts cannot be moved")
        if quiet and online <= quiet:
            raise ClaimError(
                f"claims want all CPUs quiet that are online ({online}), and interrupts need one; "
                "make a claim smaller, or leave out its isolation"
            )
        return Machine(online, self.reserved, quiet)

    def _settings(self) -> tuple[Setting, ...]:
        try:
            return read_settings(self.root)
        except MachineError as error:
            raise ClaimError(f"{error}; isolation: quiet needs the node's own /proc (docs/isolation.md)") from error

    def _write(self, tuned: Tuning) -> dict[str, OSError]:
        """Write what was decided, and return what the kernel refused, by path; what is gone needs no change."""
        failures: dict[str, OSError] = {}
        for write in tuned.writes:
            try:
                self.root.write(write.setting.path, write.setting.text(write.cpus))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno in _NO_RIGHT and not _is_kernels_own(write.setting, error):
                    raise ClaimError(_no_right(write, error)) from error
                failures[write.setting.path] = error
        return failures

    def _report(self, notes: TuningNotes, refused: Mapping[str, str], machine: Machine) -> None:
        sentences = [_unmoved(path, notes.settings[path].owner, refused[path]) for path in sorted(refused)]
        unmoved = (*sentences, *unmovable(self.root)) if machine.quiet else ()
        for sentence in unmoved:
            if sentence not in self.unmoved:
                log.warning("cpus=%s: %s", machine.quiet, sentence)
        self.unmoved = unmoved

    def _boot_id(self) -> str:
        try:
            return read_text(self.root, _BOOT_ID)
        except OSError:
            return ""


def _is_kernels_own(setting: Setting, error: OSError) -> bool:
    return setting.kind is Kind.INTERRUPT and error.errno in _NEVER


def _no_right(write: Write, error: OSError) -> str:
    return (
        f"/{write.setting.path} cannot be written: {error.strerror}; isolation: quiet needs the node's own /proc and "
        "/sys writable, as deploy/components/isolation mounts them"
    )


def _unmoved(path: str, owner: str, reason: str) -> str:
    name = f"interrupt {path.split('/')[2]} ({owner or 'no device'})" if path.startswith("proc/irq/") else f"/{path}"
    return f"{name} stays where it is: the kernel says {reason}"
