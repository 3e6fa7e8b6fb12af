"""A few seconds of what `make load` does for ten minutes, and that its figures can be wrong."""

from __future__ import annotations

from dataclasses import replace

from tests.load.run import Figures, grown, run

STEADY = Figures(descriptors=30, threads=12, files=100, resident=40_000)


def test_a_few_seconds_of_load_have_no_error() -> None:
    # Memory is still growing into what it needs.
    wrong = [sentence for sentence in run(claims=40, callers=8, seconds=2) if "looks were taken" not in sentence]
    assert wrong == []


def test_what_grows_is_named() -> None:
    looks = [replace(STEADY, descriptors=30 + number) for number in range(16)]
    assert grown(looks) == ["descriptors grew by 22.5 %, from 36 to 44"]


def test_what_is_steady_or_becomes_less_is_not() -> None:
    assert grown([STEADY] * 16) == []
    assert grown([replace(STEADY, resident=40_000 - number) for number in range(16)]) == []
    assert grown([replace(STEADY, threads=1 + number) for number in range(3)]) == ["only 3 looks were taken"]
