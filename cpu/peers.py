"""The processes of a node that have a say in where host work runs: irqbalance and systemd.

Either may take its time or hang, so nobody waits for them under the lock on decisions: they are asked, what they are to
heed is decided and noted under it, and then they are told. What is noted is as for the kernel's files (`settings`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from dranode.cpu.irqbalance import FOLDER as BALANCERS
from dranode.cpu.irqbalance import Heard, IRQBalance
from dranode.cpu.setting_files import every_cpu, has_unified_cgroups, why_kept
from dranode.cpu.settings import UNITS, Kind, Machine, Setting, Tuning, TuningNotes, noted_after, tuning
from dranode.cpu.systemd import Systemd
from dranode.cpu.unmoved import refused_settings, unread_settings
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.machine.root import Root


def is_peers(path: str) -> bool:
    """Return whether a setting on record is one of another process."""
    return path.startswith((UNITS, BALANCERS))


class Asked(msgspec.Struct, frozen=True):
    """What irqbalance and systemd have said.

    Attributes:
        heard: what irqbalance has said.
        units: what systemd allows the units of the host; none where it does not answer.
    """

    heard: Heard
    units: tuple[Setting, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Return all settings that they have said."""
        return (*self.heard.settings, *self.units)


class Outcome(msgspec.Struct, frozen=True):
    """What came of telling them.

    Attributes:
        failures: what they did not heed, by path.
        after: the units that were told, as they are now, by path; one of which systemd says nothing is missing.
    """

    failures: Mapping[str, OSError] = {}
    after: Mapping[str, Setting] = {}


class Peers(msgspec.Struct):
    """The irqbalance and the systemd of one machine.

    Attributes:
        root: the machine's files; None where there is nobody to tell.
        balancer: the node's irqbalance; None where it cannot be told anything.
        systemd: the node's systemd; None where it cannot be told anything.
        by_systemd: whether systemd answers for the host's services; None while it has not been asked.
        said: what they keep on quiet CPUs and why, a sentence each, by the last round.
    """

    root: Root | None = None
    balancer: IRQBalance | None = None
    systemd: Systemd | None = None
    by_systemd: bool | None = False
    said: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.systemd is not None and self.root is not None and has_unified_cgroups(self.root):
            self.by_systemd = None

    @property
    def there(self) -> bool:
        """Return whether there is anybody to ask."""
        return self.balancer is not None or self.systemd is not None

    def ask(self, machine: Machine, noted: TuningNotes) -> Asked:
        """Ask both what they have now."""
        heard = Heard() if self.balancer is None else self.balancer.hear(machine.quiet, noted.settings)
        return Asked(heard, self._units())

    def decide(self, asked: Asked, machine: Machine, noted: TuningNotes) -> Tuning:
        """Decide what they are to be told; what is on record of the kernel's files stays."""
        # Claims may have come or gone since they were asked.
        settings = [
            replace(each, needed=machine.quiet) if each.kind is Kind.BANNED else each for each in asked.settings
        ]
        mine = {path for path in noted.settings if is_peers(path)}
        silent = asked.heard.silent | {path for path in mine if path.startswith(UNITS)}
        others = (noted.settings.keys() | (noted.interrupts or {}).keys()) - mine
        return tuning(settings, noted, machine, (silent - {each.path for each in settings}) | others)

    def carry_out(self, tuned: Tuning) -> Outcome:
        """Tell them what was decided."""
        failures: dict[str, OSError] = {}
        for write in tuned.writes:
            try:
                self._tell(write.setting, write.cpus)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                failures[write.setting.path] = error
        units = (write.setting for write in tuned.writes if write.setting.kind is Kind.UNIT)
        return Outcome(failures, {each.path: now for each in units if (now := self._reread(each)) is not None})

    def noted_after(self, tuned: Tuning, outcome: Outcome, noted: TuningNotes) -> TuningNotes:
        """Return the notes as they are by now, with what came of telling them."""
        writes = tuple(write for write in tuned.writes if write.setting.path in noted.settings)
        unread = {write.setting.path for write in writes if write.setting.kind is Kind.UNIT} - outcome.after.keys()
        return noted_after(Tuning(noted, writes), outcome.after, {}, unread, outcome.failures)

    def report(self, asked: Asked, tuned: Tuning, outcome: Outcome, noted: TuningNotes) -> None:
        """Keep what they do not heed."""
        mine = {path: known for path, known in noted.settings.items() if is_peers(path)}
        refused = tuple(refused_settings(tuned, replace(noted, settings=mine), outcome.failures))
        said = (*asked.heard.said, *refused)
        self.said = (*said, *unread_settings(mine, [each.path for each in asked.settings], said))

    def _units(self) -> tuple[Setting, ...]:
        """Return what systemd allows the units of the host, if it says so and the kernel heeds it."""
        if self.systemd is None or self.root is None or not has_unified_cgroups(self.root):
            self.by_systemd = False
            return ()
        self.systemd.begin()
        units = tuple(map(self._unit, self.systemd.settings()))
        self.by_systemd = bool(units)
        return units

    def _unit(self, setting: Setting) -> Setting:
        kept = self.root is not None and bool(why_kept(self.root, setting.path.removeprefix(UNITS)))
        return replace(setting, cpus=self._some(setting.cpus), kept=kept)

    def _some(self, cpus: CPUSet) -> CPUSet:
        """Return the CPUs of a unit that has not all of them; none for one that has, which means the same."""
        return CPUSet() if self.root is not None and cpus == every_cpu(self.root) else cpus

    def _reread(self, setting: Setting) -> Setting | None:
        cpus = None if self.systemd is None else self.systemd.reread(setting)
        return None if cpus is None else replace(setting, cpus=self._some(cpus))

    def _tell(self, setting: Setting, cpus: CPUSet) -> None:
        if setting.kind is Kind.BANNED and self.balancer is not None:
            self.balancer.ban(setting, cpus)
        elif setting.kind is Kind.UNIT and self.systemd is not None:
            if not cpus and self.root is not None and (every := every_cpu(self.root)):
                # While another unit has CPUs of its own, the cgroup of one that has none any more keeps what it had.
                self.systemd.allow(setting, every)
            self.systemd.allow(setting, cpus)
