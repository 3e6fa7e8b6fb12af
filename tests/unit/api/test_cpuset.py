"""CPU lists and masks of any length that the kernel, an archive or a claim may contain."""

import time

import pytest

from dranode.api.cpuset import MAX_CPU, CPUSet


@pytest.mark.parametrize("text", ["0x1", "-1", "1_0", " 1", "", "1,", "123456789", "g"])
def test_a_mask_is_written_in_hexadecimal_words(text: str) -> None:
    with pytest.raises(ValueError, match="not a hexadecimal word of 32 bits"):
        CPUSet.parse_mask(text)


def test_a_mask_reads_its_words_from_the_most_significant() -> None:
    assert str(CPUSet.parse_mask("1,00000000,0000000f")) == "0-3,64"
    assert CPUSet.parse_mask(",".join(["ffffffff"] * ((MAX_CPU + 1) // 32))) == CPUSet.parse(f"0-{MAX_CPU}")


def test_a_mask_beyond_every_possible_cpu_is_refused_before_it_is_parsed() -> None:
    for text in (",".join(["0"] * ((MAX_CPU + 1) // 32 + 1)), "ffffffff," * (1 << 20)):
        with pytest.raises(ValueError, match="goes beyond the largest CPU id, 1048575"):
            CPUSet.parse_mask(text)


@pytest.mark.parametrize(
    "items",
    [range(0, 600_000, 3), range(600_000, 0, -5), [5] * 100_000, [*range(1000), *range(500, 70_000, 7)]],
    ids=["apart", "backwards", "again and again", "overlapping"],
)
def test_a_list_of_many_items_is_the_set_of_them(items: list[int]) -> None:
    wanted = CPUSet.of_mask(
        int("".join("01"[cpu in set_] for set_ in [set(items)] for cpu in range(max(items), -1, -1)), 2)
    )
    assert CPUSet.parse(",".join(map(str, items))) == wanted


def test_many_wide_ranges_take_no_longer_than_many_narrow_ones() -> None:
    started = time.process_time()
    assert len(CPUSet.parse(",".join([f"0-{MAX_CPU}"] * 380_000))) == MAX_CPU + 1
    assert time.process_time() - started < 60  # each one alone took 128 KiB, all of them minutes


def test_a_list_longer_than_any_possible_one_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match="is longer than any of 1048576 CPUs"):
        CPUSet.parse("0," * (4 << 20))
