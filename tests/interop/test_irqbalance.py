"""Quiet CPUs beside a real irqbalance, which is informed by its socket and left as it was, also by a killed driver.

`make interop` installs Debian's package irqbalance, where it installs packages.
"""

import contextlib
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.node.node import NodeClaims
from tests.fakes.waiting import eventually
from tests.interop.balancer import Balancer, irqbalance, program
from tests.interop.test_isolation import HELD, IRQ, ONLINE, driver, prepare, settings, unmoved, unprepare
from tests.interop.test_isolation import _why_not as why_not_isolated
from tests.interop.vanishing import text_of

_REASON = why_not_isolated() or ("" if program() else "irqbalance is not installed (Debian's package irqbalance)")
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_REASON), reason=_REASON or "-")]

QUIET = CPUSet((HELD,))
# Within three rounds it has moved every interrupt that it wants to move.
ROUNDS = 3


@contextlib.contextmanager
def running(folder: Path, **environment: str) -> Iterator[Balancer]:
    """Yield a real irqbalance; afterwards the machine's settings are what they were before."""
    with irqbalance(folder / "irqbalance.log", **environment) as balancer:
        if balancer is None:
            pytest.skip("irqbalance ends at once on this machine")
        before = movable()
        try:
            yield balancer
        finally:
            node = driver(folder)
            node.unprepare(tuple(record.ref for record in node.records()))
            eventually(lambda: tuned(node) == before)


def tuned(node: NodeClaims) -> dict[str, str]:
    """Return the machine's settings after another check by the driver, which checks every ten seconds."""
    node.tune()
    return movable()


def movable() -> dict[str, str]:
    """Return the settings without those that irqbalance changes."""
    return {path: text for path, text in settings().items() if not path.endswith("smp_affinity_list")}


def leaves(balancer: Balancer, node: NodeClaims, cpus: CPUSet) -> None:
    """Wait until irqbalance bans exactly these CPUs, and check that it keeps the ban.

    The driver checks again meanwhile, because on a busy machine irqbalance may not have answered in time.
    """

    def looks() -> bool:
        node.tune()
        return balancer.banned() == cpus

    eventually(looks)
    rounds_pass(balancer)
    assert balancer.banned() == cpus


def rounds_pass(balancer: Balancer, count: int = ROUNDS) -> None:
    last = balancer.rounds() + count
    eventually(lambda: balancer.rounds() >= last or balancer.ended())
    assert not balancer.ended()


def of_it(node: NodeClaims) -> list[str]:
    """Return what the driver logs about irqbalance after another check; that it is busy, until the next check."""
    node.tune()
    return [sentence for sentence in unmoved(node) if "irqbalance" in sentence]


def on_held(node: NodeClaims) -> dict[str, str]:
    """Return the interrupts that may fire on the held CPU, without those that the kernel keeps there."""
    kept = {sentence.split()[1] for sentence in unmoved(node) if sentence.startswith("interrupt")}
    texts = {path.parent.name: text_of(path) for path in IRQ.glob("*/smp_affinity_list")}
    return {name: text for name, text in texts.items() if HELD in CPUSet.parse(text) and name not in kept}


def test_it_is_informed_of_quiet_cpus_and_puts_nothing_back_on_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path) as balancer:
        assert balancer.banned() == CPUSet()
        node = driver(tmp_path)
        prepare(node)
        leaves(balancer, node, QUIET)
        with caplog.at_level(logging.WARNING):
            for _ in range(ROUNDS):
                rounds_pass(balancer, 1)
                assert on_held(node) == {}
                node.tune()
        assert "another program has put" not in caplog.text
        eventually(lambda: not of_it(node))
        unprepare(node)
        leaves(balancer, node, CPUSet())


@pytest.mark.parametrize("own", [str(QUIET), str(min(ONLINE))])
def test_the_administrators_own_bans_are_restored(tmp_path: Path, own: str) -> None:
    with running(tmp_path, IRQBALANCE_BANNED_CPULIST=own) as balancer:
        banned = CPUSet.parse(own)
        eventually(lambda: balancer.banned() == banned)
        node = driver(tmp_path)
        prepare(node)
        leaves(balancer, node, banned | QUIET)
        unprepare(node)
        leaves(balancer, node, banned)


def killed(folder: Path, what: str) -> None:
    """Run a driver that prepares (and unprepares) the claim, and is killed before or after it informs irqbalance."""
    script = (
        "import os, signal; from tests.interop.test_isolation import *\n"
        "from dranode.cpu.isolation.peers import IRQBalance\n"
        "def die(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "def before(*_): die()\n"
        "told = IRQBalance.ban\n"
        "def after(*words): told(*words); die()\n"
        f"node = driver(Path({str(folder)!r}))\n{what}"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL


_KILLS = {
    "before it is told": "IRQBalance.ban = before; prepare(node); node.tune()",
    "once it is told": "IRQBalance.ban = after; prepare(node); node.tune()",
    "with the claim prepared": "prepare(node); node.tune(); die()",
    "before it is told of the end": "prepare(node); node.tune(); IRQBalance.ban = before; unprepare(node); node.tune()",
    "once it is told of the end": "prepare(node); node.tune(); IRQBalance.ban = after; unprepare(node); node.tune()",
}


@pytest.mark.parametrize("heeded", [True, False], ids=["after-rounds", "at-once"])
@pytest.mark.parametrize("what", _KILLS.values(), ids=[name.replace(" ", "-") for name in _KILLS])
def test_a_killed_driver_leaves_no_bans(tmp_path: Path, what: str, *, heeded: bool) -> None:
    with running(tmp_path) as balancer:
        killed(tmp_path, what)
        if heeded:
            rounds_pass(balancer)
        node = driver(tmp_path)
        unprepare(node)
        leaves(balancer, node, CPUSet())


def test_one_that_starts_while_a_claim_is_held_is_informed_too(tmp_path: Path) -> None:
    with running(tmp_path) as balancer:
        node = driver(tmp_path)
        prepare(node)
        with irqbalance(tmp_path / "second.log") as second:
            assert second is not None
            assert second.banned() == CPUSet()
            # Its socket stays, as always after SIGKILL.
            balancer.process.kill()
            balancer.process.wait()
            leaves(second, node, QUIET)
            eventually(lambda: not of_it(node))
            unprepare(node)
            leaves(second, node, CPUSet())
            eventually(lambda: not of_it(node))
            assert not unmoved(node)
