"""Everything known about claims is in one book, whose indexes follow its entries."""

import itertools
from collections.abc import Iterator

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import Held
from dranode.driver.claims.record import Record
from dranode.driver.node.ledger import Damaged
from dranode.driver.node.record_store import Entry, RecordBook

CPUS = CPUSet((2, 3))
WHOLE = Record(
    uid="a", name="a", grants=(Grant(request="r", pool="p", device="d"),), cpus=CPUS, held=CPUS, fingerprint="f"
)
FROM_SPEC = Record(uid="a", cpus=CPUS, held=CPUS)
ROW = Damaged("a", ("d", "e"), "the row does not match its checksum")
STATES = {
    "whole": Entry("a", WHOLE),
    "lost": Entry("a", Record(uid="a")),
    "damaged": Entry("a", None, ROW),
    "damaged, with a spec": Entry("a", FROM_SPEC, ROW),
    "leftover": Entry("a", FROM_SPEC, on_file=False),
    "leftover of which nothing is known": Entry("a", Record(uid="a"), on_file=False),
    "none": None,
}


def own_name(device: str, _state: object) -> frozenset[str]:
    return frozenset((device,))


def changed(states: tuple[Entry | None, ...]) -> RecordBook:
    book = RecordBook(own_name)
    for entry in states:
        if entry is None:
            book.forget("a")
        else:
            book.enter(entry)
    return book


def read(book: RecordBook) -> dict[str, object]:
    return {
        "held": book.held,
        "unknown": book.unknown,
        "damaged": book.damaged,
        "records": book.records(),
        "known": book.known(),
        "on file": book.on_file(),
        "unreadable": book.unreadable(["a"]),
    }


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_a_changed_entry_leaves_nothing_of_the_old_one(before: str, after: str) -> None:
    entry = STATES[after]
    fresh = RecordBook(own_name)
    fresh.replace(() if entry is None else (entry,))
    assert read(changed((STATES[before], entry))) == read(fresh)


@pytest.mark.parametrize(
    ("state", "on_record", "known", "devices", "unknown"),
    [
        ("whole", True, True, {"d"}, False),
        ("lost", True, True, set(), True),
        ("damaged", False, False, None, True),
        ("damaged, with a spec", False, True, {"d", "e"}, False),
        ("leftover", True, True, set(), False),
        ("none", False, False, None, False),
    ],
)
def test_the_book_says_what_is_known_about_a_claim(
    state: str,
    on_record: bool,  # noqa: FBT001 - a parameter of the test
    known: bool,  # noqa: FBT001 - a parameter of the test
    devices: set[str] | None,
    unknown: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    book = changed((STATES[state],))
    assert [bool(book.record("a")), bool(book.known_of(["a"])), "a" in book.unknown] == [on_record, known, unknown]
    holding = book.held.holdings.get("a")
    assert (None if holding is None else holding.names) == devices


def test_a_claim_is_unreadable_if_its_row_is_damaged_and_nothing_else_knows_it() -> None:
    unreadable = {state: changed((entry,)).unreadable(["a", "b"]) for state, entry in STATES.items()}
    assert {state for state, uids in unreadable.items() if uids} == {"damaged"}


def test_a_follower_learns_which_claims_have_changed() -> None:
    book = RecordBook(own_name)
    assert book.touched is None
    book.touched = frozenset()
    book.enter(Entry("a", WHOLE))
    book.forget("b")
    assert book.touched == {"a", "b"}
    book.replace(())
    assert book.touched is None


def test_another_thread_sees_either_the_old_entries_or_the_new_ones() -> None:
    book = changed((STATES["whole"],))
    seen = []

    def entries() -> Iterator[Entry]:
        for uid in "bc":
            seen.append(book.uids())
            yield Entry(uid, Record(uid=uid))

    book.replace(entries())
    assert seen == [{"a"}, {"a"}]
    assert book.uids() == {"b", "c"}
    assert book.held == Held.of(record.holding(own_name) for record in book.records())


def test_only_intact_rows_are_on_file() -> None:
    assert {state for state, entry in STATES.items() if changed((entry,)).on_file()} == {"whole", "lost"}
