"""A made-up machine whose settings of interrupts may be written, in memory alone."""

from __future__ import annotations

import errno

import pytest

from dranode.driver.machine.forms import open_machine

IRQ = "proc/irq/24/smp_affinity_list"
DEFAULT = "proc/irq/default_smp_affinity"


def test_settings_of_interrupts_are_written_as_the_kernel_takes_them() -> None:
    machine = open_machine("cores=8,interrupts=2")
    assert machine.listdir("proc/irq") == ["24", "25", "default_smp_affinity"]
    assert [machine.read_bytes(IRQ), machine.read_bytes(DEFAULT)] == [b"0-7\n", b"000000ff\n"]
    machine.write(IRQ, "0,1,4\n")
    machine.write(DEFAULT, "f0\n")
    assert [machine.read_bytes(IRQ), machine.read_bytes(DEFAULT)] == [b"0-1,4\n", b"000000f0\n"]
    assert open_machine("cores=8,interrupts=2").read_bytes(IRQ) == b"0-7\n"


@pytest.mark.parametrize(
    ("path", "text", "error"),
    [
        (IRQ, "", errno.EINVAL),
        (IRQ, "x", errno.EINVAL),
        (DEFAULT, "0", errno.EINVAL),
        ("proc/irq/99/smp_affinity_list", "0", errno.ENOENT),
        ("sys/devices/system/cpu/cpu1/online", "0", errno.EROFS),
    ],
)
def test_what_the_kernel_would_not_take_is_refused(path: str, text: str, error: int) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number says which
        open_machine("cores=8,interrupts=2").write(path, text)
    assert raised.value.errno == error


def test_a_machine_without_interrupts_has_no_such_files() -> None:
    assert not open_machine("cores=8").exists("proc/irq")
