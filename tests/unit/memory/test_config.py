from typing import Any

import pytest

from dranode.api.errors import ClaimError
from dranode.driver.claims.grant import Config
from dranode.memory.config import MemoryPolicy, MemorySettings, MemorySharing, memory_settings, parse_memory_config

PATH = "status.allocation.devices.config[0].opaque.parameters"
OWN = {"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig"}


def parsed(**fields: Any) -> Config:
    return Config("FromClaim", parse_memory_config(Config("FromClaim", {**OWN, **fields}, PATH)), PATH)


def refusal(document: Any) -> str:
    with pytest.raises(ClaimError) as caught:
        parse_memory_config(Config("FromClaim", document, PATH))
    return str(caught.value)


def test_the_default_is_bound_memory_for_one_container_without_a_mount() -> None:
    assert memory_settings(()) == memory_settings((parsed(),)) == MemorySettings()
    assert memory_settings(()).policy is MemoryPolicy.BIND


def test_later_configurations_change_only_the_fields_that_they_have() -> None:
    result = memory_settings(
        (parsed(policy="interleave", sharing="pod", mount="/dev/hugepages"), parsed(policy="preferred"))
    )
    assert (result.policy, result.sharing, result.mount) == (
        MemoryPolicy.PREFERRED,
        MemorySharing.POD,
        "/dev/hugepages",
    )


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "apiVersion"),
        ({**OWN, "apiVersion": "dra.memory/v1"}, "apiVersion"),
        ({**OWN, "kind": "CPUConfig"}, "kind"),
        ({**OWN, "polcy": "bind"}, "polcy"),
        ({**OWN, "policy": "local"}, "policy"),
        ({**OWN, "sharing": "all"}, "sharing"),
        ("bind", "is not a valid MemoryConfig"),
        (None, "is not a valid MemoryConfig"),
        *(
            ({**OWN, "mount": path}, "no clean absolute path")
            for path in (
                "",
                "/",
                "huge",
                "/dev/../etc",
                "/dev/./x",
                "/dev//x",
                "/x/",
                "/a\0b",
                "/" + "a" * 4096,
                "/proc/x",
            )
        ),
    ],
)
def test_an_invalid_configuration_is_refused_with_its_path(document: Any, sentence: str) -> None:
    text = refusal(document)
    assert text.startswith(PATH)
    assert sentence in text
