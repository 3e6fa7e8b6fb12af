"""A mapping whose changed copies are cheap and leave it as it was."""

from __future__ import annotations

import gc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dranode.driver.core.api.frozen_map import FrozenMap

KEYS = st.text(max_size=2)
ENTRIES = st.dictionaries(KEYS, st.integers(0, 3))


@given(before=ENTRIES, put=ENTRIES, drop=st.sets(KEYS))
def test_a_changed_copy_is_what_a_dict_would_be_and_the_original_stays(
    before: dict[str, int], put: dict[str, int], drop: set[str]
) -> None:
    original = FrozenMap[int]().changed(before)
    copy = original.changed(put, drop)
    expected = {key: value for key, value in {**before, **put}.items() if key not in drop}
    assert (dict(copy), len(copy)) == (expected, len(expected))
    assert (dict(original), len(original)) == (before, len(before))
    assert copy == expected


@given(mine=ENTRIES, theirs=ENTRIES, related=st.booleans())
def test_two_maps_differ_in_the_keys_under_which_they_have_other_values(
    mine: dict[str, int],
    theirs: dict[str, int],
    related: bool,  # noqa: FBT001 - drawn
) -> None:
    left = FrozenMap[int]().changed(mine)
    right = left.changed(theirs, mine.keys() - theirs.keys()) if related else FrozenMap[int]().changed(theirs)
    expected = {key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)}
    assert left.differing(right) == right.differing(left) == expected


def test_two_versions_of_a_large_map_are_compared_without_reading_most_of_it() -> None:
    class Never:
        def __eq__(self, other: object) -> bool:
            raise AssertionError(f"compared with {other}")

        __hash__ = None  # type: ignore[assignment]

    large = FrozenMap[object]().changed({str(number): Never() for number in range(10_000)})
    later = large.changed({"new": 1}, ["7", "8"])
    assert later.differing(large) == large.differing(later) == {"7", "8", "new"}


class Key(str):
    """A key that counts how often it is looked up, as it is once or twice when a map passes over it."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        Key.lookups += 1
        return super().__hash__()


def test_a_change_copies_and_passes_over_few_entries_of_a_large_map() -> None:
    large = FrozenMap[int]().changed({Key(number): number for number in range(10_000)})
    original = _parts(large)
    changes = [str(number) for number in range(0, 10_000, 500)]
    copied = 0
    Key.lookups = 0
    for key in changes:
        later = large.changed({key: -1})
        assert later.differing(large) == {key}
        copied += sum(len(part) for address, part in _parts(later).items() if address not in original)
    assert copied / len(changes) < 100
    assert Key.lookups / len(changes) < 60


def _parts(map_: FrozenMap[int]) -> dict[int, tuple[Any, ...] | dict[str, int]]:
    """The tuples and dictionaries of which a map consists, by their addresses."""
    parts: dict[int, tuple[Any, ...] | dict[str, int]] = {}
    reached: list[object] = [map_]
    while reached:
        inner = [
            each for each in gc.get_referents(*reached) if isinstance(each, tuple | dict) and id(each) not in parts
        ]
        parts |= {id(each): each for each in inner}
        reached = list(inner)
    return parts
