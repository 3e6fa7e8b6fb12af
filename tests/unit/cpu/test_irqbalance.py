"""What irqbalance is told, and that its own bans are restored."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.cpu.isolation.peers import BalancerState, IRQBalance
from dranode.driver.claims.record import Record
from tests.fakes.irqbalance import FakeIRQBalance
from tests.fakes.settings import Kernel, MemoryNotes, PowerCutError, interrupt, peered, quiet_record, settle
from tests.fakes.unix_server import UnixServer
from tests.fakes.waiting import eventually

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="irqbalance listens to root alone")
A, B = quiet_record("a", "2-3"), quiet_record("b", "5")


@pytest.fixture
def irqbalance(tmp_path: Path) -> Iterator[FakeIRQBalance]:
    fake = FakeIRQBalance(tmp_path, banned="7")
    yield fake
    if fake.path.exists():
        fake.end()


def banned(irqbalance: FakeIRQBalance) -> str:
    irqbalance.round()
    return str(irqbalance.banned)


def test_quiet_cpus_are_banned_in_addition_to_its_own_until_their_claims_end(irqbalance: FakeIRQBalance) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, balancer=IRQBalance(str(irqbalance.path.parent)))
    settle(tuner, [A], notes)
    assert str(irqbalance.banned) == "7", "it heeds its socket with its next round"
    settle(tuner, [A, B], notes)
    assert banned(irqbalance) == "2-3,5,7"
    settle(tuner, [B], notes)
    assert banned(irqbalance) == "5,7"
    settle(tuner, [], notes)
    assert banned(irqbalance) == "7"
    settle(tuner, [], notes)
    assert notes.document is None


@pytest.mark.parametrize("heeded", [True, False])
def test_irqbalances_own_bans_survive_a_crash_of_the_driver(irqbalance: FakeIRQBalance, *, heeded: bool) -> None:
    for lasts in range(20):
        kernel = Kernel()
        notes, balancer = MemoryNotes(kernel), IRQBalance(str(irqbalance.path.parent))
        kernel.lasts = lasts
        try:
            settle(peered(kernel, balancer=balancer), [A], notes)
        except PowerCutError:
            pass
        else:
            break
        if heeded:
            irqbalance.round()
        kernel.lasts = None
        settle(peered(kernel, balancer=balancer), [], notes)
        assert banned(irqbalance) == "7"
    assert lasts > 5


def test_a_restarted_irqbalance_gets_the_ban_again(irqbalance: FakeIRQBalance, tmp_path: Path) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, balancer=IRQBalance(str(tmp_path)))
    settle(tuner, [A], notes)
    irqbalance.end()
    again = FakeIRQBalance(tmp_path, banned="6", number=8)
    settle(tuner, [A], notes)
    assert banned(again) == "2-3,6"
    settle(tuner, [], notes)
    assert banned(again) == "6"
    again.end()


def test_a_killed_irqbalance_leaves_only_its_socket(irqbalance: FakeIRQBalance, tmp_path: Path) -> None:
    kernel = Kernel()
    # The kernel's error when a socket is opened as a file.
    kernel.unread["run/irqbalance/irqbalance7.sock"] = errno.ENXIO
    notes, tuner = MemoryNotes(kernel), peered(kernel, balancer=IRQBalance(str(tmp_path)))
    settle(tuner, [A], notes)
    UnixServer.end(irqbalance)
    assert irqbalance.path.exists()
    settle(tuner, [A], notes)
    assert not [each for each in tuner.remaining if "irqbalance" in each]
    settle(tuner, [], notes)
    assert (notes.document, tuner.remaining) == (None, ())
    irqbalance.path.unlink()


@pytest.mark.parametrize("claims", [[A], []])
def test_the_ban_stays_on_record_if_the_folder_cannot_be_listed(
    irqbalance: FakeIRQBalance, tmp_path: Path, claims: list[Record]
) -> None:
    kernel = Kernel()
    notes = MemoryNotes(kernel)
    settle(peered(kernel, balancer=IRQBalance(str(tmp_path))), [A], notes)
    (tmp_path / "file").touch()
    tuner = peered(kernel, balancer=IRQBalance(str(tmp_path / "file")))
    settle(tuner, claims, notes)
    assert [each for each in tuner.remaining if "/run/irqbalance cannot be listed" in each]
    settle(peered(kernel, balancer=IRQBalance(str(tmp_path))), [], notes)
    assert banned(irqbalance) == "7"


def test_nothing_is_needed_without_irqbalance_or_after_it_ended(tmp_path: Path) -> None:
    (tmp_path / "irqbalance9.sock").touch()
    for folder in (tmp_path, tmp_path / "none"):
        kernel = Kernel()
        assert IRQBalance(str(folder)).ask(CPUSet((1,)), {}) == BalancerState()
        settle(peered(kernel, balancer=IRQBalance(str(folder))), [A], MemoryNotes(kernel))
        assert kernel.files[interrupt(24)] == "0-1,4-7"


class Mute(FakeIRQBalance):
    """An irqbalance with an invalid answer."""

    def converse(self, connection: socket.socket) -> None:
        if connection.recv(100) == b"setup":
            connection.sendall(b"what?")


def test_an_irqbalance_that_does_not_answer_is_named_with_what_to_do(tmp_path: Path) -> None:
    mute = Mute(tmp_path)
    (tmp_path / "file").touch()
    for folder, sentence in [
        (tmp_path, "/run/irqbalance/irqbalance7.sock does not answer ('what?' names no banned CPUs): it may"),
        (
            tmp_path / "file",
            "/run/irqbalance cannot be listed (Not a directory); if an irqbalance runs, it may put interrupts",
        ),
    ]:
        kernel = Kernel()
        tuner = peered(kernel, balancer=IRQBalance(str(folder)))
        settle(tuner, [A], MemoryNotes(kernel))
        assert [each for each in tuner.remaining if each.startswith(sentence) and "restart it" in each]
        assert kernel.files[interrupt(24)] == "0-1,4-7"
    mute.end()


def test_an_irqbalance_that_cuts_a_long_list_is_named(irqbalance: FakeIRQBalance, tmp_path: Path) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, balancer=IRQBalance(str(tmp_path)))
    irqbalance.reads = 500
    settle(tuner, [quiet_record("a", ",".join(map(str, range(2, 512, 2))))], notes)
    assert [each for each in tuner.remaining if "irqbalance7.sock may put interrupts back" in each and "1.9.5" in each]
    settle(tuner, [], notes)
    assert banned(irqbalance) == "7"


def test_an_irqbalance_that_ends_meanwhile_does_not_fail_the_claim(irqbalance: FakeIRQBalance) -> None:
    class Ending(IRQBalance):
        def ban(self, *arguments: object) -> None:
            irqbalance.end()
            super().ban(*arguments)  # type: ignore[arg-type] # whatever it gets

    kernel = Kernel()
    tuner = peered(kernel, balancer=Ending(str(irqbalance.path.parent)))
    settle(tuner, [A], MemoryNotes(kernel))
    assert kernel.files[interrupt(24)] == "0-1,4-7"


def test_bans_are_found_through_another_mount_of_the_nodes_files(irqbalance: FakeIRQBalance, tmp_path: Path) -> None:
    kernel = Kernel()
    notes = MemoryNotes(kernel)
    settle(peered(kernel, balancer=IRQBalance(str(tmp_path))), [A], notes)
    assert banned(irqbalance) == "2-3,7"
    (tmp_path / "host").symlink_to(tmp_path)
    settle(peered(kernel, balancer=IRQBalance(str(tmp_path / "host"))), [], notes)
    assert banned(irqbalance) == "7"


def test_an_irqbalance_that_sleeps_through_a_round_gets_the_ban_and_survives(irqbalance: FakeIRQBalance) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, balancer=IRQBalance(str(irqbalance.path.parent)))
    settle(tuner, [A], notes)
    irqbalance.awake.clear()
    settle(tuner, [A, B], notes)
    (sentence,) = [each for each in tuner.remaining if "irqbalance" in each]
    assert "does not answer (timed out): it applies the last change within two of its rounds" in sentence
    settle(tuner, [A, B], notes)
    irqbalance.awake.set()
    eventually(lambda: banned(irqbalance) == "2-3,5,7")
    irqbalance.awake.clear()
    settle(tuner, [], notes)
    settle(tuner, [], notes)
    assert notes.document is not None, "what it has banned by itself is known once it says so"
    irqbalance.awake.set()
    eventually(lambda: banned(irqbalance) == "7")
    settle(tuner, [], notes)
    assert (notes.document, irqbalance.killed) == (None, False)


def test_an_irqbalance_that_sleeps_at_the_first_claim_gets_the_ban_later(irqbalance: FakeIRQBalance) -> None:
    kernel = Kernel()
    notes, tuner = MemoryNotes(kernel), peered(kernel, balancer=IRQBalance(str(irqbalance.path.parent)))
    irqbalance.awake.clear()
    settle(tuner, [A], notes)
    assert [each for each in tuner.remaining if "does not answer (timed out): it may" in each]
    irqbalance.awake.set()
    settle(tuner, [A], notes)
    assert banned(irqbalance) == "2-3,7"
    settle(tuner, [], notes)
    assert (banned(irqbalance), irqbalance.killed) == ("7", False)


def test_a_ban_that_could_not_be_sent_is_sent_later(irqbalance: FakeIRQBalance) -> None:
    class Full(IRQBalance):
        def ban(self, *_: object) -> None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    kernel = Kernel()
    folder, notes = str(irqbalance.path.parent), MemoryNotes(kernel)
    settle(peered(kernel, balancer=IRQBalance(folder)), [A], notes)
    settle(peered(kernel, balancer=Full(folder)), [], notes)
    # It has not applied the first ban yet, so it still reports its own bans.
    assert str(irqbalance.banned) == "7"
    settle(peered(kernel, balancer=IRQBalance(folder)), [], notes)
    assert banned(irqbalance) == "7"
    settle(peered(kernel, balancer=IRQBalance(folder)), [], notes)
    assert (banned(irqbalance), notes.document) == ("7", None)


def test_a_driver_that_is_killed_before_it_takes_a_ban_back_does_so_later(irqbalance: FakeIRQBalance) -> None:
    class Killed(IRQBalance):
        def ban(self, *_: object) -> None:
            raise PowerCutError

    kernel = Kernel()
    folder, notes = str(irqbalance.path.parent), MemoryNotes(kernel)
    settle(peered(kernel, balancer=IRQBalance(folder)), [A], notes)
    with pytest.raises(PowerCutError):
        settle(peered(kernel, balancer=Killed(folder)), [], notes)
    settle(peered(kernel, balancer=IRQBalance(folder)), [], notes)
    assert banned(irqbalance) == "7"
