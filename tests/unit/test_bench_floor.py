"""The parts of the benchmarks' floor do what they are measured for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.bench.prepare import commit, echo, rename


@pytest.mark.parametrize("part", [echo, lambda folder: commit(folder, 3)], ids=["echo", "commit"])
def test_a_part_of_the_floor_can_be_called_again_and_again(
    part: Callable[[Path], AbstractContextManager[Callable[[int], None]]], tmp_path: Path
) -> None:
    with part(tmp_path) as once:
        once(1)
        once(2)


def test_the_renamed_file_has_what_was_written(tmp_path: Path) -> None:
    rename(tmp_path)(7)
    assert [each.name for each in tmp_path.iterdir()] == ["7.json"]
    assert (tmp_path / "7.json").stat().st_size == 200
