"""Modules from one file of an image: what was saved is loaded, what is another one now is not."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.waiting import PATIENCE

_SAVE = """
import sys, lamps.bulb
from pathlib import Path
from release.save_modules import save_modules
print(save_modules(Path({file!r}), ["lamps", "lamps.bulb", "sys", "typing.io"]))
"""
_USE = """
from dranode.driver.process.saved_modules import use_saved_modules
use_saved_modules({file!r})
import lamps.bulb
print(type(lamps.bulb.__loader__).__name__, lamps.bulb.WATTS)
"""
ROOT = Path(__file__).parents[4]
SAVED, USUAL = "_Loader 60\n", "SourceFileLoader 60\n"


class Image:
    """A folder of packages with one of them, and the file."""

    def __init__(self, folder: Path) -> None:
        self.packages, self.file = folder / "packages", folder / "dranode-modules"
        self.bulb = self.packages / "lamps" / "bulb.py"
        self.bulb.parent.mkdir(parents=True)
        (self.bulb.parent / "__init__.py").touch()
        self.bulb.write_text("WATTS = 60\ndef burn(): raise ValueError\n")
        compileall.compile_dir(self.packages, quiet=1)

    def run(self, code: str, *options: str, **variables: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.packages), **variables}
        command = [sys.executable, *options, "-c", code.format(file=str(self.file))]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def use(self, code: str = "", *options: str, **variables: str) -> str:
        return self.run(_USE + code, *options, **variables)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    image = Image(tmp_path)
    # sys has no source.
    assert image.run(_SAVE) == "2\n"
    return image


def test_a_module_is_loaded_from_the_file_and_is_as_if_it_were_not(image: Image) -> None:
    code = """
import inspect, traceback, importlib.resources
print(lamps.__path__, lamps.bulb.__file__, lamps.bulb.__cached__.endswith(".pyc"), lamps.bulb.__spec__.parent)
print(inspect.getsource(lamps.bulb.burn), importlib.resources.files("lamps").joinpath("bulb.py").is_file())
try:
    lamps.bulb.burn()
except ValueError:
    print(traceback.format_exc().splitlines()[-2])
"""
    (image.bulb.parent / "__pycache__").rename(image.packages / "put-away")
    lines = image.use(code).splitlines()
    assert lines[0] == SAVED.strip()
    assert lines[1] == f"['{image.bulb.parent}'] {image.bulb} True lamps"
    assert lines[2:] == ["def burn(): raise ValueError", " True", "                ^^^^^^^^^^^^^^^^"]


def test_a_module_that_was_changed_since_is_loaded_as_it_is_now(image: Image) -> None:
    image.bulb.write_text("WATTS = 5\n")
    assert image.use() == "SourceFileLoader 5\n"


def test_a_change_that_leaves_the_size_is_seen_too(image: Image) -> None:
    before = image.bulb.stat()
    image.bulb.write_text(image.bulb.read_text().replace("60", "40"))
    os.utime(image.bulb, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    assert image.use() == "SourceFileLoader 40\n"


def test_files_that_were_all_given_one_time_are_as_they_were(image: Image) -> None:
    for file in (image.bulb, image.file, image.bulb.parent / "__init__.py"):
        os.utime(file, (0, 0))
    assert image.use() == SAVED


def test_a_module_that_is_gone_is_not_found(image: Image) -> None:
    image.bulb.unlink()
    failed = "try:\n    import lamps.bulb\nexcept ModuleNotFoundError as error:\n    print(error)"
    code = _USE.partition("import lamps")[0] + failed
    assert image.run(code) == "No module named 'lamps.bulb'\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:7],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[-16:],
        lambda data: data[:-16] + (1 << 62).to_bytes(8, "little") + data[-8:],
        lambda data: data[:-16] + bytes(8) + data[-8:],
        lambda data: data[:-16] + (3).to_bytes(8, "little") + data[-8:],
    ],
)
def test_a_file_that_is_not_whole_is_as_none(image: Image, damage: object) -> None:
    assert callable(damage)
    image.file.write_bytes(damage(image.file.read_bytes()))
    assert image.use() == USUAL


def test_without_a_file_or_with_another_thing_in_its_place_modules_come_as_usual(image: Image) -> None:
    image.file.unlink()
    assert image.use() == USUAL
    image.file.mkdir()
    assert image.use() == USUAL
    image.file.rmdir()
    os.mkfifo(image.file)
    assert image.use() == USUAL


def test_a_python_with_other_folders_or_without_assertions_does_without(image: Image, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert image.use(PYTHONPATH=f"{other}:{image.packages}") == USUAL
    assert image.use("", "-O") == USUAL
    assert image.use() == SAVED


def test_another_python_does_without(image: Image) -> None:
    code = "import importlib.util\nimportlib.util.MAGIC_NUMBER = b'none'\n"
    assert image.run(code + _USE) == USUAL
