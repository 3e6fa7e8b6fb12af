"""Every fuzzer accepts its corpus, including inputs that once failed, and a seeded set of altered inputs."""

import ast
import importlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz.run import FOLDER, corpus, fuzzers

ALTERED = 3


def target(fuzzer: Path) -> Callable[[bytes], None]:
    found: Callable[[bytes], None] = importlib.import_module(f"fuzz.{fuzzer.stem}").test_one_input
    return found


def altered(content: bytes, dice: random.Random) -> Iterator[bytes]:
    """The input cut off, with a byte changed, and with a piece repeated."""
    yield content
    for _ in range(ALTERED):
        at = dice.randrange(len(content) + 1)
        yield content[:at]
        yield content[:at] + bytes([dice.randrange(256)]) + content[at + 1 :]
        yield content[:at] + content[max(0, at - 20) :]


@pytest.mark.parametrize("fuzzer", fuzzers(), ids=lambda fuzzer: fuzzer.stem)
def test_a_fuzzer_accepts_its_corpus(fuzzer: Path) -> None:
    inputs = sorted(corpus(fuzzer).iterdir())
    assert inputs
    test_one_input, dice = target(fuzzer), random.Random(fuzzer.stem)
    for path in inputs:
        for content in altered(path.read_bytes(), dice):
            test_one_input(content)


def test_corpora_are_small_and_each_belongs_to_a_fuzzer() -> None:
    assert sorted(folder.name for folder in (FOLDER / "corpus").iterdir()) == [
        fuzzer.stem.removesuffix("_fuzzer") for fuzzer in fuzzers()
    ]
    sizes = [path.stat().st_size for path in (FOLDER / "corpus").rglob("*") if path.is_file()]
    assert max(sizes) <= 20_000
    assert sum(sizes) < 200_000


@pytest.mark.parametrize("fuzzer", fuzzers(), ids=lambda fuzzer: fuzzer.stem)
def test_oss_fuzz_can_put_lines_in_front_of_a_fuzzer(fuzzer: Path) -> None:
    compile("import atexit\n" + fuzzer.read_text(), fuzzer.name, "exec")


def test_pyinstaller_finds_atheris_by_an_import_statement() -> None:
    parsed = ast.parse((FOLDER / "harness.py").read_text())
    imported = {name.name for node in ast.walk(parsed) if isinstance(node, ast.Import) for name in node.names}
    assert "atheris" in imported
