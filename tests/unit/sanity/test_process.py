"""What a driver's process uses, including every process that it has started."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dranode.sanity.driver_link import CommandDriver
from tests.fakes.waiting import eventually

PLACES = {"kubeconfig": "k", "node": "n"}
PROGRAM = """
import os, subprocess, sys, threading, time
files = [open(os.devnull) for _ in range(20)]
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"])
dead = subprocess.Popen([sys.executable, "-c", ""])
time.sleep(600)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[CommandDriver]:
    driver = CommandDriver([sys.executable, "-c", PROGRAM], PLACES, tmp_path)
    yield driver
    driver.close()


def test_children_are_counted_and_an_ended_child_is_a_zombie(driver: CommandDriver) -> None:
    assert driver.usage() is None
    driver.start()

    def settled() -> bool:
        usage = driver.usage()
        return usage is not None and usage.zombies == 1 and usage.threads == 3 and usage.descriptors >= 23

    eventually(settled, driver.usage)
    usage = driver.usage()
    assert usage is not None
    assert usage.resident > 1 << 20
    assert usage.cpu > 0
    driver.kill()
    assert driver.usage() is None


def test_a_driver_below_a_shell_that_was_ended_does_not_go_on(tmp_path: Path) -> None:
    shell = CommandDriver(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/child; wait"], PLACES, tmp_path)
    shell.start()
    child = int(eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), shell.log))
    assert shell.terminate(60.0) == -signal.SIGTERM
    eventually(lambda: not psutil.pid_exists(child), shell.log)
