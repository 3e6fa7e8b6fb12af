"""Sets of CPUs, written as Linux cpu-lists (`0-3,8`).

The list format is that of the kernel's `cpulist` files (Documentation/admin-guide/cputopology.rst) and of
`k8s.io/utils/cpuset`: comma-separated numbers and ranges, in any order and without spaces; they may overlap. It is
printed in ascending order with runs of two or more as a range. The empty set is the empty string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Self

# The kernel's NR_CPUS is at most 8192 today. The limit keeps a typo from becoming a gigantic integer.
MAX_CPU: Final = (1 << 20) - 1

# Longer than the longest useful text, which names every other CPU.
_MAX_TEXT: Final = 4 << 20
# Up to this many ranges are joined one by one. More are joined by halves, whose cost is not quadratic.
_FEW: Final = 64
# Python refuses to convert more than 4,300 digits, with an error that does not name the item.
_DIGITS: Final = 1000
_WORD_BITS: Final = 32
_WORD: Final = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)
_ITEM: Final = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)


class CPUSet:
    """An immutable set of CPU ids, kept as one integer with bit n set for CPU n."""

    __slots__ = ("mask",)
    mask: int

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        mask = 0
        for cpu in cpus:
            mask |= 1 << cpu
        self.mask = mask

    @classmethod
    def of_mask(cls, mask: int) -> Self:
        """Return the set with this bit mask (bit n set: CPU n is in the set)."""
        cpus = cls.__new__(cls)
        cpus.mask = mask
        return cpus

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a cpu-list.

        Raises:
            ValueError: an item is empty, not a number, reversed or beyond `MAX_CPU`; the message names the item.
        """
        if len(text) > _MAX_TEXT:
            raise ValueError(f"a cpu-list of {len(text)} characters is longer than any of {MAX_CPU + 1} CPUs")
        return cls.of_mask(_mask(list(_ranges(text))))

    @classmethod
    def parse_mask(cls, text: str) -> Self:
        """Read a kernel CPU mask: hexadecimal words of 32 bits, most significant first, with commas between them.

        Raises:
            ValueError: a word is not hexadecimal, or the mask goes beyond `MAX_CPU`.
        """
        # The number of splits is limited, so that a gigantic text does not become a gigantic list.
        words = text.split(",", (MAX_CPU + 1) // 32)
        if len(words) > (MAX_CPU + 1) // 32:
            raise ValueError(f"a CPU mask of {len(text)} characters goes beyond the largest CPU id, {MAX_CPU}")
        # int() alone would also accept signs, underscores and spaces.
        for word in words:
            if _WORD.fullmatch(word) is None:
                raise ValueError(f'"{word[:40]}" in a CPU mask is not a hexadecimal word of 32 bits')
        return cls.of_mask(int("".join(word.zfill(8) for word in words), 16))

    def __str__(self) -> str:
        runs: list[str] = []
        mask, base = self.mask, 0
        # One step for each run and not for each CPU: the trailing zeros are the gap before a run, and the trailing ones
        # are the run.
        while mask:
            gap = (mask & -mask).bit_length() - 1
            mask >>= gap
            base += gap
            run = (~mask & (mask + 1)).bit_length() - 1
            runs.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
            mask >>= run
            base += run
        return ",".join(runs)

    def __repr__(self) -> str:
        return f"CPUSet.parse({str(self)!r})"

    def __iter__(self) -> Iterator[int]:
        mask, base = self.mask, 0
        while mask:
            # Shifting the whole mask for each CPU would be quadratic, so work on one word at a time. A gap is skipped
            # in one step, since the threads of a core may be thousands of CPUs apart.
            word = mask & 0xFFFFFFFFFFFFFFFF
            if not word:
                gap = (mask & -mask).bit_length() - 1
                mask >>= gap
                base += gap
                continue
            while word:
                low = word & -word
                yield base + low.bit_length() - 1
                word ^= low
            mask >>= 64
            base += 64

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __bool__(self) -> bool:
        return self.mask != 0

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and bool(self.mask >> cpu & 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CPUSet) and self.mask == other.mask

    def __hash__(self) -> int:
        return hash(self.mask)

    def __and__(self, other: CPUSet) -> CPUSet:
        return CPUSet.of_mask(self.mask & other.mask)

    def __or__(self, other: CPUSet) -> CPUSet:
        return CPUSet.of_mask(self.mask | other.mask)

    def __sub__(self, other: CPUSet) -> CPUSet:
        return CPUSet.of_mask(self.mask & ~other.mask)

    def __xor__(self, other: CPUSet) -> CPUSet:
        return CPUSet.of_mask(self.mask ^ other.mask)

    def __le__(self, other: CPUSet) -> bool:
        return self.mask & ~other.mask == 0

    def __lt__(self, other: CPUSet) -> bool:
        return self != other and self <= other

    def isdisjoint(self, other: CPUSet) -> bool:
        """Return whether no CPU is in both sets."""
        return self.mask & other.mask == 0

    def first(self) -> int:
        """Return the lowest CPU id.

        Raises:
            ValueError: the set is empty.
        """
        if not self.mask:
            raise ValueError("an empty CPU set has no first CPU")
        return (self.mask & -self.mask).bit_length() - 1

    @staticmethod
    def union(sets: Iterable[CPUSet]) -> CPUSet:
        """Return the CPUs of all sets together."""
        mask = 0
        for cpus in sets:
            mask |= cpus.mask
        return CPUSet.of_mask(mask)


NO_CPUS: Final = CPUSet()
"""The empty set as a default: msgspec omits a field only if its value is this very object."""


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last CPU of each item of a cpu-list."""
    for item in text.split(",") if text else ():
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(f'"{item}" in the cpu-list "{text}" is neither a CPU nor a range such as 0-3')
        first, last = (_cpu(number or match[1]) for number in match.groups())
        if last < first:
            raise ValueError(f'the range "{item}" in the cpu-list "{text}" runs backwards')
        if last > MAX_CPU:
            raise ValueError(f'"{item}" in the cpu-list "{text}" is beyond the largest CPU id, {MAX_CPU}')
        yield first, last


def _cpu(digits: str) -> int:
    """Return the number; for one with too many digits, a number beyond all CPUs."""
    return int(digits) if len(digits) <= _DIGITS else MAX_CPU + 1


def _mask(ranges: list[tuple[int, int]]) -> int:
    """Return the mask of ranges, in a time that does not grow with their number times the largest CPU."""
    # Each join below copies the whole integer, which is cheap for the few ranges of a real machine.
    if len(ranges) <= _FEW:
        mask = 0
        for first, last in ranges:
            mask |= (1 << (last + 1)) - (1 << first)
        return mask
    # Ranges may overlap or touch. Joined ones are apart, so the halves below do not overlap.
    apart: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if apart and first <= apart[-1][1] + 1:
            apart[-1] = (apart[-1][0], max(last, apart[-1][1]))
        else:
            apart.append((first, last))
    return _halves(apart)


def _halves(ranges: list[tuple[int, int]]) -> int:
    """Return the mask of sorted ranges; short integers of neighbors are joined first, long ones last."""
    if len(ranges) <= _FEW:
        return _mask(ranges)
    base, half = ranges[0][0], len(ranges) // 2
    # Each half is shifted to its own beginning, so that its integers stay as short as the half is.
    low = _halves([(first - base, last - base) for first, last in ranges[:half]])
    start = ranges[half][0]
    high = _halves([(first - start, last - start) for first, last in ranges[half:]])
    return low << base | high << start


def mask_text(cpus: CPUSet) -> str:
    """Return a kernel CPU mask: hexadecimal words of 32 bits, the most significant first, with commas between them."""
    words = [f"{cpus.mask & 0xFFFFFFFF:08x}"]
    rest = cpus.mask >> _WORD_BITS
    while rest:
        words.insert(0, f"{rest & 0xFFFFFFFF:08x}")
        rest >>= _WORD_BITS
    return ",".join(words)
