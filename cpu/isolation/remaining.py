"""Says in sentences what stays on quiet CPUs, what came back to them, and what cannot be put back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from dranode.cpu.isolation.settings import EXCLUSIVE, UNITS, Machine, Noted, Tuning, TuningNotes, Write

NO_CONTAINERS: Final = "which containers are to be partitions is not known"


def unrestorable(notes: TuningNotes) -> tuple[str, ...]:
    """Return the sentence on settings that cannot be put back, if there are any."""
    sentence = (
        f"the settings from before claims changed them are lost ({notes.lost}), so they stay as they "
        "are now: reboot the node, which resets them"
    )
    return (sentence,) if notes.lost else ()


def no_right(write: Write, error: OSError) -> str:
    """Say that a setting cannot be written at all, and what is needed for it."""
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
