"""Opaque parameters of claims, as a driver of this package decodes them."""

import contextlib
import json

from msgspec.structs import replace

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.api.errors import DranodeError
    from dranode.cpu.config import merge, parse_cpu_config
    from dranode.driver.claims.grant import Config
    from dranode.gpu.config import parse_gpu_config, settings


def test_one_input(data: bytes) -> None:
    """Both drivers' parameters, parsed and merged."""
    try:
        parameters = json.loads(data)
    except (ValueError, RecursionError):
        return
    config = Config("FromClaim", parameters, "config[0]")
    with contextlib.suppress(DranodeError):
        merge([replace(config, parameters=parse_cpu_config(config))])
    with contextlib.suppress(DranodeError):
        settings([replace(config, parameters=parse_gpu_config(config))])


if __name__ == "__main__":
    fuzz(test_one_input)
