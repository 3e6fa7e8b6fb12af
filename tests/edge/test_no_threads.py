"""A program that cannot start another thread ends with one sentence, whichever thread it is."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fakes.waiting import PATIENCE

# Makes Python's threads fail after this many, as at the limit on tasks.
PROGRAM = """
import sys, threading

left, start = int(sys.argv[1]), threading.Thread.start

def starts(thread):
    global left
    left -= 1
    if left < 0:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = starts
from dranode.driver.cli.commands import cli, run
run(cli, sys.argv[2:])
"""
SENTENCE = "dranode: no thread can be started, because the limit on tasks is reached; raise pids.max of "
EXAMPLE = Path(__file__).parents[2] / "examples" / "cpu-numa.yaml"


def ended(threads: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(threads), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("threads", [0, 1, 4, 7])
def test_a_driver_that_cannot_start_a_thread_names_the_limit(threads: int) -> None:
    # pytest's own folders can be too long for a socket path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        folder = Path(name)
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        (folder / "store").mkdir()
        options: list[str | Path] = [
            "--machine",
            "cores=4",
            "--http-address",
            "127.0.0.1:0",
            "--nri-socket",
            folder / "nri.sock",
        ]
        places: list[str | Path] = [
            "--store",
            folder / "store",
            "--kubelet-root",
            folder / "kubelet",
            "--cdi-dir",
            folder / "cdi",
        ]
        done = ended(threads, "serve", *options, *places)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(SENTENCE)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("threads", [0, 3])
def test_a_local_run_that_cannot_start_a_thread_names_the_limit(threads: int) -> None:
    done = ended(threads, "local", "--machine", "cores=4", EXAMPLE)
    assert done.returncode == 1
    assert done.stderr.startswith(SENTENCE)
    assert len(done.stderr.splitlines()) == 1
