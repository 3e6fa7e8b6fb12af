"""Runs a few seconds of `make load`, and shows that its check of the figures can fail."""

from dataclasses import replace

from tests.load.run import Figures, grown, run

STEADY = Figures(descriptors=30, threads=12, files=100, resident=40_000)


def test_a_second_of_load_has_no_error() -> None:
    # Memory is still growing to its working set.
    wrong = [sentence for sentence in run(claims=40, callers=8, seconds=1) if "looks were taken" not in sentence]
    assert wrong == []


def test_a_growing_figure_is_named() -> None:
    looks = [replace(STEADY, descriptors=30 + number) for number in range(16)]
    assert grown(looks) == ["descriptors grew by 22.5 %, from 36 to 44"]


def test_a_steady_or_shrinking_figure_is_not_named() -> None:
    assert grown([STEADY] * 16) == []
    assert grown([replace(STEADY, resident=40_000 - number) for number in range(16)]) == []
    assert grown([replace(STEADY, threads=1 + number) for number in range(3)]) == ["only 3 looks were taken"]
