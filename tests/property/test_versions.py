"""Versions of a mapping behave like dictionaries, in whatever order they are made and read."""

from hypothesis import given
from hypothesis import strategies as st

from dranode.sim.scheduler.versions import VersionedMap

_KEYS = st.integers(0, 6)
# A step: the version that the next one is made from, its new entries, its removed keys, and two versions to compare.
_STEPS = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.dictionaries(_KEYS, st.integers(), max_size=3),
        st.sets(_KEYS, max_size=2),
        st.tuples(st.integers(0, 99), st.integers(0, 99)),
    ),
    max_size=30,
)


@given(st.dictionaries(_KEYS, st.integers()), _STEPS)
def test_a_version_never_changes(
    start: dict[int, int], steps: list[tuple[int, dict[int, int], set[int], tuple[int, int]]]
) -> None:
    versions = [(VersionedMap(start), dict(start))]
    for origin, changed, without, looks in steps:
        version, plain = versions[origin % len(versions)]
        gone = without - changed.keys()
        after = {key: value for key, value in {**plain, **changed}.items() if key not in gone}
        versions.append((version.replaced(changed, gone), after))
        (one, ones), (other, others) = (versions[look % len(versions)] for look in looks)
        differing = one.differing(other)
        assert differing is not None
        assert differing >= {key for key in ones.keys() | others.keys() if ones.get(key) != others.get(key)}
        for map_, expected in ((one, ones), (other, others)):
            assert dict(map_) == dict(map_.items()) == expected
            assert sorted(map_.values()) == sorted(expected.values())
            assert len(map_) == len(expected)
            assert [map_.get(key, -1) for key in range(7)] == [expected.get(key, -1) for key in range(7)]
            assert [key in map_ for key in range(7)] == [key in expected for key in range(7)]


def test_mappings_of_different_origin_are_not_compared() -> None:
    assert VersionedMap({1: 1}).differing(VersionedMap({1: 1})) is None


def test_iterating_over_one_version_while_another_is_read_yields_its_own_entries() -> None:
    first = VersionedMap({1: "a", 2: "b"})
    second = first.replaced({2: "c", 3: "d"}, without=[1])
    seen = []
    for key, value in first.items():
        assert second[3] == "d"
        seen.append((key, value))
    assert seen == [(1, "a"), (2, "b")]
