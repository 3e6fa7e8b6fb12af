from typing import Any

import pytest

from dranode.api.errors import ClaimError
from dranode.api.quantity import Quantity
from dranode.driver.claims.grant import Config
from dranode.gpu.config import GPUConfig, GPUMode, Settings, Strategy, Visibility, parse_gpu_config, settings

PATH = "status.allocation.devices.config[0].opaque.parameters"


def parsed(**fields: Any) -> Config:
    document = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", **fields}
    return Config("FromClaim", parse_gpu_config(Config("FromClaim", document, PATH)), PATH)


def refusal(document: Any) -> str:
    with pytest.raises(ClaimError) as caught:
        parse_gpu_config(Config("FromClaim", document, PATH))
    return str(caught.value)


def test_the_default_is_compute_without_lists() -> None:
    assert settings(()) == Settings(visibility=Visibility.NONE, mode=GPUMode.COMPUTE, strategy=None, memory_limit=None)


def test_later_configurations_change_only_the_fields_that_they_have() -> None:
    result = settings(
        (
            parsed(visibility="vendor", mode="graphics", sharing={"strategy": "shared", "memoryLimit": "8Gi"}),
            parsed(mode="compute"),
            parsed(sharing={"memoryLimit": "4Gi"}),
        )
    )
    assert (result.visibility, result.mode, result.strategy) == (Visibility.VENDOR, GPUMode.COMPUTE, Strategy.SHARED)
    assert str(result.memory_limit) == "4Gi"


def test_null_is_the_same_as_a_missing_field() -> None:
    assert settings((parsed(mode="vfio"), parsed(mode=None, sharing=None))).mode is GPUMode.VFIO


def test_an_empty_configuration_is_valid() -> None:
    assert parsed().parameters == GPUConfig(api_version="dra.gpu/v1alpha1", kind="GPUConfig")


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", "modes": "compute"}, "modes"),
        ({"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", "mode": "Compute"}, "mode: "),
        ({"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", "sharing": {"limit": "1Gi"}}, "sharing: "),
        ({"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", "sharing": "shared"}, "sharing: "),
        ({"apiVersion": "dra.gpu/v1alpha1", "kind": "GpuConfig"}, "kind: "),
        ({"apiVersion": "dra.gpu/v1", "kind": "GPUConfig"}, "apiVersion: "),
        ({"kind": "GPUConfig"}, "apiVersion"),
        ({"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", "sharing": {"memoryLimit": "lots"}}, "memoryLimit: "),
        ([], "expected"),
        (None, "expected"),
        ("GPUConfig", "expected"),
    ],
)
def test_an_invalid_gpu_config_is_refused_with_the_path(document: Any, place: str) -> None:
    message = refusal(document)
    assert message.startswith(f"{PATH} is not a valid GPUConfig of dra.gpu/v1alpha1: ")
    assert place in message


@pytest.mark.parametrize("limit", ["0", "-1Gi", "500m", "1M", "1048575"])
def test_a_memory_limit_that_is_fractional_or_rounds_to_zero_is_refused(limit: str) -> None:
    document = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", "sharing": {"memoryLimit": limit}}
    assert f'sharing.memoryLimit is "{limit}"' in refusal(document)


def test_the_smallest_memory_limit_is_one_unit() -> None:
    assert settings((parsed(sharing={"memoryLimit": "1Mi"}),)).memory_limit == Quantity("1Mi")
