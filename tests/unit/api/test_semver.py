import pytest

from dranode.api.semver import is_semver, semver_from_numbers, semver_from_tolerant, version_key


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
    assert semver_from_numbers(driver) == version
    assert is_semver(version)


@pytest.mark.parametrize(
    "driver", ["", "unknown", "6.8.5-dkms", "1..2", ".1", "1.2.", "\u0661.\u0662.\u0663", "1." * 40 + "1"]
)
def test_text_without_dotted_numbers_is_not_a_version(driver: str) -> None:
    assert semver_from_numbers(driver) is None


@pytest.mark.parametrize("version", ["1.2.3", "0.0.0-rc.1+x"])
def test_a_strict_version_is_valid(version: str) -> None:
    assert is_semver(version)


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "01.2.3", "1.2.3-01", ""])
def test_any_other_text_is_not_a_strict_version(version: str) -> None:
    assert not is_semver(version)


def test_versions_are_ordered_by_numbers_and_then_by_prerelease() -> None:
    versions = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0", "1.0.10"]
    assert sorted({*versions}, key=version_key) == versions
    assert version_key("1.0.0+a") == version_key("1.0.0+b")


@pytest.mark.parametrize(("text", "version"), [("v1.2", "1.2.0"), ("01.02.3", "1.2.3"), ("1", "1.0.0")])
def test_a_loosely_written_version_is_completed(text: str, version: str) -> None:
    assert semver_from_tolerant(text) == version


def test_a_short_version_has_no_prerelease() -> None:
    with pytest.raises(ValueError, match="cannot have a prerelease"):
        semver_from_tolerant("1.2-rc")
