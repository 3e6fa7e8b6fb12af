"""What a person sees in a real terminal, 80 and 140 columns wide."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.apiserver import Fault, api_server
from tests.fakes.kubeconfig import write_kubeconfig
from tests.fakes.screen import Screen, in_terminal

PROGRAM = Path(sys.executable).with_name("dranode")
EXAMPLES = Path(__file__).parents[2] / "examples"
SPINNER = re.compile("[\u2800-\u28ff]")
WIDTHS = pytest.mark.parametrize("width", [80, 140])


def frames(screen: Screen, title: str) -> list[str]:
    """The lines of the picture under a title, without the claims' letters."""
    start = screen.lines.index(title)
    drawn = []
    for line in screen.lines[start + 3 :]:
        if not line.startswith(("│", "╭", "╰")):
            break
        drawn.append(re.sub(r"(?<=[\d ]) [A-Z](?= )", "  ", line))
    return drawn


@WIDTHS
def test_the_demo_draws_the_same_layout_before_and_after(tmp_path: Path, width: int) -> None:
    status, screen = in_terminal([PROGRAM, "demo"], width, tmp_path)
    assert status == 0
    assert [line for line in screen.lines if SPINNER.search(line)] == []
    assert not any(re.search(r"starting|pod \d of", line) for line in screen.lines)
    before, after = frames(screen, "Before"), frames(screen, "With the claims prepared")
    assert len(before) > 5
    assert before == after
    assert "A default/near-memory  0-2,32-34" in screen.lines
    # Wrapped YAML would not be valid.
    assert "          threads: full-core" in screen.lines


@WIDTHS
def test_a_local_run_draws_other_drivers_devices_in_their_numa_node(tmp_path: Path, width: int) -> None:
    machine: list[str | Path] = ["--drivers", "cpu", "--drivers", "gpu", "--machine", "sockets=2,cores=8,gpus=2"]
    status, screen = in_terminal([PROGRAM, "local", *machine, EXAMPLES / "gpu-aligned.yaml"], width, tmp_path)
    assert status == 0
    assert [line for line in screen.lines if SPINNER.search(line)] == []
    assert frames(screen, "Before") == frames(screen, "With the claims prepared")
    boxes = [line.split("│") for line in screen.lines if "gpu-0000-11-00-0" in line and line.startswith("│")]
    assert [[part.split() for part in box] for box in boxes] == [
        [[], ["gpu-0000-11-00-0"], [], ["gpu-0000-21-00-0"], []],
        [[], ["gpu-0000-11-00-0", "A"], [], ["gpu-0000-21-00-0"], []],
    ]
    assert "A default/training  0-3; gpu-0000-11-00-0" in screen.lines
    assert not any("claim-" in line for line in screen.lines)


def test_cdi_devices_are_shown_with_verbose(tmp_path: Path) -> None:
    status, screen = in_terminal([PROGRAM, "demo", "-v"], 80, tmp_path)
    assert status == 0
    assert "CDI devices" in screen.lines
    assert sum(line.startswith("  dra.k8s.io/cpu=claim-") for line in screen.lines) == 3


@WIDTHS
def test_attempts_of_queues_are_blocks_with_hanging_lines(tmp_path: Path, width: int) -> None:
    queues: list[str | Path] = ["--queues", EXAMPLES / "queues.yaml", "--nodes", EXAMPLES / "queues-nodes.yaml"]
    status, screen = in_terminal(
        [PROGRAM, "local", "--drivers", "gpu", *queues, EXAMPLES / "queues-workloads.yaml"], width, tmp_path
    )
    assert status == 1  # one workload still waits for quota
    start = screen.lines.index("cycle 1  train")
    assert screen.lines[start + 1] == "  pod set main  flavor reserved  Preempt, chosen"
    block = screen.lines[start + 2 : screen.lines.index("", start)]
    # Each line of the block begins with a label, or is indented to the text of the line before.
    matches = [re.match(r"    [a-z]+( from)? +| +", line) for line in block]
    assert {match.end() for match in matches if match} == {15}
    assert "default/train-main-0  reserved-0  gpu-0000-11-00-0" in screen.lines


@pytest.mark.parametrize(
    ("command", "path", "what"),
    [
        (("kubectl-dranode", "claims"), "/resourceclaims", "list resourceclaims"),
        (("kubectl-dranode", "explain", "a"), "/pods/a", "get pods in namespace default"),
        (("dranode", "fit"), "/nodes", "list nodes"),
        (("dranode", "report"), "/nodes", "list nodes"),
        (("dranode", "doctor", "--all-nodes"), "/resourceslices", "list resourceslices"),
    ],
)
def test_a_command_shows_which_request_it_waits_for(
    tmp_path: Path, command: tuple[str, ...], path: str, what: str
) -> None:
    with api_server() as api:
        api.faults.append(Fault(path=path, seconds=0.5))
        program: list[str | Path] = [PROGRAM.with_name(command[0]), *command[1:]]
        _, screen = in_terminal([*program, "--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig")], 200, tmp_path)
    assert re.search(f"[\u2800-\u28ff] .*: {what}", re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", screen.written))
    assert not any(SPINNER.search(line) for line in screen.lines)


@pytest.mark.parametrize("command", [("kubectl-dranode", "claims"), ("dranode", "report"), ("dranode", "explain", "a")])
def test_ctrl_c_ends_a_command_that_waits_for_an_api_server(tmp_path: Path, command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = write_kubeconfig(tmp_path, silent.getsockname()[1], {}, scheme="http")
        # A shell that runs the tests in the background has the signal ignored, and children inherit that.
        program: list[str | Path] = ["env", "--default-signal=INT", PROGRAM.with_name(command[0]), *command[1:]]
        settings: list[str | Path] = ["--kubeconfig", kubeconfig]
        with subprocess.Popen([*program, *settings], stdout=subprocess.DEVNULL) as process, silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            # Shells end a loop around a command only if the signal has ended it.
            assert process.wait(30) == -signal.SIGINT


def test_a_command_that_a_signal_ends_shows_the_cursor_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = write_kubeconfig(tmp_path, silent.getsockname()[1], {}, scheme="http")
        claims: list[str | Path] = [PROGRAM.with_name("kubectl-dranode"), "claims", "--kubeconfig", kubeconfig]
        status, screen = in_terminal(claims, 80, tmp_path, end_after="\x1b[?25l")
    assert status == -signal.SIGTERM
    assert screen.written.rindex("\x1b[?25h") > screen.written.rindex("\x1b[?25l")
