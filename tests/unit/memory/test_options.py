import pytest

from dranode.api.errors import UsageError
from dranode.memory.machine import MachineMemory, MemoryNode, PagePool
from dranode.memory.options import (
    ORDINARY,
    MemoryGroupBy,
    MemoryOptions,
    check_reserved_memory,
    parse_reserved,
    read_memory_options,
)
from tests.fakes.memory import GIB, MIB

MACHINE = MachineMemory((MemoryNode(0, 4 * GIB, {2 * MIB: PagePool(4)}), MemoryNode(3, GIB)))


@pytest.mark.parametrize(
    ("text", "reserved"),
    [
        ("", {}),
        ("0:1Gi,1:512Mi", {(0, ORDINARY): GIB, (1, ORDINARY): 512 * MIB}),
        ("0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=2Gi", {(0, 0): GIB, (0, 2 * MIB): 64 * MIB, (1, 0): 2 * GIB}),
        (" 0:hugepages-1Gi=2Gi , memory=1Gi ", {(0, GIB): 2 * GIB, (0, 0): GIB}),
        ("7:0", {(7, 0): 0}),
    ],
)
def test_both_forms_of_reserved_memory_are_accepted(text: str, reserved: dict[tuple[int, int], int]) -> None:
    assert parse_reserved(text) == reserved


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1Gi", 'has "1Gi" without a NUMA node'),
        ("memory=1Gi", "without a NUMA node"),
        ("0:1Gi,1Gi", 'has "1Gi" without a NUMA node'),
        ("x:1Gi", '"x" should be a NUMA node'),
        ("-1:1Gi", '"-1" should be a NUMA node'),
        ("0:lots", '"lots" is not a quantity'),
        ("0:", '"" is not a quantity'),
        ("0:-1Gi", "not a whole number of bytes"),
        ("0:100m", "not a whole number of bytes"),
        ("0:hugepages-2Mi=3Mi", "not a whole number of pages"),
        ("0:hugepages=2Mi", 'has "hugepages", which is neither'),
        ("0:hugepages-x=2Mi", "which is neither"),
        ("0:cpu=1", 'has "cpu", which is neither'),
        ("0:1Gi,0:2Gi", "reserves memory of NUMA node 0 twice"),
    ],
)
def test_an_invalid_option_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match="--reserved-memory") as caught:
        parse_reserved(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1:1Gi", "names NUMA node 1, but this machine has memory only on 0, 3"),
        ("3:2Gi", "reserves 2Gi of NUMA node 3, which has only 1Gi"),
        ("0:hugepages-1Gi=1Gi", "names hugepages-1Gi of NUMA node 0, but the kernel has hugepages-2Mi"),
    ],
)
def test_memory_that_the_machine_lacks_cannot_be_reserved(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_reserved_memory(MemoryOptions(reserved=parse_reserved(text)), MACHINE)
    assert sentence in str(caught.value)


def test_pages_may_be_reserved_before_the_kernel_has_them() -> None:
    check_reserved_memory(MemoryOptions(reserved=parse_reserved("0:memory=4Gi,hugepages-2Mi=1Gi")), MACHINE)


def test_missing_options_have_their_defaults() -> None:
    assert read_memory_options({}) == MemoryOptions()
    given = read_memory_options({"group_by": "socket", "hugepages_exclusive": True, "reserved_memory": "0:1Gi"})
    assert (given.group_by, given.exclusive, given.reserved) == (MemoryGroupBy.SOCKET, True, {(0, 0): GIB})
    with pytest.raises(UsageError, match='--memory-group-by is numa or socket or machine, not "core"'):
        read_memory_options({"group_by": "core"})
