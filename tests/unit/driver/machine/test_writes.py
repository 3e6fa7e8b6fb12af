"""A driver that runs on a machine other than the host does not write to the host."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dranode.api.errors import in_words
from dranode.driver.claims.answers import Refused
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import ClaimRef
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root
from dranode.driver.node.node import NodeClaims
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import Board, WiredLamps, allocated_claim

FILE = "sys/class/lamps/lamp-0/brightness"


class WritingLamps(WiredLamps):
    """Lamps that are switched on through a kernel file."""

    def __init__(self, root: Root) -> None:
        super().__init__(Board())
        self.root = root

    def configure(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        del claim, grants
        self.root.write(FILE, "bright")

    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        del claim, grants
        if self.root.exists(FILE):
            self.root.write(FILE, "dim")


def prepare(folder: Path, root: Root) -> object:
    node = NodeClaims(WritingLamps(root), folder / "state", folder / "cdi")
    (folder / "state").mkdir()
    node.open()
    claim = allocated_claim("a", WritingLamps.driver, ["lamp-0"])
    ref = ClaimRef.of(claim)
    (answer,) = node.prepare({ref: claim}).values()
    assert node.unprepare((ref,)) == {ref.uid: None}
    assert node.records() == ()
    node.close()
    return answer


def lay(folder: Path) -> Path:
    place = folder / FILE
    place.parent.mkdir(parents=True)
    place.write_text("dim")
    return place


@pytest.mark.parametrize("form", ["folder", "description", "YAML"])
def test_a_machine_that_is_not_the_host_is_not_written_to(tmp_path: Path, form: str) -> None:
    place = lay(tmp_path / "machine")
    (tmp_path / "m.yaml").write_text(f'base: host\nfiles: {{"/{FILE}": dim}}\n')
    machines = {"folder": str(tmp_path / "machine"), "description": "cores=2", "YAML": str(tmp_path / "m.yaml")}
    answer = prepare(tmp_path, open_machine(machines[form]))
    assert isinstance(answer, Refused)
    assert f"claim default/a has to write /{FILE}, but a captured or made-up machine" in str(answer)
    assert place.read_text() == "dim"


def test_the_error_names_a_file_that_the_host_does_not_have(tmp_path: Path) -> None:
    answer = prepare(tmp_path, HostRoot())
    assert isinstance(answer, Refused)
    assert f"FileNotFoundError: [Errno 2] No such file or directory: '/{FILE}'" in str(answer)


def test_the_host_is_written_to_in_one_write(tmp_path: Path) -> None:
    place = lay(tmp_path)
    HostRoot().write(str(place).lstrip("/"), "bri")
    assert place.read_text() == "bri"


# As in the driver's pod: root without the right to bypass file modes.
DENIED = """
import os, sys
from dranode.driver.machine.folder import HostRoot
root = HostRoot()
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
for path in sys.argv[1:]:
    try:
        root.write(path.lstrip("/"), "x")
    except OSError as error:
        print(error.errno, error.filename)
"""


def test_a_read_only_file_is_told_from_a_file_of_another_user() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "closed").mkdir()
        modes = {"kernels": 0o444, "others": 0o644 if os.geteuid() == 0 else 0o466, "closed/below": 0o444}
        for path, mode in modes.items():
            (folder / path).write_text("1")
            (folder / path).chmod(mode)
        (folder / "closed").chmod(0o700 if os.geteuid() == 0 else 0)
        paths = [str(folder / path) for path in modes]
        ran = subprocess.run([sys.executable, "-c", DENIED, *paths], capture_output=True, text=True, check=True)
        (folder / "closed").chmod(0o700)
    numbers = (errno.EPERM, errno.EACCES, errno.EACCES)
    assert ran.stdout.splitlines() == [f"{number} {path}" for number, path in zip(numbers, paths, strict=True)]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("a"), "KeyError('a')"),
        (FileNotFoundError(2, "no\nsuch", "/a"), "FileNotFoundError: [Errno 2] no such: '/a'"),
        (OSError(errno.EIO, "broken"), "OSError(5, 'broken')"),
        (OSError(1, "no", "/a", None, "/b"), "PermissionError: [Errno 1] no: '/a' -> '/b'"),
    ],
)
def test_an_error_is_reported_with_its_file_and_in_one_line(error: Exception, words: str) -> None:
    assert in_words(error) == words
