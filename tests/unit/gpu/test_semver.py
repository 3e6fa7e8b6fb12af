import pytest

from dranode.gpu.semver import semver


@pytest.mark.parametrize(
    ("driver", "version"),
    [
        ("550.54.15", "550.54.15"),
        ("580.159.04", "580.159.4"),
        ("535.161", "535.161.0"),
        ("6", "6.0.0"),
        ("6.19.14.31400000", "6.19.14+31400000"),
        ("2025.01.0", "2025.1.0"),
    ],
)
def test_a_driver_version_becomes_strict_semver(driver: str, version: str) -> None:
    assert semver(driver) == version


@pytest.mark.parametrize(
    "driver", ["", "unknown", "6.8.5-dkms", "1..2", ".1", "1.2.", "\u0661.\u0662.\u0663", "1." * 40 + "1"]
)
def test_what_is_no_row_of_numbers_is_no_version(driver: str) -> None:
    assert semver(driver) is None
